/* SPDX-License-Identifier: Apache-2.0 */
/* Attention's inner loops: the reference against its formula in double, every other variant against the reference bit
 * for bit. Odd sizes, and guards round what is written. */
#include "attention-worker/backend/cpu/attend_kernels.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 16, QUERIES = ATTEND_QUERIES_MAX };
#define GUARD_VALUE 12345.0f

/* One random page with its queries. Rows of scores and outputs lie between guards. */
struct page {
    uint32_t n, head_dim, tokens, key_stride, value_stride, common;
    uint32_t count[QUERIES];
    float scale;
    float *keys, *values, *q, *weights;
};

struct result {
    size_t floats, row; /* of all; between two queries' rows */
    float *scores, *y;
};

static uint32_t next(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static float *random_floats(size_t n, uint32_t *state)
{
    float *x = aligned_alloc(64, (n * sizeof(float) + 63) / 64 * 64);

    for (size_t i = 0; i < n; i++)
        x[i] = ((float)next(state) * 0x1p-23f - 1) * (next(state) % 16 == 0 ? 100.0f : 1.0f);
    return x;
}

static void page_init(struct page *p, uint32_t *state)
{
    static const uint32_t head_dims[] = {2, 8, 10, 16, 24, 32, 40, 64, 72, 80, 96, 128, 256};
    static const uint32_t tokens[] = {1, 5, 8, 16, 17, 32, 64};

    p->n = 1 + next(state) % QUERIES;
    p->head_dim = head_dims[next(state) % (sizeof(head_dims) / sizeof(head_dims[0]))];
    p->tokens = tokens[next(state) % (sizeof(tokens) / sizeof(tokens[0]))];
    p->key_stride = attend_padded(p->tokens);
    p->value_stride = attend_padded(p->head_dim);
    p->scale = 0.125f + (float)(next(state) % 8);
    p->keys = random_floats((size_t)p->head_dim * p->key_stride, state);
    p->values = random_floats((size_t)p->tokens * p->value_stride, state);
    p->q = random_floats((size_t)QUERIES * p->head_dim, state);
    p->weights = random_floats((size_t)QUERIES * p->tokens, state);
    p->common = next(state) % (p->tokens + 1);
    p->count[0] = next(state) % (p->tokens + 1);
    for (uint32_t i = 1; i < p->n; i++)
        p->count[i] = p->count[i - 1] + next(state) % (p->tokens - p->count[i - 1] + 1);
}

static void page_fini(struct page *p)
{
    free(p->keys);
    free(p->values);
    free(p->q);
    free(p->weights);
}

static void run(const struct attend_kernels *k, const struct page *p, struct result *r)
{
    const float *q[QUERIES], *weights[QUERIES];
    float *scores[QUERIES], *y[QUERIES];

    r->row = GUARD + (p->tokens > p->head_dim ? p->tokens : p->head_dim);
    r->floats = GUARD + QUERIES * r->row;
    r->scores = malloc(r->floats * sizeof(float));
    r->y = malloc(r->floats * sizeof(float));
    for (size_t i = 0; i < r->floats; i++)
        r->scores[i] = r->y[i] = GUARD_VALUE;
    for (uint32_t i = 0; i < p->n; i++) {
        q[i] = p->q + i * p->head_dim;
        weights[i] = p->weights + i * p->tokens;
        scores[i] = r->scores + GUARD + i * r->row;
        y[i] = r->y + GUARD + i * r->row;
        for (uint32_t d = 0; d < p->head_dim; d++)
            y[i][d] = (float)(d % 7) * 0.3f - 0.7f; /* the sum so far */
    }
    k->scores(p->n, p->head_dim, p->key_stride, p->count, q, p->keys, p->scale, scores);
    k->values(p->n, p->head_dim, p->value_stride, p->common, weights, p->values, y);
}

static void result_free(struct result *r)
{
    free(r->scores);
    free(r->y);
}

/* Everything that may not be written still has its guard value. */
static bool guards_hold(const struct page *p, const struct result *r)
{
    for (size_t at = 0; at < r->floats; at++) {
        size_t query = at < GUARD ? QUERIES : (at - GUARD) / r->row, place = at < GUARD ? 0 : (at - GUARD) % r->row;
        bool is_score = query < p->n && place < p->count[query];
        bool is_output = query < p->n && place < p->head_dim;

        if ((!is_score && r->scores[at] != GUARD_VALUE) || (!is_output && r->y[at] != GUARD_VALUE))
            return false;
    }
    return true;
}

Test(attend_kernels, reference_matches_its_formula)
{
    uint32_t state = 1;

    for (int round = 0; round < 300; round++) {
        struct page p;
        struct result r;

        page_init(&p, &state);
        run(&attend_kernels_ref, &p, &r);
        cr_assert(guards_hold(&p, &r));
        for (uint32_t i = 0; i < p.n; i++) {
            for (uint32_t t = 0; t < p.count[i]; t++) {
                double sum = 0, size = 0;

                for (uint32_t d = 0; d < p.head_dim; d++) {
                    double term = (double)p.q[i * p.head_dim + d] * p.keys[d * p.key_stride + t];

                    sum += term;
                    size += fabs(term);
                }
                cr_assert_float_eq(r.scores[GUARD + i * r.row + t], sum * p.scale, 1e-5 * size * p.scale + 1e-6);
            }
            for (uint32_t d = 0; d < p.head_dim; d++) {
                double sum = (float)(d % 7) * 0.3f - 0.7f, size = 1;

                for (uint32_t t = 0; t < p.common; t++) {
                    double term = (double)p.weights[i * p.tokens + t] * p.values[t * p.value_stride + d];

                    sum += term;
                    size += fabs(term);
                }
                cr_assert_float_eq(r.y[GUARD + i * r.row + d], sum, 1e-5 * size);
            }
        }
        result_free(&r);
        page_fini(&p);
    }
}

Test(attend_kernels, variants_give_the_bits_of_the_reference)
{
    for (int isa = DK_ISA_AVX2; isa < DK_ISA_COUNT; isa++) {
        uint32_t state = 77;

        if ((enum dk_isa)isa > dk_isa_best()) {
            printf("%s: not on this CPU, not compared\n", dk_isa_name((enum dk_isa)isa));
            continue;
        }
        cr_assert_neq(attend_kernels_get((enum dk_isa)isa), &attend_kernels_ref);
        for (int round = 0; round < 2000; round++) {
            struct page p;
            struct result expected, got;

            page_init(&p, &state);
            run(&attend_kernels_ref, &p, &expected);
            run(attend_kernels_get((enum dk_isa)isa), &p, &got);
            cr_assert(guards_hold(&p, &got), "%s, round %d: wrote beyond (n %u, head_dim %u, tokens %u)",
                      dk_isa_name((enum dk_isa)isa), round, p.n, p.head_dim, p.tokens);
            for (size_t i = 0; i < got.floats; i++)
                cr_assert(memcmp(&got.scores[i], &expected.scores[i], 4) == 0 &&
                              memcmp(&got.y[i], &expected.y[i], 4) == 0,
                          "%s, round %d, float %zu (n %u, head_dim %u, tokens %u): score %.9g, not %.9g; output %.9g, "
                          "not %.9g",
                          dk_isa_name((enum dk_isa)isa), round, i, p.n, p.head_dim, p.tokens, (double)got.scores[i],
                          (double)expected.scores[i], (double)got.y[i], (double)expected.y[i]);
            result_free(&expected);
            result_free(&got);
            page_fini(&p);
        }
        printf("%s: 2000 pages as the reference\n", dk_isa_name((enum dk_isa)isa));
    }
}
