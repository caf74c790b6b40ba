/* SPDX-License-Identifier: Apache-2.0 */
/* Gated DeltaNet's inner loops: the reference against its formulas in double, every other variant against the reference
 * bit for bit. Odd sizes, unaligned rows, and guards round what is written. */
#include "attention-worker/backend/cpu/delta_kernels.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 16, TOKENS = 6, CASES = 300 };
#define GUARD_VALUE 12345.0f

static uint32_t next(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static float uniform(uint32_t *state) /* -1 .. 1 */
{
    return (float)next(state) * 0x1p-23f - 1;
}

static float *floats(size_t n, float value)
{
    float *x = aligned_alloc(64, (n * sizeof(float) + 63) / 64 * 64);

    for (size_t i = 0; i < n; i++)
        x[i] = value;
    return x;
}

static float *random_floats(size_t n, uint32_t *state)
{
    float *x = floats(n, 0);

    for (size_t i = 0; i < n; i++)
        x[i] = uniform(state);
    return x;
}

/* |a - b|; a NaN counts as infinite, which no limit lets pass. */
static double difference_of(double a, double b)
{
    return isnan(a - b) ? (double)INFINITY : fabs(a - b);
}

static bool guards_left(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (x[i] != GUARD_VALUE)
            return false;
    }
    return true;
}

/* A few tokens for a few columns, and what comes of them: the outputs lie between guards. */
struct recurrence {
    uint32_t key_dim, columns, tokens, blocks;
    size_t stride, y_stride, state_floats, y_floats;
    float *rows, *state; /* [tokens][q | k | v and some more], as it is before */
    struct delta_gate gates[TOKENS];
};

static void recurrence_init(struct recurrence *r, uint32_t *state)
{
    static const uint32_t key_dims[] = {1, 2, 3, 7, 16, 32, 33, 64, 100, 128, 256};
    static const uint32_t columns[] = {1, 5, 8, 15, 16, 17, 31, 32, 33, 40, 48, 49, 63, 64};

    r->key_dim = key_dims[next(state) % (sizeof(key_dims) / sizeof(key_dims[0]))];
    r->columns = columns[next(state) % (sizeof(columns) / sizeof(columns[0]))];
    r->tokens = 1 + next(state) % TOKENS;
    r->blocks = (r->columns + DELTA_COLUMNS - 1) / DELTA_COLUMNS;
    r->stride = 2 * r->key_dim + r->columns + next(state) % 3;
    r->y_stride = r->columns + 2 * GUARD;
    r->rows = random_floats(r->tokens * r->stride, state);
    r->state_floats = (size_t)r->blocks * r->key_dim * DELTA_COLUMNS;
    r->y_floats = GUARD + r->tokens * r->y_stride;
    r->state = random_floats(r->state_floats, state);
    for (size_t i = 0; i < r->state_floats; i++) {
        if (i / ((size_t)r->key_dim * DELTA_COLUMNS) * DELTA_COLUMNS + i % DELTA_COLUMNS >= r->columns)
            r->state[i] = 0;
    }
    for (uint32_t t = 0; t < r->tokens; t++)
        r->gates[t] = (struct delta_gate){.decay = fabsf(uniform(state)),
                                          .recall = uniform(state) / (float)r->key_dim,
                                          .write = uniform(state),
                                          .carry = uniform(state),
                                          .add = uniform(state)};
}

static void recurrence_free(struct recurrence *r)
{
    free(r->rows);
    free(r->state);
}

static void run(const struct recurrence *r, const struct delta_kernels *k, float *state, float *y)
{
    const struct delta_run job = {.key_dim = r->key_dim,
                                  .columns = r->columns,
                                  .tokens = r->tokens,
                                  .gates = r->gates,
                                  .q = r->rows,
                                  .k = r->rows + r->key_dim,
                                  .v = r->rows + 2 * r->key_dim,
                                  .stride = r->stride,
                                  .y = y + GUARD,
                                  .y_stride = r->y_stride,
                                  .state = state};

    memcpy(state, r->state, r->state_floats * sizeof(float));
    k->recur(&job);
}

static float largest_error(const struct recurrence *r, const float *state, const float *y)
{
    double s[256], largest = 0;

    for (uint32_t c = 0; c < r->columns; c++) {
        size_t at = (size_t)(c / DELTA_COLUMNS) * r->key_dim * DELTA_COLUMNS + c % DELTA_COLUMNS;

        for (uint32_t i = 0; i < r->key_dim; i++)
            s[i] = r->state[at + i * DELTA_COLUMNS];
        for (uint32_t t = 0; t < r->tokens; t++) {
            const float *q = r->rows + t * r->stride, *k = q + r->key_dim;
            const struct delta_gate *g = &r->gates[t];
            double recalled = 0, carried = 0, d;

            for (uint32_t i = 0; i < r->key_dim; i++) {
                recalled += k[i] * s[i];
                carried += q[i] * s[i];
            }
            d = g->write * (k[r->key_dim + c] - g->recall * recalled);
            for (uint32_t i = 0; i < r->key_dim; i++)
                s[i] = g->decay * s[i] + k[i] * d;
            largest = fmax(largest,
                           difference_of(g->carry * carried + g->add * d, (double)y[GUARD + t * r->y_stride + c]));
        }
        for (uint32_t i = 0; i < r->key_dim; i++)
            largest = fmax(largest, difference_of(s[i], (double)state[at + i * DELTA_COLUMNS]));
    }
    return (float)largest;
}

