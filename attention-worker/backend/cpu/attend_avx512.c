/* SPDX-License-Identifier: Apache-2.0 */
/* Attention's inner loops by AVX-512. The number of queries is a constant in each copy of a loop, so that sums stay in
 * registers. */
#include <immintrin.h>
#include <stddef.h>

#include "attention-worker/backend/cpu/attend_kernels.h"

#define INLINE   static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 8")

INLINE __mmask16 mask_of(uint32_t n)
{
    return n >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << n) - 1);
}

INLINE void scores_of(const uint32_t n, uint32_t head_dim, uint32_t stride, const uint32_t *count,
                      const float *const *q, const float *keys, float scale, float *const *scores)
{
    for (uint32_t first = 0; first < count[n - 1]; first += 16) {
        __m512 sum[ATTEND_QUERIES_MAX];

        UNROLLED
        for (uint32_t i = 0; i < n; i++)
            sum[i] = _mm512_setzero_ps();
        for (uint32_t d = 0; d < head_dim; d++) {
            __m512 key = _mm512_load_ps(keys + (size_t)d * stride + first);

            UNROLLED
            for (uint32_t i = 0; i < n; i++)
                sum[i] = _mm512_fmadd_ps(_mm512_set1_ps(q[i][d]), key, sum[i]);
        }
        UNROLLED
        for (uint32_t i = 0; i < n; i++) {
            if (count[i] > first)
                _mm512_mask_storeu_ps(scores[i] + first, mask_of(count[i] - first),
                                      _mm512_mul_ps(sum[i], _mm512_set1_ps(scale)));
        }
    }
}

static void scores_avx512(uint32_t n, uint32_t head_dim, uint32_t stride, const uint32_t *count, const float *const *q,
                          const float *keys, float scale, float *const *scores)
{
    switch (n) {
    case 1:
        scores_of(1, head_dim, stride, count, q, keys, scale, scores);
        break;
    case 2:
        scores_of(2, head_dim, stride, count, q, keys, scale, scores);
        break;
    case 3:
        scores_of(3, head_dim, stride, count, q, keys, scale, scores);
        break;
    case 4:
        scores_of(4, head_dim, stride, count, q, keys, scale, scores);
        break;
    case 5:
        scores_of(5, head_dim, stride, count, q, keys, scale, scores);
        break;
    case 6:
        scores_of(6, head_dim, stride, count, q, keys, scale, scores);
        break;
    case 7:
        scores_of(7, head_dim, stride, count, q, keys, scale, scores);
        break;
    default:
        scores_of(8, head_dim, stride, count, q, keys, scale, scores);
        break;
    }
}

/* 64 dimensions of n queries; the last vectors may be partly or wholly beyond head_dim. */
INLINE void values_of(const uint32_t n, uint32_t left, uint32_t stride, uint32_t count, const float *const *weights,
                      const float *values, float *const *y, uint32_t first)
{
    const uint32_t vectors = left >= 64 ? 4 : (left + 15) / 16;
    __m512 sum[4][4];

    UNROLLED
    for (uint32_t i = 0; i < n; i++) {
        UNROLLED
        for (uint32_t v = 0; v < 4; v++)
            sum[i][v] = v < vectors ? _mm512_maskz_loadu_ps(mask_of(left - 16 * v), y[i] + first + 16 * v)
                                    : _mm512_setzero_ps();
    }
    for (uint32_t p = 0; p < count; p++) {
        const float *row = values + (size_t)p * stride + first;
        __m512 value[4];

        UNROLLED
        for (uint32_t v = 0; v < 4; v++)
            value[v] = v < vectors ? _mm512_load_ps(row + 16 * v) : _mm512_setzero_ps();
        UNROLLED
        for (uint32_t i = 0; i < n; i++) {
            __m512 weight = _mm512_set1_ps(weights[i][p]);

            UNROLLED
            for (uint32_t v = 0; v < 4; v++)
                sum[i][v] = _mm512_fmadd_ps(weight, value[v], sum[i][v]);
        }
    }
    UNROLLED
    for (uint32_t i = 0; i < n; i++) {
        UNROLLED
        for (uint32_t v = 0; v < 4; v++) {
            if (v < vectors)
                _mm512_mask_storeu_ps(y[i] + first + 16 * v, mask_of(left - 16 * v), sum[i][v]);
        }
    }
}

INLINE void values_rows(const uint32_t n, uint32_t head_dim, uint32_t stride, uint32_t count,
                        const float *const *weights, const float *values, float *const *y)
{
    uint32_t first = 0;

    for (; first + 64 <= head_dim; first += 64)
        values_of(n, 64, stride, count, weights, values, y, first);
    if (first < head_dim)
        values_of(n, head_dim - first, stride, count, weights, values, y, first);
}

static void values_avx512(uint32_t n, uint32_t head_dim, uint32_t stride, uint32_t count, const float *const *weights,
                          const float *values, float *const *y)
{
    for (; n >= 4; n -= 4, weights += 4, y += 4)
        values_rows(4, head_dim, stride, count, weights, values, y);
    if (n == 3)
        values_rows(3, head_dim, stride, count, weights, values, y);
    else if (n == 2)
        values_rows(2, head_dim, stride, count, weights, values, y);
    else if (n == 1)
        values_rows(1, head_dim, stride, count, weights, values, y);
}

const struct attend_kernels attend_kernels_avx512 = {.scores = scores_avx512, .values = values_avx512};
