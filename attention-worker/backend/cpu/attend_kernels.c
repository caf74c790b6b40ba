/* SPDX-License-Identifier: Apache-2.0 */
/* The reference of attention's inner loops, and the choice among the variants. */
#include "attention-worker/backend/cpu/attend_kernels.h"

#include <math.h>
#include <stddef.h>

static void scores_ref(uint32_t n, uint32_t head_dim, uint32_t stride, const uint32_t *count, const float *const *q,
                       const float *keys, float scale, float *const *scores)
{
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t p = 0; p < count[i]; p++) {
            float sum = 0;

            for (uint32_t d = 0; d < head_dim; d++)
                sum = fmaf(q[i][d], keys[(size_t)d * stride + p], sum);
            scores[i][p] = sum * scale;
        }
    }
}

static void values_ref(uint32_t n, uint32_t head_dim, uint32_t stride, uint32_t count, const float *const *weights,
                       const float *values, float *const *y)
{
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t p = 0; p < count; p++) {
            for (uint32_t d = 0; d < head_dim; d++)
                y[i][d] = fmaf(weights[i][p], values[(size_t)p * stride + d], y[i][d]);
        }
    }
}

const struct attend_kernels attend_kernels_ref = {.scores = scores_ref, .values = values_ref};

const struct attend_kernels *attend_kernels_get(enum dk_isa isa)
{
#if defined(__x86_64__)
    if (isa >= DK_ISA_AVX512)
        return &attend_kernels_avx512;
    if (isa >= DK_ISA_AVX2)
        return &attend_kernels_avx2;
#endif
    return &attend_kernels_ref;
}
