/* SPDX-License-Identifier: Apache-2.0 */
/* bf16 by AVX2: two elements are one 32-bit lane, and bf16 is the high half of an fp32 number. */
#include <immintrin.h>
#include <stdint.h>

#define ELEMENT_BYTES 2

static inline __attribute__((always_inline)) void widen_quarter(const uint8_t *column, int q, __m256 *w)
{
    __m256i v = _mm256_loadu_si256((const __m256i *)(column + 32 * q));

    w[0] = _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
    w[1] = _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32((int)0xffff0000)));
}

static inline __attribute__((always_inline)) void widen_panel(const uint8_t *column, int panel, __m256 *w)
{
    __m256 quarter[2];

    widen_quarter(column, 2 * panel, quarter);
    w[0] = quarter[0];
    w[2] = quarter[1];
    widen_quarter(column, 2 * panel + 1, quarter);
    w[1] = quarter[0];
    w[3] = quarter[1];
}

#include "kernel/x86/panel_avx2.h"

void dk_pairs_bf16_avx2(const struct dk_pairs *p, uint32_t n, const float *const *x, float (*out)[DK_PAIR_ROWS])
{
    pairs(p, n, x, out);
}
