/* SPDX-License-Identifier: Apache-2.0 */
/* fp32 by AVX2. */
#include <immintrin.h>
#include <stdint.h>

#define ELEMENT_BYTES 4

static inline __attribute__((always_inline)) void widen_half(const uint8_t *p, int half, __m256 *w)
{
    w[0] = _mm256_loadu_ps((const float *)p + 8 * half);
    w[1] = _mm256_loadu_ps((const float *)p + 16 + 8 * half);
}

static inline __attribute__((always_inline)) void widen_column(const uint8_t *p, __m256 *w)
{
    for (int i = 0; i < 4; i++)
        w[i] = _mm256_loadu_ps((const float *)p + 8 * i);
}

#include "kernel/x86/panel_avx2.h"

void dk_panels_f32_avx2(const struct dk_panels *p, uint32_t n, const float *const *x, float (*out)[DK_PANEL_ROWS])
{
    panels(p, n, x, out);
}
