/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_BASE_ERROR_H
#define DK_BASE_ERROR_H

#include <errno.h>

/* What went wrong, for a person: names the file or field, what was wrong with it, and the way out. Functions
 * return 0 or a negative errno; those whose failures a user must understand also fill in one of these. A zeroed
 * one is "no error". The errno decides the code on the wire (wire/status.h). */
struct dk_err {
    int rc; /* negative errno, or 0 */
    char text[500];
};

/* Sets *err (which may be NULL) and returns rc, which must be negative. Long texts are cut. */
int dk_err_set(struct dk_err *err, int rc, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Puts "format: " before the text that is there: adds the place on the way up. Returns err->rc. */
int dk_err_prefix(struct dk_err *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
