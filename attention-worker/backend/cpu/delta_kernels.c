/* SPDX-License-Identifier: Apache-2.0 */
/* The reference of Gated DeltaNet's inner loops, and the choice among the variants. */
#include "attention-worker/backend/cpu/delta_kernels.h"

#include <math.h>

static void convolve_ref(uint32_t n, uint32_t taps, uint32_t stride, const float *weights, const float *const *inputs,
                         float *y)
{
    for (uint32_t c = 0; c < n; c++) {
        float sum = 0;

        for (uint32_t j = 0; j < taps; j++)
            sum = fmaf(weights[(size_t)j * stride + c], inputs[j][c], sum);
        y[c] = sum;
    }
}

/* One token and one column, whose elements are DELTA_COLUMNS apart. Returns the output. */
static float recur_column(const struct delta_gate *g, uint32_t key_dim, const float *q, const float *k, float v,
                          float *state)
{
    float recalled = 0, carried = 0, d;

    for (uint32_t i = 0; i < key_dim; i++) {
        recalled = fmaf(k[i], state[(size_t)i * DELTA_COLUMNS], recalled);
        carried = fmaf(q[i], state[(size_t)i * DELTA_COLUMNS], carried);
    }
    d = g->write * fmaf(-g->recall, recalled, v);
    for (uint32_t i = 0; i < key_dim; i++) {
        float *s = state + (size_t)i * DELTA_COLUMNS;

        *s = fmaf(k[i], d, g->decay * *s);
    }
    return fmaf(g->add, d, g->carry * carried);
}

static void recur_ref(const struct delta_run *r)
{
    for (uint32_t t = 0; t < r->tokens; t++) {
        const float *q = r->q + t * r->stride, *k = r->k + t * r->stride, *v = r->v + t * r->stride;

        for (uint32_t c = 0; c < r->columns; c++) {
            float *block = r->state + (size_t)(c / DELTA_COLUMNS) * r->key_dim * DELTA_COLUMNS;

            r->y[t * r->y_stride + c] = recur_column(r->gates + t, r->key_dim, q, k, v[c], block + c % DELTA_COLUMNS);
        }
    }
}

const struct delta_kernels delta_kernels_ref = {.convolve = convolve_ref, .recur = recur_ref};

const struct delta_kernels *delta_kernels_get(enum dk_isa isa)
{
#if defined(__x86_64__)
    if (isa >= DK_ISA_AVX512)
        return &delta_kernels_avx512;
    if (isa >= DK_ISA_AVX2)
        return &delta_kernels_avx2;
#endif
    return &delta_kernels_ref;
}
