/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_PIECE_H
#define DK_PIECE_H

#include "attention-worker/family/family.h"

/* What the pieces of a model have in common: where their weights come from, what they run on, and the rows of a step
 * that pass through all of them. One thread, the back end's. */

struct dk_piece_context {
    const struct dk_backend_ops *ops;
    struct dk_backend *backend; /* NULL: nothing is taken, scratch is only counted */
    const struct dk_model_config *config;
    struct dk_checkpoint *checkpoint; /* while loading */
    struct dk_weight **weights;       /* everything that was loaded; dk_piece_close frees it */
    uint32_t weight_count, weight_capacity;
    uint32_t scratch_floats; /* sum of the widths of all rows taken */
    /* Of a step: */
    struct dk_family_batch batch;
    struct dk_rows x;      /* [rows][hidden] the residual stream */
    struct dk_rows h;      /* [rows][hidden] what a norm gives to a mixer or feed-forward; then that one's output */
    struct dk_rows angles; /* [rows][rope.dims] */
    const struct dk_trace *trace; /* NULL: none, or it does not want this layer */
};

#define DK_PIECE_NO_LAYER UINT32_MAX

struct dk_piece_rows {
    struct dk_rows *to;
    uint32_t width;
};
/* -ENOSPC: the back end was opened with less scratch. */
int dk_piece_take(struct dk_piece_context *c, const struct dk_piece_rows *rows, size_t count, struct dk_err *err);

struct dk_piece_weight {
    struct dk_weight **to; /* belongs to the context */
    const char *name;      /* behind "model.layers.N.", or the whole name with DK_PIECE_NO_LAYER */
    enum dk_weight_use use;
    uint64_t shape[3]; /* unused dimensions are 0 */
};
/* -ENOENT, -EINVAL, -ENOTSUP: err names the tensor (dk_checkpoint_get_weight); -ENOMEM. */
int dk_piece_load(struct dk_piece_context *c, uint32_t layer, const struct dk_piece_weight *weights, size_t count,
                  struct dk_err *err);
/* The same checks without loading: the tensors belong to a part that is switched off. */
int dk_piece_check(struct dk_piece_context *c, uint32_t layer, const struct dk_piece_weight *weights, size_t count,
                   struct dk_err *err);
/* Part of a matrix with one block of rows for each head. Errors as above. */
int dk_piece_load_heads(struct dk_piece_context *c, uint32_t layer, const struct dk_piece_weight *weight,
                        const struct dk_heads_part *part, struct dk_err *err);
void dk_piece_close(struct dk_piece_context *c);

/* Norms inside the residual stream multiply by w or 1 + w. */
static inline enum dk_weight_use dk_piece_norm_use(const struct dk_model_config *c)
{
    return c->norm_one_plus ? DK_WEIGHT_ONE_PLUS : DK_WEIGHT_VECTOR;
}

/* The rows from `first` on. Rows lie one after the other, whatever memory the address is of. */
static inline struct dk_rows dk_piece_rows_from(struct dk_rows x, uint32_t first)
{
    return (struct dk_rows){.data = x.data + (size_t)first * x.width, .width = x.width};
}

/* How many layers have that mixer. */
uint32_t dk_piece_layers(const struct dk_model_config *c, enum dk_mixer mixer);

/* Gives the traced rows of x to the trace, if there is one: [T][width], or, with heads > 0, [heads][T][width / heads].
 * layer: for the name, "layer.N.name"; or DK_PIECE_NO_LAYER. */
void dk_piece_trace(const struct dk_piece_context *c, uint32_t layer, const char *name, uint32_t heads,
                    struct dk_rows x);
/* Host data of any shape; only while there is a trace. */
void dk_piece_trace_put(const struct dk_piece_context *c, uint32_t layer, const char *name, enum dk_trace_type type,
                        uint32_t rank, const uint32_t *shape, const void *data);

#endif
