/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/family/family.h"

const struct dk_family_ops *dk_family_find(enum dk_family family)
{
    static const struct dk_family_ops *const families[] = {&dk_family_gqa, &dk_family_qwen3, &dk_family_qwen3_moe};

    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        if (families[i]->family == family)
            return families[i];
    }
    return NULL;
}

uint32_t dk_family_scratch(const struct dk_model_config *c)
{
    /* x, h and the head's rows; q and the mixer's output; k and v; angles; router logits */
    return 3 * c->hidden + 2 * c->heads * c->head_dim + 2 * c->kv_heads * c->head_dim + c->head_dim + c->experts;
}
