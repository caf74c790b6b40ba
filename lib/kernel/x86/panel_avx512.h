/* SPDX-License-Identifier: Apache-2.0 */
/* The matrix function of AVX-512, once for each weight format: the including file defines ELEMENT_BYTES and
 *   widen_column(column, w)  a pair's column to w[4], 16 rows each, in order.
 * A column is widened once for a block of up to 6 rows of x, whose 24 sums stay in registers. */
#include <immintrin.h>
#include <string.h>

#include "kernel/x86/x86.h"

#define COLUMN_BYTES (DK_PAIR_ROWS * ELEMENT_BYTES)
#define ROWS_MAX     6
#define STEP         4 /* columns between looks at the prefetch pointer */

#define INLINE static inline __attribute__((always_inline))

INLINE void one_column(int rows, const uint8_t *w, const char *ahead, const float *const *x, size_t c,
                       __m512 (*chain)[4])
{
    __m512 v[4];

    for (unsigned line = 0; line < COLUMN_BYTES; line += 64)
        _mm_prefetch(ahead + line, _MM_HINT_T0);
    widen_column(w, v);
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) {
        __m512 b = _mm512_set1_ps(x[i][c]);

#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
            chain[i][j] = _mm512_fmadd_ps(v[j], b, chain[i][j]);
    }
}

/* One run of columns for `rows` rows of x. */
INLINE void block(int rows, const uint8_t *w, struct dk_ahead ahead, uint32_t cols, const float *const *x, uint32_t col,
                  const float *scale, uint32_t runs, bool first, float (*out)[DK_PAIR_ROWS])
{
    __m512 chain[ROWS_MAX][4];
    const float *xs[ROWS_MAX];
    size_t c = 0;

#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) {
        xs[i] = x[i] + col;
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
            chain[i][j] = _mm512_setzero_ps();
    }
    for (; c + STEP <= cols; c += STEP) {
        dk_ahead_check(&ahead);
#pragma GCC unroll 4
        for (unsigned k = 0; k < STEP; k++)
            one_column(rows, w + k * COLUMN_BYTES, ahead.at + k * COLUMN_BYTES, xs, c + k, chain);
        w += STEP * COLUMN_BYTES;
        ahead.at += STEP * COLUMN_BYTES;
    }
    for (; c < cols; c++) {
        one_column(rows, w, ahead.at, xs, c, chain);
        w += COLUMN_BYTES;
        ahead.at += COLUMN_BYTES;
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            float *sum = out[i] + 16 * j;
            __m512 before = first ? _mm512_setzero_ps() : _mm512_loadu_ps(sum);

            _mm512_storeu_ps(sum, _mm512_fmadd_ps(chain[i][j], _mm512_set1_ps(scale[j / 2 * runs]), before));
        }
}

#define ROWS(n)                                                                  \
    case n:                                                                      \
        block(n, w, ahead, cols, x + i, col, scale, p->runs, run == 0, out + i); \
        break;

static void pairs(const struct dk_pairs *p, uint32_t n, const float *const *x, float (*out)[DK_PAIR_ROWS])
{
    struct dk_ahead ahead = dk_ahead_begin(p, (size_t)p->count * p->cols * COLUMN_BYTES);
    const uint8_t *w = p->data;

    if (!p->runs)
        memset(out, 0, p->count * n * sizeof *out);
    for (uint32_t pair = 0; pair < p->count; pair++, out += n) {
        uint32_t col = 0, cols = p->run_first;

        for (uint32_t run = 0; run < p->runs; run++) {
            const float *scale = p->scales + pair * 2 * p->runs + run;

            dk_ahead_check(&ahead);
            for (uint32_t i = 0; i < n; i += ROWS_MAX) {
                switch (n - i) {
                    ROWS(1)
                    ROWS(2)
                    ROWS(3)
                    ROWS(4)
                    ROWS(5)
                default:
                    ROWS(6)
                }
            }
            w += (size_t)cols * COLUMN_BYTES;
            ahead.at += (size_t)cols * COLUMN_BYTES;
            col += cols;
            cols = p->cols - col < DK_RUN_COLS ? p->cols - col : DK_RUN_COLS;
        }
    }
}
