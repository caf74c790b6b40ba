/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/trace.h"

#include <criterion/criterion.h>
#include <stdio.h>

Test(trace, experts_come_by_falling_weight)
{
    static const int32_t ids[] = {0, 1, 2, 3, 5, 9, 1, 4, 6, 2, 3, 7};
    static const float weights[] = {9, 9, 9, 0.25f, 0.5f, 0.25f, 0.1f, 0.2f, 0.7f, 9, 9, 9};
    /* Equal weights stay in rising id. */
    static const int32_t expected_ids[] = {5, 3, 9, 6, 4, 1};
    static const float expected_weights[] = {0.5f, 0.25f, 0.25f, 0.7f, 0.2f, 0.1f};
    struct dk_trace_list list = {0};
    const struct dk_trace t = {.row = 1, .count = 2, .put = dk_trace_list_put, .ctx = &list};
    const struct dk_trace_tensor *got;

    dk_trace_experts(&t, 12, 3, ids, weights);
    cr_assert_eq(list.count, 2);
    cr_expect_eq(list.bytes, 48);
    got = dk_trace_list_find(&list, "layer.12.moe.expert_ids");
    cr_assert_not_null(got);
    cr_expect_eq(got->type, DK_TRACE_I32);
    cr_assert(got->rank == 2 && got->shape[0] == 2 && got->shape[1] == 3 && got->bytes == 24);
    cr_expect_arr_eq(got->data, expected_ids, sizeof(expected_ids));
    got = dk_trace_list_find(&list, "layer.12.moe.expert_weights");
    cr_assert_not_null(got);
    cr_expect_eq(got->type, DK_TRACE_F32);
    cr_expect_arr_eq(got->data, expected_weights, sizeof(expected_weights));
    dk_trace_list_fini(&list);
}

Test(trace, only_chosen_layers)
{
    static const bool layers[] = {false, true};
    static const int32_t ids[] = {0};
    static const float weights[] = {1};
    struct dk_trace_list list = {0};
    struct dk_trace t = {.count = 1, .layers = layers, .put = dk_trace_list_put, .ctx = &list};

    cr_expect(!dk_trace_wants(&t, 0) && dk_trace_wants(&t, 1));
    dk_trace_experts(&t, 0, 1, ids, weights);
    cr_expect_eq(list.count, 0);
    dk_trace_experts(&t, 1, 1, ids, weights);
    cr_expect_eq(list.count, 2);
    t.layers = NULL;
    dk_trace_experts(&t, 0, 1, ids, weights);
    cr_expect_eq(list.count, 4);
    dk_trace_list_fini(&list);
}

/* What comes beyond the limit is counted, so that whoever asked can be told, and costs no memory. */
Test(trace, a_list_ends_at_its_limit)
{
    static const float data[4];
    struct dk_trace_list list = {.bytes_max = 40};

    dk_trace_list_put(&list, "a", DK_TRACE_F32, 1, (const uint32_t[]){4}, data);
    dk_trace_list_put(&list, "b", DK_TRACE_F32, 2, (const uint32_t[]){2, 2}, data);
    dk_trace_list_put(&list, "c", DK_TRACE_F32, 1, (const uint32_t[]){2}, data);
    cr_expect(!list.too_large && list.count == 3 && list.bytes == 40, "exactly full");
    dk_trace_list_put(&list, "d", DK_TRACE_F32, 1, (const uint32_t[]){4}, data);
    cr_expect(list.too_large && list.count == 3 && list.bytes == 56);
    dk_trace_list_put(&list, "e", DK_TRACE_F32, 1, (const uint32_t[]){1}, data);
    cr_expect(list.too_large && list.count == 3 && list.bytes == 60);
    cr_expect_null(dk_trace_list_find(&list, "e"));
    cr_expect_not(list.no_memory);
    dk_trace_list_fini(&list);
}

Test(trace, a_list_keeps_copies_in_order)
{
    struct dk_trace_list list = {0};
    char name[32];

    for (int32_t i = 0; i < 1000; i++) {
        int32_t data[3] = {i, 2 * i, 3 * i};

        snprintf(name, sizeof(name), "t%d", i);
        dk_trace_list_put(&list, name, DK_TRACE_I32, 1, (const uint32_t[]){3}, data);
    }
    cr_assert_eq(list.count, 1000);
    cr_expect_eq(list.bytes, 12000);
    for (int32_t i = 0; i < 1000; i++) {
        const int32_t expected[3] = {i, 2 * i, 3 * i};

        snprintf(name, sizeof(name), "t%d", i);
        cr_expect_eq(dk_trace_list_find(&list, name), &list.tensors[i]);
        cr_expect_arr_eq(list.tensors[i].data, expected, sizeof(expected));
    }
    cr_expect_null(dk_trace_list_find(&list, "t1000"));
    cr_expect_not(list.no_memory);
    dk_trace_list_put(&list, "lost", DK_TRACE_F32, 2, (const uint32_t[]){2, 2}, NULL);
    cr_expect(list.no_memory);
    cr_expect_eq(list.count, 1000);
    dk_trace_list_fini(&list);
    cr_expect(list.count == 0 && !list.tensors && !list.no_memory);
    dk_trace_list_fini(&list);
}
