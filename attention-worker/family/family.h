/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_FAMILY_H
#define DK_FAMILY_H

#include "attention-worker/backend/backend.h"
#include "model/checkpoint.h"
#include "model/config.h"

/* What a layer of each model family is. The feed-forward itself is elsewhere (the ducks): a layer stops when the rows
 * for it are ready and goes on when its output is there. */

struct dk_family_model; /* weights in the back end, caches */

struct dk_family_batch {
    uint32_t rows;       /* sum of the spans' counts; at most the back end's rows_max */
    const uint32_t *ids; /* [rows] tokens, below vocab */
    const struct dk_span *spans;
    uint32_t span_count;
};

struct dk_family_ops {
    enum dk_family family;
    /* Loads everything that is not sent to the ducks, and checks that every tensor the ducks need is there with its
     * shape (and so marks it used). pages: of the KV cache. The back end must not hold another model. -ENOENT, -EINVAL:
     * err names the tensor; -ENOMEM; -ENOSPC: the back end was opened with less than dk_family_scratch. */
    int (*load)(const struct dk_backend_ops *ops, struct dk_backend *b, const struct dk_model_config *config,
                struct dk_checkpoint *ck, uint32_t page_tokens, uint32_t pages, struct dk_family_model **out,
                struct dk_err *err);
    void (*close)(struct dk_family_model *m); /* NULL is fine */
    /* A step: begin, then for each layer attend -> (feed-forward outside) -> finish, then head. The batch's arrays
     * must live until head. */
    void (*begin)(struct dk_family_model *m, const struct dk_family_batch *batch);
    /* Attention and its residual; then the feed-forward's input after the norm: ffn_in [rows][hidden] and, in MoE
     * layers, router_logits [rows][experts], both on the host. */
    void (*attend)(struct dk_family_model *m, uint32_t layer, float *ffn_in, float *router_logits);
    void (*finish)(struct dk_family_model *m, uint32_t layer, const float *ffn_out); /* [rows][hidden] on the host */
    /* Final norm and head for chosen rows of the step: logits [count][vocab] on the host. */
    void (*head)(struct dk_family_model *m, const uint32_t *rows, uint32_t count, float *logits);
};

/* NULL: not implemented. */
const struct dk_family_ops *dk_family_find(enum dk_family family);
/* Scratch floats per row that a back end needs for this model. */
uint32_t dk_family_scratch(const struct dk_model_config *c);

extern const struct dk_family_ops dk_family_gqa, dk_family_qwen3, dk_family_qwen3_moe;

#endif
