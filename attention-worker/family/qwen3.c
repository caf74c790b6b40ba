/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen3 and Qwen3-MoE (arXiv 2505.09388; cards of Qwen3-32B-FP8 and Qwen3-30B-A3B-FP8): grouped-query attention with an
 * RMSNorm of each head of q and k before the rotation. MoE layers have no shared expert; their router is a softmax over
 * all experts. */
#include "attention-worker/family/decoder.h"

static void qwen3_mix(const struct dk_family_model *m, uint32_t layer)
{
    const struct dk_piece_context *c = &m->context;

    dk_gqa_project(c, layer, &m->gqa);
    dk_gqa_norm_heads(c, layer, &m->gqa);
    dk_gqa_rotate(c, &m->gqa);
    dk_gqa_attend(c, layer, &m->gqa);
    dk_gqa_output(c, layer, &m->gqa);
}

static int qwen3_load(const struct dk_family_load *l, struct dk_family_model **out, struct dk_err *err)
{
    return dk_decoder_load(l, qwen3_mix, out, err);
}

const struct dk_family_ops dk_family_qwen3 = {.load = qwen3_load, DK_DECODER_OPS};
