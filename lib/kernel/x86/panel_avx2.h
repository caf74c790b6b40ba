/* SPDX-License-Identifier: Apache-2.0 */
/* The matrix function of AVX2, once for each weight format. The including file defines ELEMENT_BYTES and
 *   widen_quarter(column, q, w)  16 rows of a pair's column: panel q / 2, its rows 8 (q % 2) .. + 7 to w[0] and
 *                                16 + 8 (q % 2) .. + 7 to w[1];
 *   widen_panel(column, j, w)    32 rows: panel j to w[4], in order;
 * and, if it has a better way for one row of x, OWN_SINGLE and a function single(). A column is widened once for a
 * block of rows of x. One row takes whole columns, 8 sums in registers; 2 rows a panel at a time; 3 to 6 rows 16 weight
 * rows at a time, 12 sums: a run (8 KiB of FP8) is then read several times, from the first-level cache but for the
 * first time. */
#include <immintrin.h>
#include <string.h>

#include "kernel/x86/x86.h"

#define COLUMN_BYTES (DK_PAIR_ROWS * ELEMENT_BYTES)
#define ROWS_MAX     6

#define INLINE static inline __attribute__((always_inline))

/* The end of a run: sum = chain scale + sum; the first one finds no sum yet. */
INLINE void end_chain(float *sum, __m256 chain, float scale, bool first)
{
    __m256 before = first ? _mm256_setzero_ps() : _mm256_loadu_ps(sum);

    _mm256_storeu_ps(sum, _mm256_fmadd_ps(chain, _mm256_set1_ps(scale), before));
}

INLINE void prefetch_column(const char *at)
{
    for (unsigned line = 0; line < COLUMN_BYTES; line += 64)
        _mm_prefetch(at + line, _MM_HINT_T0);
}

/* One run of columns, 2 rows of x, one panel. */
INLINE void panel_block(int panel, const uint8_t *w, const char *ahead, uint32_t cols, const float *const *x,
                        uint32_t col, float scale, bool first, float (*out)[DK_PAIR_ROWS])
{
    const float *x0 = x[0] + col, *x1 = x[1] + col;
    __m256 chain[2][4];

#pragma GCC unroll 4
    for (int j = 0; j < 4; j++)
        chain[0][j] = chain[1][j] = _mm256_setzero_ps();
    for (uint32_t c = 0; c < cols; c++) {
        __m256 v[4], b0 = _mm256_broadcast_ss(x0 + c), b1 = _mm256_broadcast_ss(x1 + c);

        if (panel == 0)
            prefetch_column(ahead);
        widen_panel(w, panel, v);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            chain[0][j] = _mm256_fmadd_ps(v[j], b0, chain[0][j]);
            chain[1][j] = _mm256_fmadd_ps(v[j], b1, chain[1][j]);
        }
        w += COLUMN_BYTES;
        ahead += COLUMN_BYTES;
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        end_chain(out[0] + 32 * panel + 8 * j, chain[0][j], scale, first);
        end_chain(out[1] + 32 * panel + 8 * j, chain[1][j], scale, first);
    }
}

/* One run of columns, `rows` rows of x, 16 rows of weights. */
INLINE void quarter_block(int rows, int quarter, const uint8_t *w, const char *ahead, uint32_t cols,
                          const float *const *x, uint32_t col, float scale, bool first, float (*out)[DK_PAIR_ROWS])
{
    __m256 chain[ROWS_MAX][2], v[2];
    const float *xs[ROWS_MAX];

#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) {
        xs[i] = x[i] + col;
        chain[i][0] = chain[i][1] = _mm256_setzero_ps();
    }
    for (size_t c = 0; c < cols; c++) {
        if (quarter == 0)
            prefetch_column(ahead);
        widen_quarter(w, quarter, v);
#pragma GCC unroll 6
        for (int i = 0; i < rows; i++) {
            __m256 b = _mm256_broadcast_ss(xs[i] + c);

            chain[i][0] = _mm256_fmadd_ps(v[0], b, chain[i][0]);
            chain[i][1] = _mm256_fmadd_ps(v[1], b, chain[i][1]);
        }
        w += COLUMN_BYTES;
        ahead += COLUMN_BYTES;
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) {
        float *sum = out[i] + quarter / 2 * 32 + quarter % 2 * 8;

        end_chain(sum, chain[i][0], scale, first);
        end_chain(sum + 16, chain[i][1], scale, first);
    }
}

