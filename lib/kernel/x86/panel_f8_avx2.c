/* SPDX-License-Identifier: Apache-2.0 */
/* FP8 E4M3 by AVX2. Two codes are one 16-bit lane. Taken as a signed byte and multiplied by 128 (vpmaddubsw with 128 for one
 * byte of the lane and 0 for the other), a code s eeee mmm becomes s s eeee mmm 0000000; without bit 14 that is the fp16 number
 * code x 2^-8, subnormals included, which F16C widens. The scale has the 2^8 in it. */
#include <immintrin.h>
#include <stdint.h>

#define ELEMENT_BYTES 1

static inline __attribute__((always_inline)) void widen_column(const uint8_t *p, __m256 *w)
{
    const __m256i mask = _mm256_set1_epi16((short)0xbfff);
    __m256i v = _mm256_loadu_si256((const __m256i *)p);
    __m256i low = _mm256_and_si256(_mm256_maddubs_epi16(_mm256_set1_epi16(0x0080), v), mask);
    __m256i high = _mm256_and_si256(_mm256_maddubs_epi16(_mm256_set1_epi16((short)0x8000), v), mask);

    w[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(low));
    w[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(low, 1));
    w[2] = _mm256_cvtph_ps(_mm256_castsi256_si128(high));
    w[3] = _mm256_cvtph_ps(_mm256_extracti128_si256(high, 1));
}

static inline __attribute__((always_inline)) void widen_half(const uint8_t *p, int half, __m256 *w)
{
    const __m128i mask = _mm_set1_epi16((short)0xbfff);
    __m128i v = _mm_loadu_si128((const __m128i *)(p + 16 * half));

    w[0] = _mm256_cvtph_ps(_mm_and_si128(_mm_maddubs_epi16(_mm_set1_epi16(0x0080), v), mask));
    w[1] = _mm256_cvtph_ps(_mm_and_si128(_mm_maddubs_epi16(_mm_set1_epi16((short)0x8000), v), mask));
}

#include "kernel/x86/panel_avx2.h"

void dk_panels_f8_avx2(const struct dk_panels *p, uint32_t n, const float *const *x, float (*out)[DK_PANEL_ROWS])
{
    panels(p, n, x, out);
}
