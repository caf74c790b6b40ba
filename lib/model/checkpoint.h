/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_MODEL_CHECKPOINT_H
#define DK_MODEL_CHECKPOINT_H

#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/error.h"
#include "model/config.h"

/* Weight files of a Hugging Face folder: model.safetensors, or the shards that model.safetensors.index.json names.
 * Memory-mapped; every length and offset of a header is checked against the file before use (see
 * https://github.com/huggingface/safetensors, "Format"). One thread opens, asks and closes; any may read the data. */

struct dk_tensor {
    const char *name;   /* owned by the checkpoint */
    enum dk_dtype type; /* DK_DTYPE_COUNT: a type or rank that nothing here uses; dk_checkpoint_get() refuses it */
    uint32_t rank;      /* at most 4; the first four dimensions of a tensor that has more */
    uint64_t shape[4];
    const uint8_t *data; /* little-endian, row-major; not aligned */
    uint64_t bytes;
    const char *file; /* for messages */
};

struct dk_checkpoint;

/* config.json must be there as well: it is part of the id. -ENOENT (names the missing file), -EINVAL: damaged header,
 * truncated file, overlapping or out-of-range tensors, gaps, a tensor in two files, the index names a tensor that its
 * file has not. A dtype that nothing here uses is only an error when that tensor is asked for. */
int dk_checkpoint_open(const char *dir, struct dk_checkpoint **out, struct dk_err *err);
void dk_checkpoint_close(struct dk_checkpoint *c);

/* Names below are those of a plain language model ("model.layers.0...", "lm_head.weight"). Where the file has no such
 * tensor, the places that multimodal releases use instead of "model." are tried: "model.language_model." and
 * "language_model.model." (and "language_model.lm_head."). */

/* Any tensor; NULL if there is none. Marks it used. */
const struct dk_tensor *dk_checkpoint_find(struct dk_checkpoint *c, const char *name);
/* A tensor that must be there with that shape (rank 1: cols 0), of type F32, F16, BF16 or, if f8_allowed, F8_E4M3.
 * -ENOENT, -EINVAL, -ENOTSUP (a type that nothing here uses, such as I64): err names tensor, file, what was found and
 * what was wanted. Marks it used. */
int dk_checkpoint_get(struct dk_checkpoint *c, const char *name, uint64_t rows, uint64_t cols, int f8_allowed,
                      const struct dk_tensor **out, struct dk_err *err);
/* The same for any shape of rank 1 to 3. */
int dk_checkpoint_get_shape(struct dk_checkpoint *c, const char *name, uint32_t rank, const uint64_t *shape,
                            int f8_allowed, const struct dk_tensor **out, struct dk_err *err);
/* A weight [rows][cols] with its scales: if it is F8_E4M3, "<name>_scale_inv" [ceil(rows/128)][ceil(cols/128)] must be
 * there (F32 or BF16), otherwise *scales is NULL. Errors as above; then *weight and *scales are NULL. */
int dk_checkpoint_get_weight(struct dk_checkpoint *c, const char *name, uint64_t rows, uint64_t cols,
                             const struct dk_tensor **weight, const struct dk_tensor **scales, struct dk_err *err);

/* Calls fn for each tensor that was never asked for (a warning to log). */
void dk_checkpoint_unused(const struct dk_checkpoint *c, void (*fn)(void *ctx, const struct dk_tensor *t), void *ctx);
uint32_t dk_checkpoint_tensor_count(const struct dk_checkpoint *c);
const struct dk_tensor *dk_checkpoint_tensor(const struct dk_checkpoint *c, uint32_t i); /* by name, rising */
/* Hash of config.json and of all headers and file sizes: names this model in every data message. Not 0. */
uint64_t dk_checkpoint_id(const struct dk_checkpoint *c);

/* Parses one file's bytes without a folder: the fuzzer's way in. Same errors. data must outlive the checkpoint. */
int dk_checkpoint_from_memory(const uint8_t *data, size_t bytes, const char *where, struct dk_checkpoint **out,
                              struct dk_err *err);

#endif
