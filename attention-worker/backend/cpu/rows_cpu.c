/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on rows. Every thread gets whole rows, and a row is always computed in one order, so neither threads nor
 * neighbours show in the result. */
#include "attention-worker/backend/cpu/backend_cpu_internal.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* Below this many elements waking the other threads takes longer than the work. */
#define INLINE_ELEMENTS 16384u
#define INLINE_ANGLES   1024u /* a cosine or sine takes some ten times as long */

static inline float *row_of(struct dk_rows x, uint32_t row)
{
    return x.data + (size_t)row * x.width;
}

/* One row operation: `row` is called for each of n rows. */
struct row_job {
    void (*row)(const struct row_job *j, uint32_t row);
    uint32_t n;
    struct dk_backend *b;
    struct dk_rows x, y, z;
    const struct dk_weight *weight, *bias;
    const uint32_t *index;
    uint32_t groups;          /* slice */
    uint32_t group;           /* columns of a group: rmsnorm, rope */
    uint32_t first;           /* column of a group: slice, rope */
    float eps, factor;        /* norms; scale */
    enum dk_rope_pairs pairs; /* rope */
};

static void row_part(void *arg, uint32_t part, uint32_t parts)
{
    const struct row_job *j = arg;
    uint32_t begin, end;

    dk_exec_range(j->n, part, parts, &begin, &end);
    for (uint32_t i = begin; i < end; i++)
        j->row(j, i);
}

static void run_rows(struct row_job *j, uint32_t width)
{
    assert(j->n <= j->b->rows_max);
    if (j->n < 2 || (size_t)j->n * width < INLINE_ELEMENTS)
        row_part(j, 0, 1);
    else
        dk_exec_run(j->b->exec, row_part, j);
}

static bool is_vector(const struct dk_weight *w, uint32_t width)
{
    return (w->use == DK_WEIGHT_VECTOR || w->use == DK_WEIGHT_ONE_PLUS) && w->cols == width;
}

static void embed_row(const struct row_job *j, uint32_t i)
{
    const struct dk_weight *t = j->weight;
    size_t row_bytes = (size_t)t->cols * dk_dtype_bytes(t->type);

    assert(j->index[i] < t->rows);
    dk_widen(row_of(j->y, i), t->table + j->index[i] * row_bytes, t->type, t->cols);
}

void cpu_embed(struct dk_backend *b, const struct dk_weight *table, uint32_t n, const uint32_t *ids, struct dk_rows y)
{
    struct row_job j = {.row = embed_row, .n = n, .b = b, .weight = table, .index = ids, .y = y};

    assert(table->use == DK_WEIGHT_TABLE && table->cols == y.width);
    run_rows(&j, y.width);
}

static void gather_row(const struct row_job *j, uint32_t i)
{
    memcpy(row_of(j->y, i), row_of(j->x, j->index[i]), j->x.width * sizeof(float));
}

void cpu_gather(struct dk_backend *b, struct dk_rows x, uint32_t n, const uint32_t *rows, struct dk_rows y)
{
    struct row_job j = {.row = gather_row, .n = n, .b = b, .index = rows, .x = x, .y = y};

    assert(x.width == y.width && x.data != y.data);
    run_rows(&j, x.width);
}

static void slice_row(const struct row_job *j, uint32_t i)
{
    uint32_t from_width = j->x.width / j->groups, width = j->y.width / j->groups;
    const float *x = row_of(j->x, i) + j->first;
    float *y = row_of(j->y, i);

    for (uint32_t g = 0; g < j->groups; g++, x += from_width, y += width)
        memcpy(y, x, width * sizeof(float));
}

void cpu_slice(struct dk_backend *b, uint32_t n, struct dk_rows x, uint32_t groups, uint32_t first, struct dk_rows y)
{
    struct row_job j = {.row = slice_row, .n = n, .b = b, .x = x, .y = y, .groups = groups, .first = first};

    assert(groups > 0 && x.width % groups == 0 && y.width % groups == 0 && x.data != y.data);
    assert(y.width / groups <= x.width / groups && first <= x.width / groups - y.width / groups);
    run_rows(&j, y.width);
}

