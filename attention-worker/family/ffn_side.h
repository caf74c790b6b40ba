/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_FFN_SIDE_H
#define DK_FFN_SIDE_H

#include "attention-worker/family/piece.h"

/* The worker's side of a feed-forward whose experts, or dense matrices, are on the ducks: the norm before it, the
 * router's logits, the shared expert, and the sum. */

struct dk_ffn_side_layer {
    struct dk_weight *norm;
    struct dk_weight *router_logits; /* [experts][hidden]; NULL in dense layers, as all below */
    struct dk_router router;
    float *bias;                        /* [experts] e_score_correction_bias; NULL: the router has none */
    struct dk_weight *gate, *up, *down; /* the shared expert's */
    struct dk_weight *shared_gate;      /* [1][hidden]; NULL: the shared expert is added as it is */
};

struct dk_ffn_side {
    struct dk_ffn_side_layer *layers; /* by layer of the model */
    struct dk_rows router_logits;     /* [rows][experts] */
    struct dk_rows gate, up;          /* [rows][shared_intermediate] */
    struct dk_rows shared;            /* [rows][hidden] the shared expert's output */
    struct dk_rows shared_gate;       /* [rows][1] */
    uint32_t shared_next;             /* piece of the shared expert that comes next in this layer */
};

int dk_ffn_side_take(struct dk_piece_context *c, struct dk_ffn_side *f, struct dk_err *err);
int dk_ffn_side_open(const struct dk_piece_context *c, struct dk_ffn_side *f, struct dk_err *err);
/* Also checks the tensors of the ducks. */
int dk_ffn_side_load(struct dk_piece_context *c, uint32_t layer, struct dk_ffn_side *f, struct dk_err *err);
void dk_ffn_side_close(const struct dk_piece_context *c, struct dk_ffn_side *f); /* fine on a zeroed one */

/* h = norm(x), copied to the host: in [rows][hidden]; in MoE layers also router_logits [rows][experts]. */
void dk_ffn_side_input(const struct dk_piece_context *c, uint32_t layer, struct dk_ffn_side *f, float *in,
                       float *router_logits);
/* shared = W_down (silu(W_gate h) * (W_up h)), perhaps times sigmoid(w h): the next piece of it, if there is one. True:
 * there are more. */
bool dk_ffn_side_shared(const struct dk_piece_context *c, uint32_t layer, struct dk_ffn_side *f);
/* x += out (+ shared); out [rows][hidden] from the ducks, on the host. Overwrites h. */
void dk_ffn_side_output(const struct dk_piece_context *c, uint32_t layer, const struct dk_ffn_side *f,
                        const float *out);

#endif
