/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_FAMILY_H
#define DK_FAMILY_H

#include "attention-worker/backend/backend.h"
#include "attention-worker/router.h"
#include "attention-worker/trace.h"
#include "model/checkpoint.h"
#include "model/config.h"

/* What a layer of each model family is. The routed feed-forward itself is elsewhere (the ducks): a layer stops when the
 * rows for it are ready and goes on when its output is there. */

struct dk_family_model; /* weights in the back end, caches */

struct dk_family_load {
    const struct dk_backend_ops *ops;
    struct dk_backend *backend; /* must not hold another model */
    const struct dk_model_config *config;
    struct dk_checkpoint *checkpoint;
    uint32_t page_tokens, pages; /* of keys and values or latents */
    uint32_t state_slots;        /* of recurrent states */
    bool full_attention;         /* models with an indexer: attend to every position instead of the selected ones */
};

/* What a model takes from the back end, beside weights. */
struct dk_family_needs {
    uint32_t scratch_floats_per_row;
    uint64_t page_bytes;  /* of page_tokens positions in all layers; 0: no layer has pages */
    uint64_t state_bytes; /* of one slot in all layers; 0: no layer has states */
    uint64_t fixed_bytes; /* scratch, scores and picks, whatever the pages and slots */
};

struct dk_family_batch {
    uint32_t rows;       /* sum of the spans' counts; at most the back end's rows_max */
    const uint32_t *ids; /* [rows] tokens, below vocab */
    const struct dk_span *spans;
    uint32_t span_count;
};

struct dk_family_ops {
    /* Loads everything that is not sent to the ducks, and checks that every tensor the ducks need is there with its
     * shape (and so marks it used). -ENOENT, -EINVAL: err names the tensor; -ENOMEM; -ENOSPC: the back end was opened
     * with less scratch than dk_family_needs says. */
    int (*load)(const struct dk_family_load *l, struct dk_family_model **out, struct dk_err *err);
    void (*close)(struct dk_family_model *m); /* NULL is fine */
    /* A step: begin, then for each layer attend, the routed feed-forward outside and meanwhile beside it, finish; then
     * head. The batch's arrays must live until head. */
    void (*begin)(struct dk_family_model *m, const struct dk_family_batch *batch);
    /* Attention and its residual; then the feed-forward's input after the norm: ffn_in [rows][hidden] and, in MoE
     * layers, router_logits [rows][experts], both on the host. */
    void (*attend)(struct dk_family_model *m, uint32_t layer, float *ffn_in, float *router_logits);
    /* How the rows of a MoE layer choose their experts; NULL in dense layers. */
    const struct dk_router *(*router)(const struct dk_family_model *m, uint32_t layer);
    /* The layer's work that needs no answer of the ducks, the shared expert, in pieces that are short enough for frames
     * to move in between: one matrix for at most 32 rows. Does the next piece, if there is one; true: more are left. */
    bool (*meanwhile)(struct dk_family_model *m, uint32_t layer);
    /* ffn_out [rows][hidden] on the host: the routed experts, or the dense feed-forward. Pieces that meanwhile was not
     * asked for are done first. */
    void (*finish)(struct dk_family_model *m, uint32_t layer, const float *ffn_out);
    /* Final norm and head for chosen rows of the step: logits [count][vocab] on the host. */
    void (*head)(struct dk_family_model *m, const uint32_t *rows, uint32_t count, float *logits);

    /* The stores of a sequence, for dk_cache: between steps. */
    void (*copy_page)(struct dk_family_model *m, uint32_t from, uint32_t to);
    void (*copy_state)(struct dk_family_model *m, uint32_t from, uint32_t to);
    /* From the next begin on, the values inside the layers that t wants go to t (not copied); NULL: no longer. */
    void (*trace)(struct dk_family_model *m, const struct dk_trace *t);
};

/* NULL: not implemented. */
const struct dk_family_ops *dk_family_find(enum dk_family family);
/* l: as load will get it; its back end, checkpoint, pages and slots are not read. b: as its ops' open will get it; its
 * scratch_floats_per_row is not read. */
void dk_family_needs(const struct dk_family_load *l, const struct dk_backend_config *b, struct dk_family_needs *out);

extern const struct dk_family_ops dk_family_gqa, dk_family_qwen3, dk_family_qwen3_5, dk_family_deepseek;

#endif
