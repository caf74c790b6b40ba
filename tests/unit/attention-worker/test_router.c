/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/router.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <string.h>

static void route_softmax(const float *logits, uint32_t rows, uint32_t experts, uint32_t top_k, bool norm_topk,
                          int32_t *ids, float *weights, bool *row_ok)
{
    const struct dk_model_config c = {
        .router = DK_ROUTER_SOFTMAX, .experts = experts, .top_k = top_k, .norm_topk = norm_topk, .routed_scale = 1};
    struct dk_router r;

    cr_assert_eq(dk_router_init(&r, &c, NULL, NULL), 0);
    dk_route(&r, logits, rows, ids, weights, row_ok);
}

Test(router, weights_are_softmax_over_all_experts)
{
    const float logits[] = {1.0f, 3.0f, -2.0f, 2.5f, 0.0f};
    double total = 0;
    int32_t ids[2];
    float weights[2];
    bool ok;

    for (int i = 0; i < 5; i++)
        total += exp(logits[i]);
    route_softmax(logits, 1, 5, 2, false, ids, weights, &ok);
    cr_expect(ok);
    cr_expect_eq(ids[0], 1);
    cr_expect_eq(ids[1], 3);
    cr_expect_float_eq(weights[0], exp(3.0) / total, 1e-7);
    cr_expect_float_eq(weights[1], exp(2.5) / total, 1e-7);

    route_softmax(logits, 1, 5, 2, true, ids, weights, NULL);
    cr_expect_float_eq(weights[0], exp(3.0) / (exp(3.0) + exp(2.5)), 1e-7);
    cr_expect_float_eq(weights[0] + weights[1], 1, 1e-7);
}

Test(router, output_rises_by_expert_id)
{
    const float logits[] = {0.0f, 5.0f, 1.0f, 9.0f, 7.0f, 8.0f};
    int32_t ids[4];
    float weights[4];

    route_softmax(logits, 1, 6, 4, true, ids, weights, NULL);
    cr_expect_eq(ids[0], 1);
    cr_expect_eq(ids[1], 3);
    cr_expect_eq(ids[2], 4);
    cr_expect_eq(ids[3], 5);
    cr_expect_gt(weights[1], weights[3]);
    cr_expect_gt(weights[3], weights[2]);
    cr_expect_gt(weights[2], weights[0]);
}

Test(router, ties_go_to_the_lower_id)
{
    const float logits[] = {0.0f, 2.0f, 2.0f, -1.0f, 2.0f, 2.0f}, equal[] = {3.0f, 3.0f, 3.0f, 3.0f};
    int32_t ids[3];
    float weights[3];

    route_softmax(logits, 1, 6, 3, true, ids, weights, NULL);
    cr_expect_eq(ids[0], 1);
    cr_expect_eq(ids[1], 2);
    cr_expect_eq(ids[2], 4);
    route_softmax(equal, 1, 4, 3, true, ids, weights, NULL);
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(ids[i], i);
        cr_expect_float_eq(weights[i], 1.0f / 3, 1e-7);
    }
}

Test(router, all_experts_can_be_chosen)
{
    const float logits[] = {1.0f, -1.0f, 0.5f};
    int32_t ids[3];
    float weights[3];

    route_softmax(logits, 1, 3, 3, false, ids, weights, NULL);
    for (int i = 0; i < 3; i++)
        cr_expect_eq(ids[i], i);
    cr_expect_float_eq(weights[0] + weights[1] + weights[2], 1, 1e-6);
}

Test(router, a_bad_row_is_reported_and_leaves_the_others_alone)
{
    const float logits[] = {1, 2, 3, /**/ 1, NAN, 3, /**/ INFINITY, 0, 0, /**/ 0, -INFINITY, 1, /**/ 3, 2, 1};
    const bool expected[] = {true, false, false, false, true};
    int32_t ids[10];
    float weights[10];
    bool ok[5];

    route_softmax(logits, 5, 3, 2, true, ids, weights, ok);
    for (int row = 0; row < 5; row++) {
        cr_expect_eq(ok[row], expected[row], "row %d", row);
        if (expected[row])
            continue;
        for (int i = 0; i < 2; i++) {
            cr_expect_eq(ids[row * 2 + i], i);
            cr_expect_eq(weights[row * 2 + i], 0);
        }
    }
    cr_expect_eq(ids[0], 1);
    cr_expect_eq(ids[1], 2);
    cr_expect_eq(ids[8], 0);
    cr_expect_eq(ids[9], 1);
    cr_expect_float_eq(weights[8], 1 / (1 + exp(-1)), 1e-7);
}

