/* SPDX-License-Identifier: Apache-2.0 */
/* Llama (arXiv 2407.21783, card of Llama-3.1-8B), Mistral without sliding window (arXiv 2310.06825) and Qwen2 (arXiv
 * 2407.10671): grouped-query attention with rotation of whole heads, dense feed-forward. Qwen2 has biases in the
 * projections of q, k and v. */
#include "attention-worker/family/decoder.h"

static void gqa_mix(const struct dk_family_model *m, uint32_t layer)
{
    const struct dk_piece_context *c = &m->context;

    dk_gqa_project(c, layer, &m->gqa);
    dk_gqa_rotate(c, &m->gqa);
    dk_gqa_attend(c, layer, &m->gqa);
    dk_gqa_output(c, layer, &m->gqa);
}

static int gqa_load(const struct dk_family_load *l, struct dk_family_model **out, struct dk_err *err)
{
    return dk_decoder_load(l, gqa_mix, out, err);
}

const struct dk_family_ops dk_family_gqa = {.load = gqa_load, DK_DECODER_OPS};
