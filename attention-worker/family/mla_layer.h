/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_MLA_LAYER_H
#define DK_MLA_LAYER_H

#include "attention-worker/family/indexer.h"

/* Multi-head latent attention (arXiv 2405.04434, section 2.1; 2412.19437, 2.1.1), in steps. Input and output are c->h
 * [rows][hidden]. Absorbed: what the cache holds of a position is its latent (after the norm) and the one rotated key
 * part of all heads; kv_b_proj [heads][nope | value][kv_rank] is never applied to it. Its key part W_k is applied to
 * the query instead, its value part W_v to what attention gives:
 *   q_nope . (W_k latent)  =  (W_k^T q_nope) . latent
 *   sum of p W_v latent  =  W_v (sum of p latent) */

struct dk_mla_layer {
    uint32_t ordinal; /* in the cache */
    struct dk_weight *q_a, *q_a_norm, *q_b;
    struct dk_weight *q; /* instead of these three, without a q_rank */
    struct dk_weight *kv_a, *kv_norm, *o;
    struct dk_weight *k_up; /* W_k^T of each head */
    struct dk_weight *v_up; /* W_v of each head */
};

struct dk_mla {
    bool full_attention;         /* the indexer is switched off; set before dk_mla_take */
    struct dk_mla_layer *layers; /* by layer of the model */
    uint32_t count;              /* loaded */
    struct dk_latents *cache;
    struct dk_indexer indexer;
    float scale;                 /* of the scores */
    struct dk_rows q_a;          /* [rows][q_rank] c_q: the query's latent after its norm */
    struct dk_rows q;            /* [rows][heads][nope + rope] */
    struct dk_rows q_nope, q_pe; /* its parts, [rows][heads * nope] and [rows][heads * rope] */
    struct dk_rows kv;           /* [rows][kv_rank + rope] */
    struct dk_rows latent, k_pe; /* its parts */
    struct dk_rows q_latent, y;  /* [rows][heads * kv_rank] */
    struct dk_rows values;       /* [rows][heads * value_dim] */
};

int dk_mla_take(struct dk_piece_context *c, struct dk_mla *m, struct dk_err *err);
struct dk_latents_shape dk_mla_shape(const struct dk_family_load *l); /* 0 layers: the model has no such one */
bool dk_mla_indexed(const struct dk_family_load *l); /* whether it has an indexer that is not switched off */
int dk_mla_open(const struct dk_piece_context *c, const struct dk_family_load *l, struct dk_mla *m, struct dk_err *err);
int dk_mla_load(struct dk_piece_context *c, uint32_t layer, struct dk_mla *m, struct dk_err *err);
void dk_mla_close(const struct dk_piece_context *c, struct dk_mla *m); /* fine on a zeroed one */

/* c_q = RMSNorm(W_a h), q = W_b c_q, or q = W h without a q_rank; then q_nope and q_pe, the latter rotated on
 * neighbours. */
void dk_mla_queries(const struct dk_piece_context *c, uint32_t layer, const struct dk_mla *m);
/* latent and k_pe = W_a h; RMSNorm of the latent, k_pe rotated on neighbours. */
void dk_mla_latents(const struct dk_piece_context *c, uint32_t layer, const struct dk_mla *m);
/* The indexer's choice of positions, if the model has one and it is on. Between dk_mla_queries and dk_mla_attend. */
void dk_mla_select(const struct dk_piece_context *c, uint32_t layer, const struct dk_mla *m);
/* y = attention over latents with softmax(q k * scale), scale = (nope + rope)^-0.5 * YaRN's factor. */
void dk_mla_attend(const struct dk_piece_context *c, uint32_t layer, const struct dk_mla *m);
/* h = W_o W_v y */
void dk_mla_output(const struct dk_piece_context *c, uint32_t layer, const struct dk_mla *m);

#endif
