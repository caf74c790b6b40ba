/* SPDX-License-Identifier: Apache-2.0 */
/* fp32 by AVX2. */
#include <immintrin.h>
#include <stdint.h>

#define ELEMENT_BYTES 4

static inline __attribute__((always_inline)) void widen_quarter(const uint8_t *column, int q, __m256 *w)
{
    const float *rows = (const float *)column + q / 2 * 32 + q % 2 * 8;

    w[0] = _mm256_loadu_ps(rows);
    w[1] = _mm256_loadu_ps(rows + 16);
}

static inline __attribute__((always_inline)) void widen_panel(const uint8_t *column, int panel, __m256 *w)
{
    for (int j = 0; j < 4; j++)
        w[j] = _mm256_loadu_ps((const float *)column + 32 * panel + 8 * j);
}

#include "kernel/x86/panel_avx2.h"

void dk_pairs_f32_avx2(const struct dk_pairs *p, uint32_t n, const float *const *x, float (*out)[DK_PAIR_ROWS])
{
    pairs(p, n, x, out);
}
