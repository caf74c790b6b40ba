/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_DECODER_H
#define DK_DECODER_H

#include "attention-worker/family/delta_layer.h"
#include "attention-worker/family/ffn_side.h"
#include "attention-worker/family/gqa_layer.h"
#include "attention-worker/family/mla_layer.h"
#include "attention-worker/family/token_ends.h"

/* What all families share: a decoder of layers
 *   x = embedding(token);  per layer: x += mixer(norm(x)), x += feed_forward(norm(x));  logits = head(norm(x))
 * A family says what its mixers do; which layer has which mixer, and all sizes, come from the configuration. */

struct dk_family_model {
    struct dk_model_config config;
    struct dk_piece_context context;
    /* A layer's mixer: reads and overwrites context.h. */
    void (*mix)(const struct dk_family_model *m, uint32_t layer);
    struct dk_token_ends ends;
    struct dk_weight **input_norms; /* [layers] */
    struct dk_gqa gqa;              /* of the mixers those that the model has */
    struct dk_delta delta;
    struct dk_mla mla;
    struct dk_ffn_side ffn;
    float *inverse_frequency; /* [rope.dims / 2] */
    float rope_factor;
    const struct dk_trace *trace, *step_trace; /* from the next step on; of this step */
};

/* Takes the scratch of everything that the model has; with a context without a back end it only counts it. */
int dk_decoder_take(struct dk_family_model *m, struct dk_err *err);

int dk_decoder_load(const struct dk_family_load *l, void (*mix)(const struct dk_family_model *m, uint32_t layer),
                    struct dk_family_model **out, struct dk_err *err);
void dk_decoder_close(struct dk_family_model *m);
void dk_decoder_begin(struct dk_family_model *m, const struct dk_family_batch *batch);
void dk_decoder_attend(struct dk_family_model *m, uint32_t layer, float *ffn_in, float *router_logits);
const struct dk_router *dk_decoder_router(const struct dk_family_model *m, uint32_t layer);
bool dk_decoder_meanwhile(struct dk_family_model *m, uint32_t layer);
void dk_decoder_finish(struct dk_family_model *m, uint32_t layer, const float *ffn_out);
void dk_decoder_head(struct dk_family_model *m, const uint32_t *rows, uint32_t count, float *logits);
void dk_decoder_copy_page(struct dk_family_model *m, uint32_t from, uint32_t to);
void dk_decoder_copy_state(struct dk_family_model *m, uint32_t from, uint32_t to);
void dk_decoder_trace(struct dk_family_model *m, const struct dk_trace *t);

/* Members of a family's struct dk_family_ops, all but load. */
#define DK_DECODER_OPS                                                                                              \
    .close = dk_decoder_close, .begin = dk_decoder_begin, .attend = dk_decoder_attend, .router = dk_decoder_router, \
    .meanwhile = dk_decoder_meanwhile, .finish = dk_decoder_finish, .head = dk_decoder_head,                        \
    .copy_page = dk_decoder_copy_page, .copy_state = dk_decoder_copy_state, .trace = dk_decoder_trace

#endif