static void rmsnorm_row(const struct row_job *j, uint32_t i)
{
    const float *x = row_of(j->x, i);
    float *y = row_of(j->y, i);

    for (uint32_t at = 0; at < j->x.width; at += j->group)
        dk_rmsnorm(j->b->kernels, j->group, x + at, j->weight->vector, j->eps, y + at);
}

void cpu_rmsnorm(struct dk_backend *b, uint32_t n, struct dk_rows x, uint32_t group, const struct dk_weight *w,
                 float eps, struct dk_rows y)
{
    struct row_job j = {.row = rmsnorm_row, .n = n, .b = b, .x = x, .y = y, .weight = w, .group = group, .eps = eps};

    assert(is_vector(w, group) && x.width % group == 0 && x.width == y.width);
    run_rows(&j, x.width);
}

/* In double, one element after the other: only index keys are normalized so, a short row for each token, and a mean
 * that is large beside the deviations then costs no digits. */
static void layernorm_row(const struct row_job *j, uint32_t i)
{
    const float *x = row_of(j->x, i), *w = j->weight->vector, *bias = j->bias->vector;
    uint32_t width = j->x.width;
    float *y = row_of(j->y, i);
    double mean = 0, variance = 0, r;

    for (uint32_t c = 0; c < width; c++)
        mean += (double)x[c];
    mean /= width;
    for (uint32_t c = 0; c < width; c++)
        variance += ((double)x[c] - mean) * ((double)x[c] - mean);
    r = 1 / sqrt(variance / width + (double)j->eps);
    for (uint32_t c = 0; c < width; c++)
        y[c] = (float)(((double)x[c] - mean) * r * (double)w[c] + (double)bias[c]);
}

void cpu_layernorm(struct dk_backend *b, uint32_t n, struct dk_rows x, const struct dk_weight *w,
                   const struct dk_weight *bias, float eps, struct dk_rows y)
{
    struct row_job j = {.row = layernorm_row, .n = n, .b = b, .x = x, .y = y, .weight = w, .bias = bias, .eps = eps};

    assert(is_vector(w, x.width) && is_vector(bias, x.width) && x.width == y.width);
    run_rows(&j, x.width);
}

/* One times a number is exact, so the fused multiply-add is a sum. */
static void add_row(const struct row_job *j, uint32_t i)
{
    dk_axpy(j->b->kernels, j->x.width, 1.0f, row_of(j->x, i), row_of(j->y, i));
}

void cpu_add(struct dk_backend *b, uint32_t n, struct dk_rows x, struct dk_rows y)
{
    struct row_job j = {.row = add_row, .n = n, .b = b, .x = x, .y = y};

    assert(x.width == y.width);
    run_rows(&j, x.width);
}

static void bias_row(const struct row_job *j, uint32_t i)
{
    dk_axpy(j->b->kernels, j->y.width, 1.0f, j->weight->vector, row_of(j->y, i));
}

void cpu_bias(struct dk_backend *b, uint32_t n, const struct dk_weight *v, struct dk_rows y)
{
    struct row_job j = {.row = bias_row, .n = n, .b = b, .weight = v, .y = y};

    assert(is_vector(v, y.width));
    run_rows(&j, y.width);
}

/* One product for an element: whatever the compiler makes of it has the same bits. */
static void multiply(uint32_t width, float factor, float *y)
{
    for (uint32_t c = 0; c < width; c++)
        y[c] *= factor;
}

static void scale_row(const struct row_job *j, uint32_t i)
{
    multiply(j->y.width, j->factor, row_of(j->y, i));
}

void cpu_scale(struct dk_backend *b, uint32_t n, float factor, struct dk_rows y)
{
    struct row_job j = {.row = scale_row, .n = n, .b = b, .factor = factor, .y = y};

    run_rows(&j, y.width);
}

static void silu_mul_row(const struct row_job *j, uint32_t i)
{
    dk_silu_mul(j->b->kernels, j->y.width, row_of(j->x, i), row_of(j->z, i), row_of(j->y, i));
}

