/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_MODEL_FILE_READ_H
#define DK_MODEL_FILE_READ_H

#include <stddef.h>

#include "base/error.h"

/* Reads the whole of dir/name into *out, which the caller frees; a NUL stands behind the bytes and is not counted.
 * -ENOENT, -EISDIR, -EFBIG (more than bytes_max), -EIO or the errno of open and read; err names the file. */
int dk_file_read(const char *dir, const char *name, size_t bytes_max, char **out, size_t *bytes, struct dk_err *err);

#endif
