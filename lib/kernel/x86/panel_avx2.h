/* SPDX-License-Identifier: Apache-2.0 */
/* The panel function of AVX2, once for each weight format: the including file defines ELEMENT_BYTES,
 *   widen_column(p, w)      32 elements at p to w[4], 8 rows each, in order;
 *   widen_half(p, half, w)  rows 8 half .. + 7 to w[0], 16 + 8 half .. + 7 to w[1],
 * and then DK_PANEL_AVX2(name). A column is widened once for a block of rows of x. Up to 2 rows take a whole column at a
 * time, 8 sums in registers; 3 to 6 rows half a column, 12 sums: the panel's run (4 KiB of FP8) is then read twice, the second
 * time from the first-level cache. */
#include <immintrin.h>
#include <string.h>

#include "kernel/x86/x86.h"

#define COLUMN_BYTES (DK_PANEL_ROWS * ELEMENT_BYTES)
#define ROWS_MAX     6

#define INLINE static inline __attribute__((always_inline))

/* Columns between prefetches: one cache line, or a column if that is larger. */
#define STEP (COLUMN_BYTES < 64 ? 64 / COLUMN_BYTES : 1)

INLINE void prefetch_columns(const char *ahead)
{
    for (unsigned line = 0; line < STEP * COLUMN_BYTES; line += 64)
        _mm_prefetch(ahead + line, _MM_HINT_T0);
}

INLINE void whole_column(int rows, const uint8_t *w, const float *const *x, uint32_t col, __m256 (*chain)[4])
{
    __m256 v[4];

    widen_column(w, v);
#pragma GCC unroll 2
    for (int i = 0; i < rows; i++) {
        __m256 b = _mm256_broadcast_ss(x[i] + col);

#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
            chain[i][j] = _mm256_fmadd_ps(v[j], b, chain[i][j]);
    }
}

/* One column of two panels, one row of x. */
INLINE void pair_column(const uint8_t *w, size_t panel_bytes, const float *x, __m256 (*chain)[4])
{
    __m256 b = _mm256_broadcast_ss(x), v[4];

#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        widen_column(w + i * panel_bytes, v);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
            chain[i][j] = _mm256_fmadd_ps(v[j], b, chain[i][j]);
    }
}

INLINE void half_column(int rows, int half, const uint8_t *w, const float *const *x, uint32_t col, __m256 (*chain)[2])
{
    __m256 v[2];

    widen_half(w, half, v);
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) {
        __m256 b = _mm256_broadcast_ss(x[i] + col);

        chain[i][0] = _mm256_fmadd_ps(v[0], b, chain[i][0]);
        chain[i][1] = _mm256_fmadd_ps(v[1], b, chain[i][1]);
    }
}

INLINE void end_chain(float *out, __m256 chain, float scale)
{
    _mm256_storeu_ps(out, _mm256_fmadd_ps(chain, _mm256_set1_ps(scale), _mm256_loadu_ps(out)));
}

/* One run of columns for `rows` rows of x, whole columns. */
INLINE void whole_block(int rows, const uint8_t *w, const char *ahead, uint32_t col, uint32_t cols, const float *const *x,
                        float scale, float (*out)[DK_PANEL_ROWS])
{
    __m256 chain[2][4];
    const float *xs[2];
    uint32_t c = 0;

#pragma GCC unroll 2
    for (int i = 0; i < rows; i++) {
        xs[i] = x[i] + col;
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
            chain[i][j] = _mm256_setzero_ps();
    }
    for (; c + 2 * STEP <= cols; c += 2 * STEP) {
        prefetch_columns(ahead + c * COLUMN_BYTES);
        prefetch_columns(ahead + (c + STEP) * COLUMN_BYTES);
#pragma GCC unroll 4
        for (uint32_t k = 0; k < 2 * STEP; k++)
            whole_column(rows, w + (c + k) * COLUMN_BYTES, xs, c + k, chain);
    }
    for (; c < cols; c++) {
        prefetch_columns(ahead + c * COLUMN_BYTES);
        whole_column(rows, w + c * COLUMN_BYTES, xs, c, chain);
    }
#pragma GCC unroll 2
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
            end_chain(out[i] + 8 * j, chain[i][j], scale);
}

