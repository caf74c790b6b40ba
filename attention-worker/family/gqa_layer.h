/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_GQA_LAYER_H
#define DK_GQA_LAYER_H

#include "attention-worker/family/piece.h"

/* Grouped-query attention (arXiv 2305.13245) with rotary positions (arXiv 2104.09864), in the steps that families put
 * together. Input and output are c->h [rows][hidden]. D is head_dim. */

struct dk_gqa_layer {
    uint32_t ordinal;                           /* in the cache */
    struct dk_weight *q, *k, *v, *o;            /* q: [2 * heads * D] rows with an output gate */
    struct dk_weight *q_bias, *k_bias, *v_bias; /* NULL: the family has none */
    struct dk_weight *q_norm, *k_norm;          /* [D]; NULL: the family has none */
};

struct dk_gqa {
    struct dk_gqa_layer *layers; /* by layer of the model; those of other mixers stay empty */
    uint32_t count;              /* loaded */
    struct dk_kv *kv;
    struct dk_rows q_gate;  /* [rows][heads][2 * D] query and gate of each head, if there are gates */
    struct dk_rows q, gate; /* [rows][heads * D] */
    struct dk_rows k, v;    /* [rows][kv_heads * D] */
    struct dk_rows y;       /* [rows][heads * D] what attention gives */
};

int dk_gqa_take(struct dk_piece_context *c, struct dk_gqa *g, struct dk_err *err);
struct dk_kv_shape dk_gqa_shape(const struct dk_family_load *l); /* 0 layers: the model has no such one */
int dk_gqa_open(const struct dk_piece_context *c, const struct dk_family_load *l, struct dk_gqa *g, struct dk_err *err);
int dk_gqa_load(struct dk_piece_context *c, uint32_t layer, struct dk_gqa *g, struct dk_err *err);
void dk_gqa_close(const struct dk_piece_context *c, struct dk_gqa *g); /* fine on a zeroed one */

/* q, k, v = h W^T, plus biases if there are any. With an output gate: also gate; q_proj's rows are [query, gate] for
 * each head. */
void dk_gqa_project(const struct dk_piece_context *c, uint32_t layer, const struct dk_gqa *g);
/* q, k = RMSNorm over the D numbers of each head. */
void dk_gqa_norm_heads(const struct dk_piece_context *c, uint32_t layer, const struct dk_gqa *g);
/* Rotates the first rope.dims numbers of each head of q and k, on halves; the rest passes. */
void dk_gqa_rotate(const struct dk_piece_context *c, const struct dk_gqa *g);
/* y = causal attention with softmax(q k / sqrt(D)); query head h uses key head h / (heads / kv_heads). */
void dk_gqa_attend(const struct dk_piece_context *c, uint32_t layer, const struct dk_gqa *g);
/* y *= sigmoid(gate) */
void dk_gqa_gate(const struct dk_piece_context *c, const struct dk_gqa *g);
/* h = y W_o^T */
void dk_gqa_output(const struct dk_piece_context *c, uint32_t layer, const struct dk_gqa *g);

#endif