void cpu_silu_mul(struct dk_backend *b, uint32_t n, struct dk_rows gate, struct dk_rows up, struct dk_rows y)
{
    struct row_job j = {.row = silu_mul_row, .n = n, .b = b, .x = gate, .z = up, .y = y};

    assert(gate.width == y.width && up.width == y.width);
    run_rows(&j, y.width);
}

static void sigmoid_mul_row(const struct row_job *j, uint32_t i)
{
    const float *gate = row_of(j->x, i), one = 1.0f;
    float *y = row_of(j->y, i), factor;

    if (j->x.width == j->y.width) {
        dk_sigmoid_mul(j->b->kernels, j->y.width, gate, y, y);
    } else {
        dk_sigmoid_mul(j->b->kernels, 1, gate, &one, &factor);
        multiply(j->y.width, factor, y);
    }
}

void cpu_sigmoid_mul(struct dk_backend *b, uint32_t n, struct dk_rows gate, struct dk_rows y)
{
    struct row_job j = {.row = sigmoid_mul_row, .n = n, .b = b, .x = gate, .y = y};

    assert(gate.width == y.width || gate.width == 1);
    run_rows(&j, y.width);
}

struct angles_job {
    const struct dk_span *spans;
    uint32_t span_count;
    const float *inverse_frequency;
    float factor;
    struct dk_rows angles;
};

static void angles_row(const struct angles_job *j, uint32_t row, uint32_t position)
{
    uint32_t half = j->angles.width / 2;
    float *cosine = row_of(j->angles, row), *sine = cosine + half;

    for (uint32_t d = 0; d < half; d++) {
        float angle = (float)position * j->inverse_frequency[d];

        cosine[d] = cosf(angle) * j->factor;
        sine[d] = sinf(angle) * j->factor;
    }
}

static void angles_part(void *arg, uint32_t part, uint32_t parts)
{
    const struct angles_job *j = arg;

    for (uint32_t s = 0; s < j->span_count; s++) {
        for (uint32_t i = 0; i < j->spans[s].count; i++) {
            if ((j->spans[s].row + i) % parts == part)
                angles_row(j, j->spans[s].row + i, j->spans[s].position + i);
        }
    }
}

void cpu_rope_angles(struct dk_backend *b, const struct dk_span *spans, uint32_t span_count,
                     const float *inverse_frequency, float factor, struct dk_rows angles)
{
    struct angles_job j = {.spans = spans,
                           .span_count = span_count,
                           .inverse_frequency = inverse_frequency,
                           .factor = factor,
                           .angles = angles};
    uint64_t rows = 0;

    for (uint32_t s = 0; s < span_count; s++) {
        assert(spans[s].row <= b->rows_max && spans[s].count <= b->rows_max - spans[s].row);
        rows += spans[s].count;
    }
    if (rows * angles.width < INLINE_ANGLES)
        angles_part(&j, 0, 1);
    else
        dk_exec_run(b->exec, angles_part, &j);
}

static void rope_row(const struct row_job *j, uint32_t i)
{
    const float *cosine = row_of(j->y, i);
    uint32_t dims = j->y.width;
    float *x = row_of(j->x, i) + j->first;

    for (uint32_t at = 0; at < j->x.width; at += j->group) {
        if (j->pairs == DK_ROPE_HALVES)
            dk_rope_halves(j->b->kernels, dims, x + at, cosine, cosine + dims / 2);
        else
            dk_rope_pairs(j->b->kernels, dims, x + at, cosine, cosine + dims / 2);
    }
}

void cpu_rope(struct dk_backend *b, uint32_t n, struct dk_rows x, uint32_t head_dim, uint32_t first,
              enum dk_rope_pairs pairs, struct dk_rows angles)
{
    struct row_job j = {
        .row = rope_row, .n = n, .b = b, .x = x, .y = angles, .group = head_dim, .first = first, .pairs = pairs};

    assert(head_dim > 0 && x.width % head_dim == 0 && angles.width % 2 == 0);
    assert(angles.width <= head_dim && first <= head_dim - angles.width);
    run_rows(&j, x.width);
}
