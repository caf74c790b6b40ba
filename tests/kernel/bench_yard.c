/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_yard.h"

#include <stdlib.h>
#include <time.h>

double bench_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double bench_median(double *values, uint32_t count)
{
    qsort(values, count, sizeof(*values), compare);
    return values[count / 2];
}

float *bench_noise(size_t n)
{
    float *x = aligned_alloc(64, (n * sizeof(float) + 63) / 64 * 64);
    uint32_t state = 1;

    if (!x)
        abort();
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)state * 0x1p-31f;
    }
    return x;
}

enum { YARD_SUMS = 12, YARD_FLOATS = 20 * 16 * YARD_SUMS, YARD_TURNS = 2000 };

#if defined(__x86_64__)
#define TARGET(isa) __attribute__((target(isa)))
#else
#define TARGET(isa)
#endif
#define DEFINE_YARD(name, isa, vector)                                             \
    TARGET(isa) static float name(const float *x, float factor)                    \
    {                                                                              \
        enum { LANES = sizeof(vector) / sizeof(float), STEP = YARD_SUMS * LANES }; \
        vector sums[YARD_SUMS] = {0}, f = {0};                                     \
        float total = 0;                                                           \
                                                                                   \
        f += factor;                                                               \
        for (uint32_t turn = 0; turn < YARD_TURNS; turn++) {                       \
            for (uint32_t i = 0; i < YARD_FLOATS; i += STEP) {                     \
                _Pragma("GCC unroll 12") for (uint32_t j = 0; j < YARD_SUMS; j++)  \
                    sums[j] += *(const vector *)(x + i + j * LANES) * f;           \
            }                                                                      \
        }                                                                          \
        for (uint32_t j = 0; j < YARD_SUMS; j++)                                   \
            total += sums[j][0];                                                   \
        return total;                                                              \
    }

typedef float vector1 __attribute__((vector_size(4), may_alias));
DEFINE_YARD(yard_ref, "fma", vector1)
#if defined(__x86_64__)
typedef float vector8 __attribute__((vector_size(32), may_alias));
typedef float vector16 __attribute__((vector_size(64), may_alias));
DEFINE_YARD(yard_avx2, "avx2,fma", vector8)
DEFINE_YARD(yard_avx512, "avx512f", vector16)
static float (*const yards[DK_ISA_COUNT])(const float *, float) = {yard_ref, yard_avx2, yard_avx512};
#else
static float (*const yards[DK_ISA_COUNT])(const float *, float) = {yard_ref, yard_ref, yard_ref};
#endif

double bench_yard(enum dk_isa isa)
{
    float *x = bench_noise(YARD_FLOATS);
    volatile float sink = 0;
    double begin = bench_seconds(), spent;

    sink += yards[isa](x, 0.5f);
    spent = bench_seconds() - begin;
    free(x);
    return (double)YARD_TURNS * YARD_FLOATS / spent * 1e-9;
}
