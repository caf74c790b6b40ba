/* SPDX-License-Identifier: Apache-2.0 */
/* The back end on the CPU. Row operations give every thread whole rows, so neither threads nor neighbours show in the
 * result; matrix products split their output rows (kernel/kernel.h). */
#include "attention-worker/backend/cpu/backend_cpu_internal.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Below this many elements waking the other threads takes longer than the work. */
#define INLINE_ELEMENTS 16384u

float *cpu_floats(size_t count)
{
    if (count > (SIZE_MAX - 63) / sizeof(float))
        return NULL;
    return aligned_alloc(64, (count * sizeof(float) + 63) / 64 * 64);
}

struct dk_exec *dk_backend_cpu_exec(struct dk_backend *b)
{
    return b->exec;
}

const struct dk_kernels *dk_backend_cpu_kernels(const struct dk_backend *b)
{
    return b->kernels;
}

static void cpu_close(struct dk_backend *b)
{
    if (!b)
        return;
    dk_exec_close(b->exec);
    free(b->scratch);
    free(b->scores);
    free(b);
}

static int cpu_open(const struct dk_backend_config *c, struct dk_backend **out, struct dk_err *err)
{
    struct dk_backend *b;
    enum dk_isa isa;
    int rc;

    *out = NULL;
    rc = dk_isa_parse(c->isa ? c->isa : "auto", &isa);
    if (rc < 0)
        return dk_err_set(err, rc, "cpu back end: instruction set \"%s\" is %s", c->isa,
                          rc == -ENOTSUP ? "not supported by this CPU" : "unknown");
    b = calloc(1, sizeof(*b));
    if (!b)
        return dk_err_set(err, -ENOMEM, "cpu back end: out of memory");
    b->kernels = dk_kernels_get(isa);
    b->attend = attend_kernels_get(isa);
    b->threads = c->threads ? c->threads : 1;
    b->rows_max = c->rows_max;
    b->context = c->context;
    /* Each slot begins on a 64-byte boundary. */
    b->scratch_floats = (size_t)c->rows_max * c->scratch_floats_per_row + DK_ROWS_SLOTS_MAX * 16;
    b->scratch = cpu_floats(b->scratch_floats);
    b->scores = cpu_floats((size_t)b->threads * ATTEND_QUERIES_MAX * c->context);
    if (!b->scratch || !b->scores) {
        rc = dk_err_set(err, -ENOMEM, "cpu back end: no memory for scratch of %u rows and a context of %u positions",
                        c->rows_max, c->context);
        goto fail;
    }
    rc = dk_exec_open(b->threads, c->pin, &b->exec);
    if (rc < 0) {
        dk_err_set(err, rc, "cpu back end: cannot start %u threads", b->threads);
        goto fail;
    }
    *out = b;
    return 0;
fail:
    cpu_close(b);
    return rc;
}

static void cpu_rows_reset(struct dk_backend *b)
{
    b->scratch_used = 0;
    b->slots_used = 0;
}

static int cpu_rows_take(struct dk_backend *b, uint32_t width, struct dk_rows *out)
{
    size_t floats = ((size_t)width * b->rows_max + 15) / 16 * 16;

    if (b->slots_used == DK_ROWS_SLOTS_MAX || floats > b->scratch_floats - b->scratch_used)
        return -ENOSPC;
    *out = (struct dk_rows){.data = b->scratch + b->scratch_used, .width = width};
    b->scratch_used += floats;
    b->slots_used++;
    return 0;
}

static inline float *row_of(struct dk_rows x, uint32_t row)
{
    return x.data + (size_t)row * x.width;
}

/* One row operation: `row` is called for each of n rows. */
struct row_job {
    void (*row)(const struct row_job *j, uint32_t row);
    uint32_t n;
    struct dk_backend *b;
    struct dk_rows x, y;
    const struct dk_weight *weight;
    const uint32_t *index;
    uint32_t group; /* rmsnorm */
    float eps;
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
    if (j->n < 2 || (size_t)j->n * width < INLINE_ELEMENTS)
        row_part(j, 0, 1);
    else
        dk_exec_run(j->b->exec, row_part, j);
}

static void embed_row(const struct row_job *j, uint32_t i)
{
    const struct dk_weight *t = j->weight;
    size_t row_bytes = (size_t)t->cols * dk_dtype_bytes(t->type);

    assert(j->index[i] < t->rows);
    dk_widen(row_of(j->y, i), t->table + j->index[i] * row_bytes, t->type, t->cols);
}

static void cpu_embed(struct dk_backend *b, const struct dk_weight *table, uint32_t n, const uint32_t *ids,
                      struct dk_rows y)
{
    struct row_job j = {.row = embed_row, .n = n, .b = b, .weight = table, .index = ids, .y = y};

    assert(table->use == DK_WEIGHT_TABLE && table->cols == y.width && n <= b->rows_max);
    run_rows(&j, y.width);
}

static void gather_row(const struct row_job *j, uint32_t i)
{
    memcpy(row_of(j->y, i), row_of(j->x, j->index[i]), j->x.width * sizeof(float));
}