/* One row of x. */
static void single(const struct dk_pairs *p, const float *x, float (*out)[DK_PAIR_ROWS]);

#ifndef OWN_SINGLE
static void single(const struct dk_pairs *p, const float *x, float (*out)[DK_PAIR_ROWS])
{
    struct dk_ahead ahead = dk_ahead_begin(p, (size_t)p->count * p->cols * COLUMN_BYTES);
    const uint8_t *w = p->data;
    const float *scales = p->scales;

    for (uint32_t pair = 0; pair < p->count; pair++) {
        uint32_t col = 0, end = p->run_first;

        for (uint32_t run = 0; run < p->runs; run++) {
            __m256 chain[8];

#pragma GCC unroll 8
            for (int j = 0; j < 8; j++)
                chain[j] = _mm256_setzero_ps();
            for (; col < end; col++) {
                __m256 b = _mm256_broadcast_ss(x + col), v[2];

                dk_ahead_check(&ahead);
                prefetch_column(ahead.at);
#pragma GCC unroll 4
                for (int q = 0; q < 4; q++) {
                    widen_quarter(w, q, v);
                    chain[2 * q] = _mm256_fmadd_ps(v[0], b, chain[2 * q]);
                    chain[2 * q + 1] = _mm256_fmadd_ps(v[1], b, chain[2 * q + 1]);
                }
                w += COLUMN_BYTES;
                ahead.at += COLUMN_BYTES;
            }
#pragma GCC unroll 4
            for (int q = 0; q < 4; q++) {
                float *sum = out[pair] + q / 2 * 32 + q % 2 * 8, scale = scales[q / 2 * p->runs];

                end_chain(sum, chain[2 * q], scale, run == 0);
                end_chain(sum + 16, chain[2 * q + 1], scale, run == 0);
            }
            scales++;
            end = p->cols - col < DK_RUN_COLS ? p->cols : col + DK_RUN_COLS;
        }
        scales += p->runs;
    }
}
#endif

#define QUARTERS(n)                                                                            \
    case n:                                                                                    \
        quarter_block(n, 0, w, ahead.at, cols, x + i, col, scale[0], run == 0, out + i);       \
        quarter_block(n, 1, w, ahead.at, cols, x + i, col, scale[0], run == 0, out + i);       \
        quarter_block(n, 2, w, ahead.at, cols, x + i, col, scale[p->runs], run == 0, out + i); \
        quarter_block(n, 3, w, ahead.at, cols, x + i, col, scale[p->runs], run == 0, out + i); \
        break;

static void several(const struct dk_pairs *p, uint32_t n, const float *const *x, float (*out)[DK_PAIR_ROWS])
{
    struct dk_ahead ahead = dk_ahead_begin(p, (size_t)p->count * p->cols * COLUMN_BYTES);
    const uint8_t *w = p->data;

    for (uint32_t pair = 0; pair < p->count; pair++, out += n) {
        uint32_t col = 0, cols = p->run_first;

        for (uint32_t run = 0; run < p->runs; run++) {
            const float *scale = p->scales + pair * 2 * p->runs + run;

            dk_ahead_check(&ahead);
            for (uint32_t i = 0; i < n; i += ROWS_MAX) {
                switch (n - i) {
                    QUARTERS(1)
                case 2:
                    panel_block(0, w, ahead.at, cols, x + i, col, scale[0], run == 0, out + i);
                    panel_block(1, w, ahead.at, cols, x + i, col, scale[p->runs], run == 0, out + i);
                    break;
                    QUARTERS(3)
                    QUARTERS(4)
                    QUARTERS(5)
                default:
                    QUARTERS(6)
                }
            }
            w += (size_t)cols * COLUMN_BYTES;
            ahead.at += (size_t)cols * COLUMN_BYTES;
            col += cols;
            cols = p->cols - col < DK_RUN_COLS ? p->cols - col : DK_RUN_COLS;
        }
    }
}

static void pairs(const struct dk_pairs *p, uint32_t n, const float *const *x, float (*out)[DK_PAIR_ROWS])
{
    if (!p->runs)
        memset(out, 0, p->count * n * sizeof *out);
    else if (n == 1)
        single(p, x[0], out);
    else
        several(p, n, x, out);
}
