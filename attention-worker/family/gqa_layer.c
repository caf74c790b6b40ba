/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/family/gqa_layer.h"

#include <math.h>
#include <stdlib.h>

int dk_gqa_take(struct dk_piece_context *c, struct dk_gqa *g, struct dk_err *err)
{
    const struct dk_model_config *config = c->config;
    uint32_t q = config->heads * config->head_dim, kv = config->kv_heads * config->head_dim;
    const struct dk_piece_rows rows[] = {
        {&g->q, q}, {&g->y, q}, {&g->k, kv}, {&g->v, kv}, {&g->q_gate, 2 * q}, {&g->gate, q},
    };

    return dk_piece_take(c, rows, config->output_gate ? 6 : 4, err);
}

struct dk_kv_shape dk_gqa_shape(const struct dk_family_load *l)
{
    return (struct dk_kv_shape){.layers = dk_piece_layers(l->config, DK_MIXER_ATTENTION),
                                .kv_heads = l->config->kv_heads,
                                .head_dim = l->config->head_dim,
                                .page_tokens = l->page_tokens,
                                .pages = l->pages};
}

int dk_gqa_open(const struct dk_piece_context *c, const struct dk_family_load *l, struct dk_gqa *g, struct dk_err *err)
{
    const struct dk_kv_shape shape = dk_gqa_shape(l);

    g->layers = calloc(c->config->layers, sizeof(*g->layers));
    if (!g->layers)
        return dk_err_set(err, -ENOMEM, "out of memory");
    return c->ops->kv_open(c->backend, &shape, &g->kv, err);
}

int dk_gqa_load(struct dk_piece_context *c, uint32_t layer, struct dk_gqa *g, struct dk_err *err)
{
    const struct dk_model_config *config = c->config;
    enum dk_weight_use norm = dk_piece_norm_use(config);
    uint64_t hidden = config->hidden, q = (uint64_t)config->heads * config->head_dim;
    uint64_t kv = (uint64_t)config->kv_heads * config->head_dim, q_rows = config->output_gate ? 2 * q : q;
    struct dk_gqa_layer *w = &g->layers[layer];
    const struct dk_piece_weight weights[] = {
        {&w->q, "self_attn.q_proj.weight", DK_WEIGHT_MATRIX, {q_rows, hidden}},
        {&w->k, "self_attn.k_proj.weight", DK_WEIGHT_MATRIX, {kv, hidden}},
        {&w->v, "self_attn.v_proj.weight", DK_WEIGHT_MATRIX, {kv, hidden}},
        {&w->o, "self_attn.o_proj.weight", DK_WEIGHT_MATRIX, {hidden, q}},
    };
    const struct dk_piece_weight biases[] = {
        {&w->q_bias, "self_attn.q_proj.bias", DK_WEIGHT_VECTOR, {q_rows}},
        {&w->k_bias, "self_attn.k_proj.bias", DK_WEIGHT_VECTOR, {kv}},
        {&w->v_bias, "self_attn.v_proj.bias", DK_WEIGHT_VECTOR, {kv}},
    };
    const struct dk_piece_weight norms[] = {
        {&w->q_norm, "self_attn.q_norm.weight", norm, {config->head_dim}},
        {&w->k_norm, "self_attn.k_norm.weight", norm, {config->head_dim}},
    };
    int rc;

    w->ordinal = g->count++;
    rc = dk_piece_load(c, layer, weights, 4, err);
    if (rc == 0 && config->qkv_bias)
        rc = dk_piece_load(c, layer, biases, 3, err);
    if (rc == 0 && config->qk_norm)
        rc = dk_piece_load(c, layer, norms, 2, err);
    return rc;
}

void dk_gqa_close(const struct dk_piece_context *c, struct dk_gqa *g)
{
    if (g->kv)
        c->ops->kv_close(c->backend, g->kv);
    free(g->layers);
}

void dk_gqa_project(const struct dk_piece_context *c, uint32_t layer, const struct dk_gqa *g)
{
    const struct dk_gqa_layer *w = &g->layers[layer];
    const struct dk_backend_ops *ops = c->ops;
    uint32_t n = c->batch.rows, heads = c->config->heads;
    bool gated = c->config->output_gate;

    ops->linear(c->backend, n, c->h, w->q, gated ? g->q_gate : g->q);
    ops->linear(c->backend, n, c->h, w->k, g->k);
    ops->linear(c->backend, n, c->h, w->v, g->v);
    if (w->q_bias) {
        ops->bias(c->backend, n, w->q_bias, gated ? g->q_gate : g->q);
        ops->bias(c->backend, n, w->k_bias, g->k);
        ops->bias(c->backend, n, w->v_bias, g->v);
    }
    if (gated) {
        ops->slice(c->backend, n, g->q_gate, heads, 0, g->q);
        ops->slice(c->backend, n, g->q_gate, heads, c->config->head_dim, g->gate);
    }
}

void dk_gqa_norm_heads(const struct dk_piece_context *c, uint32_t layer, const struct dk_gqa *g)
{
    const struct dk_model_config *config = c->config;
    const struct dk_gqa_layer *w = &g->layers[layer];
    uint32_t n = c->batch.rows;

    c->ops->rmsnorm(c->backend, n, g->q, config->head_dim, w->q_norm, config->rms_eps, g->q);
    c->ops->rmsnorm(c->backend, n, g->k, config->head_dim, w->k_norm, config->rms_eps, g->k);
}

void dk_gqa_rotate(const struct dk_piece_context *c, const struct dk_gqa *g)
{
    uint32_t n = c->batch.rows, head_dim = c->config->head_dim;

    c->ops->rope(c->backend, n, g->q, head_dim, 0, DK_ROPE_HALVES, c->angles);
    c->ops->rope(c->backend, n, g->k, head_dim, 0, DK_ROPE_HALVES, c->angles);
}

void dk_gqa_attend(const struct dk_piece_context *c, uint32_t layer, const struct dk_gqa *g)
{
    const struct dk_model_config *config = c->config;
    float scale = 1.0f / sqrtf((float)config->head_dim);

    dk_piece_trace(c, layer, "k", config->kv_heads, g->k);
    dk_piece_trace(c, layer, "v", config->kv_heads, g->v);
    c->ops->attend(c->backend, g->kv, g->layers[layer].ordinal, c->batch.spans, c->batch.span_count, config->heads,
                   scale, g->q, g->k, g->v, g->y);
}

void dk_gqa_gate(const struct dk_piece_context *c, const struct dk_gqa *g)
{
    c->ops->sigmoid_mul(c->backend, c->batch.rows, g->gate, g->y);
}

void dk_gqa_output(const struct dk_piece_context *c, uint32_t layer, const struct dk_gqa *g)
{
    c->ops->linear(c->backend, c->batch.rows, g->y, g->layers[layer].o, c->h);
}
