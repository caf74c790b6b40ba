/* SPDX-License-Identifier: Apache-2.0 */
/* DeepSeek-V3 (arXiv 2412.19437; multi-head latent attention: arXiv 2405.04434) and DeepSeek-V3.2 (its technical
 * report: the same with a lightning indexer that chooses which positions a row attends to). Some first layers are
 * dense; MoE layers have a shared expert without a gate, and a router of sigmoids with groups and a correction bias. */
#include "attention-worker/family/decoder.h"

static void deepseek_mix(const struct dk_family_model *m, uint32_t layer)
{
    const struct dk_piece_context *c = &m->context;

    dk_mla_queries(c, layer, &m->mla);
    dk_mla_latents(c, layer, &m->mla);
    dk_mla_select(c, layer, &m->mla);
    dk_mla_attend(c, layer, &m->mla);
    dk_mla_output(c, layer, &m->mla);
}

static int deepseek_load(const struct dk_family_load *l, struct dk_family_model **out, struct dk_err *err)
{
    return dk_decoder_load(l, deepseek_mix, out, err);
}

const struct dk_family_ops dk_family_deepseek = {.load = deepseek_load, DK_DECODER_OPS};
