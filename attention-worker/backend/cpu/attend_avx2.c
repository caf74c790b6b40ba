/* SPDX-License-Identifier: Apache-2.0 */
/* Attention's inner loops by AVX2. The number of queries is a constant in each copy of a loop, so that sums stay in
 * registers. */
#include <immintrin.h>
#include <stddef.h>

#include "attention-worker/backend/cpu/attend_kernels.h"

#define INLINE   static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 8")

/* All bits set in the first n of 8 lanes. */
INLINE __m256i mask_of(uint32_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n < 8 ? (int)n : 8), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

INLINE void scores_of(const uint32_t n, uint32_t head_dim, uint32_t stride, const uint32_t *count,
                      const float *const *q, const float *keys, float scale, float *const *scores)
{
    for (uint32_t first = 0; first < count[n - 1]; first += 16) {
        __m256 low[4], high[4];

        UNROLLED
        for (uint32_t i = 0; i < n; i++)
            low[i] = high[i] = _mm256_setzero_ps();
        for (uint32_t d = 0; d < head_dim; d++) {
            const float *row = keys + (size_t)d * stride + first;
            __m256 a = _mm256_load_ps(row), b = _mm256_load_ps(row + 8);

            UNROLLED
            for (uint32_t i = 0; i < n; i++) {
                __m256 element = _mm256_broadcast_ss(q[i] + d);

                low[i] = _mm256_fmadd_ps(element, a, low[i]);
                high[i] = _mm256_fmadd_ps(element, b, high[i]);
            }
        }
        UNROLLED
        for (uint32_t i = 0; i < n; i++) {
            if (count[i] > first)
                _mm256_maskstore_ps(scores[i] + first, mask_of(count[i] - first),
                                    _mm256_mul_ps(low[i], _mm256_set1_ps(scale)));
            if (count[i] > first + 8)
                _mm256_maskstore_ps(scores[i] + first + 8, mask_of(count[i] - first - 8),
                                    _mm256_mul_ps(high[i], _mm256_set1_ps(scale)));
        }
    }
}

static void scores_avx2(uint32_t n, uint32_t head_dim, uint32_t stride, const uint32_t *count, const float *const *q,
                        const float *keys, float scale, float *const *scores)
{
    for (; n >= 4; n -= 4, count += 4, q += 4, scores += 4)
        scores_of(4, head_dim, stride, count, q, keys, scale, scores);
    if (n == 3)
        scores_of(3, head_dim, stride, count, q, keys, scale, scores);
    else if (n == 2)
        scores_of(2, head_dim, stride, count, q, keys, scale, scores);
    else if (n == 1)
        scores_of(1, head_dim, stride, count, q, keys, scale, scores);
}

/* 32 dimensions of n queries; the last vectors may be partly or wholly beyond head_dim. */
INLINE void values_of(const uint32_t n, uint32_t left, uint32_t stride, uint32_t count, const float *const *weights,
                      const float *values, float *const *y, uint32_t first)
{
    const uint32_t vectors = left >= 32 ? 4 : (left + 7) / 8;
    __m256 sum[2][4];

    UNROLLED
    for (uint32_t i = 0; i < n; i++) {
        UNROLLED
        for (uint32_t v = 0; v < 4; v++)
            sum[i][v] = v < vectors ? _mm256_maskload_ps(y[i] + first + 8 * v, mask_of(left - 8 * v))
                                    : _mm256_setzero_ps();
    }
    for (uint32_t p = 0; p < count; p++) {
        const float *row = values + (size_t)p * stride + first;
        __m256 value[4];

        UNROLLED
        for (uint32_t v = 0; v < 4; v++)
            value[v] = v < vectors ? _mm256_load_ps(row + 8 * v) : _mm256_setzero_ps();
        UNROLLED
        for (uint32_t i = 0; i < n; i++) {
            __m256 weight = _mm256_broadcast_ss(weights[i] + p);

            UNROLLED
            for (uint32_t v = 0; v < 4; v++)
                sum[i][v] = _mm256_fmadd_ps(weight, value[v], sum[i][v]);
        }
    }
    UNROLLED
    for (uint32_t i = 0; i < n; i++) {
        UNROLLED
        for (uint32_t v = 0; v < 4; v++) {
            if (v < vectors)
                _mm256_maskstore_ps(y[i] + first + 8 * v, mask_of(left - 8 * v), sum[i][v]);
        }
    }
}

INLINE void values_rows(const uint32_t n, uint32_t head_dim, uint32_t stride, uint32_t count,
                        const float *const *weights, const float *values, float *const *y)
{
    uint32_t first = 0;

    for (; first + 32 <= head_dim; first += 32)
        values_of(n, 32, stride, count, weights, values, y, first);
    if (first < head_dim)
        values_of(n, head_dim - first, stride, count, weights, values, y, first);
}

static void values_avx2(uint32_t n, uint32_t head_dim, uint32_t stride, uint32_t count, const float *const *weights,
                        const float *values, float *const *y)
{
    for (; n >= 2; n -= 2, weights += 2, y += 2)
        values_rows(2, head_dim, stride, count, weights, values, y);
    if (n == 1)
        values_rows(1, head_dim, stride, count, weights, values, y);
}

const struct attend_kernels attend_kernels_avx2 = {.scores = scores_avx2, .values = values_avx2};
