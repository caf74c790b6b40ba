/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_MODEL_SAFETENSORS_H
#define DK_MODEL_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "model/checkpoint.h"

/* The header of one safetensors file. */

struct dk_st_entry {
    struct dk_tensor tensor; /* type DK_DTYPE_COUNT: of a type or rank that nothing here uses */
    char dtype[16];          /* as the file spells it */
    uint32_t rank;           /* as in the file: tensor.rank is at most 4 */
    bool used;
};

struct dk_st_file {
    struct dk_st_entry *entries; /* in the order of their data */
    uint32_t count;
    char *names;         /* one block, which the entries point into */
    size_t header_bytes; /* the 8 bytes of the length and the JSON text */
};

/* Reads the header of a file of `bytes` bytes at data, checks everything in it against that size, and fills in *out,
 * whose tensors point into data. `where` names the file in errors and is kept as each tensor's file. Nothing is kept on
 * failure. */
int dk_st_parse(const uint8_t *data, size_t bytes, const char *where, struct dk_st_file *out, struct dk_err *err);
void dk_st_fini(struct dk_st_file *f);

#endif
