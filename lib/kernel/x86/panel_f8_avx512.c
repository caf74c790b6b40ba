/* SPDX-License-Identifier: Apache-2.0 */
/* FP8 E4M3 by AVX-512: the way to fp16 is that of panel_f8_avx2.c. */
#include <immintrin.h>
#include <stdint.h>

#define ELEMENT_BYTES 1

static inline __attribute__((always_inline)) void widen_column(const uint8_t *column, __m512 *w)
{
    __m512i v = _mm512_loadu_si512(column);
    __m512i low = _mm512_and_si512(_mm512_maddubs_epi16(_mm512_set1_epi16(0x0080), v),
                                   _mm512_set1_epi16((short)0xbfff));
    __m512i high = _mm512_and_si512(_mm512_srai_epi16(v, 1), _mm512_set1_epi16((short)0xbf80));

    w[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(low));
    w[1] = _mm512_cvtph_ps(_mm512_castsi512_si256(high));
    w[2] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(low, 1));
    w[3] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(high, 1));
}

#include "kernel/x86/panel_avx512.h"

void dk_pairs_f8_avx512(const struct dk_pairs *p, uint32_t n, const float *const *x, float (*out)[DK_PAIR_ROWS])
{
    pairs(p, n, x, out);
}
