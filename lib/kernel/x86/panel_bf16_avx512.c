/* SPDX-License-Identifier: Apache-2.0 */
/* bf16 by AVX-512: two elements are one 32-bit lane, and bf16 is the high half of an fp32 number. */
#include <immintrin.h>
#include <stdint.h>

#define ELEMENT_BYTES 2

static inline __attribute__((always_inline)) void widen_column(const uint8_t *column, __m512 *w)
{
    for (int panel = 0; panel < 2; panel++) {
        __m512i v = _mm512_loadu_si512(column + 64 * panel);

        w[2 * panel] = _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
        w[2 * panel + 1] = _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32((int)0xffff0000)));
    }
}

#include "kernel/x86/panel_avx512.h"

void dk_pairs_bf16_avx512(const struct dk_pairs *p, uint32_t n, const float *const *x, float (*out)[DK_PAIR_ROWS])
{
    pairs(p, n, x, out);
}
