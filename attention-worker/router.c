/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/router.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>

int dk_router_check_bias(const float *bias, uint32_t experts, struct dk_err *err)
{
    for (uint32_t e = 0; e < experts; e++) {
        if (!isfinite(bias[e]))
            return dk_err_set(err, -EINVAL,
                              "the correction bias of expert %u is %s; the file is damaged: download it again", e,
                              isnan(bias[e]) ? "not a number" : "infinite");
    }
    return 0;
}

int dk_router_init(struct dk_router *r, const struct dk_model_config *c, const float *bias, struct dk_err *err)
{
    *r = (struct dk_router){.kind = c->router,
                            .experts = c->experts,
                            .top_k = c->top_k,
                            .norm_topk = c->norm_topk,
                            .scale = c->routed_scale,
                            .groups = 1,
                            .groups_kept = 1};
    if (c->router == DK_ROUTER_GROUPS) {
        r->groups = c->router_groups;
        r->groups_kept = c->groups_kept;
        r->bias = bias;
    }
    if (r->experts > DK_ROUTER_EXPERTS_MAX)
        return dk_err_set(err, -EINVAL, "router: %u experts; at most %u", r->experts, DK_ROUTER_EXPERTS_MAX);
    if (r->groups == 0 || r->experts % r->groups || r->groups_kept == 0 || r->groups_kept > r->groups)
        return dk_err_set(err, -EINVAL, "router: %u of %u groups are kept among %u experts; groups must divide them",
                          r->groups_kept, r->groups, r->experts);
    if (r->top_k == 0 || r->top_k > r->experts / r->groups * r->groups_kept)
        return dk_err_set(err, -EINVAL, "router: %u experts per token, but the %u kept groups have %u", r->top_k,
                          r->groups_kept, r->experts / r->groups * r->groups_kept);
    return r->kind == DK_ROUTER_GROUPS ? dk_router_check_bias(bias, r->experts, err) : 0;
}

/* Whether expert a comes before b: the larger score, then the lower id. */
static bool before(const float *score, uint32_t a, uint32_t b)
{
    return score[a] > score[b] || (score[a] == score[b] && a < b);
}

/* The groups that stay are marked. A group's score: its two largest added up. */
static void keep_groups(const struct dk_router *r, const float *choice, bool *kept)
{
    uint32_t size = r->experts / r->groups;
    float score[DK_ROUTER_EXPERTS_MAX];

    for (uint32_t g = 0; g < r->groups; g++) {
        float first = -INFINITY, second = -INFINITY;

        for (uint32_t e = g * size; e < (g + 1) * size; e++) {
            if (choice[e] > first) {
                second = first;
                first = choice[e];
            } else if (choice[e] > second) {
                second = choice[e];
            }
        }
        score[g] = size > 1 ? first + second : first;
        kept[g] = false;
    }
    for (uint32_t n = 0; n < r->groups_kept; n++) {
        uint32_t best = UINT32_MAX;

        for (uint32_t g = 0; g < r->groups; g++) {
            if (!kept[g] && (best == UINT32_MAX || before(score, g, best)))
                best = g;
        }
        kept[best] = true;
    }
}

/* The top_k best of the kept groups, in falling order: each pass finds the best one behind the last. */
static void choose(const struct dk_router *r, const float *score, const bool *kept, int32_t *ids)
{
    uint32_t size = r->experts / r->groups;

    for (uint32_t rank = 0; rank < r->top_k; rank++) {
        int32_t best = -1;

        for (uint32_t e = 0; e < r->experts; e++) {
            if (!kept[e / size] || (rank > 0 && !before(score, (uint32_t)ids[rank - 1], e)))
                continue;
            if (best < 0 || before(score, e, (uint32_t)best))
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

/* Softmax keeps the order, so logits are compared and no array of probabilities is needed. */
static void route_softmax(const struct dk_router *r, const float *logits, int32_t *ids, float *weights)
{
    static const bool all[1] = {true};
    float total = 0, largest;

    choose(r, logits, all, ids);
    largest = logits[ids[0]];
    for (uint32_t e = 0; e < r->experts; e++)
        total += expf(logits[e] - largest);
    for (uint32_t i = 0; i < r->top_k; i++)
        weights[i] = expf(logits[ids[i]] - largest) / total;
}

static void route_groups(const struct dk_router *r, const float *logits, int32_t *ids, float *weights)
{
    float choice[DK_ROUTER_EXPERTS_MAX];
    bool kept[DK_ROUTER_EXPERTS_MAX];

    for (uint32_t e = 0; e < r->experts; e++)
        choice[e] = 1.0f / (1.0f + expf(-logits[e])) + r->bias[e];
    keep_groups(r, choice, kept);
    choose(r, choice, kept, ids);
    for (uint32_t i = 0; i < r->top_k; i++)
        weights[i] = 1.0f / (1.0f + expf(-logits[ids[i]]));
}

void dk_route(const struct dk_router *r, const float *logits, uint32_t rows, int32_t *ids, float *weights, bool *row_ok)
{
    for (uint32_t row = 0; row < rows; row++, logits += r->experts, ids += r->top_k, weights += r->top_k) {
        bool ok = all_finite(logits, r->experts);
        float sum = 0;

        if (row_ok)
            row_ok[row] = ok;
        if (!ok) {
            for (uint32_t i = 0; i < r->top_k; i++) {
                ids[i] = (int32_t)i;
                weights[i] = 0;
            }
            continue;
        }
        if (r->kind == DK_ROUTER_SOFTMAX) {
            route_softmax(r, logits, ids, weights);
        } else {
            route_groups(r, logits, ids, weights);
            sum = 1e-20f;
        }
        /* In falling order of the choice, as the released code adds them. */
        for (uint32_t i = 0; i < r->top_k; i++)
            sum += weights[i];
        for (uint32_t i = 0; i < r->top_k; i++)
            weights[i] = (r->norm_topk ? weights[i] / sum : weights[i]) * r->scale;
        sort_by_id(r->top_k, ids, weights);
    }
}
