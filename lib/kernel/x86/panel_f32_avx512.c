/* SPDX-License-Identifier: Apache-2.0 */
/* fp32 by AVX-512. */
#include <immintrin.h>
#include <stdint.h>

#define ELEMENT_BYTES 4
#define STEP          1

static inline __attribute__((always_inline)) void widen_column(const uint8_t *p, __m512 *w)
{
    w[0] = _mm512_loadu_ps(p);
    w[1] = _mm512_loadu_ps(p + 64);
}

#define widen_step widen_column
#include "kernel/x86/panel_avx512.h"

void dk_panels_f32_avx512(const struct dk_panels *p, uint32_t n, const float *const *x, float (*out)[DK_PANEL_ROWS])
{
    panels(p, n, x, out);
}
