/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products and the mixture of experts: against plain sums in double precision for the reference level, bit for
 * bit against the reference for the others. */
#include "kernel_cases.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/kernel_internal.h"

static const enum dk_dtype types[] = {DK_F8_E4M3, DK_BF16, DK_F32, DK_F16};

static struct dk_exec *threads_of(uint32_t threads)
{
    struct dk_exec *e;

    if (dk_exec_open(threads, false, &e) < 0) {
        fprintf(stderr, "cannot start threads\n");
        exit(1);
    }
    return e;
}

/* The reference level against sums in double, which know nothing of panels. */
static void check_against_double(const struct weights *w, uint32_t n, const float *x, size_t ldx, const float *y,
                                 size_t ldy, const char *what)
{
    cases_run++;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t row = 0; row < w->rows; row++) {
            double sum = 0, size = 0;

            for (uint32_t col = 0; col < w->cols; col++) {
                double term = weights_at(w, row, col) * (double)x[i * ldx + col];

                sum += term;
                size += fabs(term);
            }
            if (size > (double)FLT_MAX / 2)
                continue; /* sums in float may overflow on the way */
            if (!(fabs((double)y[i * ldy + row] - sum) <= size * (w->cols + 4) * (double)FLT_EPSILON + 1e-38)) {
                fail_case("%s: row %u of x, output %u is %g, not %g", what, i, row, (double)y[i * ldy + row], sum);
                return;
            }
        }
}

static void check_matrix(const struct dk_kernels *k, struct dk_rng *rng, enum dk_dtype type, uint32_t rows,
                         uint32_t cols, uint32_t row_origin, uint32_t col_origin, uint32_t n, enum style s)
{
    size_t ldx = cols + dk_rng_next(rng) % 5, ldy = rows + dk_rng_next(rng) % 5;
    unsigned off = (unsigned)(dk_rng_next(rng) % 16) * 4;
    struct buffer x = buffer_make((size_t)n * ldx, off), y = buffer_make((n - 1) * ldy + rows, 60 - off);
    struct buffer want = buffer_make(y.count, 0), one = buffer_make(rows, 4);
    struct weights w;
    char what[200];

    snprintf(what, sizeof what, "%s matmul %s rows=%u cols=%u origin=(%u,%u) n=%u ldx=%zu ldy=%zu style=%s",
             dk_isa_name(dk_kernels_isa(k)), dk_dtype_name(type), rows, cols, row_origin, col_origin, n, ldx, ldy,
             style_name(s));
    weights_make(&w, rng, type, rows, cols, row_origin, col_origin, s);
    fill_floats(rng, x.data, x.count, s);
    for (uint32_t threads = 1; threads <= 3; threads += 2) {
        struct dk_exec *e = threads_of(threads);

        /* What lies between the rows of y must stay. */
        for (size_t i = 0; i < y.count; i++)
            y.data[i] = want.data[i] = (float)i;
        dk_matmul(k, e, &w.packed, n, x.data, ldx, y.data, ldy);
        dk_matmul(dk_kernels_get(DK_ISA_REF), e, &w.packed, n, x.data, ldx, want.data, ldy);
        same_bits(y.data, want.data, y.count, what);
        for (uint32_t i = 0; i < n && threads == 1; i++) {
            dk_matmul(k, e, &w.packed, 1, x.data + i * ldx, ldx, one.data, rows);
            if (!same_bits(one.data, y.data + i * ldy, rows, what))
                fail_case("%s: row %u alone differs from the same row among others", what, i);
        }
        dk_exec_close(e);
    }
    if (dk_kernels_isa(k) == DK_ISA_REF && s != STYLE_SPECIAL)
        check_against_double(&w, n, x.data, ldx, y.data, ldy, what);
    if (!buffer_guards_hold(&y) || !buffer_guards_hold(&one))
        fail_case("%s: wrote outside y", what);
    weights_free(&w);
    buffer_free(&x);
    buffer_free(&y);
    buffer_free(&want);
    buffer_free(&one);
}

