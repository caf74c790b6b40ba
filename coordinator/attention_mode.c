/* SPDX-License-Identifier: Apache-2.0 */
#include "coordinator/coordinator_internal.h"

/* Sparse or full attention of models with an indexer. Up to index_topk positions the indexer keeps all of them, and
 * both are the same. */

#define CONTEXT_DEFAULT 4096u

bool dk_attention_ends(const struct dk_coordinator *c)
{
    return c->plan->full_attention && !c->plan->allow_full && c->plan->context == c->model.config.index.top_k;
}

int dk_attention_mode(const Dk__LoadRequest *q, const struct dk_model_config *m, uint32_t *context, struct dk_err *err)
{
    bool full = q->attention == DK__ATTENTION_MODE__FULL, allowed = q->has_allow_full && q->allow_full;
    uint32_t most = m->context_max;

    if (full && !m->index.heads)
        return dk_err_set(err, -EINVAL,
                          "attention: mode 'full' is for models with an indexer; %s has none and attends to every "
                          "position as it is, so leave --attention out",
                          dk_family_name(m->family));
    if (allowed && !full)
        return dk_err_set(err, -EINVAL, "allow_full: goes with attention mode 'full' only");
    if (q->has_context && (!q->context || q->context > most))
        return dk_err_set(err, -EINVAL, "context: %u is not from 1 to %u, which is what the model can do", q->context,
                          most);
    if (full && !allowed && m->index.top_k < most)
        most = m->index.top_k;
    if (q->has_context && q->context > most)
        return dk_err_set(err, -EINVAL,
                          "context: %u is too long: attention mode 'full' ends at index_topk = %u positions, because "
                          "beyond them the model was trained with the indexer's selection; give --allow-full, "
                          "--attention sparse or --context %u",
                          q->context, most, most);
    *context = q->has_context ? q->context : most < CONTEXT_DEFAULT ? most : CONTEXT_DEFAULT;
    return 0;
}
