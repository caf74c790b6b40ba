/* SPDX-License-Identifier: Apache-2.0 */
/* Convolution inputs and recurrent states of Gated DeltaNet layers. */
#include "attention-worker/backend/cpu/states_cpu.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static int shape_check(const struct dk_states_shape *s, struct dk_err *err)
{
    uint64_t channels = 2 * (uint64_t)s->key_heads * s->key_dim + (uint64_t)s->value_heads * s->value_dim;

    if (s->layers == 0 || s->slots == 0)
        return dk_err_set(err, -EINVAL,
                          "cpu back end: %u layers and %u slots of recurrent states: at least one of each", s->layers,
                          s->slots);
    if (s->key_heads == 0 || s->value_heads == 0 || s->value_heads % s->key_heads != 0)
        return dk_err_set(err, -EINVAL,
                          "cpu back end: %u value heads of Gated DeltaNet are not a multiple of %u key heads",
                          s->value_heads, s->key_heads);
    if (s->key_dim == 0 || s->key_dim > STATES_DIM_MAX || s->value_dim == 0 || s->value_dim > STATES_DIM_MAX)
        return dk_err_set(err, -EINVAL, "cpu back end: heads of Gated DeltaNet are %u by %u: from 1 to %u each",
                          s->key_dim, s->value_dim, STATES_DIM_MAX);
    if (s->taps < STATES_TAPS_MIN || s->taps > STATES_TAPS_MAX)
        return dk_err_set(err, -EINVAL, "cpu back end: a convolution of %u taps: from %u to %u", s->taps,
                          STATES_TAPS_MIN, STATES_TAPS_MAX);
    if (channels > UINT32_MAX)
        return dk_err_set(err, -EINVAL, "cpu back end: too many heads of Gated DeltaNet: %u and %u", s->key_heads,
                          s->value_heads);
    return 0;
}

static uint32_t blocks_of(const struct dk_states_shape *s)
{
    return (s->value_dim + DELTA_COLUMNS - 1) / DELTA_COLUMNS;
}

static uint32_t channels_of(const struct dk_states_shape *s)
{
    return 2 * s->key_heads * s->key_dim + s->value_heads * s->value_dim;
}

void cpu_states_bytes(const struct dk_backend_config *c, const struct dk_states_shape *s, struct dk_stores_bytes *out)
{
    const struct dk_states counted = {.shape = *s, .channels = channels_of(s), .blocks = blocks_of(s)};

    out->slot += s->layers * (states_inputs_floats(&counted) + s->value_heads * states_head_floats(&counted)) *
                 (uint64_t)sizeof(float);
    out->fixed += (uint64_t)c->rows_max *
                  (s->key_heads * sizeof(struct delta_norms) + s->value_heads * sizeof(struct delta_scalars));
}

static void states_alloc(const struct dk_backend *b, struct dk_states *s)
{
    size_t places, inputs, recurrent;
    bool fits = !__builtin_mul_overflow((size_t)s->shape.slots, (size_t)s->shape.layers, &places) &&
                !__builtin_mul_overflow(places, states_inputs_floats(s), &inputs) &&
                !__builtin_mul_overflow(places, states_head_floats(s), &recurrent) &&
                !__builtin_mul_overflow(recurrent, (size_t)s->shape.value_heads, &recurrent);

    if (!fits)
        return;
    s->inputs = cpu_floats(inputs);
    s->recurrent = cpu_floats(recurrent);
    s->norms = calloc((size_t)b->rows_max * s->shape.key_heads, sizeof(*s->norms));
    s->scalars = calloc((size_t)b->rows_max * s->shape.value_heads, sizeof(*s->scalars));
    s->used = calloc(s->shape.slots, sizeof(*s->used));
}

int cpu_states_open(struct dk_backend *b, const struct dk_states_shape *shape, struct dk_states **out,
                    struct dk_err *err)
{
    struct dk_states *s;
    int rc;

    *out = NULL;
    rc = shape_check(shape, err);
    if (rc < 0)
        return rc;
    s = calloc(1, sizeof(*s));
    if (!s)
        goto no_memory;
    s->shape = *shape;
    s->channels = channels_of(shape);
    s->blocks = blocks_of(shape);
    s->kernels = delta_kernels_get(dk_kernels_isa(b->kernels));
    states_alloc(b, s);
    if (!s->inputs || !s->recurrent || !s->norms || !s->scalars || !s->used)
        goto no_memory;
    *out = s;
    return 0;
no_memory:
    cpu_states_close(b, s);
    return dk_err_set(err, -ENOMEM, "no memory for recurrent states of %u sequences in %u layers", shape->slots,
                      shape->layers);
}

void cpu_states_close(struct dk_backend *b, struct dk_states *s)
{
    if (!s)
        return;
    free(s->inputs);
    free(s->recurrent);
    free(s->norms);
    free(s->scalars);
    free(s->used);
    free(s);
}

struct copy_job {
    const struct dk_states *s;
    uint32_t from, to;
};

static void copy_part(void *arg, uint32_t part, uint32_t parts)
{
    const struct copy_job *j = arg;
    const struct dk_states *s = j->s;
    uint32_t begin, end;

    dk_exec_range(s->shape.layers, part, parts, &begin, &end);
    for (uint32_t layer = begin; layer < end; layer++) {
        memcpy(states_inputs(s, j->to, layer), states_inputs(s, j->from, layer),
               states_inputs_floats(s) * sizeof(float));
        memcpy(states_head(s, j->to, layer, 0), states_head(s, j->from, layer, 0),
               s->shape.value_heads * states_head_floats(s) * sizeof(float));
    }
}

void cpu_states_copy(struct dk_backend *b, struct dk_states *s, uint32_t from_slot, uint32_t to_slot)
{
    struct copy_job j = {.s = s, .from = from_slot, .to = to_slot};

    assert(from_slot < s->shape.slots && to_slot < s->shape.slots && from_slot != to_slot);
    dk_exec_run(b->exec, copy_part, &j);
}

void cpu_states_download(struct dk_backend *b, const struct dk_states *s, uint32_t layer, uint32_t slot, float *conv,
                         float *recurrent)
{
    const struct dk_states_shape *h = &s->shape;
    const float *inputs;

    assert(layer < h->layers && slot < h->slots);
    inputs = states_inputs(s, slot, layer);
    for (uint32_t c = 0; c < s->channels; c++) {
        for (uint32_t t = 0; t + 1 < h->taps; t++)
            *conv++ = inputs[(size_t)t * s->channels + c];
    }
    for (uint32_t row = 0; row < h->value_heads * h->key_dim; row++) {
        const float *head = states_head(s, slot, layer, row / h->key_dim);
        const float *from = head + (size_t)(row % h->key_dim) * DELTA_COLUMNS;

        for (uint32_t c = 0; c < h->value_dim; c++)
            *recurrent++ = from[c / DELTA_COLUMNS * ((size_t)h->key_dim * DELTA_COLUMNS) + c % DELTA_COLUMNS];
    }
}