static void cpu_gather(struct dk_backend *b, struct dk_rows x, uint32_t n, const uint32_t *rows, struct dk_rows y)
{
    struct row_job j = {.row = gather_row, .n = n, .b = b, .index = rows, .x = x, .y = y};

    assert(x.width == y.width && n <= b->rows_max && x.data != y.data);
    run_rows(&j, x.width);
}

static void rmsnorm_row(const struct row_job *j, uint32_t i)
{
    const float *x = row_of(j->x, i);
    float *y = row_of(j->y, i);

    for (uint32_t at = 0; at < j->x.width; at += j->group)
        dk_rmsnorm(j->b->kernels, j->group, x + at, j->weight->vector, j->eps, y + at);
}

static void cpu_rmsnorm(struct dk_backend *b, uint32_t n, struct dk_rows x, uint32_t group, const struct dk_weight *w,
                        float eps, struct dk_rows y)
{
    struct row_job j = {.row = rmsnorm_row, .n = n, .b = b, .x = x, .y = y, .weight = w, .group = group, .eps = eps};

    assert(w->use == DK_WEIGHT_VECTOR && w->cols == group && x.width % group == 0 && x.width == y.width);
    run_rows(&j, x.width);
}

static void cpu_linear_host(struct dk_backend *b, uint32_t n, struct dk_rows x, const struct dk_weight *w, float *y)
{
    assert(w->use == DK_WEIGHT_MATRIX && w->cols == x.width);
    if (n > 0)
        dk_matmul(b->kernels, b->exec, &w->matrix, n, x.data, x.width, y, w->rows);
}

static void cpu_linear(struct dk_backend *b, uint32_t n, struct dk_rows x, const struct dk_weight *w, struct dk_rows y)
{
    assert(w->rows == y.width && n <= b->rows_max);
    cpu_linear_host(b, n, x, w, y.data);
}

static void add_row(const struct row_job *j, uint32_t i)
{
    dk_axpy(j->b->kernels, j->x.width, 1.0f, row_of(j->x, i), row_of(j->y, i));
}

static void cpu_add(struct dk_backend *b, uint32_t n, struct dk_rows x, struct dk_rows y)
{
    struct row_job j = {.row = add_row, .n = n, .b = b, .x = x, .y = y};

    assert(x.width == y.width);
    run_rows(&j, x.width);
}

static void cpu_rope_angles(struct dk_backend *b, const struct dk_span *spans, uint32_t span_count,
                            const float *inverse_frequency, struct dk_rows angles)
{
    uint32_t half = angles.width / 2;

    for (uint32_t s = 0; s < span_count; s++) {
        for (uint32_t i = 0; i < spans[s].count; i++) {
            float *cosine = row_of(angles, spans[s].row + i), *sine = cosine + half;

            for (uint32_t d = 0; d < half; d++) {
                float angle = (float)(spans[s].position + i) * inverse_frequency[d];

                cosine[d] = cosf(angle);
                sine[d] = sinf(angle);
            }
        }
    }
}

static void rope_row(const struct row_job *j, uint32_t i)
{
    const float *cosine = row_of(j->y, i);
    uint32_t head_dim = j->y.width;
    float *x = row_of(j->x, i);

    for (uint32_t at = 0; at < j->x.width; at += head_dim)
        dk_rope_halves(j->b->kernels, head_dim, x + at, cosine, cosine + head_dim / 2);
}

static void cpu_rope(struct dk_backend *b, uint32_t n, struct dk_rows x, struct dk_rows angles)
{
    struct row_job j = {.row = rope_row, .n = n, .b = b, .x = x, .y = angles};

    assert(x.width % angles.width == 0);
    run_rows(&j, x.width);
}

static void cpu_download(struct dk_backend *b, struct dk_rows x, uint32_t first, uint32_t n, float *host)
{
    assert(first + n <= b->rows_max);
    memcpy(host, row_of(x, first), (size_t)n * x.width * sizeof(float));
}

static void cpu_upload(struct dk_backend *b, struct dk_rows x, uint32_t first, uint32_t n, const float *host)
{
    assert(first + n <= b->rows_max);
    memcpy(row_of(x, first), host, (size_t)n * x.width * sizeof(float));
}

const struct dk_backend_ops dk_backend_cpu = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .weight_load = cpu_weight_load,
    .weight_free = cpu_weight_free,
    .kv_open = cpu_kv_open,
    .kv_close = cpu_kv_close,
    .rows_reset = cpu_rows_reset,
    .rows_take = cpu_rows_take,
    .embed = cpu_embed,
    .gather = cpu_gather,
    .rmsnorm = cpu_rmsnorm,
    .linear = cpu_linear,
    .linear_host = cpu_linear_host,
    .add = cpu_add,
    .rope_angles = cpu_rope_angles,
    .rope = cpu_rope,
    .attend = cpu_attend,
    .download = cpu_download,
    .upload = cpu_upload,
};
