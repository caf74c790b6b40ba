/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of the ISA levels, and the small functions. Each level starts from a full reference table, and its own
 * functions go over it, so a level never lacks a function. */
#include "kernel/kernel.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>

#include "kernel/kernel_internal.h"

static struct dk_kernels tables[DK_ISA_COUNT];
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static void fill_tables(void)
{
    for (int isa = 0; isa < DK_ISA_COUNT; isa++) {
        struct dk_kernels *k = &tables[isa];

        k->isa = (enum dk_isa)isa;
        dk_kernels_fill_ref(k);
#if defined(__x86_64__)
        if (isa >= DK_ISA_AVX2)
            dk_kernels_fill_avx2(k);
        if (isa >= DK_ISA_AVX512)
            dk_kernels_fill_avx512(k);
#endif
    }
}

const struct dk_kernels *dk_kernels_get(enum dk_isa isa)
{
    assert((unsigned)isa < DK_ISA_COUNT && isa <= dk_isa_best());
    pthread_once(&tables_once, fill_tables);
    return &tables[isa];
}

enum dk_isa dk_kernels_isa(const struct dk_kernels *k)
{
    return k->isa;
}

void dk_rmsnorm(const struct dk_kernels *k, uint32_t n, const float *x, const float *w, float eps, float *y)
{
    k->scale_mul(n, x, 1.0f / sqrtf(k->dot(n, x, x) / (float)n + eps), w, y);
}

float dk_dot(const struct dk_kernels *k, uint32_t n, const float *a, const float *b)
{
    return k->dot(n, a, b);
}

void dk_axpy(const struct dk_kernels *k, uint32_t n, float a, const float *x, float *y)
{
    k->axpy(n, a, x, y);
}

void dk_softmax(const struct dk_kernels *k, uint32_t n, float *x)
{
    k->softmax(n, x);
}

void dk_silu_mul(const struct dk_kernels *k, uint32_t n, const float *g, const float *u, float *y)
{
    k->silu_mul(n, g, u, y);
}

void dk_sigmoid_mul(const struct dk_kernels *k, uint32_t n, const float *g, const float *u, float *y)
{
    k->sigmoid_mul(n, g, u, y);
}

void dk_rope_halves(const struct dk_kernels *k, uint32_t n, float *x, const float *cosine, const float *sine)
{
    k->rope_halves(n, x, cosine, sine);
}

void dk_rope_pairs(const struct dk_kernels *k, uint32_t n, float *x, const float *cosine, const float *sine)
{
    k->rope_pairs(n, x, cosine, sine);
}

uint64_t dk_read(const struct dk_kernels *k, const void *data, size_t bytes)
{
    return k->read(data, bytes);
}
