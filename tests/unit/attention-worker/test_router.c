/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/router.h"

#include <criterion/criterion.h>
#include <math.h>

Test(router, weights_are_softmax_over_all_experts)
{
    const float logits[] = {1.0f, 3.0f, -2.0f, 2.5f, 0.0f};
    double total = 0;
    int32_t ids[2];
    float weights[2];
    bool ok;

    for (int i = 0; i < 5; i++)
        total += exp(logits[i]);
    dk_router_softmax(logits, 1, 5, 2, false, ids, weights, &ok);
    cr_expect(ok);
    cr_expect_eq(ids[0], 1);
    cr_expect_eq(ids[1], 3);
    cr_expect_float_eq(weights[0], exp(3.0) / total, 1e-7);
    cr_expect_float_eq(weights[1], exp(2.5) / total, 1e-7);

    dk_router_softmax(logits, 1, 5, 2, true, ids, weights, NULL);
    cr_expect_float_eq(weights[0], exp(3.0) / (exp(3.0) + exp(2.5)), 1e-7);
    cr_expect_float_eq(weights[0] + weights[1], 1, 1e-7);
}

Test(router, output_rises_by_expert_id)
{
    const float logits[] = {0.0f, 5.0f, 1.0f, 9.0f, 7.0f, 8.0f};
    int32_t ids[4];
    float weights[4];

    dk_router_softmax(logits, 1, 6, 4, true, ids, weights, NULL);
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

    dk_router_softmax(logits, 1, 6, 3, true, ids, weights, NULL);
    cr_expect_eq(ids[0], 1);
    cr_expect_eq(ids[1], 2);
    cr_expect_eq(ids[2], 4);
    dk_router_softmax(equal, 1, 4, 3, true, ids, weights, NULL);
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

    dk_router_softmax(logits, 1, 3, 3, false, ids, weights, NULL);
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

    dk_router_softmax(logits, 5, 3, 2, true, ids, weights, ok);
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

    dk_router_softmax(logits, 1, 3, 2, false, ids, weights, &ok);
    cr_expect(ok);
    cr_expect_float_eq(weights[0], 1 / (1 + exp(-1)), 1e-6);
    cr_expect_float_eq(weights[1], exp(-1) / (1 + exp(-1)), 1e-6);
}
