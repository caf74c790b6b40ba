/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_GQA_LAYER_H
#define DK_GQA_LAYER_H

#include "attention-worker/family/family.h"

/* Pieces that families with grouped-query attention are made of: embedding and head, one layer's attention, and the
 * check of the feed-forward's tensors. Each piece loads its weights, runs, and frees them. */

/* The place of everything here: what a load reads from and a piece runs on. */
struct dk_piece_context {
    const struct dk_backend_ops *ops;
    struct dk_backend *backend;
    const struct dk_model_config *config;
    struct dk_checkpoint *checkpoint; /* while loading */
};

/* Loads one weight by name. cols 0: a vector of `rows`. */
int dk_piece_load(const struct dk_piece_context *c, enum dk_weight_use use, const char *name, uint32_t rows,
                  uint32_t cols, struct dk_weight **out, struct dk_err *err);

/* Embedding, final norm and head. */
struct dk_token_ends {
    struct dk_weight *table, *norm, *head;
    struct dk_rows chosen; /* [rows_max][hidden] */
};

int dk_token_ends_load(const struct dk_piece_context *c, struct dk_token_ends *e, struct dk_err *err);
void dk_token_ends_free(const struct dk_piece_context *c, struct dk_token_ends *e);
/* x [rows][hidden], the residual stream; logits [count][vocab] on the host. */
void dk_token_ends_head(const struct dk_piece_context *c, const struct dk_token_ends *e, struct dk_rows x,
                        const uint32_t *rows, uint32_t count, float *logits);

/* One layer's attention with the norm before it. */
struct dk_gqa_layer {
    struct dk_weight *norm, *q, *k, *v, *o;
    struct dk_weight *q_norm, *k_norm; /* NULL: the family has none */
};

/* What all layers of a step share. */
struct dk_gqa_step {
    struct dk_rows x;         /* [rows][hidden] the residual stream */
    struct dk_rows h;         /* [rows][hidden] after a norm; then the mixer's or the feed-forward's output */
    struct dk_rows q, mix;    /* [rows][heads * head_dim] */
    struct dk_rows k, v;      /* [rows][kv_heads * head_dim] */
    struct dk_rows angles;    /* [rows][head_dim] */
    float *inverse_frequency; /* [head_dim / 2] */
    struct dk_kv *kv;
    struct dk_family_batch batch;
};

int dk_gqa_step_open(const struct dk_piece_context *c, uint32_t page_tokens, uint32_t pages, struct dk_gqa_step *s,
                     struct dk_err *err);
void dk_gqa_step_close(const struct dk_piece_context *c, struct dk_gqa_step *s);
/* Embedding and rotation angles of a new step. */
void dk_gqa_step_begin(const struct dk_piece_context *c, const struct dk_token_ends *e, struct dk_gqa_step *s,
                       const struct dk_family_batch *batch);

int dk_gqa_layer_load(const struct dk_piece_context *c, uint32_t layer, bool qk_norm, struct dk_gqa_layer *l,
                      struct dk_err *err);
void dk_gqa_layer_free(const struct dk_piece_context *c, struct dk_gqa_layer *l);
/* x += attention(norm(x)) */
void dk_gqa_layer_run(const struct dk_piece_context *c, const struct dk_gqa_layer *l, uint32_t layer,
                      struct dk_gqa_step *s);
/* h = norm(x), and its copy on the host. */
void dk_gqa_ffn_input(const struct dk_piece_context *c, const struct dk_weight *norm, struct dk_gqa_step *s,
                      float *ffn_in);
/* x += ffn_out */
void dk_gqa_ffn_output(const struct dk_piece_context *c, struct dk_gqa_step *s, const float *ffn_out);

/* gate_proj, up_proj and down_proj under `prefix` are there with their shapes. */
int dk_ffn_tensors_check(const struct dk_piece_context *c, const char *prefix, uint32_t intermediate,
                         struct dk_err *err);

#endif
