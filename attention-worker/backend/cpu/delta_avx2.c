/* SPDX-License-Identifier: Apache-2.0 */
/* Gated DeltaNet's inner loops by AVX2. A block's 32 columns are 4 registers, so a pass has 8 sums in flight. */
#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

#include "attention-worker/backend/cpu/delta_kernels.h"

#define INLINE   static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 4")
#define VECTORS  4
_Static_assert(DELTA_COLUMNS == VECTORS * 8, "a block is 4 registers wide");

static void convolve_avx2(uint32_t n, uint32_t taps, uint32_t stride, const float *weights, const float *const *inputs,
                          float *y)
{
    for (uint32_t c = 0; c < n; c += 16) {
        __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps();

        for (uint32_t j = 0; j < taps; j++) {
            const float *w = weights + (size_t)j * stride + c;

            low = _mm256_fmadd_ps(_mm256_loadu_ps(w), _mm256_load_ps(inputs[j] + c), low);
            high = _mm256_fmadd_ps(_mm256_loadu_ps(w + 8), _mm256_load_ps(inputs[j] + c + 8), high);
        }
        _mm256_store_ps(y + c, low);
        _mm256_store_ps(y + c + 8, high);
    }
}

/* A block's part of v or y; columns < DELTA_COLUMNS only in the last block, whose padding is zero. */
INLINE void load_columns(const float *from, uint32_t columns, __m256 *to)
{
    _Alignas(32) float padded[DELTA_COLUMNS];

    if (columns < DELTA_COLUMNS) {
        memset(padded, 0, sizeof(padded));
        memcpy(padded, from, columns * sizeof(float));
        from = padded;
    }
    UNROLLED
    for (int c = 0; c < VECTORS; c++)
        to[c] = _mm256_loadu_ps(from + 8 * c);
}

INLINE void store_columns(float *to, uint32_t columns, const __m256 *from)
{
    _Alignas(32) float padded[DELTA_COLUMNS];
    float *out = columns < DELTA_COLUMNS ? padded : to;

    UNROLLED
    for (int c = 0; c < VECTORS; c++)
        _mm256_storeu_ps(out + 8 * c, from[c]);
    if (columns < DELTA_COLUMNS)
        memcpy(to, padded, columns * sizeof(float));
}

/* Tokens' rows are far apart, which hardware does not foresee. */
INLINE void fetch(const float *row, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16)
        _mm_prefetch((const char *)(row + i), _MM_HINT_T0);
}

/* What passes over the block leave for each other. */
struct block {
    __m256 d[VECTORS];                          /* the last token's */
    __m256 recalled[VECTORS], carried[VECTORS]; /* the next token's S^T k and S^T q */
};

/* Every row of the block takes in the last token (update) and is then read for the next one (sums). */
INLINE void pass(const bool update, const bool sums, uint32_t key_dim, float decay, const float *last_k, const float *q,
                 const float *k, float *state, struct block *b)
{
    __m256 recalled[VECTORS], carried[VECTORS];

    UNROLLED
    for (int c = 0; c < VECTORS; c++)
        recalled[c] = carried[c] = _mm256_setzero_ps();
    for (uint32_t i = 0; i < key_dim; i++, state += DELTA_COLUMNS) {
        __m256 last = _mm256_set1_ps(update ? last_k[i] : 0);
        __m256 key = _mm256_set1_ps(sums ? k[i] : 0), query = _mm256_set1_ps(sums ? q[i] : 0);

        UNROLLED
        for (int c = 0; c < VECTORS; c++) {
            __m256 s = _mm256_load_ps(state + 8 * c);

            if (update) {
                s = _mm256_fmadd_ps(last, b->d[c], _mm256_mul_ps(s, _mm256_set1_ps(decay)));
                _mm256_store_ps(state + 8 * c, s);
            }
            if (sums) {
                recalled[c] = _mm256_fmadd_ps(key, s, recalled[c]);
                carried[c] = _mm256_fmadd_ps(query, s, carried[c]);
            }
        }
    }
    UNROLLED
    for (int c = 0; c < VECTORS && sums; c++) {
        b->recalled[c] = recalled[c];
        b->carried[c] = carried[c];
    }
}

/* d and the output of a token whose sums are there. */
INLINE void finish(const struct delta_gate *g, const float *v, float *y, uint32_t columns, struct block *b)
{
    __m256 value[VECTORS], out[VECTORS];

    load_columns(v, columns, value);
    UNROLLED
    for (int c = 0; c < VECTORS; c++) {
        __m256 rest = _mm256_fnmadd_ps(_mm256_set1_ps(g->recall), b->recalled[c], value[c]);

        b->d[c] = _mm256_mul_ps(_mm256_set1_ps(g->write), rest);
        out[c] = _mm256_fmadd_ps(_mm256_set1_ps(g->add), b->d[c],
                                 _mm256_mul_ps(_mm256_set1_ps(g->carry), b->carried[c]));
    }
    store_columns(y, columns, out);
}

static void recur_block(const struct delta_run *r, uint32_t first, uint32_t columns)
{
    const float *q = r->q, *k = r->k, *v = r->v + first;
    float *y = r->y + first, *state = r->state + (size_t)first * r->key_dim;
    const struct delta_gate *g = r->gates, *last = g + r->tokens - 1;
    struct block b;

    pass(false, true, r->key_dim, 0, NULL, q, k, state, &b);
    for (;; g++, k += r->stride, v += r->stride, y += r->y_stride) {
        finish(g, v, y, columns, &b);
        if (g == last)
            break;
        q += r->stride;
        if (g + 1 != last) {
            fetch(q + r->stride, r->key_dim);
            fetch(k + 2 * r->stride, r->key_dim);
            fetch(v + 2 * r->stride, columns);
            fetch(y + 2 * r->y_stride, columns);
        }
        pass(true, true, r->key_dim, g->decay, k, q, k + r->stride, state, &b);
    }
    pass(true, false, r->key_dim, g->decay, k, NULL, NULL, state, &b);
}

static void recur_avx2(const struct delta_run *r)
{
    for (uint32_t first = 0; first < r->columns; first += DELTA_COLUMNS)
        recur_block(r, first, r->columns - first < DELTA_COLUMNS ? r->columns - first : DELTA_COLUMNS);
}

const struct delta_kernels delta_kernels_avx2 = {.convolve = convolve_avx2, .recur = recur_avx2};
