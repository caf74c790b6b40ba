/* SPDX-License-Identifier: Apache-2.0 */
/* Projections with one matrix for each head: both directions of every type, with scale blocks that lie across heads and
 * parts, against double sums over the widened weight. */
#include "backend_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 37 };

/* A weight as a checkpoint has it, at an odd address. */
struct source {
    struct dk_tensor weight, scales;
    uint8_t *data, *scale_data;
    double *values; /* [rows][cols], times the scales */
};

struct layout {
    uint32_t heads, head_rows, cols;
    uint32_t split; /* a head's first part has these rows, the second one the rest */
};

/* DeepSeek-V3's (fewer heads, narrower); a part inside a scale block; scale blocks across heads and parts. */
static const struct layout layouts[] = {{3, 256, 256, 128}, {4, 64, 64, 32}, {5, 224, 200, 96}};

static void put_float(uint8_t *to, enum dk_dtype type, float v)
{
    uint32_t bits;

    memcpy(&bits, &v, 4);
    if (type == DK_F32)
        memcpy(to, &bits, 4);
    else
        memcpy(to, (const uint8_t *)&bits + 2, 2); /* bf16 */
}

/* Any number but the largest exponent's, which has the NaN codes. */
static void put_random(uint8_t *to, enum dk_dtype type, uint32_t *state)
{
    uint32_t r = next_random(state) >> 8;
    uint16_t half = (uint16_t)((r & 0x83ff) | 0x3400 | (r >> 4 & 0x0800));

    if (type == DK_F8_E4M3)
        *to = (r & 0x7f) == 0x7f ? 0x7e : (uint8_t)r;
    else if (type == DK_F16)
        memcpy(to, &half, 2);
    else
        put_float(to, type, (float)(int32_t)(r << 8) * 0x1p-31f);
}

static void source_open(struct source *s, const struct layout *l, enum dk_dtype type, enum dk_dtype scale_type)
{
    uint32_t rows = l->heads * l->head_rows, row_blocks = (rows + 127) / 128, col_blocks = (l->cols + 127) / 128;
    size_t size = dk_dtype_bytes(type), scale_size = dk_dtype_bytes(scale_type), n = (size_t)rows * l->cols;
    uint32_t state = 11;

    s->data = malloc(n * size + 1);
    s->scale_data = malloc(row_blocks * col_blocks * scale_size + 1);
    s->values = malloc(n * sizeof(double));
    for (uint32_t i = 0; i < row_blocks * col_blocks; i++)
        put_float(s->scale_data + 1 + i * scale_size, scale_type, 0.001f + 0.0007f * (float)(i % 19));
    for (size_t i = 0; i < n; i++) {
        float v, scale = 1.0f;

        put_random(s->data + 1 + i * size, type, &state);
        dk_widen(&v, s->data + 1 + i * size, type, 1);
        if (type == DK_F8_E4M3)
            dk_widen(&scale, s->scale_data + 1 + (i / l->cols / 128 * col_blocks + i % l->cols / 128) * scale_size,
                     scale_type, 1);
        s->values[i] = (double)v * (double)scale;
    }
    s->weight = (struct dk_tensor){.name = "kv_b_proj.weight",
                                   .type = type,
                                   .rank = 2,
                                   .shape = {rows, l->cols},
                                   .data = s->data + 1,
                                   .bytes = n * size,
                                   .file = "shard"};
    s->scales = (struct dk_tensor){.name = "kv_b_proj.weight_scale_inv",
                                   .type = scale_type,
                                   .rank = 2,
                                   .shape = {row_blocks, col_blocks},
                                   .data = s->scale_data + 1,
                                   .bytes = row_blocks * col_blocks * scale_size,
                                   .file = "shard"};
}

static void source_close(struct source *s)
{
    free(s->data);
    free(s->scale_data);
    free(s->values);
}

