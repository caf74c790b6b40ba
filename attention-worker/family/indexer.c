/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/family/indexer.h"

#include <math.h>
#include <stdlib.h>

/* Of the LayerNorm; not in config.json. */
#define INDEX_NORM_EPS 1e-6f

int dk_indexer_take(struct dk_piece_context *c, struct dk_indexer *x, struct dk_err *err)
{
    const struct dk_index_config *config = &c->config->index;
    const struct dk_piece_rows rows[] = {
        {&x->q, config->heads * config->dim}, {&x->k, config->dim}, {&x->weights, config->heads}};

    return dk_piece_take(c, rows, sizeof(rows) / sizeof(rows[0]), err);
}

int dk_indexer_open(const struct dk_piece_context *c, struct dk_indexer *x, struct dk_err *err)
{
    x->layers = calloc(c->config->layers, sizeof(*x->layers));
    if (!x->layers)
        return dk_err_set(err, -ENOMEM, "out of memory");
    return c->ops->picks_open(c->backend, c->config->index.top_k, &x->picks, err);
}

int dk_indexer_load(struct dk_piece_context *c, uint32_t layer, struct dk_indexer *x, struct dk_err *err)
{
    const struct dk_model_config *config = c->config;
    const struct dk_index_config *index = &config->index;
    uint64_t q_rows = (uint64_t)index->heads * index->dim;
    struct dk_indexer_layer unused, *w = x->picks ? &x->layers[layer] : &unused;
    const struct dk_piece_weight weights[] = {
        {&w->q, "self_attn.indexer.wq_b.weight", DK_WEIGHT_MATRIX, {q_rows, config->mla.q_rank}},
        {&w->k, "self_attn.indexer.wk.weight", DK_WEIGHT_MATRIX, {index->dim, config->hidden}},
        {&w->weights, "self_attn.indexer.weights_proj.weight", DK_WEIGHT_MATRIX, {index->heads, config->hidden}},
        {&w->norm, "self_attn.indexer.k_norm.weight", DK_WEIGHT_VECTOR, {index->dim}},
        {&w->norm_bias, "self_attn.indexer.k_norm.bias", DK_WEIGHT_VECTOR, {index->dim}},
    };
    size_t count = sizeof(weights) / sizeof(weights[0]);

    return x->picks ? dk_piece_load(c, layer, weights, count, err) : dk_piece_check(c, layer, weights, count, err);
}

void dk_indexer_close(const struct dk_piece_context *c, struct dk_indexer *x)
{
    if (x->picks)
        c->ops->picks_close(c->backend, x->picks);
    free(x->layers);
}

static void trace_picks(const struct dk_piece_context *c, uint32_t layer, const struct dk_indexer *x)
{
    const uint32_t shape[] = {c->trace->count, c->config->index.top_k};
    int32_t *positions = malloc(((size_t)shape[0] * shape[1] + 1) * sizeof(int32_t));

    if (positions)
        c->ops->picks_download(c->backend, x->picks, c->trace->row, c->trace->count, positions);
    dk_piece_trace_put(c, layer, "selected", DK_TRACE_I32, 2, shape, positions);
    free(positions);
}

void dk_indexer_select(const struct dk_piece_context *c, uint32_t layer, const struct dk_indexer *x,
                       struct dk_rows query, struct dk_latents *cache, uint32_t ordinal)
{
    const struct dk_index_config *config = &c->config->index;
    const struct dk_indexer_layer *w = &x->layers[layer];
    const struct dk_backend_ops *ops = c->ops;
    uint32_t n = c->batch.rows;

    ops->linear(c->backend, n, query, w->q, x->q);
    ops->rope(c->backend, n, x->q, config->dim, 0, DK_ROPE_HALVES, c->angles);
    ops->linear(c->backend, n, c->h, w->k, x->k);
    ops->layernorm(c->backend, n, x->k, w->norm, w->norm_bias, INDEX_NORM_EPS, x->k);
    ops->rope(c->backend, n, x->k, config->dim, 0, DK_ROPE_HALVES, c->angles);
    ops->linear(c->backend, n, c->h, w->weights, x->weights);
    ops->scale(c->backend, n, 1.0f / sqrtf((float)config->heads * (float)config->dim), x->weights);
    dk_piece_trace(c, layer, "index_k", 0, x->k);
    ops->index_select(c->backend, cache, ordinal, c->batch.spans, c->batch.span_count, config->heads, x->q, x->weights,
                      x->k, x->picks);
    if (c->trace)
        trace_picks(c, layer, x);
}