/* Head by head against one product for each, for every number of threads; origins differ from head to head. */
static void check_heads(const struct dk_kernels *k, struct dk_rng *rng, enum dk_dtype type, uint32_t heads,
                        uint32_t rows, uint32_t cols, uint32_t n)
{
    size_t ldx = (size_t)heads * cols + 3, ldy = (size_t)heads * rows + 2;
    struct buffer x = buffer_make(n * ldx, 4), y = buffer_make(n * ldy, 8), want = buffer_make(n * ldy, 0);
    struct weights *w = calloc(heads, sizeof *w);
    struct dk_matrix *packed = calloc(heads, sizeof *packed);
    char what[160];

    if (!w || !packed)
        exit(1);
    snprintf(what, sizeof what, "%s heads %s heads=%u rows=%u cols=%u n=%u", dk_isa_name(dk_kernels_isa(k)),
             dk_dtype_name(type), heads, rows, cols, n);
    fill_floats(rng, x.data, x.count, STYLE_RANDOM);
    for (uint32_t h = 0; h < heads; h++) {
        weights_make(&w[h], rng, type, rows, cols, 0, h * 96, STYLE_RANDOM);
        packed[h] = w[h].packed;
    }
    for (uint32_t threads = 1; threads <= 5; threads++) {
        struct dk_exec *e = threads_of(threads);

        for (size_t i = 0; i < y.count; i++)
            y.data[i] = want.data[i] = (float)i;
        for (uint32_t h = 0; h < heads; h++)
            dk_matmul(dk_kernels_get(DK_ISA_REF), e, &packed[h], n, x.data + (size_t)h * cols, ldx,
                      want.data + (size_t)h * rows, ldy);
        dk_matmul_heads(k, e, heads, packed, n, x.data, ldx, y.data, ldy);
        if (!same_bits(y.data, want.data, y.count, what))
            fail_case("%s: with %u threads", what, threads);
        dk_exec_close(e);
    }
    if (!buffer_guards_hold(&y))
        fail_case("%s: wrote outside y", what);
    for (uint32_t h = 0; h < heads; h++)
        weights_free(&w[h]);
    free(w);
    free(packed);
    buffer_free(&x);
    buffer_free(&y);
    buffer_free(&want);
}

void check_matrices(const struct dk_kernels *k)
{
    static const uint32_t sizes[] = {1,  2,  3,  5,   7,   8,   15,  31,  32,  33, 63,
                                     64, 65, 96, 127, 128, 129, 160, 200, 257, 320};
    static const uint32_t batches[] = {1, 2, 3, 4, 5, 6, 7, 8, 13, 32, 33, 40};
    struct dk_rng rng = {cases_seed};

    /* Every batch with every format, every size of each side with every style, and slices that cut scale blocks. */
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t b = 0; b < sizeof batches / sizeof *batches; b++)
            check_matrix(k, &rng, types[t], 70, 137, 0, 96, batches[b], STYLE_RANDOM);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (int s = 0; s < STYLE_COUNT; s++)
            for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
                uint32_t other = sizes[dk_rng_next(&rng) % 16];

                check_matrix(k, &rng, types[t], other, sizes[i], (uint32_t)(dk_rng_next(&rng) % 9) * 32,
                             (uint32_t)(dk_rng_next(&rng) % 9) * 32, batches[dk_rng_next(&rng) % 9], (enum style)s);
                check_matrix(k, &rng, types[t], sizes[i], other, (uint32_t)(dk_rng_next(&rng) % 9) * 32,
                             (uint32_t)(dk_rng_next(&rng) % 300), batches[dk_rng_next(&rng) % 9], (enum style)s);
            }
    check_heads(k, &rng, DK_F8_E4M3, 7, 64, 160, 1);
    check_heads(k, &rng, DK_F8_E4M3, 3, 224, 96, 5);
    check_heads(k, &rng, DK_F8_E4M3, 1, 320, 128, 2);
    check_heads(k, &rng, DK_BF16, 5, 32, 70, 40);
    check_heads(k, &rng, DK_F32, 4, 33, 32, 3);
}

struct experts {
    uint32_t count, hidden, width;
    struct dk_ffn *ffn;
    struct weights *gate, *up, *down;
};

static void experts_make(struct experts *x, struct dk_rng *rng, enum dk_dtype type, uint32_t count, uint32_t hidden,
                         uint32_t width, uint32_t begin)
{
    struct dk_matrix_source src[3];
    struct dk_err err = {0};

    *x = (struct experts){count, hidden, width, NULL, NULL, NULL, NULL};
    x->ffn = calloc(count, sizeof *x->ffn);
    x->gate = calloc(count, sizeof *x->gate);
    x->up = calloc(count, sizeof *x->up);
    x->down = calloc(count, sizeof *x->down);
    if (!x->ffn || !x->gate || !x->up || !x->down)
        exit(1);
    for (uint32_t i = 0; i < count; i++) {
        weights_make(&x->gate[i], rng, type, width, hidden, begin, 0, STYLE_RANDOM);
        weights_make(&x->up[i], rng, type, width, hidden, begin, 0, STYLE_RANDOM);
        weights_make(&x->down[i], rng, type, hidden, width, 0, begin, STYLE_RANDOM);
        weights_source(&x->gate[i], &src[0]);
        weights_source(&x->up[i], &src[1]);
        weights_source(&x->down[i], &src[2]);
        if (dk_ffn_alloc(&x->ffn[i], dk_matrix_packed_type(type), hidden, width, begin, type == DK_F8_E4M3) < 0 ||
            dk_ffn_pack(&x->ffn[i], 0, width, &src[0], &src[1], &src[2], &err) < 0) {
            fprintf(stderr, "cannot pack: %s\n", err.text);
            exit(1);
        }
    }
}