Test(router, large_logits_do_not_overflow)
{
    const float logits[] = {30000.0f, 29999.0f, -30000.0f};
    int32_t ids[2];
    float weights[2];
    bool ok;

    route_softmax(logits, 1, 3, 2, false, ids, weights, &ok);
    cr_expect(ok);
    cr_expect_float_eq(weights[0], 1 / (1 + exp(-1)), 1e-6);
    cr_expect_float_eq(weights[1], exp(-1) / (1 + exp(-1)), 1e-6);
}

/* ---- sigmoid, groups and correction bias: values worked out by hand */

static float logit(double p)
{
    return (float)log(p / (1 - p));
}

static struct dk_model_config groups_config(uint32_t experts, uint32_t groups, uint32_t kept, uint32_t top_k)
{
    return (struct dk_model_config){.router = DK_ROUTER_GROUPS,
                                    .experts = experts,
                                    .top_k = top_k,
                                    .norm_topk = true,
                                    .router_groups = groups,
                                    .groups_kept = kept,
                                    .routed_scale = 2.5f};
}

Test(router, groups_are_chosen_by_their_two_best)
{
    /* Group 0: 0.9 alone is the largest; group 1: 0.6 + 0.5; group 2: 0.8 + 0.2; group 3: 0.7 + 0.3. With the sum of
     * two: 0.91, 1.1, 1.0, 1.0: groups 1 and, of the tied 2 and 3, the lower stay, and expert 0 is lost. */
    const double s[8] = {0.9, 0.01, 0.6, 0.5, 0.75, 0.25, 0.75, 0.25};
    const float bias[8] = {0};
    struct dk_model_config c = groups_config(8, 4, 2, 2);
    struct dk_router r;
    float logits[8], weights[2];
    int32_t ids[2];

    for (int i = 0; i < 8; i++)
        logits[i] = logit(s[i]);
    logits[6] = logits[4];
    logits[7] = logits[5];
    cr_assert_eq(dk_router_init(&r, &c, bias, NULL), 0);
    dk_route(&r, logits, 1, ids, weights, NULL);
    cr_expect_eq(ids[0], 2);
    cr_expect_eq(ids[1], 4);
    cr_expect_float_eq(weights[0], 2.5 * 0.6 / 1.35, 1e-6);
    cr_expect_float_eq(weights[1], 2.5 * 0.75 / 1.35, 1e-6);
}

Test(router, bias_chooses_and_does_not_weigh)
{
    /* Without bias 0 and 1 would be chosen. A negative bias can push every choice below zero. */
    const double s[4] = {0.8, 0.7, 0.4, 0.3};
    const float bias[4] = {-1.5f, -0.9f, -0.65f, -0.5f}; /* c: -0.7, -0.2, -0.25, -0.2 */
    struct dk_model_config c = groups_config(4, 1, 1, 2);
    struct dk_router r;
    float logits[4], weights[2];
    int32_t ids[2];

    for (int i = 0; i < 4; i++)
        logits[i] = logit(s[i]);
    cr_assert_eq(dk_router_init(&r, &c, bias, NULL), 0);
    dk_route(&r, logits, 1, ids, weights, NULL);
    cr_expect_eq(ids[0], 1);
    cr_expect_eq(ids[1], 3);
    cr_expect_float_eq(weights[0], 2.5 * 0.7, 1e-6);
    cr_expect_float_eq(weights[1], 2.5 * 0.3, 1e-6);
}

Test(router, renormalisation_can_be_off)
{
    const double s[4] = {0.5, 0.2, 0.1, 0.4};
    const float bias[4] = {0};
    struct dk_model_config c = groups_config(4, 1, 1, 2);
    struct dk_router r;
    float logits[4], weights[2];
    int32_t ids[2];

    for (int i = 0; i < 4; i++)
        logits[i] = logit(s[i]);
    c.norm_topk = false;
    cr_assert_eq(dk_router_init(&r, &c, bias, NULL), 0);
    dk_route(&r, logits, 1, ids, weights, NULL);
    cr_expect_eq(ids[0], 0);
    cr_expect_eq(ids[1], 3);
    cr_expect_float_eq(weights[0], 2.5 * 0.5, 1e-6);
    cr_expect_float_eq(weights[1], 2.5 * 0.4, 1e-6);
}

