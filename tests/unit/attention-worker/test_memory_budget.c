/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/memory_budget.h"

#include <criterion/criterion.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)

/* 4 sequences of 100 positions: 7 pages of 3 MiB each, and 10 MiB of state. */
static const struct dk_memory_budget four = {.page_bytes = 3 * MIB,
                                             .state_bytes = 10 * MIB,
                                             .page_tokens = 16,
                                             .context = 100,
                                             .sequences = 4,
                                             .free_bytes = 1000 * MIB,
                                             .weight_bytes = 300 * MIB,
                                             .fixed_bytes = 100 * MIB};

static struct dk_memory_grant divided(struct dk_memory_budget b)
{
    struct dk_memory_grant grant;
    struct dk_err err = {0};

    cr_assert_eq(dk_memory_divide(&b, &grant, &err), 0, "%s", err.text);
    cr_expect_eq(grant.states_bytes, b.state_bytes * b.sequences);
    cr_expect_eq(grant.pages_bytes, b.page_bytes * grant.pages);
    return grant;
}

Test(memory_budget, half_of_what_weights_and_scratch_leave)
{
    struct dk_memory_budget b = four;
    struct dk_memory_grant grant = divided(b);

    cr_expect_eq(grant.pages, 28); /* all of them: 300 MiB may be used, 40 + 84 are */
    cr_expect_not(grant.beyond);
    b.weight_bytes = 780 * MIB; /* 60 may be used: 20 besides the states, which is 6 pages of one sequence's 7 */
    grant = divided(b);
    cr_expect_eq(grant.pages, 7);
    cr_expect(grant.beyond);
    b.weight_bytes = 700 * MIB; /* 100 */
    grant = divided(b);
    cr_expect_eq(grant.pages, 20);
    cr_expect_not(grant.beyond);
    b.weight_bytes = 778 * MIB; /* 61 is just what states and one sequence take */
    grant = divided(b);
    cr_expect_eq(grant.pages, 7);
    cr_expect_not(grant.beyond);
}

Test(memory_budget, weights_beyond_the_free_memory_still_leave_one_sequence)
{
    struct dk_memory_budget b = four;
    struct dk_memory_grant grant;

    b.weight_bytes = 5000 * MIB;
    grant = divided(b);
    cr_expect_eq(grant.pages, 7);
    cr_expect(grant.beyond);
    b.weight_bytes = b.fixed_bytes = UINT64_MAX;
    grant = divided(b);
    cr_expect_eq(grant.pages, 7);
    cr_expect(grant.beyond);
}

Test(memory_budget, what_is_asked_for_is_taken_whatever_is_free)
{
    struct dk_memory_budget b = four;
    struct dk_memory_grant grant;

    b.free_bytes = 0;
    b.asked_bytes = 100 * MIB;
    grant = divided(b);
    cr_expect_eq(grant.pages, 20);
    cr_expect_not(grant.beyond);
    b.asked_bytes = 5000 * MIB;
    cr_expect_eq(divided(b).pages, 28);
    b.asked_bytes = 61 * MIB;
    cr_expect_eq(divided(b).pages, 7);
}

Test(memory_budget, less_than_one_sequence_is_refused_with_the_numbers)
{
    struct dk_memory_budget b = four;
    struct dk_memory_grant grant;
    struct dk_err err = {0};

    b.asked_bytes = 60 * MIB;
    cr_expect_eq(dk_memory_divide(&b, &grant, &err), -ENOSPC);
    cr_expect_not_null(strstr(err.text, "--cache-mib 60: the states of 4 sequences take 40 MiB"), "%s", err.text);
    cr_expect_not_null(strstr(err.text, "one sequence of 100 positions 21 MiB"), "%s", err.text);
    cr_expect_not_null(strstr(err.text, "--cache-mib 61 or more"), "%s", err.text);
    cr_expect_not_null(strstr(err.text, "--max-running"), "%s", err.text);
    cr_expect_not_null(strstr(err.text, "--context"), "%s", err.text);
    b.page_bytes += 1; /* numbers are rounded up: what the text says is enough */
    cr_expect_eq(dk_memory_divide(&b, &grant, &err), -ENOSPC);
    cr_expect_not_null(strstr(err.text, "--cache-mib 62 or more"), "%s", err.text);
    b.asked_bytes = 62 * MIB;
    cr_expect_eq(divided(b).pages, 7);
}

