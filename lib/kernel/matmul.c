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
    const struct dk_matrix *w;
    uint32_t n;
    const float *x;
    size_t ldx;
    float *y;
    size_t ldy;
};

static void matmul_part(void *arg, uint32_t part, uint32_t parts)
{
    const struct matmul *a = arg;
    const struct dk_matrix *w = a->w;
    uint32_t begin, end;

    dk_exec_range(dk_matrix_pairs(w->rows), part, parts, &begin, &end);
    for (uint32_t pair = begin; pair < end;) {
        uint32_t count = minimum(end - pair, a->n < DK_BATCH ? DK_BATCH / a->n : 1);
        struct dk_pairs p = dk_matrix_take(w, pair, count);

        for (uint32_t i = 0; i < a->n; i += DK_BATCH) {
            _Alignas(64) float out[DK_BATCH][DK_PAIR_ROWS];
            const float *x[DK_BATCH];
            uint32_t n = minimum(a->n - i, DK_BATCH);

            for (uint32_t j = 0; j < n; j++)
                x[j] = a->x + (i + j) * a->ldx;
            a->k->pairs[w->type](&p, n, x, out);
            for (uint32_t j = 0; j < count * n; j++) {
                uint32_t row = (pair + j / n) * DK_PAIR_ROWS;

                memcpy(a->y + (i + j % n) * a->ldy + row, out[j], minimum(w->rows - row, DK_PAIR_ROWS) * sizeof(float));
            }
        }
        pair += count;
    }
}

void dk_matmul(const struct dk_kernels *k, struct dk_exec *e, const struct dk_matrix *w, uint32_t n, const float *x,
               size_t ldx, float *y, size_t ldy)
{
    struct matmul a = {k, w, n, x, ldx, y, ldy};

    if (!n)
        return;
    if (dk_matrix_data_bytes(w->type, w->rows, w->cols) * n < INLINE_BYTES)
        matmul_part(&a, 0, 1);
    else
        dk_exec_run(e, matmul_part, &a);
}
