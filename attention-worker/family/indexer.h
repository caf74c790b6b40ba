/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_INDEXER_H
#define DK_INDEXER_H

#include "attention-worker/family/piece.h"

/* The lightning indexer of DeepSeek sparse attention (technical report of DeepSeek-V3.2): a small attention of its own
 * chooses the positions that a row attends to.
 *   q = W_q c_q [heads][dim],  k = LayerNorm(W_k h) [dim], one for all heads,  w = W_w h * heads^-0.5 * dim^-0.5
 *   score[t, s] = sum over heads of w[t] * relu(q[t] . k[s])
 * c_q is the query's latent after its norm, h the layer's input after input_layernorm. The first rope_dim numbers of q
 * and k are rotated on halves, unlike those of the attention itself. In f32, and without the Hadamard transform that
 * the released kernels apply before they round to FP8: it leaves the scores as they are. */

struct dk_indexer_layer {
    struct dk_weight *q, *k, *weights;
    struct dk_weight *norm, *norm_bias; /* [dim] */
};

struct dk_indexer {
    struct dk_indexer_layer *layers; /* by layer of the model */
    struct dk_picks *picks;          /* NULL: there is no indexer, or it is switched off */
    struct dk_rows q;                /* [rows][heads * dim] */
    struct dk_rows k;                /* [rows][dim] */
    struct dk_rows weights;          /* [rows][heads] */
};

int dk_indexer_take(struct dk_piece_context *c, struct dk_indexer *x, struct dk_err *err);
/* Not called when the indexer is switched off; then load only checks that its tensors are there. */
int dk_indexer_open(const struct dk_piece_context *c, struct dk_indexer *x, struct dk_err *err);
int dk_indexer_load(struct dk_piece_context *c, uint32_t layer, struct dk_indexer *x, struct dk_err *err);
void dk_indexer_close(const struct dk_piece_context *c, struct dk_indexer *x); /* fine on a zeroed one */

/* picks = each row's positions with the largest scores. Reads c->h; query [rows][q_rank] is c_q. Writes the index keys
 * into the cache. ordinal: the layer's in the cache. */
void dk_indexer_select(const struct dk_piece_context *c, uint32_t layer, const struct dk_indexer *x,
                       struct dk_rows query, struct dk_latents *cache, uint32_t ordinal);

#endif