/* y [n][heads * out] for x [n][heads * in]. */
static void product(const struct source *s, const struct dk_heads_part *p, const char *isa, uint32_t threads,
                    uint32_t n, const float *x, float *y)
{
    uint32_t cols = (uint32_t)s->weight.shape[1], in = p->transposed ? p->rows : cols;
    uint32_t out = p->transposed ? cols : p->rows;
    struct dk_backend *b = open_backend_isa(isa, threads, n, 1, p->heads * (in + out));
    struct dk_rows from = take(b, p->heads * in), to = take(b, p->heads * out);
    struct dk_err err = {0};
    struct dk_weight *w;

    cr_assert_eq(ops->weight_load_heads(b, p, &s->weight, s->weight.type == DK_F8_E4M3 ? &s->scales : NULL, &w, &err),
                 0, "%s", err.text);
    ops->upload(b, from, 0, n, x);
    ops->linear_heads(b, n, from, w, to);
    ops->download(b, to, 0, n, y);
    ops->weight_free(b, w);
    ops->close(b);
}

static void check_sums(const struct source *s, const struct dk_heads_part *p, const float *x, const float *y)
{
    uint32_t cols = (uint32_t)s->weight.shape[1], in = p->transposed ? p->rows : cols;
    uint32_t out = p->transposed ? cols : p->rows;

    for (size_t at = 0; at < (size_t)ROWS * p->heads * out; at++) {
        size_t row = at / out / p->heads, head = at / out % p->heads, o = at % out;
        const double *part = s->values + (head * p->head_rows + p->first) * cols;
        double sum = 0, size = 0;

        for (uint32_t i = 0; i < in; i++) {
            double term = (p->transposed ? part[i * cols + o] : part[o * cols + i]) *
                          (double)x[(row * p->heads + head) * in + i];

            sum += term;
            size += fabs(term);
        }
        cr_assert(fabs((double)y[at] - sum) <= 1e-5 * size && size > 0,
                  "row %zu, head %zu, output %zu is %g, not %g (first %u, rows %u, transposed %d)", row, head, o,
                  (double)y[at], sum, p->first, p->rows, p->transposed);
    }
}

static void check_part(const struct source *s, const struct dk_heads_part *p)
{
    uint32_t cols = (uint32_t)s->weight.shape[1], in = p->heads * (p->transposed ? p->rows : cols);
    uint32_t out = p->heads * (p->transposed ? cols : p->rows);
    float *x = malloc((size_t)ROWS * in * sizeof(float)), *want = malloc((size_t)ROWS * out * sizeof(float));
    float *got = malloc((size_t)ROWS * out * sizeof(float));

    fill(x, (size_t)ROWS * in, 12);
    product(s, p, "auto", 1, ROWS, x, want);
    check_sums(s, p, x, want);
    for (uint32_t threads = 1; threads <= 3; threads++) {
        product(s, p, threads == 1 ? "ref" : "auto", threads, ROWS, x, got);
        cr_assert_arr_eq(got, want, (size_t)ROWS * out * sizeof(float), "%u threads", threads);
    }
    for (uint32_t row = 0; row < ROWS; row += 6) {
        product(s, p, "auto", 2, 1, x + (size_t)row * in, got);
        cr_assert_arr_eq(got, want + (size_t)row * out, out * sizeof(float), "row %u alone", row);
    }
    free(x);
    free(want);
    free(got);
}

static void check_layouts(enum dk_dtype type, enum dk_dtype scale_type)
{
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
        const struct layout *l = &layouts[i];
        struct source s;

        source_open(&s, l, type, scale_type);
        for (int transposed = 0; transposed < 2; transposed++) {
            check_part(&s, &(struct dk_heads_part){l->heads, l->head_rows, 0, l->split, transposed});
            check_part(&s,
                       &(struct dk_heads_part){l->heads, l->head_rows, l->split, l->head_rows - l->split, transposed});
        }
        source_close(&s);
    }
}

Test(backend_heads, fp8_parts_keep_their_scales)
{
    check_layouts(DK_F8_E4M3, DK_F32);
    check_layouts(DK_F8_E4M3, DK_BF16);
}