static void experts_free(struct experts *x)
{
    for (uint32_t i = 0; i < x->count; i++) {
        weights_free(&x->gate[i]);
        weights_free(&x->up[i]);
        weights_free(&x->down[i]);
        dk_ffn_free(&x->ffn[i]);
    }
    free(x->ffn);
    free(x->gate);
    free(x->up);
    free(x->down);
}

/* One row by the definition: whole matrix products of the reference level, experts in ascending order. */
static void moe_by_definition(const struct experts *x, uint32_t top_k, const float *in, const int32_t *ids,
                              const float *weights, float *out)
{
    const struct dk_kernels *ref = dk_kernels_get(DK_ISA_REF);
    struct dk_exec *e = threads_of(1);
    float *gate = calloc(3 * x->width + x->hidden, sizeof *gate), *up, *h, *part;

    if (!gate)
        exit(1);
    up = gate + x->width;
    h = up + x->width;
    part = h + x->width;
    memset(out, 0, x->hidden * sizeof *out);
    for (uint32_t id = 0; id < x->count; id++)
        for (uint32_t j = 0; j < top_k; j++) {
            if (ids[j] != (int32_t)id)
                continue;
            dk_matmul(ref, e, &x->gate[id].packed, 1, in, x->hidden, gate, x->width);
            dk_matmul(ref, e, &x->up[id].packed, 1, in, x->hidden, up, x->width);
            dk_silu_mul(ref, x->width, gate, up, h);
            dk_matmul(ref, e, &x->down[id].packed, 1, h, x->width, part, x->hidden);
            dk_axpy(ref, x->hidden, weights[j], part, out);
        }
    free(gate);
    dk_exec_close(e);
}

static void check_moe(const struct dk_kernels *k, struct dk_rng *rng, enum dk_dtype type, uint32_t count,
                      uint32_t hidden, uint32_t width, uint32_t begin, uint32_t n, uint32_t top_k)
{
    struct buffer in = buffer_make((size_t)n * hidden, 4), out = buffer_make((size_t)n * hidden, 12);
    struct buffer want = buffer_make(out.count, 0), weights = buffer_make((size_t)n * top_k, 0);
    int32_t *ids = malloc((size_t)n * top_k * sizeof *ids);
    struct experts x;
    uint64_t bytes = 0, expected = 0;
    void *scratch;
    char what[200];

    snprintf(what, sizeof what, "%s moe %s experts=%u hidden=%u width=%u begin=%u n=%u top_k=%u",
             dk_isa_name(dk_kernels_isa(k)), dk_dtype_name(type), count, hidden, width, begin, n, top_k);
    experts_make(&x, rng, type, count, hidden, width, begin);
    fill_floats(rng, in.data, in.count, STYLE_RANDOM);
    fill_floats(rng, weights.data, weights.count, STYLE_RANDOM);
    scratch = malloc(dk_moe_scratch_bytes(n, top_k, count, width));
    if (!ids || !scratch)
        exit(1);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < top_k; j++) {
            bool taken = true;

            while (taken) {
                ids[i * top_k + j] = (int32_t)(dk_rng_next(rng) % count);
                taken = false;
                for (uint32_t l = 0; l < j; l++)
                    taken |= ids[i * top_k + l] == ids[i * top_k + j];
            }
        }
    for (uint32_t id = 0; id < count; id++)
        for (uint32_t i = 0; i < n * top_k; i++)
            if (ids[i] == (int32_t)id) {
                expected += dk_ffn_bytes(&x.ffn[id]);
                break;
            }
    for (uint32_t i = 0; i < n; i++)
        moe_by_definition(&x, top_k, in.data + (size_t)i * hidden, ids + i * top_k, weights.data + i * top_k,
                          want.data + (size_t)i * hidden);
    for (uint32_t threads = 1; threads <= 3; threads++) {
        struct dk_exec *e = threads_of(threads);

        memset(out.data, 0xff, out.count * sizeof *out.data);
        bytes = dk_moe(k, e, x.ffn, count, n, top_k, in.data, ids, weights.data, out.data, scratch);
        if (!same_bits(out.data, want.data, out.count, what))
            fail_case("%s: with %u threads", what, threads);
        dk_exec_close(e);
    }
    if (bytes != expected)
        fail_case("%s: says that it read %llu bytes, not %llu", what, (unsigned long long)bytes,
                  (unsigned long long)expected);
    if (!buffer_guards_hold(&out))
        fail_case("%s: wrote outside y", what);
    experts_free(&x);
    free(scratch);
    free(ids);
    buffer_free(&in);
    buffer_free(&out);
    buffer_free(&want);
    buffer_free(&weights);
}

