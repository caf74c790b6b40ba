/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel_cases.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD_BYTES 256
#define GUARD       0xa5

uint64_t cases_seed = 1;
unsigned cases_failed, cases_run;

const char *style_name(enum style s)
{
    static const char *const names[STYLE_COUNT] = {"random", "zero", "extreme", "cancel", "special"};

    return names[s];
}

static void *must(void *p)
{
    if (!p) {
        fprintf(stderr, "no memory\n");
        exit(1);
    }
    return p;
}

struct buffer buffer_make(size_t count, unsigned misalign)
{
    size_t bytes = 2 * GUARD_BYTES + misalign + count * sizeof(float);
    struct buffer b = {.count = count};

    b.block = must(aligned_alloc(64, (bytes + 63) & ~(size_t)63));
    memset(b.block, GUARD, (bytes + 63) & ~(size_t)63);
    b.data = (float *)(void *)(b.block + GUARD_BYTES + misalign);
    return b;
}

bool buffer_guards_hold(const struct buffer *b)
{
    const uint8_t *end = (const uint8_t *)(b->data + b->count);

    for (const uint8_t *p = b->block; p < (const uint8_t *)b->data; p++)
        if (*p != GUARD)
            return false;
    for (const uint8_t *p = end; p < end + GUARD_BYTES; p++)
        if (*p != GUARD)
            return false;
    return true;
}

void buffer_free(struct buffer *b)
{
    free(b->block);
}

void fill_floats(struct dk_rng *rng, float *to, size_t count, enum style s)
{
    static const float extremes[] = {FP_ZERO, 0x1.fffffep127f, 0x1p-126f, 0x1p-149f, 0x1p100f, 1e-30f, 448.0f, 1.0f};
    static const float specials[] = {INFINITY, -INFINITY, NAN, 0.0f};

    for (size_t i = 0; i < count; i++) {
        uint64_t r = dk_rng_next(rng);
        float v = (float)(dk_rng_unit(rng) * 4 - 2);

        switch (s) {
        case STYLE_ZERO:
            v = r & 1 ? 0.0f : -0.0f;
            break;
        case STYLE_EXTREME:
            v = extremes[r % 8] * (r & 64 ? -1.0f : 1.0f);
            break;
        case STYLE_CANCEL:
            v = (i & 1 ? -1e6f : 1e6f) + v;
            break;
        case STYLE_SPECIAL:
            v = r % 50 ? v : specials[r / 50 % 4];
            break;
        default:
            break;
        }
        memcpy(to + i, &v, sizeof v);
    }
}

void fill_weights(struct dk_rng *rng, void *to, enum dk_dtype type, size_t count, enum style s)
{
    uint8_t *at = to;
    uint16_t half;
    float f;

    for (size_t i = 0; i < count; i++, at += dk_dtype_bytes(type)) {
        uint64_t r = dk_rng_next(rng);

        switch (type) {
        case DK_F8_E4M3:
            *at = (uint8_t)r;
            if (s == STYLE_ZERO)
                *at &= 0x80;
            else if (s == STYLE_EXTREME)
                *at = (uint8_t)((r & 0x80) | (r & 0x100 ? 0x7e : r & 7));
            if ((*at & 0x7f) == 0x7f)
                *at ^= 1;
            break;
        case DK_F16: /* every exponent but the one of NaN */
            half = (uint16_t)(r & 0xbbff);
            memcpy(at, &half, 2);
            break;
        default:
            fill_floats(rng, &f, 1, s == STYLE_SPECIAL ? STYLE_RANDOM : s);
            if (type == DK_BF16)
                memcpy(at, (const uint8_t *)&f + 2, 2);
            else
                memcpy(at, &f, 4);
        }
    }
}

void weights_source(const struct weights *w, struct dk_matrix_source *src)
{
    *src = (struct dk_matrix_source){
        .data = w->source,
        .type = w->type,
        .row_stride = w->cols,
        .row_origin = w->row_origin,
        .col_origin = w->col_origin,
        .scales = w->scales,
        .scale_type = DK_F32,
        .scale_stride = w->scale_stride,
    };
}

void weights_make(struct weights *w, struct dk_rng *rng, enum dk_dtype type, uint32_t rows, uint32_t cols,
                  uint32_t row_origin, uint32_t col_origin, enum style s)
{
    uint32_t blocks = (row_origin % 128 + rows + 127) / 128;
    struct dk_matrix_source src;
    struct dk_err err = {0};

    *w = (struct weights){type, rows, cols, row_origin, col_origin, NULL, NULL, 0, {0}};
    w->source = must(malloc((size_t)rows * cols * dk_dtype_bytes(type) + 1));
    fill_weights(rng, w->source, type, (size_t)rows * cols, s);
    if (type == DK_F8_E4M3) {
        w->scale_stride = (col_origin % 128 + cols + 127) / 128 + 1;
        w->scales = must(malloc((size_t)blocks * w->scale_stride * sizeof(float)));
        for (uint32_t i = 0; i < blocks * w->scale_stride; i++)
            w->scales[i] = (float)(dk_rng_unit(rng) * 0.02 + 0.001);
    }
    weights_source(w, &src);
    if (dk_matrix_alloc(&w->packed, dk_matrix_packed_type(type), rows, cols, col_origin, w->scales != NULL) < 0 ||
        dk_matrix_pack(&w->packed, 0, rows, 0, cols, &src, &err) < 0) {
        fprintf(stderr, "cannot pack: %s\n", err.text);
        exit(1);
    }
}

double weights_at(const struct weights *w, uint32_t row, uint32_t col)
{
    size_t size = dk_dtype_bytes(w->type);
    float v, scale = 1;

    dk_widen(&v, w->source + ((size_t)row * w->cols + col) * size, w->type, 1);
    if (w->scales)
        scale = w->scales[(size_t)((w->row_origin + row) / 128 - w->row_origin / 128) * w->scale_stride +
                          (w->col_origin + col) / 128 - w->col_origin / 128];
    return (double)v * (double)scale;
}

void weights_free(struct weights *w)
{
    free(w->source);
    free(w->scales);
    dk_matrix_free(&w->packed);
}

void fail_case(const char *format, ...)
{
    va_list ap;

    cases_failed++;
    if (cases_failed > 20)
        return;
    fprintf(stderr, "FAIL seed=%llu ", (unsigned long long)cases_seed);
    va_start(ap, format);
    vfprintf(stderr, format, ap);
    va_end(ap);
    fputc('\n', stderr);
}

bool same_bits(const float *got, const float *want, size_t count, const char *what)
{
    cases_run++;
    for (size_t i = 0; i < count; i++) {
        uint32_t a, b;

        memcpy(&a, got + i, 4);
        memcpy(&b, want + i, 4);
        if (a != b && !(isnan(got[i]) && isnan(want[i]))) {
            fail_case("%s: index %zu of %zu is %a (%08x), not %a (%08x)", what, i, count, (double)got[i], a,
                      (double)want[i], b);
            return false;
        }
    }
    return true;
}