Test(backend_heads, unscaled_types)
{
    check_layouts(DK_BF16, DK_F32);
    check_layouts(DK_F16, DK_F32);
    check_layouts(DK_F32, DK_F32);
}

static int try_load(const struct source *s, const struct dk_heads_part *p, struct dk_err *err)
{
    struct dk_backend *b = open_backend(2, 1, 1, 1);
    struct dk_weight *w;
    int rc;

    *err = (struct dk_err){0};
    rc = ops->weight_load_heads(b, p, &s->weight, &s->scales, &w, err);
    cr_expect_eq(w == NULL, rc < 0);
    ops->weight_free(b, w);
    ops->close(b);
    return rc;
}

Test(backend_heads, a_nan_names_tensor_and_head)
{
    const struct layout *l = &layouts[2];
    struct source s;
    struct dk_err err;

    source_open(&s, l, DK_F8_E4M3, DK_F32);
    s.data[1 + (3 * l->head_rows + 100) * l->cols + 17] = 0xff; /* head 3, second part */
    for (int transposed = 0; transposed < 2; transposed++) {
        const struct dk_heads_part first = {l->heads, l->head_rows, 0, l->split, transposed};
        const struct dk_heads_part second = {l->heads, l->head_rows, l->split, l->head_rows - l->split, transposed};

        cr_expect_eq(try_load(&s, &first, &err), 0, "%s", err.text);
        cr_expect_eq(try_load(&s, &second, &err), -EINVAL);
        cr_expect_not_null(strstr(err.text, "kv_b_proj.weight"), "%s", err.text);
        cr_expect_not_null(strstr(err.text, "head 3"), "%s", err.text);
        cr_expect_not_null(strstr(err.text, transposed ? "row 17, column 772" : "row 772, column 17"), "%s", err.text);
    }
    source_close(&s);
}

Test(backend_heads, a_bad_scale_names_tensor_and_head)
{
    const struct layout *l = &layouts[0];
    const struct dk_heads_part p = {l->heads, l->head_rows, l->split, l->split, true};
    struct source s;
    struct dk_err err;

    source_open(&s, l, DK_F8_E4M3, DK_F32);
    put_float(s.scale_data + 1 + (3 * 2 + 1) * 4, DK_F32, -1.0f); /* rows 384.., columns 128..: head 1's second part */
    cr_expect_eq(try_load(&s, &p, &err), -EINVAL);
    cr_expect_not_null(strstr(err.text, "kv_b_proj.weight"), "%s", err.text);
    cr_expect_not_null(strstr(err.text, "head 1"), "%s", err.text);
    source_close(&s);
}

Test(backend_heads, parts_and_scales_that_do_not_fit_are_refused)
{
    static const struct dk_heads_part bad[] = {
        {3, 256, 0, 20, false},   /* not a multiple of 32 */
        {3, 256, 16, 32, true},   /* the first row neither */
        {3, 256, 224, 64, false}, /* beyond the head */
        {3, 256, 512, 32, false}, /* behind it */
        {3, 256, 0, 0, false},    /* nothing */
        {4, 256, 0, 32, false},   /* other heads */
        {0, 256, 0, 32, false},   /* none */
    };
    const struct dk_heads_part good = {3, 256, 0, 32, false};
    struct source s;
    struct dk_err err;

    source_open(&s, &layouts[0], DK_F8_E4M3, DK_F32);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        cr_expect_eq(try_load(&s, &bad[i], &err), -EINVAL, "part %zu", i);
        cr_expect_not_null(strstr(err.text, "kv_b_proj.weight"), "%s", err.text);
    }
    cr_expect_eq(try_load(&s, &good, &err), 0, "%s", err.text);
    s.scales.shape[1]++;
    cr_expect_eq(try_load(&s, &good, &err), -EINVAL);
    cr_expect_not_null(strstr(err.text, "kv_b_proj.weight_scale_inv"), "%s", err.text);
    source_close(&s);
}
