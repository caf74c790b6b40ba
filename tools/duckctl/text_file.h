/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCKCTL_TEXT_FILE_H
#define DUCKCTL_TEXT_FILE_H

#include <stddef.h>

#include "base/error.h"

/* The whole of a file, or of standard input for "-", as malloc'ed bytes with a zero byte behind them; to be freed even
 * after an error. option ("--file") is named in errors. -E2BIG: more than 64 MiB; -ENOMEM; or what opening and reading
 * gave. */
int text_file_read(const char *option, const char *path, char **text, size_t *bytes, struct dk_err *err);

#endif
