/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/sampler.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>

/* Whether token a is more likely than b: the larger logit, then the lower id. */
static bool before(const float *logits, uint32_t a, uint32_t b)
{
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

/* The finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014). */
static uint64_t mixed(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Uniform in [0, 1), a function of seed and position alone. */
static double uniform(uint64_t seed, uint32_t position)
{
    const uint64_t step = 0x9e3779b97f4a7c15u;
    uint64_t x = mixed(mixed(seed + step) + (position + 1) * step);

    return (double)(x >> 11) * 0x1p-53;
}

/* Tokens in falling likelihood, found one by one: a heap in tokens[0..left), and behind it those already taken, the
 * most likely one last. Only the few tokens that a cut keeps are ever ordered. */
struct ranking {
    const float *logits;
    uint32_t *tokens;
    uint32_t vocab, left;
};

static void sift_down(struct ranking *r, uint32_t at)
{
    uint32_t token = r->tokens[at];

    for (uint64_t child = 2 * (uint64_t)at + 1; child < r->left; child = 2 * (uint64_t)at + 1) {
        if (child + 1 < r->left && before(r->logits, r->tokens[child + 1], r->tokens[child]))
            child++;
        if (!before(r->logits, r->tokens[child], token))
            break;
        r->tokens[at] = r->tokens[child];
        at = (uint32_t)child;
    }
    r->tokens[at] = token;
}

static void ranking_init(struct ranking *r, const float *logits, uint32_t vocab, uint32_t *scratch)
{
    *r = (struct ranking){.logits = logits, .tokens = scratch, .vocab = vocab, .left = vocab};
    for (uint32_t i = 0; i < vocab; i++)
        scratch[i] = i;
    for (uint32_t i = vocab / 2; i-- > 0;)
        sift_down(r, i);
}

/* The token with `rank` tokens before it. */
static uint32_t ranked(struct ranking *r, uint32_t rank)
{
    while (r->vocab - r->left <= rank) {
        uint32_t root = r->tokens[0];

        r->tokens[0] = r->tokens[--r->left];
        sift_down(r, 0);
        r->tokens[r->left] = root;
    }
    return r->tokens[r->vocab - 1 - rank];
}

/* Proportional to the probability at this temperature; 1 for the most likely token. */
static double weight(float logit, float largest, float temperature)
{
    return expf((logit - largest) / temperature);
}

/* The first of n tokens at which the running sum of weights exceeds target. With `r` tokens are walked in rank order,
 * otherwise by id. */
static uint32_t walk(struct ranking *r, const float *logits, uint32_t n, float largest, float temperature,
                     double target)
{
    uint32_t last = 0;
    double sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t token = r ? ranked(r, i) : i;
        double w = weight(logits[token], largest, temperature);

        if (w > 0)
            last = token;
        sum += w;
        if (sum > target)
            break;
    }
    return last;
}

static uint32_t draw(const float *logits, uint32_t vocab, const struct dk_sampling *s, float largest, double u,
                     uint32_t *scratch)
{
    bool cut_k = s->top_k > 0 && s->top_k < vocab, cut_p = s->top_p < 1;
    struct ranking r;
    uint32_t kept = vocab;
    double total = 0, sum = 0;

    if (cut_k || cut_p)
        ranking_init(&r, logits, vocab, scratch);
    if (cut_k) {
        float limit = logits[ranked(&r, s->top_k - 1)];

        kept = s->top_k;
        while (kept < vocab && logits[ranked(&r, kept)] == limit)
            kept++;
    }
    for (uint32_t i = 0; i < kept; i++)
        total += weight(logits[cut_k ? ranked(&r, i) : i], largest, s->temperature);
    if (cut_p) {
        uint32_t n = 0;

        while (n < kept && (n == 0 || sum < s->top_p * total))
            sum += weight(logits[ranked(&r, n++)], largest, s->temperature);
        kept = n;
        total = sum;
    }
    return walk(cut_k || cut_p ? &r : NULL, logits, kept, largest, s->temperature, u * total);
}

/* The `count` most likely tokens, by insertion. */
static void report_top(const float *logits, uint32_t vocab, uint32_t count, double log_total, struct dk_sampled *out)
{
    uint32_t n = 0;

    for (uint32_t t = 0; t < vocab && count > 0; t++) {
        uint32_t at;

        if (n == count && !before(logits, t, out->top_ids[n - 1]))
            continue;
        at = n < count ? n++ : n - 1;
        for (; at > 0 && before(logits, t, out->top_ids[at - 1]); at--)
            out->top_ids[at] = out->top_ids[at - 1];
        out->top_ids[at] = t;
    }
    for (uint32_t i = 0; i < n; i++)
        out->top_logprobs[i] = (float)(logits[out->top_ids[i]] - log_total);
    out->top_count = n;
}

/* The most likely token and the logarithm of the sum of exponentials. */
static int normalise(const float *logits, uint32_t vocab, uint32_t *best, double *log_total)
{
    double total = 0;

    *best = 0;
    for (uint32_t t = 0; t < vocab; t++) {
        if (isnan(logits[t]))
            return -EDOM;
        if (logits[t] > logits[*best])
            *best = t;
    }
    if (!isfinite(logits[*best]))
        return -EDOM;
    for (uint32_t t = 0; t < vocab; t++)
        total += expf(logits[t] - logits[*best]);
    *log_total = (double)logits[*best] + log(total);
    return 0;
}

static void report(const float *logits, uint32_t vocab, uint32_t token, uint32_t top, double log_total,
                   struct dk_sampled *out)
{
    out->token = token;
    out->logprob = (float)(logits[token] - log_total);
    report_top(logits, vocab, top, log_total, out);
}

int dk_sample(const float *logits, uint32_t vocab, const struct dk_sampling *s, uint32_t position, uint32_t *scratch,
              struct dk_sampled *out)
{
    uint32_t token;
    double log_total;

    assert(vocab > 0 && s->logprobs <= DK_LOGPROBS_MAX && s->temperature >= 0);
    if (normalise(logits, vocab, &token, &log_total) < 0)
        return -EDOM;
    if (s->temperature > 0)
        token = draw(logits, vocab, s, logits[token], uniform(s->seed, position), scratch);
    report(logits, vocab, token, s->logprobs, log_total, out);
    return 0;
}

int dk_score(const float *logits, uint32_t vocab, uint32_t token, uint32_t top, struct dk_sampled *out)
{
    uint32_t best;
    double log_total;

    assert(token < vocab && top <= DK_LOGPROBS_MAX);
    if (normalise(logits, vocab, &best, &log_total) < 0)
        return -EDOM;
    report(logits, vocab, token, top, log_total, out);
    return 0;
}
