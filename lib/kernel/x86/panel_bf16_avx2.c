/* SPDX-License-Identifier: Apache-2.0 */
/* bf16 by AVX2: two elements are one 32-bit lane, and bf16 is the high half of an fp32 number. */
#include <immintrin.h>
#include <stdint.h>

#define ELEMENT_BYTES 2

static inline __attribute__((always_inline)) void widen_half(const uint8_t *p, int half, __m256 *w)
{
    __m256i v = _mm256_loadu_si256((const __m256i *)(p + 32 * half));

    w[0] = _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
    w[1] = _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32((int)0xffff0000)));
}

static inline __attribute__((always_inline)) void widen_column(const uint8_t *p, __m256 *w)
{
    __m256 half[2];

    widen_half(p, 0, half);
    w[0] = half[0];
    w[2] = half[1];
    widen_half(p, 1, half);
    w[1] = half[0];
    w[3] = half[1];
}

#include "kernel/x86/panel_avx2.h"

void dk_panels_bf16_avx2(const struct dk_panels *p, uint32_t n, const float *const *x, float (*out)[DK_PANEL_ROWS])
{
    panels(p, n, x, out);
}