/* The states of 16 sequences of Qwen3.5-35B-A3B: 30 layers of 3 * 8192 + 32 * 128 * 128 floats. */
Test(memory_budget, states_alone_may_be_too_much)
{
    const struct dk_memory_budget b = {.asked_bytes = 512 * MIB,
                                       .page_bytes = 4ull * 10 * 2 * 2 * 256 * 16,
                                       .state_bytes = 4ull * 30 * (3 * 8192 + 32 * 128 * 128),
                                       .page_tokens = 16,
                                       .context = 4096,
                                       .sequences = 16};
    struct dk_memory_grant grant;
    struct dk_err err = {0};

    cr_expect_eq(b.state_bytes, 65863680);
    cr_expect_eq(dk_memory_divide(&b, &grant, &err), -ENOSPC);
    cr_expect_not_null(strstr(err.text, "16 sequences take 1005 MiB"), "%s", err.text);
    cr_expect_not_null(strstr(err.text, "--cache-mib 1165 or more"), "%s", err.text);
}

Test(memory_budget, models_without_pages_or_states)
{
    struct dk_memory_budget b = four;

    b.page_bytes = 0;
    b.asked_bytes = 40 * MIB;
    cr_expect_eq(divided(b).pages, 28);
    b = four;
    b.state_bytes = 0;
    b.asked_bytes = 21 * MIB;
    cr_expect_eq(divided(b).pages, 7);
}

Test(memory_budget, sizes_that_overflow_are_too_much)
{
    struct dk_memory_budget b = four;
    struct dk_memory_grant grant;
    struct dk_err err = {0};

    b.page_bytes = b.state_bytes = UINT64_MAX / 2;
    b.asked_bytes = MIB;
    cr_expect_eq(dk_memory_divide(&b, &grant, &err), -ENOSPC);
    b.asked_bytes = 0;
    cr_expect_eq(dk_memory_divide(&b, &grant, &err), 0);
    cr_expect(grant.beyond);
    cr_expect_eq(grant.pages, 7);
    b = four;
    b.context = b.sequences = UINT32_MAX;
    b.page_tokens = 1;
    b.page_bytes = 0;
    cr_expect_eq(dk_memory_divide(&b, &grant, &err), 0);
    cr_expect_eq(grant.pages, UINT32_MAX);
}

/* ---- weights: sizes by hand, from the tensors' shapes */

static uint64_t weights_of(const char *model, bool full_attention, struct dk_model_config *c)
{
    struct dk_checkpoint *ck;
    struct dk_err err = {0};
    uint64_t bytes;

    cr_assert_eq(dk_model_config_load(model, c, &err), 0, "%s", err.text);
    cr_assert_eq(dk_checkpoint_open(model, &ck, &err), 0, "%s", err.text);
    bytes = dk_memory_weight_bytes(c, ck, full_attention);
    dk_checkpoint_close(ck);
    return bytes;
}

/* BF16, 3 layers; the embedding is the head too, and so is there twice. Without the feed-forwards. */
Test(memory_budget, weights_of_a_tied_model)
{
    uint64_t layer = 2 * 128 + 2 * 32 + 128 * (192 + 64 + 64 + 192);
    struct dk_model_config c;

    cr_expect_eq(weights_of(FIXTURES "/qwen3-tiny", false, &c), 2 * (2 * 1024 * 128 + 3 * layer + 128));
    cr_expect(c.tied);
}

/* 4 layers, 3 of them with a router and a shared expert: FP8 with FP32 scales, FP32 norms and bias, BF16 the rest. */
Test(memory_budget, weights_with_scales_and_an_indexer)
{
    uint64_t attention = 4 * (160 + 160 + 64 + 96) + 96 * 160 + 256 * 64 + 160 * 128 + 96 * 160 + 256 * 96 + 4 * 10;
    uint64_t indexer = 4 * (64 + 64) + 2 * 16 * 160 + 64 * 160 + 1024 * 96 + 4 * (2 + 8);
    uint64_t routed = 4 * 16 + 2 * 16 * 160 + 3 * 160 * 48 + 4 * 6, ends = 2 * 2 * 1024 * 160 + 4 * 160;
    struct dk_model_config c;

    cr_expect_eq(weights_of(FIXTURES "/deepseek_v32-fp8-tiny", true, &c), ends + 4 * attention + 3 * routed);
    cr_expect_eq(weights_of(FIXTURES "/deepseek_v32-fp8-tiny", false, &c),
                 ends + 4 * (attention + indexer) + 3 * routed);
}
