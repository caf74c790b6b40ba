/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BACKEND_FIXTURE_H
#define BACKEND_FIXTURE_H

#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "attention-worker/backend/backend.h"

/* What tests of the CPU back end share: opening one, numbers that look random, weights and rows out of host memory. A
 * failure ends the test. */

static const struct dk_backend_ops *const ops = &dk_backend_cpu;

static inline struct dk_backend *open_backend_isa(const char *isa, uint32_t threads, uint32_t rows_max,
                                                  uint32_t context, uint32_t scratch)
{
    const struct dk_backend_config c = {
        .isa = isa, .threads = threads, .rows_max = rows_max, .context = context, .scratch_floats_per_row = scratch};
    struct dk_err err = {0};
    struct dk_backend *b;

    cr_assert_eq(ops->open(&c, &b, &err), 0, "%s", err.text);
    return b;
}

static inline struct dk_backend *open_backend(uint32_t threads, uint32_t rows_max, uint32_t context, uint32_t scratch)
{
    return open_backend_isa("auto", threads, rows_max, context, scratch);
}

static inline uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state;
}

/* From -1 to 1. */
static inline void fill(float *x, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(int32_t)next_random(&seed) * 0x1p-31f;
}

/* From -scale to scale; free() it. */
static inline float *random_floats(size_t n, float scale, uint32_t seed)
{
    float *x = malloc((n + 1) * sizeof(float));

    fill(x, n, seed);
    for (size_t i = 0; i < n; i++)
        x[i] *= scale;
    return x;
}

/* |a - b|; a NaN counts as infinite, which no limit lets pass. */
static inline double difference_of(double a, double b)
{
    return isnan(a - b) ? (double)INFINITY : fabs(a - b);
}

/* cols 0: a vector. */
static inline struct dk_weight *load(struct dk_backend *b, enum dk_weight_use use, const float *data, uint32_t rows,
                                     uint32_t cols)
{
    const struct dk_tensor t = {.name = "w",
                                .type = DK_F32,
                                .rank = cols ? 2 : 1,
                                .shape = {rows, cols},
                                .data = (const uint8_t *)data,
                                .bytes = (uint64_t)rows * (cols ? cols : 1) * 4,
                                .file = "test"};
    struct dk_err err = {0};
    struct dk_weight *w;

    cr_assert_eq(ops->weight_load(b, use, &t, NULL, &w, &err), 0, "%s", err.text);
    return w;
}

static inline struct dk_rows take(struct dk_backend *b, uint32_t width)
{
    struct dk_rows r;

    cr_assert_eq(ops->rows_take(b, width, &r), 0);
    return r;
}

#endif
