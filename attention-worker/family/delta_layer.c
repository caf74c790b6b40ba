/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/family/delta_layer.h"

#include <stdlib.h>

static uint32_t channels_of(const struct dk_delta_config *d)
{
    return 2 * d->key_heads * d->key_dim + d->value_heads * d->value_dim;
}

int dk_delta_take(struct dk_piece_context *c, struct dk_delta *d, struct dk_err *err)
{
    const struct dk_delta_config *config = &c->config->delta;
    uint32_t values = config->value_heads * config->value_dim;
    const struct dk_piece_rows rows[] = {
        {&d->qkv, channels_of(config)}, {&d->z, values}, {&d->y, values}, {&d->b, config->value_heads},
        {&d->a, config->value_heads},
    };

    return dk_piece_take(c, rows, sizeof(rows) / sizeof(rows[0]), err);
}

struct dk_states_shape dk_delta_shape(const struct dk_family_load *l)
{
    const struct dk_delta_config *d = &l->config->delta;

    return (struct dk_states_shape){.layers = dk_piece_layers(l->config, DK_MIXER_DELTA),
                                    .slots = l->state_slots,
                                    .key_heads = d->key_heads,
                                    .value_heads = d->value_heads,
                                    .key_dim = d->key_dim,
                                    .value_dim = d->value_dim,
                                    .taps = d->conv_taps};
}

int dk_delta_open(const struct dk_piece_context *c, const struct dk_family_load *l, struct dk_delta *d,
                  struct dk_err *err)
{
    const struct dk_states_shape shape = dk_delta_shape(l);

    d->layers = calloc(c->config->layers, sizeof(*d->layers));
    if (!d->layers)
        return dk_err_set(err, -ENOMEM, "out of memory");
    return c->ops->states_open(c->backend, &shape, &d->states, err);
}

int dk_delta_load(struct dk_piece_context *c, uint32_t layer, struct dk_delta *d, struct dk_err *err)
{
    const struct dk_delta_config *config = &c->config->delta;
    uint64_t hidden = c->config->hidden, heads = config->value_heads, values = heads * config->value_dim;
    uint64_t channels = channels_of(config);
    struct dk_delta_layer *w = &d->layers[layer];
    const struct dk_piece_weight weights[] = {
        {&w->qkv, "linear_attn.in_proj_qkv.weight", DK_WEIGHT_MATRIX, {channels, hidden}},
        {&w->z, "linear_attn.in_proj_z.weight", DK_WEIGHT_MATRIX, {values, hidden}},
        {&w->b, "linear_attn.in_proj_b.weight", DK_WEIGHT_MATRIX, {heads, hidden}},
        {&w->a, "linear_attn.in_proj_a.weight", DK_WEIGHT_MATRIX, {heads, hidden}},
        {&w->conv, "linear_attn.conv1d.weight", DK_WEIGHT_TAPS, {channels, 1, config->conv_taps}},
        {&w->a_log, "linear_attn.A_log", DK_WEIGHT_VECTOR, {heads}},
        {&w->dt_bias, "linear_attn.dt_bias", DK_WEIGHT_VECTOR, {heads}},
        {&w->norm, "linear_attn.norm.weight", DK_WEIGHT_VECTOR, {config->value_dim}},
        {&w->o, "linear_attn.out_proj.weight", DK_WEIGHT_MATRIX, {hidden, values}},
    };
    int rc;

    w->ordinal = d->count++;
    rc = dk_piece_load(c, layer, weights, sizeof(weights) / sizeof(weights[0]), err);
    w->recurrence = (struct dk_delta_weights){.conv = w->conv, .a_log = w->a_log, .dt_bias = w->dt_bias};
    return rc;
}

void dk_delta_close(const struct dk_piece_context *c, struct dk_delta *d)
{
    if (d->states)
        c->ops->states_close(c->backend, d->states);
    free(d->layers);
}

void dk_delta_project(const struct dk_piece_context *c, uint32_t layer, const struct dk_delta *d)
{
    const struct dk_delta_layer *w = &d->layers[layer];
    uint32_t n = c->batch.rows;

    c->ops->linear(c->backend, n, c->h, w->qkv, d->qkv);
    c->ops->linear(c->backend, n, c->h, w->z, d->z);
    c->ops->linear(c->backend, n, c->h, w->b, d->b);
    c->ops->linear(c->backend, n, c->h, w->a, d->a);
}

/* The states of the traced sequence after the step. */
static void trace_states(const struct dk_piece_context *c, uint32_t layer, const struct dk_delta *d)
{
    const struct dk_delta_config *config = &c->config->delta;
    const uint32_t conv_shape[] = {channels_of(config), config->conv_taps - 1};
    const uint32_t shape[] = {config->value_heads, config->key_dim, config->value_dim};
    size_t conv_floats = (size_t)conv_shape[0] * conv_shape[1];
    float *conv = malloc((conv_floats + (size_t)shape[0] * shape[1] * shape[2]) * sizeof(float));

    if (conv)
        c->ops->states_download(c->backend, d->states, d->layers[layer].ordinal, c->trace->state, conv,
                                conv + conv_floats);
    dk_piece_trace_put(c, layer, "conv_state", DK_TRACE_F32, 2, conv_shape, conv);
    dk_piece_trace_put(c, layer, "recurrent_state", DK_TRACE_F32, 3, shape, conv ? conv + conv_floats : NULL);
    free(conv);
}

void dk_delta_recur(const struct dk_piece_context *c, uint32_t layer, const struct dk_delta *d)
{
    const struct dk_delta_layer *w = &d->layers[layer];

    c->ops->delta(c->backend, d->states, w->ordinal, c->batch.spans, c->batch.span_count, &w->recurrence, d->qkv, d->b,
                  d->a, d->y);
    if (c->trace)
        trace_states(c, layer, d);
}

void dk_delta_gate(const struct dk_piece_context *c, uint32_t layer, const struct dk_delta *d)
{
    const struct dk_model_config *config = c->config;
    uint32_t n = c->batch.rows;

    c->ops->rmsnorm(c->backend, n, d->y, config->delta.value_dim, d->layers[layer].norm, config->rms_eps, d->y);
    c->ops->silu_mul(c->backend, n, d->z, d->y, d->y);
}

void dk_delta_output(const struct dk_piece_context *c, uint32_t layer, const struct dk_delta *d)
{
    c->ops->linear(c->backend, c->batch.rows, d->y, d->layers[layer].o, c->h);
}
