/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/router.h"

#include <assert.h>
#include <math.h>

/* Whether expert a comes before b: the larger logit, then the lower id. */
static bool before(const float *logits, uint32_t a, uint32_t b)
{
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

/* The k best, in falling order: each pass finds the best one behind the last. Softmax keeps the order, so logits are
 * compared and no array of probabilities is needed. */
static void choose(const float *logits, uint32_t experts, uint32_t k, int32_t *ids)
{
    for (uint32_t rank = 0; rank < k; rank++) {
        int32_t best = -1;

        for (uint32_t e = 0; e < experts; e++) {
            if (rank > 0 && !before(logits, (uint32_t)ids[rank - 1], e))
                continue;
            if (best < 0 || before(logits, e, (uint32_t)best))
                best = (int32_t)e;
        }
        ids[rank] = best;
    }
}

static bool all_finite(const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(x[i]))
            return false;
    }
    return true;
}

static void sort_by_id(uint32_t k, int32_t *ids, float *weights)
{
    for (uint32_t i = 1; i < k; i++) {
        int32_t id = ids[i];
        float weight = weights[i];
        uint32_t at = i;

        for (; at > 0 && ids[at - 1] > id; at--) {
            ids[at] = ids[at - 1];
            weights[at] = weights[at - 1];
        }
        ids[at] = id;
        weights[at] = weight;
    }
}

void dk_router_softmax(const float *logits, uint32_t rows, uint32_t experts, uint32_t top_k, bool norm_topk,
                       int32_t *ids, float *weights, bool *row_ok)
{
    assert(top_k > 0 && top_k <= experts);
    for (uint32_t row = 0; row < rows; row++, logits += experts, ids += top_k, weights += top_k) {
        bool ok = all_finite(logits, experts);
        float total = 0, chosen = 0, largest;

        if (row_ok)
            row_ok[row] = ok;
        if (!ok) {
            for (uint32_t i = 0; i < top_k; i++) {
                ids[i] = (int32_t)i;
                weights[i] = 0;
            }
            continue;
        }
        choose(logits, experts, top_k, ids);
        largest = logits[ids[0]];
        for (uint32_t e = 0; e < experts; e++)
            total += expf(logits[e] - largest);
        for (uint32_t i = 0; i < top_k; i++) {
            weights[i] = expf(logits[ids[i]] - largest) / total;
            chosen += weights[i];
        }
        for (uint32_t i = 0; norm_topk && i < top_k; i++)
            weights[i] /= chosen;
        sort_by_id(top_k, ids, weights);
    }
}
