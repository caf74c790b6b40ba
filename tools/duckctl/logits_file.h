/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCKCTL_LOGITS_FILE_H
#define DUCKCTL_LOGITS_FILE_H

#include <stdint.h>

#include "duckctl/output_file.h"

/* Writes logits as they come into a safetensors file with one tensor "logits" [rows][vocab] F32. The header is made for
 * rows_wanted rows; one that is not finished does not take the place of an older file. */
struct logits_file {
    struct output_file out;
    uint64_t rows_wanted, rows;
    uint32_t vocab; /* 0 until the first rows came */
};

int logits_file_open(struct logits_file *f, const char *path, uint64_t rows_wanted, struct dk_err *err);
int logits_file_append(struct logits_file *f, const uint8_t *data, size_t bytes, uint32_t vocab, struct dk_err *err);
/* -EIO: rows are missing; or what writing gave. Once it has returned 0, hardly anything is left that can fail. Fine on
 * a zeroed one. */
int logits_file_flush(struct logits_file *f, struct dk_err *err);
/* -EIO: rows are missing; or what writing gave: there is then no new file, as when it is not `complete`. Fine on a
 * zeroed one. */
int logits_file_finish(struct logits_file *f, bool complete, struct dk_err *err);

#endif
