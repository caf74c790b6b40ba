/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products and the mixture of experts, out of panel functions. What is here is the same for every ISA level: who
 * computes which panels, in which order, and what is fetched next. */
#include "kernel/kernel.h"

#include <assert.h>
#include <string.h>

#include "kernel/kernel_internal.h"

/* Below this much work waking the helpers costs more than they bring. */
#define INLINE_BYTES 16384u

static uint32_t minimum(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

struct matmul {
    const struct dk_kernels *k;
    const struct dk_matrix *w; /* [heads] */
    uint32_t heads;
    uint32_t n;
    const float *x;
    size_t ldx;
    float *y;
    size_t ldy;
};

/* Pairs [pair, end) of one head. */
static void multiply_pairs(const struct matmul *a, uint32_t head, uint32_t pair, uint32_t end)
{
    const struct dk_matrix *w = &a->w[head];
    const float *from = a->x + (size_t)head * w->cols;
    float *to = a->y + (size_t)head * w->rows;

    while (pair < end) {
        uint32_t count = minimum(end - pair, a->n < DK_BATCH ? DK_BATCH / a->n : 1);
        struct dk_pairs p = dk_matrix_take(w, pair, count);

        for (uint32_t i = 0; i < a->n; i += DK_BATCH) {
            _Alignas(64) float out[DK_BATCH][DK_PAIR_ROWS];
            const float *x[DK_BATCH];
            uint32_t n = minimum(a->n - i, DK_BATCH);

            for (uint32_t j = 0; j < n; j++)
                x[j] = from + (i + j) * a->ldx;
            a->k->pairs[w->type](&p, n, x, out);
            for (uint32_t j = 0; j < count * n; j++) {
                uint32_t row = (pair + j / n) * DK_PAIR_ROWS;

                memcpy(to + (i + j % n) * a->ldy + row, out[j], minimum(w->rows - row, DK_PAIR_ROWS) * sizeof(float));
            }
        }
        pair += count;
    }
}

/* The pairs of all heads in one line, cut into equal parts. */
static void matmul_part(void *arg, uint32_t part, uint32_t parts)
{
    const struct matmul *a = arg;
    uint32_t pairs = dk_matrix_pairs(a->w->rows), begin, end;

    dk_exec_range(a->heads * pairs, part, parts, &begin, &end);
    for (uint32_t at = begin; at < end;) {
        uint32_t head = at / pairs, stop = minimum(end, (head + 1) * pairs);

        multiply_pairs(a, head, at - head * pairs, stop - head * pairs);
        at = stop;
    }
}

static void run(struct dk_exec *e, struct matmul *a)
{
    const struct dk_matrix *w = a->w;

    if (a->heads * dk_matrix_data_bytes(w->type, w->rows, w->cols) * a->n < INLINE_BYTES)
        matmul_part(a, 0, 1);
    else
        dk_exec_run(e, matmul_part, a);
}

void dk_matmul(const struct dk_kernels *k, struct dk_exec *e, const struct dk_matrix *w, uint32_t n, const float *x,
               size_t ldx, float *y, size_t ldy)
{
    struct matmul a = {k, w, 1, n, x, ldx, y, ldy};

    if (n)
        run(e, &a);
}

void dk_matmul_heads(const struct dk_kernels *k, struct dk_exec *e, uint32_t heads, const struct dk_matrix *w,
                     uint32_t n, const float *x, size_t ldx, float *y, size_t ldy)
{
    struct matmul a = {k, w, heads, n, x, ldx, y, ldy};

    for (uint32_t h = 1; h < heads; h++)
        assert(w[h].type == w->type && w[h].rows == w->rows && w[h].cols == w->cols);
    if (n && heads)
        run(e, &a);
}
