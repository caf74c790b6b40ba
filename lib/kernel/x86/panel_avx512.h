/* SPDX-License-Identifier: Apache-2.0 */
/* The panel function of AVX-512, once for each weight format: the including file defines ELEMENT_BYTES, STEP (columns widened
 * at a time), and
 *   widen_column(p, w)  32 elements at p to w[2], 16 rows each, in order;
 *   widen_step(p, w)    the same for STEP columns: w[2 STEP];
 * and then calls panel(). A column is widened once for a block of up to 8 rows of x, whose 16 sums stay in registers. */
#include <immintrin.h>
#include <string.h>

#include "kernel/x86/x86.h"

#define COLUMN_BYTES (DK_PANEL_ROWS * ELEMENT_BYTES)
#define ROWS_MAX     8

#define INLINE static inline __attribute__((always_inline))

INLINE void add_column(int rows, const __m512 *v, const float *const *x, uint32_t col, __m512 (*chain)[2])
{
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
        __m512 b = _mm512_set1_ps(x[i][col]);

        chain[i][0] = _mm512_fmadd_ps(v[0], b, chain[i][0]);
        chain[i][1] = _mm512_fmadd_ps(v[1], b, chain[i][1]);
    }
}

INLINE void end_chain(float *out, __m512 chain, float scale)
{
    _mm512_storeu_ps(out, _mm512_fmadd_ps(chain, _mm512_set1_ps(scale), _mm512_loadu_ps(out)));
}

/* One run of columns for `rows` rows of x. */
INLINE void block(int rows, const uint8_t *w, const char *ahead, uint32_t col, uint32_t cols, const float *const *x,
                  float scale, float (*out)[DK_PANEL_ROWS])
{
    __m512 chain[ROWS_MAX][2], v[2 * STEP];
    const float *xs[ROWS_MAX];
    uint32_t c = 0;

#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
        xs[i] = x[i] + col;
        chain[i][0] = chain[i][1] = _mm512_setzero_ps();
    }
    for (; c + STEP <= cols; c += STEP) {
        for (unsigned line = 0; line < STEP * COLUMN_BYTES; line += 64)
            _mm_prefetch(ahead + c * COLUMN_BYTES + line, _MM_HINT_T0);
        widen_step(w + c * COLUMN_BYTES, v);
#pragma GCC unroll 4
        for (uint32_t k = 0; k < STEP; k++)
            add_column(rows, v + 2 * k, xs, c + k, chain);
    }
    for (; c < cols; c++) {
        widen_column(w + c * COLUMN_BYTES, v);
        add_column(rows, v, xs, c, chain);
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < 2; j++)
            end_chain(out[i] + 16 * j, chain[i][j], scale);
}

#define ROWS(n)                                                                                                        \
    case n:                                                                                                            \
        block(n, w, ahead, col, cols, x + i, scale, out + i);                                                          \
        break;

INLINE void pair_step(const uint8_t *w, size_t panel_bytes, const char *ahead, const float *x, __m512 (*chain)[2])
{
    __m512 v[2 * STEP];

    for (int i = 0; i < 2; i++) {
        for (unsigned line = 0; line < STEP * COLUMN_BYTES; line += 64)
            _mm_prefetch(ahead + i * panel_bytes + line, _MM_HINT_T0);
        widen_step(w + i * panel_bytes, v);
#pragma GCC unroll 4
        for (uint32_t k = 0; k < STEP; k++) {
            chain[i][0] = _mm512_fmadd_ps(v[2 * k], _mm512_set1_ps(x[k]), chain[i][0]);
            chain[i][1] = _mm512_fmadd_ps(v[2 * k + 1], _mm512_set1_ps(x[k]), chain[i][1]);
        }
    }
}

/* One run of columns of two panels for one row of x. */
INLINE void pair_block(const uint8_t *w, size_t panel_bytes, const char *ahead, uint32_t cols, const float *x,
                       const float *scale, uint32_t runs, float (*out)[DK_PANEL_ROWS])
{
    __m512 chain[2][2], v[2];
    uint32_t c = 0;

    chain[0][0] = chain[0][1] = chain[1][0] = chain[1][1] = _mm512_setzero_ps();
    for (; c + 2 * STEP <= cols; c += 2 * STEP) {
        pair_step(w + c * COLUMN_BYTES, panel_bytes, ahead + c * COLUMN_BYTES, x + c, chain);
        pair_step(w + (c + STEP) * COLUMN_BYTES, panel_bytes, ahead + (c + STEP) * COLUMN_BYTES, x + c + STEP, chain);
    }
    for (; c < cols; c++)
        for (int i = 0; i < 2; i++) {
            widen_column(w + i * panel_bytes + c * COLUMN_BYTES, v);
            chain[i][0] = _mm512_fmadd_ps(v[0], _mm512_set1_ps(x[c]), chain[i][0]);
            chain[i][1] = _mm512_fmadd_ps(v[1], _mm512_set1_ps(x[c]), chain[i][1]);
        }
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++)
            end_chain(out[i] + 16 * j, chain[i][j], scale[i * runs]);
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
            ROWS(1)
            ROWS(2)
            ROWS(3)
            ROWS(4)
            ROWS(5)
            ROWS(6)
            ROWS(7)
            default:
            ROWS(8)
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