static void check_guards(const struct recurrence *r, const float *state, const float *y)
{
    cr_assert(guards_left(y, GUARD));
    for (uint32_t t = 0; t < r->tokens; t++)
        cr_assert(guards_left(y + GUARD + t * r->y_stride + r->columns, r->y_stride - r->columns));
    for (size_t i = 0; i < r->state_floats; i++) {
        if (i / ((size_t)r->key_dim * DELTA_COLUMNS) * DELTA_COLUMNS + i % DELTA_COLUMNS >= r->columns)
            cr_assert_eq(state[i], 0);
    }
}

Test(delta_kernels, the_recurrence_is_its_formula_and_the_same_in_every_variant)
{
    uint32_t seed = 1;

    for (int n = 0; n < CASES; n++) {
        struct recurrence r;
        float *state, *y, *other_state, *other_y;

        recurrence_init(&r, &seed);
        state = floats(r.state_floats, 0);
        other_state = floats(r.state_floats, 0);
        y = floats(r.y_floats, GUARD_VALUE);
        other_y = floats(r.y_floats, GUARD_VALUE);
        run(&r, &delta_kernels_ref, state, y);
        check_guards(&r, state, y);
        cr_assert_lt(largest_error(&r, state, y), 1e-4f, "case %d", n);
        for (enum dk_isa isa = DK_ISA_AVX2; isa <= dk_isa_best(); isa++) {
            run(&r, delta_kernels_get(isa), other_state, other_y);
            check_guards(&r, other_state, other_y);
            cr_assert_arr_eq(other_y, y, r.y_floats * sizeof(float), "%s: y of case %d, %u by %u, %u tokens",
                             dk_isa_name(isa), n, r.key_dim, r.columns, r.tokens);
            cr_assert_arr_eq(other_state, state, r.state_floats * sizeof(float), "%s: state of case %d, %u by %u",
                             dk_isa_name(isa), n, r.key_dim, r.columns);
        }
        free(state);
        free(other_state);
        free(y);
        free(other_y);
        recurrence_free(&r);
    }
}

Test(delta_kernels, the_convolution_is_its_formula_and_the_same_in_every_variant)
{
    enum { STRIDE = 128, TAPS = 16 };
    uint32_t seed = 2;

    for (uint32_t taps = 2; taps <= TAPS; taps++) {
        for (uint32_t n = DELTA_LANES; n <= STRIDE; n += DELTA_LANES) {
            float *block = random_floats(STRIDE * TAPS + 1, &seed), *inputs = random_floats(STRIDE * TAPS, &seed);
            const float *weights = block + taps % 2; /* they need no alignment */
            float *y = floats(STRIDE + GUARD, GUARD_VALUE), *other = floats(STRIDE + GUARD, GUARD_VALUE);
            const float *rows[TAPS];

            for (uint32_t j = 0; j < taps; j++)
                rows[j] = inputs + (j * 5 + 3) % TAPS * STRIDE;
            delta_kernels_ref.convolve(n, taps, STRIDE, weights, rows, y);
            for (uint32_t c = 0; c < n; c++) {
                double sum = 0;

                for (uint32_t j = 0; j < taps; j++)
                    sum += (double)weights[j * STRIDE + c] * rows[j][c];
                cr_expect_float_eq(y[c], sum, 1e-6);
            }
            cr_expect(guards_left(y + n, STRIDE + GUARD - n));
            for (enum dk_isa isa = DK_ISA_AVX2; isa <= dk_isa_best(); isa++) {
                delta_kernels_get(isa)->convolve(n, taps, STRIDE, weights, rows, other);
                cr_expect_arr_eq(other, y, (STRIDE + GUARD) * sizeof(float), "%s, %u channels, %u taps",
                                 dk_isa_name(isa), n, taps);
            }
            free(block);
            free(inputs);
            free(y);
            free(other);
        }
    }
}

Test(delta_kernels, a_level_has_its_own_table)
{
    for (int isa = dk_isa_best() + 1; isa < DK_ISA_COUNT; isa++)
        printf("%s: not on this CPU, not compared\n", dk_isa_name((enum dk_isa)isa));
    cr_expect_eq(delta_kernels_get(DK_ISA_REF), &delta_kernels_ref);
#if defined(__x86_64__)
    cr_expect_eq(delta_kernels_get(DK_ISA_AVX2), &delta_kernels_avx2);
    cr_expect_eq(delta_kernels_get(DK_ISA_AVX512), &delta_kernels_avx512);
#endif
}