/* A dense layer is one expert of weight 1; an empty slice gives zeros. */
static void check_dense(const struct dk_kernels *k, struct dk_rng *rng)
{
    struct dk_exec *e = threads_of(2);
    struct buffer in = buffer_make(3 * 160, 0), out = buffer_make(3 * 160, 0), want = buffer_make(3 * 160, 0);
    const int32_t id = 0;
    const float one = 1.0f;
    struct experts x;
    struct dk_ffn empty;
    void *scratch = malloc(dk_moe_scratch_bytes(3, 1, 1, 96));

    experts_make(&x, rng, DK_F8_E4M3, 1, 160, 96, 32);
    fill_floats(rng, in.data, in.count, STYLE_RANDOM);
    for (int i = 0; i < 3; i++)
        moe_by_definition(&x, 1, in.data + i * 160, &id, &one, want.data + i * 160);
    if (!scratch || dk_ffn_alloc(&empty, DK_F8_E4M3, 160, 0, 64, 1) < 0)
        exit(1);
    dk_moe(k, e, x.ffn, 1, 3, 1, in.data, NULL, NULL, out.data, scratch);
    same_bits(out.data, want.data, out.count, "dense layer");
    memset(want.data, 0, want.count * sizeof *want.data);
    if (dk_moe(k, e, &empty, 1, 3, 1, in.data, NULL, NULL, out.data, scratch))
        fail_case("an empty slice reads nothing");
    same_bits(out.data, want.data, out.count, "empty slice");
    dk_ffn_free(&empty);
    experts_free(&x);
    free(scratch);
    buffer_free(&in);
    buffer_free(&out);
    buffer_free(&want);
    dk_exec_close(e);
}

void check_experts(const struct dk_kernels *k)
{
    struct dk_rng rng = {cases_seed ^ 0x77};

    check_moe(k, &rng, DK_F8_E4M3, 8, 128, 64, 64, 1, 4);
    check_moe(k, &rng, DK_F8_E4M3, 8, 160, 96, 96, 5, 3);
    check_moe(k, &rng, DK_F8_E4M3, 2, 64, 32, 32, 80, 2);
    check_moe(k, &rng, DK_F8_E4M3, 9, 131, 45, 160, 3, 9);
    check_moe(k, &rng, DK_BF16, 5, 96, 70, 0, 7, 2);
    check_moe(k, &rng, DK_F32, 3, 33, 31, 0, 2, 3);
    check_moe(k, &rng, DK_F16, 3, 64, 32, 0, 4, 1);
    check_dense(k, &rng);
}

/* Each of the 256 FP8 codes as the only weight of its row, in every place of a column, for batches that take different
 * ways through a kernel: the value of the code, or for the two codes of NaN, which packing refuses, the same
 * everywhere. */
void check_codes(const struct dk_kernels *k)
{
    struct dk_exec *e = threads_of(1);
    float x[8 * 3], y[8 * 64], scales[2] = {256.0f, 256.0f};
    uint8_t *data = aligned_alloc(64, 3 * 64 + DK_DATA_SLACK + 64);
    struct dk_matrix m = {DK_F8_E4M3, 64, 3, 3, 1, data, scales};

    if (!data)
        exit(1);
    for (int i = 0; i < 8 * 3; i++)
        x[i] = i % 3 == 1 ? 1.0f : 0.0f;
    for (uint32_t n = 1; n <= 8; n++)
        for (uint32_t first = 0; first < 256; first++) {
            memset(data, 0, 3 * 64 + DK_DATA_SLACK);
            for (uint32_t i = 0; i < 64; i++) {
                uint32_t place = i / 32 * 32 + i % 16 * 2 + i % 32 / 16; /* of row i in a column: pack.c */

                data[64 + place] = (uint8_t)(first + i);
            }
            dk_matmul(k, e, &m, n, x, 3, y, 64);
            for (uint32_t i = 0; i < 64 * n; i++) {
                uint8_t code = (uint8_t)(first + i % 64);
                float want = (code & 0x7f) == 0x7f ? (code & 0x80 ? -480.0f : 480.0f) : dk_f32_from_e4m3(code);

                cases_run++;
                if (y[i] != want) {
                    fail_case("%s: FP8 code 0x%02x in row %u of %u is %g, not %g", dk_isa_name(dk_kernels_isa(k)), code,
                              i % 64, n, (double)y[i], (double)want);
                    break;
                }
            }
        }
    free(data);
    dk_exec_close(e);
}
