/* SPDX-License-Identifier: Apache-2.0 */
/* Gated DeltaNet's inner loops by AVX-512. A block's 32 columns are only 2 registers, 4 sums in flight; two blocks are
 * worked on side by side, if they are there. */
#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

#include "attention-worker/backend/cpu/delta_kernels.h"

#define INLINE      static inline __attribute__((always_inline))
#define UNROLLED    _Pragma("GCC unroll 4")
#define VECTORS     2 /* of one block */
#define VECTORS_MAX 4
_Static_assert(DELTA_COLUMNS == VECTORS * 16 && DELTA_COLUMNS_MAX == VECTORS_MAX * 16, "columns fill registers");

static void convolve_avx512(uint32_t n, uint32_t taps, uint32_t stride, const float *weights,
                            const float *const *inputs, float *y)
{
    for (uint32_t c = 0; c < n; c += 16) {
        __m512 sum = _mm512_setzero_ps();

        for (uint32_t j = 0; j < taps; j++)
            sum = _mm512_fmadd_ps(_mm512_loadu_ps(weights + (size_t)j * stride + c), _mm512_load_ps(inputs[j] + c),
                                  sum);
        _mm512_store_ps(y + c, sum);
    }
}

/* Columns 16 * vector ... of those of a call. */
INLINE __mmask16 mask_of(uint32_t columns, int vector)
{
    uint32_t before = 16 * (uint32_t)vector;

    return (__mmask16)(columns >= before + 16 ? 0xffffu : columns <= before ? 0 : (1u << (columns - before)) - 1);
}

/* Tokens' rows are far apart, which hardware does not foresee. */
INLINE void fetch(const float *row, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16)
        _mm_prefetch((const char *)(row + i), _MM_HINT_T0);
}

/* What passes over the blocks leave for each other. */
struct blocks {
    __m512 d[VECTORS_MAX];                              /* the last token's */
    __m512 recalled[VECTORS_MAX], carried[VECTORS_MAX]; /* the next token's S^T k and S^T q */
};

/* Every row of n / VECTORS blocks takes in the last token (update) and is then read for the next one (sums). */
INLINE void pass(const int n, const bool update, const bool sums, uint32_t key_dim, float decay, const float *last_k,
                 const float *q, const float *k, float *state, struct blocks *b)
{
    float *const starts[2] = {state, state + (size_t)key_dim * DELTA_COLUMNS};
    __m512 recalled[VECTORS_MAX], carried[VECTORS_MAX];

    UNROLLED
    for (int c = 0; c < n; c++)
        recalled[c] = carried[c] = _mm512_setzero_ps();
    for (uint32_t i = 0; i < key_dim; i++) {
        __m512 last = _mm512_set1_ps(update ? last_k[i] : 0);
        __m512 key = _mm512_set1_ps(sums ? k[i] : 0), query = _mm512_set1_ps(sums ? q[i] : 0);

        UNROLLED
        for (int c = 0; c < n; c++) {
            float *at = starts[c / VECTORS] + (size_t)i * DELTA_COLUMNS + 16 * (c % VECTORS);
            __m512 s = _mm512_load_ps(at);

            if (update) {
                s = _mm512_fmadd_ps(last, b->d[c], _mm512_mul_ps(s, _mm512_set1_ps(decay)));
                _mm512_store_ps(at, s);
            }
            if (sums) {
                recalled[c] = _mm512_fmadd_ps(key, s, recalled[c]);
                carried[c] = _mm512_fmadd_ps(query, s, carried[c]);
            }
        }
    }
    UNROLLED
    for (int c = 0; c < n && sums; c++) {
        b->recalled[c] = recalled[c];
        b->carried[c] = carried[c];
    }
}

/* d and the output of a token whose sums are there. */
INLINE void finish(const int n, const struct delta_gate *g, const float *v, float *y, const __mmask16 *masks,
                   struct blocks *b)
{
    UNROLLED
    for (int c = 0; c < n; c++) {
        __m512 value = _mm512_maskz_loadu_ps(masks[c], v + 16 * c);
        __m512 rest = _mm512_fnmadd_ps(_mm512_set1_ps(g->recall), b->recalled[c], value);
        __m512 carried = _mm512_mul_ps(_mm512_set1_ps(g->carry), b->carried[c]);

        b->d[c] = _mm512_mul_ps(_mm512_set1_ps(g->write), rest);
        _mm512_mask_storeu_ps(y + 16 * c, masks[c], _mm512_fmadd_ps(_mm512_set1_ps(g->add), b->d[c], carried));
    }
}

INLINE void recur_blocks(const int n, const struct delta_run *r)
{
    const float *q = r->q, *k = r->k, *v = r->v;
    float *y = r->y;
    const struct delta_gate *g = r->gates, *last = g + r->tokens - 1;
    __mmask16 masks[VECTORS_MAX];
    struct blocks b;

    UNROLLED
    for (int c = 0; c < n; c++)
        masks[c] = mask_of(r->columns, c);
    pass(n, false, true, r->key_dim, 0, NULL, q, k, r->state, &b);
    for (;; g++, k += r->stride, v += r->stride, y += r->y_stride) {
        finish(n, g, v, y, masks, &b);
        if (g == last)
            break;
        q += r->stride;
        if (g + 1 != last) {
            fetch(q + r->stride, r->key_dim);
            fetch(k + 2 * r->stride, r->key_dim);
            fetch(v + 2 * r->stride, r->columns);
            fetch(y + 2 * r->y_stride, r->columns);
        }
        pass(n, true, true, r->key_dim, g->decay, k, q, k + r->stride, r->state, &b);
    }
    pass(n, true, false, r->key_dim, g->decay, k, NULL, NULL, r->state, &b);
}

static void recur_avx512(const struct delta_run *r)
{
    if (r->columns > DELTA_COLUMNS)
        recur_blocks(VECTORS_MAX, r);
    else
        recur_blocks(VECTORS, r);
}

const struct delta_kernels delta_kernels_avx512 = {.convolve = convolve_avx512, .recur = recur_avx512};
