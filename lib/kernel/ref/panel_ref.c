/* SPDX-License-Identifier: Apache-2.0 */
/* The panel functions in plain C: what the others must equal bit for bit. Compiled without FMA instructions on x86-64's
 * base level, fmaf is a library call: this is the readable version, not a fast one. */
#include <math.h>
#include <string.h>

#include "kernel/ref/ref.h"

/* The place of row `lane` in a column: see pack.c. */
static uint32_t element(uint32_t lane)
{
    return lane % 16 * 2 + lane / 16;
}

/* e4m3 x 2^-8, as the fp16 pattern s 0 eeee mmm 0000000 has it. The two NaN codes come out as +-480 x 2^-8, as in every
 * variant; packing refuses them. */
static float f8_value(uint8_t code)
{
    uint32_t exponent = code >> 3 & 15, mantissa = code & 7;
    float v;

    if (exponent) {
        uint32_t bits = (exponent + 112) << 23 | mantissa << 20;

        memcpy(&v, &bits, 4);
    } else {
        v = (float)mantissa * 0x1p-17f;
    }
    return code & 0x80 ? -v : v;
}

static void widen_f8(const uint8_t *column, float *w)
{
    for (uint32_t lane = 0; lane < DK_PANEL_ROWS; lane++)
        w[lane] = f8_value(column[element(lane)]);
}

static void widen_bf16(const uint8_t *column, float *w)
{
    for (uint32_t lane = 0; lane < DK_PANEL_ROWS; lane++) {
        uint16_t h;

        memcpy(&h, column + 2 * element(lane), 2);
        w[lane] = dk_f32_from_bf16(h);
    }
}

static void widen_f32(const uint8_t *column, float *w)
{
    memcpy(w, column, DK_PANEL_ROWS * sizeof *w);
}

static void pairs(const struct dk_pairs *p, uint32_t n, const float *const *x, float (*out)[DK_PAIR_ROWS],
                  void (*widen)(const uint8_t *column, float *w), size_t panel_bytes)
{
    memset(out, 0, p->count * n * sizeof *out);
    for (uint32_t i = 0; i < p->count * n * 2; i++) { /* panels of all rows of x */
        uint32_t pair = i / 2 / n, panel = i % 2, row = i / 2 % n;
        const uint8_t *column = p->data + ((size_t)pair * p->cols * 2 + panel) * panel_bytes;
        const float *scales = p->scales + (pair * 2 + panel) * p->runs;
        float *sum = out[i / 2] + panel * DK_PANEL_ROWS;
        uint32_t col = 0, end = p->run_first;

        for (uint32_t run = 0; run < p->runs; run++) {
            float chain[DK_PANEL_ROWS] = {0}, w[DK_PANEL_ROWS];

            for (; col < end; col++) {
                widen(column, w);
                column += 2 * panel_bytes;
                for (uint32_t lane = 0; lane < DK_PANEL_ROWS; lane++)
                    chain[lane] = fmaf(w[lane], x[row][col], chain[lane]);
            }
            for (uint32_t lane = 0; lane < DK_PANEL_ROWS; lane++)
                sum[lane] = fmaf(chain[lane], scales[run], sum[lane]);
            end = p->cols - col < DK_RUN_COLS ? p->cols : col + DK_RUN_COLS;
        }
    }
}

void dk_pairs_f8_ref(const struct dk_pairs *p, uint32_t n, const float *const *x, float (*out)[DK_PAIR_ROWS])
{
    pairs(p, n, x, out, widen_f8, DK_PANEL_ROWS);
}

void dk_pairs_bf16_ref(const struct dk_pairs *p, uint32_t n, const float *const *x, float (*out)[DK_PAIR_ROWS])
{
    pairs(p, n, x, out, widen_bf16, DK_PANEL_ROWS * 2);
}

void dk_pairs_f32_ref(const struct dk_pairs *p, uint32_t n, const float *const *x, float (*out)[DK_PAIR_ROWS])
{
    pairs(p, n, x, out, widen_f32, DK_PANEL_ROWS * 4);
}
