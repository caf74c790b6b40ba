/* SPDX-License-Identifier: Apache-2.0 */
/* FP8 E4M3 by AVX-512, two columns at a time; the way to fp16 is that of panel_f8_avx2.c. */
#include <immintrin.h>
#include <stdint.h>

#define ELEMENT_BYTES 1
#define STEP          2

static inline __attribute__((always_inline)) void widen_column(const uint8_t *p, __m512 *w)
{
    const __m256i mask = _mm256_set1_epi16((short)0xbfff);
    __m256i v = _mm256_loadu_si256((const __m256i *)p);

    w[0] = _mm512_cvtph_ps(_mm256_and_si256(_mm256_maddubs_epi16(_mm256_set1_epi16(0x0080), v), mask));
    w[1] = _mm512_cvtph_ps(_mm256_and_si256(_mm256_maddubs_epi16(_mm256_set1_epi16((short)0x8000), v), mask));
}

static inline __attribute__((always_inline)) void widen_step(const uint8_t *p, __m512 *w)
{
    const __m512i mask = _mm512_set1_epi16((short)0xbfff);
    __m512i v = _mm512_loadu_si512(p);
    __m512i low = _mm512_and_si512(_mm512_maddubs_epi16(_mm512_set1_epi16(0x0080), v), mask);
    __m512i high = _mm512_and_si512(_mm512_maddubs_epi16(_mm512_set1_epi16((short)0x8000), v), mask);

    w[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(low));
    w[1] = _mm512_cvtph_ps(_mm512_castsi512_si256(high));
    w[2] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(low, 1));
    w[3] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(high, 1));
}

#include "kernel/x86/panel_avx512.h"

void dk_panels_f8_avx512(const struct dk_panels *p, uint32_t n, const float *const *x, float (*out)[DK_PANEL_ROWS])
{
    panels(p, n, x, out);
}
