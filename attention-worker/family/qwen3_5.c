/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen3.5, dense and MoE (cards of Qwen3.5-27B-FP8 and Qwen3.5-35B-A3B-FP8; Gated DeltaNet: arXiv 2412.06464). Three of
 * four layers have Gated DeltaNet, which keeps a state of fixed size; the fourth has grouped-query attention with an
 * RMSNorm of each head, rotation of a quarter of each head, and a gate on its output (arXiv 2505.06708). Norms multiply
 * by 1 + w, but for the one inside Gated DeltaNet, which multiplies by w. MoE layers have a shared expert, scaled by a
 * sigmoid gate of its own. */
#include "attention-worker/family/decoder.h"

static void delta_mix(const struct dk_family_model *m, uint32_t layer)
{
    const struct dk_piece_context *c = &m->context;

    dk_delta_project(c, layer, &m->delta);
    dk_delta_recur(c, layer, &m->delta);
    dk_delta_gate(c, layer, &m->delta);
    dk_delta_output(c, layer, &m->delta);
}

static void attention_mix(const struct dk_family_model *m, uint32_t layer)
{
    const struct dk_piece_context *c = &m->context;

    dk_gqa_project(c, layer, &m->gqa);
    dk_gqa_norm_heads(c, layer, &m->gqa);
    dk_gqa_rotate(c, &m->gqa);
    dk_gqa_attend(c, layer, &m->gqa);
    dk_gqa_gate(c, &m->gqa);
    dk_gqa_output(c, layer, &m->gqa);
}

static void qwen3_5_mix(const struct dk_family_model *m, uint32_t layer)
{
    if (m->config.mixer[layer] == DK_MIXER_DELTA)
        delta_mix(m, layer);
    else
        attention_mix(m, layer);
}

static int qwen3_5_load(const struct dk_family_load *l, struct dk_family_model **out, struct dk_err *err)
{
    return dk_decoder_load(l, qwen3_5_mix, out, err);
}

const struct dk_family_ops dk_family_qwen3_5 = {.load = qwen3_5_load, DK_DECODER_OPS};
