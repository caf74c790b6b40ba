/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "kernel/kernel.h"
#include "plan/plan.h"

static uint32_t units(uint32_t count, uint32_t unit)
{
    return (uint32_t)(((uint64_t)count + unit - 1) / unit);
}

/* Contiguous, complete, in whole units but for the last, at most one unit apart, larger ones first. */
static void slices_check(uint32_t intermediate, uint32_t multiple_of, uint32_t ducks)
{
    uint32_t at = 0, before = UINT32_MAX, least = UINT32_MAX, most = 0;
    struct dk_slice s;
    struct dk_err err = {0};

    for (uint32_t i = 0; i < ducks; i++) {
        uint32_t n;

        cr_assert_eq(dk_plan_slice(intermediate, multiple_of, ducks, i, &s, &err), 0, "%s", err.text);
        cr_assert_eq(s.begin, at, "I %u, unit %u, slice %u of %u", intermediate, multiple_of, i, ducks);
        cr_assert(s.end >= s.begin && s.end <= intermediate);
        cr_assert(s.begin % multiple_of == 0 || s.begin == intermediate);
        cr_assert(s.end % multiple_of == 0 || s.end == intermediate);
        n = units(s.end - s.begin, multiple_of);
        cr_assert(n <= before, "I %u, unit %u, slice %u of %u is larger than the one before", intermediate, multiple_of,
                  i, ducks);
        before = n;
        least = n < least ? n : least;
        most = n > most ? n : most;
        at = s.end;
    }
    cr_assert_eq(at, intermediate);
    cr_assert(most - least <= 1, "I %u, unit %u, %u ducks: %u to %u units", intermediate, multiple_of, ducks, least,
              most);
}

Test(plan, slices_of_known_shapes)
{
    static const struct {
        uint32_t intermediate, unit, ducks, index, begin, end;
    } cases[] = {
        {768, 32, 1, 0, 0, 768},    {768, 32, 2, 0, 0, 384},    {768, 32, 2, 1, 384, 768},
        {768, 128, 4, 0, 0, 256},   {768, 128, 4, 1, 256, 512}, {768, 128, 4, 2, 512, 640},
        {768, 128, 4, 3, 640, 768}, {320, 128, 2, 0, 0, 256},   {320, 128, 2, 1, 256, 320},
        {192, 128, 3, 0, 0, 128},   {192, 128, 3, 1, 128, 192}, {192, 128, 3, 2, 192, 192},
        {1, 32, 2, 0, 0, 1},        {1, 32, 2, 1, 1, 1},        {25600, 32, 3, 1, 8544, 17088},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dk_slice s;

        cr_assert_eq(dk_plan_slice(cases[i].intermediate, cases[i].unit, cases[i].ducks, cases[i].index, &s, NULL), 0);
        cr_expect(s.begin == cases[i].begin && s.end == cases[i].end, "case %zu: [%u, %u)", i, s.begin, s.end);
    }
}

Test(plan, slices_of_all_small_shapes)
{
    for (uint32_t intermediate = 1; intermediate <= 700; intermediate += intermediate < 40 ? 1 : 13)
        for (uint32_t unit = 32; unit <= 256; unit += 32)
            for (uint32_t ducks = 1; ducks <= 12; ducks++)
                slices_check(intermediate, unit, ducks);
}

Test(plan, slices_of_random_shapes)
{
    struct dk_rng rng = {20240607};

    for (int i = 0; i < 2000; i++) {
        uint32_t intermediate = 1 + (uint32_t)(dk_rng_next(&rng) % 100000);
        uint32_t unit = 32 * (1 + (uint32_t)(dk_rng_next(&rng) % 40)), ducks = 1 + (uint32_t)(dk_rng_next(&rng) % 70);

        slices_check(intermediate, unit, ducks);
    }
    slices_check(UINT32_MAX, 32, 7); /* no sum of units overflows */
    slices_check(UINT32_MAX, 1u << 31, 3);
    slices_check(5, 1u << 31, 5);
}

Test(plan, bad_requests)
{
    static const struct {
        uint32_t intermediate, unit, ducks, index;
    } cases[] = {{0, 32, 1, 0}, {768, 0, 1, 0}, {768, 16, 1, 0}, {768, 33, 1, 0}, {768, 32, 0, 0}, {768, 32, 2, 2}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dk_slice s = {1, 2};
        struct dk_err err = {0};

        cr_expect_eq(dk_plan_slice(cases[i].intermediate, cases[i].unit, cases[i].ducks, cases[i].index, &s, &err),
                     -EINVAL, "case %zu", i);
        cr_expect_eq(err.rc, -EINVAL);
        cr_expect_neq(err.text[0], 0);
        cr_expect(s.begin == 0 && s.end == 0);
    }
}

/* Qwen3-30B-A3B: 48 layers, 128 experts of 3 x 768 x 2048. */
static struct dk_model_config experts(void)
{
    struct dk_model_config c = {.family = DK_FAMILY_QWEN3_MOE,
                                .hidden = 2048,
                                .layers = 48,
                                .moe_intermediate = 768,
                                .experts = 128,
                                .top_k = 8,
                                .scale_block = 128};

