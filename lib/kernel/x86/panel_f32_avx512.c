/* SPDX-License-Identifier: Apache-2.0 */
/* fp32 by AVX-512. */
#include <immintrin.h>
#include <stdint.h>

#define ELEMENT_BYTES 4

static inline __attribute__((always_inline)) void widen_column(const uint8_t *column, __m512 *w)
{
    for (int j = 0; j < 4; j++)
        w[j] = _mm512_loadu_ps(column + 64 * j);
}

#include "kernel/x86/panel_avx512.h"

void dk_pairs_f32_avx512(const struct dk_pairs *p, uint32_t n, const float *const *x, float (*out)[DK_PAIR_ROWS])
{
    pairs(p, n, x, out);
}
