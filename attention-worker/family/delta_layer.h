/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_DELTA_LAYER_H
#define DK_DELTA_LAYER_H

#include "attention-worker/family/piece.h"

/* Gated DeltaNet (arXiv 2412.06464) as Qwen3.5 has it, in steps. Input and output are c->h [rows][hidden]. The
 * recurrence itself is the back end's delta() (backend.h has its formulas). */

struct dk_delta_layer {
    uint32_t ordinal; /* in the states */
    struct dk_weight *qkv, *z, *b, *a, *o;
    struct dk_weight *norm; /* [value_dim], plain w */
    struct dk_delta_weights recurrence;
    struct dk_weight *conv, *a_log, *dt_bias; /* what recurrence points at */
};

struct dk_delta {
    struct dk_delta_layer *layers; /* by layer of the model; those of other mixers stay empty */
    uint32_t count;                /* loaded */
    struct dk_states *states;
    struct dk_rows qkv;  /* [rows][channels] q | k | v */
    struct dk_rows z, y; /* [rows][value_heads * value_dim] */
    struct dk_rows b, a; /* [rows][value_heads] */
};

int dk_delta_take(struct dk_piece_context *c, struct dk_delta *d, struct dk_err *err);
struct dk_states_shape dk_delta_shape(const struct dk_family_load *l); /* 0 layers: the model has no such one */
int dk_delta_open(const struct dk_piece_context *c, const struct dk_family_load *l, struct dk_delta *d,
                  struct dk_err *err);
int dk_delta_load(struct dk_piece_context *c, uint32_t layer, struct dk_delta *d, struct dk_err *err);
void dk_delta_close(const struct dk_piece_context *c, struct dk_delta *d); /* fine on a zeroed one */

/* q | k | v, the output gate z, and the numbers b and a of each value head, from h. */
void dk_delta_project(const struct dk_piece_context *c, uint32_t layer, const struct dk_delta *d);
/* y = convolution and gated delta rule over the positions. */
void dk_delta_recur(const struct dk_piece_context *c, uint32_t layer, const struct dk_delta *d);
/* y = RMSNorm(y) * w * silu(z), over the value_dim numbers of each head. */
void dk_delta_gate(const struct dk_piece_context *c, uint32_t layer, const struct dk_delta *d);
/* h = y W_o^T */
void dk_delta_output(const struct dk_piece_context *c, uint32_t layer, const struct dk_delta *d);

#endif
