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

void dk_family_needs(const struct dk_model_config *c, uint32_t page_tokens, struct dk_family_needs *out)
{
    struct dk_family_model counted = {.context = {.config = c}};

    (void)dk_decoder_take(&counted, NULL); /* cannot fail without a back end */
    out->scratch_floats_per_row = counted.context.scratch_floats;
    out->page_bytes = page_tokens * (dk_gqa_position_bytes(c) + dk_mla_position_bytes(c));
    out->state_bytes = dk_delta_slot_bytes(c);
}
