/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCKCTL_OUTPUT_FILE_H
#define DUCKCTL_OUTPUT_FILE_H

#include <stdbool.h>
#include <stdio.h>

#include "base/error.h"

/* A file that is there as a whole or not at all. What is written goes into a new file "PATH.XXXXXX", six random
 * characters, in the same folder, which takes the place of PATH at the end; so an older file stays when anything fails.
 * The new one gets the older one's mode, and its owner and group where that is allowed. A symbolic link stays, also one
 * whose target is still missing: the target is written. A device or a pipe is written as it is. */
struct output_file {
    const char *option, *path; /* the caller's; named in errors */
    FILE *file;                /* NULL: not open */
    char *target, *temporary;  /* owned; NULL for a device or a pipe */
};

/* What opening gave, -ENOMEM; f is then not open. option: "--logits-out". One thread at a time: looks at the umask. */
int output_file_open(struct output_file *f, const char *option, const char *path, struct dk_err *err);
/* Both are open and write the same regular file. */
bool output_file_same(const struct output_file *a, const struct output_file *b);
/* Sets err to what errno says of writing; -EIO where it is 0. */
int output_file_error(const struct output_file *f, struct dk_err *err);
/* complete: puts the file into its place; otherwise, or where that fails, removes what was written. Fine on one that is
 * not open. */
int output_file_finish(struct output_file *f, bool complete, struct dk_err *err);

#endif
