/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_ATTEND_KERNELS_H
#define DK_ATTEND_KERNELS_H

#include <stdint.h>

#include "base/cpu.h"

/* One head's page against a few queries. Keys lie with positions side by side and values with dimensions side by side,
 * so that lanes never have to be added up, and every order of summation is plain: a score is a chain of fused
 * multiply-adds over rising dimensions, an output one over rising positions. All variants give the same bits, and
 * queries do not influence each other. */

/* Queries of one call at most. */
#define ATTEND_QUERIES_MAX 8u
/* Positions of a key page and dimensions of a value row are padded to this; what is in the padding is never used. */
#define ATTEND_LANES 16u

static inline uint32_t attend_padded(uint32_t n)
{
    return (n + ATTEND_LANES - 1) / ATTEND_LANES * ATTEND_LANES;
}

struct attend_kernels {
    /* scores[i][p] = scale * (q[i] . key p), p < count[i] <= stride. keys [head_dim][stride]; they and stride are
     * aligned to ATTEND_LANES. count may be 0. */
    void (*scores)(uint32_t n, uint32_t head_dim, uint32_t stride, const uint32_t *count, const float *const *q,
                   const float *keys, float scale, float *const *scores);
    /* y[i] += sum of weights[i][p] * value p, p < count. values [count][stride], aligned; y[i] [head_dim]. */
    void (*values)(uint32_t n, uint32_t head_dim, uint32_t stride, uint32_t count, const float *const *weights,
                   const float *values, float *const *y);
};

const struct attend_kernels *attend_kernels_get(enum dk_isa isa);

extern const struct attend_kernels attend_kernels_ref, attend_kernels_avx2, attend_kernels_avx512;

#endif
