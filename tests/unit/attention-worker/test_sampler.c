/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/sampler.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#define VOCAB 8

static const float probabilities[VOCAB] = {0.05f, 0.30f, 0.02f, 0.20f, 0.25f, 0.08f, 0.06f, 0.04f};

static void logits_of(float *logits)
{
    for (int i = 0; i < VOCAB; i++)
        logits[i] = logf(probabilities[i]) + 3.0f;
}

static struct dk_sampled sample(const float *logits, struct dk_sampling s, uint32_t position)
{
    uint32_t scratch[VOCAB];
    struct dk_sampled out;

    cr_assert_eq(dk_sample(logits, VOCAB, &s, position, scratch, &out), 0);
    return out;
}

/* Pearson's statistic of `draws` tokens, seeds and positions both varying, against weights in proportion to p^(1/T). */
static double chi_square(struct dk_sampling s, const bool *allowed)
{
    enum { DRAWS = 40000 };
    uint32_t counts[VOCAB] = {0};
    double total = 0, statistic = 0;
    float logits[VOCAB];

    logits_of(logits);
    for (uint32_t i = 0; i < DRAWS; i++) {
        s.seed = i / 200;
        counts[sample(logits, s, i % 200).token]++;
    }
    for (int i = 0; i < VOCAB; i++)
        total += allowed[i] ? pow(probabilities[i], 1 / (double)s.temperature) : 0;
    for (int i = 0; i < VOCAB; i++) {
        double expected = DRAWS * pow(probabilities[i], 1 / (double)s.temperature) / total;

        if (!allowed[i])
            cr_assert_eq(counts[i], 0, "token %d was cut and came %u times", i, counts[i]);
        else
            statistic += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
    return statistic;
}

/* With 7 degrees of freedom 40 is exceeded once in 10^6; the draws are fixed, so the test cannot flicker. */
#define CHI_SQUARE_LIMIT 40

Test(sampler, greedy_takes_the_largest_and_the_lowest_id_on_ties)
{
    const float logits[VOCAB] = {1, 4, -3, 4, 2, 4, 0, 3.9f};

    cr_expect_eq(sample(logits, (struct dk_sampling){.top_p = 1}, 0).token, 1);
    cr_expect_eq(sample(logits, (struct dk_sampling){.top_p = 1, .seed = 9}, 5).token, 1);
}

Test(sampler, logprobs_are_of_the_models_own_distribution)
{
    struct dk_sampling s = {.top_p = 0.5f, .top_k = 2, .temperature = 0.3f, .logprobs = 5};
    const uint32_t order[] = {1, 4, 3, 5, 6};
    float logits[VOCAB];
    struct dk_sampled out;

    logits_of(logits);
    out = sample(logits, s, 3);
    cr_expect_float_eq(out.logprob, logf(probabilities[out.token]), 1e-6);
    cr_assert_eq(out.top_count, 5);
    for (int i = 0; i < 5; i++) {
        cr_expect_eq(out.top_ids[i], order[i]);
        cr_expect_float_eq(out.top_logprobs[i], logf(probabilities[order[i]]), 1e-6);
    }
    s.logprobs = 0;
    cr_expect_eq(sample(logits, s, 3).top_count, 0);
    s.logprobs = DK_LOGPROBS_MAX; /* more than there are tokens */
    cr_expect_eq(sample(logits, s, 3).top_count, VOCAB);
}

Test(sampler, draws_follow_the_distribution)
{
    const bool all[VOCAB] = {1, 1, 1, 1, 1, 1, 1, 1};

    cr_expect_lt(chi_square((struct dk_sampling){.temperature = 1, .top_p = 1}, all), CHI_SQUARE_LIMIT);
    cr_expect_lt(chi_square((struct dk_sampling){.temperature = 0.5f, .top_p = 1}, all), CHI_SQUARE_LIMIT);
    cr_expect_lt(chi_square((struct dk_sampling){.temperature = 2, .top_p = 1}, all), CHI_SQUARE_LIMIT);
}

Test(sampler, cuts_keep_the_most_likely)
{
    const bool three[VOCAB] = {0, 1, 0, 1, 1, 0, 0, 0}, two[VOCAB] = {0, 1, 0, 0, 1, 0, 0, 0};

    cr_expect_lt(chi_square((struct dk_sampling){.temperature = 1, .top_p = 1, .top_k = 3}, three), CHI_SQUARE_LIMIT);
    /* 0.30 + 0.25 + 0.20 reach 0.7, two tokens do not. */
    cr_expect_lt(chi_square((struct dk_sampling){.temperature = 1, .top_p = 0.7f}, three), CHI_SQUARE_LIMIT);
    /* After top-k the three share 1: 0.40 + 0.33 reach 0.7. */
    cr_expect_lt(chi_square((struct dk_sampling){.temperature = 1, .top_p = 0.7f, .top_k = 3}, two), CHI_SQUARE_LIMIT);
    /* The temperature comes first: at 0.5 the shares are 0.41, 0.29, 0.18, 0.03, ... */
    cr_expect_lt(chi_square((struct dk_sampling){.temperature = 0.5f, .top_p = 0.65f}, two), CHI_SQUARE_LIMIT);
}

Test(sampler, top_k_keeps_what_ties_with_the_last)
{
    const float logits[VOCAB] = {1, 5, 1, 3, 3, 3, 0, 0};
    uint32_t seen = 0;

    for (uint32_t i = 0; i < 2000; i++)
        seen |=
            1u << sample(logits, (struct dk_sampling){.temperature = 1, .top_p = 1, .top_k = 2, .seed = i}, 0).token;
    cr_expect_eq(seen, 1u << 1 | 1u << 3 | 1u << 4 | 1u << 5);
}

Test(sampler, edges_of_the_cuts)
{
    const bool all[VOCAB] = {1, 1, 1, 1, 1, 1, 1, 1};
    const float equal[VOCAB] = {2, 2, 2, 2, 2, 2, 2, 2};
    float logits[VOCAB];
    uint32_t seen = 0;

    logits_of(logits);
    for (uint32_t i = 0; i < 500; i++) {
        /* The smallest nucleus is one token. */
        cr_assert_eq(sample(logits, (struct dk_sampling){.temperature = 1, .top_p = 1e-6f, .seed = i}, i).token, 1);
        cr_assert_eq(sample(logits, (struct dk_sampling){.temperature = 1, .top_p = 1, .top_k = 1, .seed = i}, i).token,
                     1);
        /* So cold that only the largest is left. */
        cr_assert_eq(sample(logits, (struct dk_sampling){.temperature = 1e-30f, .top_p = 1, .seed = i}, i).token, 1);
        seen |= 1u << sample(equal, (struct dk_sampling){.temperature = 1, .top_p = 0.24f, .seed = i}, i).token;
    }
    cr_expect_eq(seen, 3, "of equal tokens the lowest ids come first");
    cr_expect_lt(chi_square((struct dk_sampling){.temperature = 1, .top_p = 1, .top_k = VOCAB}, all), CHI_SQUARE_LIMIT);
    cr_expect_lt(chi_square((struct dk_sampling){.temperature = 1, .top_p = 1, .top_k = 1000}, all), CHI_SQUARE_LIMIT);
    cr_expect_lt(chi_square((struct dk_sampling){.temperature = 1, .top_p = 0.9999f}, all), CHI_SQUARE_LIMIT);
}

Test(sampler, a_draw_depends_on_seed_and_position_alone)
{
    float logits[VOCAB];
    uint32_t differs_by_seed = 0, differs_by_position = 0;

    logits_of(logits);
    for (uint32_t i = 0; i < 200; i++) {
        struct dk_sampling s = {.temperature = 1, .top_p = 1, .seed = 1234567890123u + i};
        uint32_t token = sample(logits, s, i).token;

        cr_assert_eq(sample(logits, s, i).token, token);
        differs_by_position += sample(logits, s, i + 1).token != token;
        s.seed++;
        differs_by_seed += sample(logits, s, i).token != token;
        /* What is reported beside the token changes nothing. */
        s.seed--;
        s.logprobs = 3;
        cr_assert_eq(sample(logits, s, i).token, token);
    }
    cr_expect_gt(differs_by_seed, 100);
    cr_expect_gt(differs_by_position, 100);
}

Test(sampler, impossible_tokens_are_never_drawn)
{
    float logits[VOCAB] = {-INFINITY, 1, -INFINITY, 1, -INFINITY, -INFINITY, -INFINITY, -INFINITY};

    for (uint32_t i = 0; i < 500; i++) {
        uint32_t all = sample(logits, (struct dk_sampling){.temperature = 1, .top_p = 1, .seed = i}, 0).token;
        uint32_t cut =
            sample(logits, (struct dk_sampling){.temperature = 1, .top_p = 0.99f, .top_k = 5, .seed = i}, 0).token;

        cr_assert(all == 1 || all == 3);
        cr_assert(cut == 1 || cut == 3);
    }
}

Test(sampler, damaged_logits_are_an_error)
{
    float logits[VOCAB];
    uint32_t scratch[VOCAB];
    struct dk_sampled out;
    struct dk_sampling s = {.temperature = 1, .top_p = 0.9f};

    for (int place = 0; place < VOCAB; place++) {
        logits_of(logits);
        logits[place] = NAN;
        cr_expect_eq(dk_sample(logits, VOCAB, &s, 0, scratch, &out), -EDOM);
        logits[place] = INFINITY;
        cr_expect_eq(dk_sample(logits, VOCAB, &s, 0, scratch, &out), -EDOM);
    }
    for (int i = 0; i < VOCAB; i++)
        logits[i] = -INFINITY;
    cr_expect_eq(dk_sample(logits, VOCAB, &s, 0, scratch, &out), -EDOM);
}

Test(sampler, score_of_a_given_token)
{
    float logits[VOCAB];
    struct dk_sampled out;
    double total = 0;

    logits_of(logits);
    for (int i = 0; i < VOCAB; i++)
        total += exp(logits[i]);
    for (uint32_t token = 0; token < VOCAB; token++) {
        cr_assert_eq(dk_score(logits, VOCAB, token, 2, &out), 0);
        cr_expect_eq(out.token, token);
        cr_expect_float_eq(out.logprob, logits[token] - log(total), 1e-5);
        cr_expect_eq(out.top_count, 2);
        cr_expect_geq(out.top_logprobs[0], out.top_logprobs[1]);
        cr_expect_geq(out.top_logprobs[0], out.logprob);
    }
    logits[3] = NAN;
    cr_expect_eq(dk_score(logits, VOCAB, 0, 2, &out), -EDOM);
}