    memset(c.layer_is_moe, 1, c.layers);
    return c;
}

Test(plan, bytes_of_experts)
{
    struct dk_model_config c = experts();
    uint64_t elements = 48ull * 128 * 3 * 768 * 2048, sum = 0;
    /* a float for each panel of 32 rows and run of 128 columns */
    uint64_t scales = 48ull * 128 * (2 * (768 / 32) * (2048 / 128) + (2048 / 32) * (768 / 128)) * 4;

    cr_expect_eq(dk_plan_duck_bytes(&c, 128, 1, 0, 1), elements + scales);
    for (uint32_t i = 0; i < 6; i++)
        sum += dk_plan_duck_bytes(&c, 128, 6, i, 1);
    cr_expect_eq(sum, elements + scales, "slices at block borders cost nothing more");
    cr_expect_eq(dk_plan_duck_bytes(&c, 768, 2, 1, 1), 0, "an empty slice");
}

/* What the plan counts is what the kernels' matrices take, for every type and slice. */
Test(plan, bytes_are_those_of_the_kernels)
{
    static const enum dk_dtype types[] = {DK_F8_E4M3, DK_BF16, DK_F32};
    static const uint32_t hidden[] = {32, 100, 128, 160, 576}, widths[] = {32, 50, 192, 320};

    for (uint32_t h = 0; h < 5; h++)
        for (uint32_t w = 0; w < 4; w++)
            for (uint32_t t = 0; t < 3; t++)
                for (uint32_t i = 0; i < 3; i++) {
                    struct dk_model_config c = {.hidden = hidden[h], .layers = 1, .intermediate = widths[w]};
                    struct dk_slice s;
                    struct dk_ffn f;

                    cr_assert_eq(dk_plan_slice(widths[w], 32, 3, i, &s, NULL), 0);
                    if (s.begin == s.end)
                        continue;
                    cr_assert_eq(dk_ffn_alloc(&f, types[t], c.hidden, s.end - s.begin, s.begin, t == 0), 0);
                    cr_expect_eq(dk_plan_duck_bytes(&c, 32, 3, i, (uint32_t)dk_dtype_bytes(types[t])), dk_ffn_bytes(&f),
                                 "hidden %u width %u type %u slice %u", c.hidden, widths[w], t, i);
                    dk_ffn_free(&f);
                }
}

Test(plan, bytes_of_mixed_layers)
{
    struct dk_model_config c = experts(),
                           dense = {.hidden = 2048, .layers = 1, .intermediate = 6144, .scale_block = 128};
    uint64_t all = dk_plan_duck_bytes(&c, 32, 3, 1, 1);

    c.intermediate = 6144;
    c.layer_is_moe[0] = false;
    cr_expect_eq(dk_plan_duck_bytes(&c, 32, 3, 1, 1), all / 48 * 47 + dk_plan_duck_bytes(&dense, 32, 3, 1, 1));
}

/* Bytes of one feed-forward with FP8 weights: three matrices, and a float for each panel of 32 rows and run of 128
 * columns. hidden and width are multiples of 128. */
static uint64_t fp8_ffn(uint64_t hidden, uint64_t width)
{
    return 3 * hidden * width + (2 * (width / 32) * (hidden / 128) + (hidden / 32) * (width / 128)) * sizeof(float);
}

/* Shared experts, attention and what is left out of a release are not the ducks'. */
Test(plan, bytes_of_releases)
{
    static const struct {
        const char *name;
        uint64_t dense_layers, dense_width, moe_layers, experts, width, hidden;
    } cases[] = {
        {"DeepSeek-V3", 3, 18432, 58, 256, 2048, 7168}, {"DeepSeek-V3.2", 3, 18432, 58, 256, 2048, 7168},
        {"Qwen3.5-27B-FP8", 64, 17408, 0, 0, 0, 5120},  {"Qwen3.5-122B-A10B-FP8", 0, 0, 48, 256, 1024, 3072},
        {"Llama-3.1-8B", 32, 14336, 0, 0, 0, 4096},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t sum = 0, expected = cases[i].dense_layers * fp8_ffn(cases[i].hidden, cases[i].dense_width) +
                                     cases[i].moe_layers * cases[i].experts * fp8_ffn(cases[i].hidden, cases[i].width);
        struct dk_model_config c;
        struct dk_err err = {0};
        char dir[256];

        snprintf(dir, sizeof dir, FIXTURES "/releases/%s", cases[i].name);
        cr_assert_eq(dk_model_config_load(dir, &c, &err), 0, "%s", err.text);
        for (uint32_t duck = 0; duck < 5; duck++)
            sum += dk_plan_duck_bytes(&c, 128, 5, duck, 1);
        cr_expect_eq(sum, expected, "%s", cases[i].name);
        cr_expect_eq(dk_plan_duck_bytes(&c, 128, 1, 0, 1), expected, "%s", cases[i].name);
    }
}
