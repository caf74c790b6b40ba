/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/family/family.h"

#include "attention-worker/family/decoder.h"

const struct dk_family_ops *dk_family_find(enum dk_family family)
{
    static const struct dk_family_ops *const families[DK_FAMILY_COUNT] = {
        [DK_FAMILY_LLAMA] = &dk_family_gqa,
        [DK_FAMILY_MISTRAL] = &dk_family_gqa,
        [DK_FAMILY_QWEN2] = &dk_family_gqa,
        [DK_FAMILY_QWEN3] = &dk_family_qwen3,
        [DK_FAMILY_QWEN3_MOE] = &dk_family_qwen3,
        [DK_FAMILY_QWEN3_5] = &dk_family_qwen3_5,
        [DK_FAMILY_QWEN3_5_MOE] = &dk_family_qwen3_5,
        [DK_FAMILY_DEEPSEEK_V3] = &dk_family_deepseek,
        [DK_FAMILY_DEEPSEEK_V32] = &dk_family_deepseek,
    };

    return (unsigned)family < DK_FAMILY_COUNT ? families[family] : NULL;
}

void dk_family_needs(const struct dk_family_load *l, const struct dk_backend_config *b, struct dk_family_needs *out)
{
    struct dk_family_model counted = {.context = {.config = l->config}, .mla = {.full_attention = l->full_attention}};
    const struct dk_stores_shape shape = {.kv = dk_gqa_shape(l),
                                          .latents = dk_mla_shape(l),
                                          .states = dk_delta_shape(l),
                                          .top_k = dk_mla_indexed(l) ? l->config->index.top_k : 0};
    struct dk_backend_config opened = *b;
    struct dk_stores_bytes bytes;

    (void)dk_decoder_take(&counted, NULL); /* cannot fail without a back end */
    opened.scratch_floats_per_row = counted.context.scratch_floats;
    l->ops->stores_bytes(&opened, &shape, &bytes);
    *out = (struct dk_family_needs){.scratch_floats_per_row = counted.context.scratch_floats,
                                    .page_bytes = bytes.page,
                                    .state_bytes = bytes.slot,
                                    .fixed_bytes = bytes.fixed};
}
