/* SPDX-License-Identifier: Apache-2.0 */
/* The back end on the CPU: its memory for rows, matrix products, and the table of its operations. Matrix products split
 * their output rows over the threads (kernel/kernel.h). */
#include "attention-worker/backend/cpu/backend_cpu_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

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
    free(b);
}

uint32_t cpu_threads(const struct dk_backend_config *c)
{
    return c->threads ? c->threads : 1;
}

/* Each slot begins on a 64-byte boundary. */
static size_t scratch_floats(const struct dk_backend_config *c)
{
    return (size_t)c->rows_max * c->scratch_floats_per_row + DK_ROWS_SLOTS_MAX * 16;
}

static void cpu_stores_bytes(const struct dk_backend_config *c, const struct dk_stores_shape *s,
                             struct dk_stores_bytes *out)
{
    *out = (struct dk_stores_bytes){.fixed = scratch_floats(c) * sizeof(float)};
    if (s->kv.layers > 0)
        cpu_kv_bytes(c, &s->kv, out);
    if (s->latents.layers > 0)
        cpu_latents_bytes(c, &s->latents, out);
    if (s->top_k > 0)
        cpu_picks_bytes(c, s->top_k, out);
    if (s->states.layers > 0)
        cpu_states_bytes(c, &s->states, out);
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
    b->threads = cpu_threads(c);
    b->rows_max = c->rows_max;
    b->context = c->context;
    b->scratch_floats = scratch_floats(c);
    b->scratch = cpu_floats(b->scratch_floats);
    if (!b->scratch) {
        rc = dk_err_set(err, -ENOMEM,
                        "cpu back end: no memory for scratch of %u rows: lower the coordinator's --step-rows",
                        c->rows_max);
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

static void cpu_linear_host(struct dk_backend *b, uint32_t n, struct dk_rows x, const struct dk_weight *w, float *y)
{
    assert(w->use == DK_WEIGHT_MATRIX && !w->heads && w->cols == x.width);
    if (n > 0)
        dk_matmul(b->kernels, b->exec, &w->matrix, n, x.data, x.width, y, w->rows);
}

static void cpu_linear(struct dk_backend *b, uint32_t n, struct dk_rows x, const struct dk_weight *w, struct dk_rows y)
{
    assert(w->rows == y.width && n <= b->rows_max);
    cpu_linear_host(b, n, x, w, y.data);
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
    .stores_bytes = cpu_stores_bytes,
    .weight_load = cpu_weight_load,
    .weight_load_heads = cpu_weight_load_heads,
    .weight_free = cpu_weight_free,
    .rows_reset = cpu_rows_reset,
    .rows_take = cpu_rows_take,
    .embed = cpu_embed,
    .gather = cpu_gather,
    .slice = cpu_slice,
    .rmsnorm = cpu_rmsnorm,
    .layernorm = cpu_layernorm,
    .linear = cpu_linear,
    .linear_host = cpu_linear_host,
    .linear_heads = cpu_linear_heads,
    .add = cpu_add,
    .bias = cpu_bias,
    .scale = cpu_scale,
    .silu_mul = cpu_silu_mul,
    .sigmoid_mul = cpu_sigmoid_mul,
    .rope_angles = cpu_rope_angles,
    .rope = cpu_rope,
    .kv_open = cpu_kv_open,
    .kv_close = cpu_kv_close,
    .kv_copy = cpu_kv_copy,
    .attend = cpu_attend,
    .latents_open = cpu_latents_open,
    .latents_close = cpu_latents_close,
    .latents_copy = cpu_latents_copy,
    .attend_latent = cpu_attend_latent,
    .picks_open = cpu_picks_open,
    .picks_close = cpu_picks_close,
    .index_select = cpu_index_select,
    .picks_download = cpu_picks_download,
    .states_open = cpu_states_open,
    .states_close = cpu_states_close,
    .states_copy = cpu_states_copy,
    .delta = cpu_delta,
    .states_download = cpu_states_download,
    .download = cpu_download,
    .upload = cpu_upload,
};