INLINE void half_block(int rows, int half, const uint8_t *w, const char *ahead, uint32_t col, uint32_t cols,
                       const float *const *x, float scale, float (*out)[DK_PANEL_ROWS])
{
    __m256 chain[ROWS_MAX][2];
    const float *xs[ROWS_MAX];
    uint32_t c = 0;

#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) {
        xs[i] = x[i] + col;
        chain[i][0] = chain[i][1] = _mm256_setzero_ps();
    }
    for (; c + STEP <= cols; c += STEP) {
        prefetch_columns(ahead + c * COLUMN_BYTES);
#pragma GCC unroll 2
        for (uint32_t k = 0; k < STEP; k++)
            half_column(rows, half, w + (c + k) * COLUMN_BYTES, xs, c + k, chain);
    }
    for (; c < cols; c++)
        half_column(rows, half, w + c * COLUMN_BYTES, xs, c, chain);
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) {
        end_chain(out[i] + 8 * half, chain[i][0], scale);
        end_chain(out[i] + 16 + 8 * half, chain[i][1], scale);
    }
}

#define HALVES(n)                                                                                                      \
    case n:                                                                                                            \
        half_block(n, 0, w, ahead, col, cols, x + i, scale, out + i);                                                  \
        half_block(n, 1, w, ahead, col, cols, x + i, scale, out + i);                                                  \
        break;

/* One run of columns of two panels for one row of x. */
INLINE void pair_block(const uint8_t *w, size_t panel_bytes, const char *ahead, uint32_t cols, const float *x,
                       const float *scale, uint32_t runs, float (*out)[DK_PANEL_ROWS])
{
    __m256 chain[2][4];
    uint32_t c = 0;

    for (int j = 0; j < 4; j++)
        chain[0][j] = chain[1][j] = _mm256_setzero_ps();
    for (; c + STEP <= cols; c += STEP) {
        prefetch_columns(ahead + c * COLUMN_BYTES);
        prefetch_columns(ahead + panel_bytes + c * COLUMN_BYTES);
#pragma GCC unroll 2
        for (uint32_t k = c; k < c + STEP; k++)
            pair_column(w + k * COLUMN_BYTES, panel_bytes, x + k, chain);
    }
    for (; c < cols; c++)
        pair_column(w + c * COLUMN_BYTES, panel_bytes, x + c, chain);
    for (int j = 0; j < 4; j++) {
        end_chain(out[0] + 8 * j, chain[0][j], scale[0]);
        end_chain(out[1] + 8 * j, chain[1][j], scale[runs]);
    }
}

static void one_panel(const struct dk_panels *p, uint32_t n, const float *const *x, float (*out)[DK_PANEL_ROWS])
{
    uint32_t col = 0, cols = p->run_first;

    for (uint32_t run = 0; run < p->runs; run++) {
        const uint8_t *w = p->data + (size_t)col * COLUMN_BYTES;
        const char *ahead = dk_prefetch_base(p, (size_t)col * COLUMN_BYTES, (size_t)p->cols * COLUMN_BYTES);
        float scale = p->scales[run];

        for (uint32_t i = 0; i < n; i += ROWS_MAX) {
            switch (n - i) {
            case 1:
                whole_block(1, w, ahead, col, cols, x + i, scale, out + i);
                break;
            case 2:
                whole_block(2, w, ahead, col, cols, x + i, scale, out + i);
                break;
            HALVES(3)
            HALVES(4)
            HALVES(5)
            default:
            HALVES(6)
            }
        }
        col += cols;
        cols = p->cols - col < DK_RUN_COLS ? p->cols - col : DK_RUN_COLS;
    }
}

static void pair(const struct dk_panels *p, const float *x, float (*out)[DK_PANEL_ROWS])
{
    size_t panel_bytes = (size_t)p->cols * COLUMN_BYTES;
    uint32_t col = 0, cols = p->run_first;

    for (uint32_t run = 0; run < p->runs; run++) {
        size_t offset = (size_t)col * COLUMN_BYTES;

        pair_block(p->data + offset, panel_bytes, dk_prefetch_base(p, offset, panel_bytes), cols, x + col,
                   p->scales + run, p->runs, out);
        col += cols;
        cols = p->cols - col < DK_RUN_COLS ? p->cols - col : DK_RUN_COLS;
    }
}

static void panels(const struct dk_panels *p, uint32_t n, const float *const *x, float (*out)[DK_PANEL_ROWS])
{
    struct dk_panels one = *p;

    memset(out, 0, p->count * n * sizeof *out);
    if (p->count == 2 && n == 1) {
        pair(p, x[0], out);
        return;
    }
    one.count = 1;
    for (uint32_t j = 0; j < p->count; j++) {
        if (j + 1 < p->count)
            one.next = one.data + (size_t)p->cols * COLUMN_BYTES;
        else
            one.next = p->next;
        one_panel(&one, n, x, out + j * n);
        one.data = one.next;
        one.scales += p->runs;
    }
}