Test(router, experts_of_lost_groups_stay_out_even_with_negative_scores)
{
    /* Group 0 is kept with choices below those of group 1's second expert. */
    const float logits[4] = {0, 0, 0, 0}, bias[4] = {-0.6f, -0.7f, 0.9f, -9.0f}; /* c: -0.1, -0.2, 1.4, -8.5 */
    struct dk_model_config c = groups_config(4, 2, 1, 2);
    struct dk_router r;
    float weights[2];
    int32_t ids[2];

    cr_assert_eq(dk_router_init(&r, &c, bias, NULL), 0);
    dk_route(&r, logits, 1, ids, weights, NULL);
    cr_expect_eq(ids[0], 0);
    cr_expect_eq(ids[1], 1);
    cr_expect_float_eq(weights[0], 1.25, 1e-6);
    cr_expect_float_eq(weights[1], 1.25, 1e-6);
}

Test(router, ties_go_to_the_lower_id_in_groups_too)
{
    const float logits[8] = {0}, bias[8] = {0};
    struct dk_model_config c = groups_config(8, 4, 2, 3);
    struct dk_router r;
    float weights[3];
    int32_t ids[3];

    cr_assert_eq(dk_router_init(&r, &c, bias, NULL), 0);
    dk_route(&r, logits, 1, ids, weights, NULL);
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(ids[i], i);
        cr_expect_float_eq(weights[i], 2.5 / 3, 1e-6);
    }
}

Test(router, scores_that_all_vanish_do_not_divide_by_zero)
{
    const float logits[2] = {-200, -300}, bias[2] = {0};
    struct dk_model_config c = groups_config(2, 1, 1, 2);
    struct dk_router r;
    float weights[2];
    int32_t ids[2];
    bool ok;

    cr_assert_eq(dk_router_init(&r, &c, bias, NULL), 0);
    dk_route(&r, logits, 1, ids, weights, &ok);
    cr_expect(ok);
    cr_expect(isfinite(weights[0]) && isfinite(weights[1]));
}

Test(router, a_bad_row_in_groups_leaves_the_others_alone)
{
    const float logits[] = {1, 2, 3, 4, /**/ 1, NAN, 3, 4, /**/ 4, 3, 2, 1}, bias[4] = {0};
    struct dk_model_config c = groups_config(4, 2, 1, 2);
    struct dk_router r;
    float weights[6];
    int32_t ids[6];
    bool ok[3];

    cr_assert_eq(dk_router_init(&r, &c, bias, NULL), 0);
    dk_route(&r, logits, 3, ids, weights, ok);
    cr_expect(ok[0] && !ok[1] && ok[2]);
    cr_expect_eq(ids[0], 2);
    cr_expect_eq(ids[1], 3);
    cr_expect_eq(ids[2], 0);
    cr_expect_eq(weights[2], 0);
    cr_expect_eq(ids[4], 0);
    cr_expect_eq(ids[5], 1);
}

static void expect_refused(struct dk_model_config c, const float *bias, const char *word)
{
    struct dk_err err = {0};
    struct dk_router r;

    cr_expect_eq(dk_router_init(&r, &c, bias, &err), -EINVAL);
    cr_expect(strstr(err.text, word), "'%s' is not in '%s'", word, err.text);
}

Test(router, what_cannot_be_chosen_is_refused)
{
    const float bias[8] = {0}, nan[8] = {0, 0, 0, NAN}, infinite[8] = {0, -INFINITY};

    expect_refused(groups_config(8, 4, 2, 5), bias, "5 experts per token");
    expect_refused(groups_config(8, 3, 2, 2), bias, "groups must divide");
    expect_refused(groups_config(8, 4, 5, 2), bias, "5 of 4 groups");
    expect_refused(groups_config(8, 4, 0, 2), bias, "0 of 4 groups");
    expect_refused(groups_config(8, 4, 2, 0), bias, "0 experts per token");
    expect_refused(groups_config(8, 4, 2, 2), nan, "expert 3 is not a number");
    expect_refused(groups_config(8, 4, 2, 2), infinite, "expert 1 is infinite");
    expect_refused(groups_config(8, 4, 2, 2), infinite, "download it again");
    expect_refused(groups_config(8192, 4, 2, 2), bias, "8192 experts");
}
