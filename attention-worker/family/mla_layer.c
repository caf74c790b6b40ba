/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/family/mla_layer.h"

#include <math.h>
#include <stdlib.h>

#include "attention-worker/family/rope_frequencies.h"

/* Of the norms of both latents: the default of the released code, whatever rms_norm_eps says. */
#define LATENT_NORM_EPS 1e-6f

int dk_mla_take(struct dk_piece_context *c, struct dk_mla *m, struct dk_err *err)
{
    const struct dk_mla_config *config = &c->config->mla;
    uint32_t heads = c->config->heads;
    const struct dk_piece_rows rows[] = {
        {&m->q, heads * (config->nope_dim + config->rope_dim)},
        {&m->q_nope, heads * config->nope_dim},
        {&m->q_pe, heads * config->rope_dim},
        {&m->kv, config->kv_rank + config->rope_dim},
        {&m->latent, config->kv_rank},
        {&m->k_pe, config->rope_dim},
        {&m->q_latent, heads * config->kv_rank},
        {&m->y, heads * config->kv_rank},
        {&m->values, heads * config->value_dim},
        {&m->q_a, config->q_rank},
    };
    int rc = dk_piece_take(c, rows, config->q_rank ? 10 : 9, err);

    return rc == 0 && c->config->index.heads && !m->full_attention ? dk_indexer_take(c, &m->indexer, err) : rc;
}

bool dk_mla_indexed(const struct dk_family_load *l)
{
    return l->config->index.heads && !l->full_attention;
}

struct dk_latents_shape dk_mla_shape(const struct dk_family_load *l)
{
    return (struct dk_latents_shape){.layers = dk_piece_layers(l->config, DK_MIXER_MLA),
                                     .rank = l->config->mla.kv_rank,
                                     .rope_dim = l->config->mla.rope_dim,
                                     .index_dim = dk_mla_indexed(l) ? l->config->index.dim : 0,
                                     .page_tokens = l->page_tokens,
                                     .pages = l->pages};
}

int dk_mla_open(const struct dk_piece_context *c, const struct dk_family_load *l, struct dk_mla *m, struct dk_err *err)
{
    const struct dk_model_config *config = c->config;
    const struct dk_latents_shape shape = dk_mla_shape(l);
    int rc;

    m->scale = 1.0f / sqrtf((float)(config->mla.nope_dim + config->mla.rope_dim)) *
               dk_rope_softmax_factor(&config->rope);
    m->layers = calloc(config->layers, sizeof(*m->layers));
    if (!m->layers)
        return dk_err_set(err, -ENOMEM, "out of memory");
    rc = c->ops->latents_open(c->backend, &shape, &m->cache, err);
    return rc == 0 && dk_mla_indexed(l) ? dk_indexer_open(c, &m->indexer, err) : rc;
}

static int load_queries(struct dk_piece_context *c, uint32_t layer, struct dk_mla_layer *w, struct dk_err *err)
{
    const struct dk_mla_config *config = &c->config->mla;
    uint64_t hidden = c->config->hidden, rows = (uint64_t)c->config->heads * (config->nope_dim + config->rope_dim);
    const struct dk_piece_weight one[] = {{&w->q, "self_attn.q_proj.weight", DK_WEIGHT_MATRIX, {rows, hidden}}};
    const struct dk_piece_weight two[] = {
        {&w->q_a, "self_attn.q_a_proj.weight", DK_WEIGHT_MATRIX, {config->q_rank, hidden}},
        {&w->q_a_norm, "self_attn.q_a_layernorm.weight", DK_WEIGHT_VECTOR, {config->q_rank}},
        {&w->q_b, "self_attn.q_b_proj.weight", DK_WEIGHT_MATRIX, {rows, config->q_rank}},
    };

    return config->q_rank ? dk_piece_load(c, layer, two, 3, err) : dk_piece_load(c, layer, one, 1, err);
}

/* kv_b_proj in the two parts that are used apart. */
static int load_up(struct dk_piece_context *c, uint32_t layer, struct dk_mla_layer *w, struct dk_err *err)
{
    static const char name[] = "self_attn.kv_b_proj.weight";
    const struct dk_mla_config *config = &c->config->mla;
    uint32_t heads = c->config->heads, head_rows = config->nope_dim + config->value_dim;
    uint64_t rows = (uint64_t)heads * head_rows;
    const struct dk_piece_weight k = {&w->k_up, name, DK_WEIGHT_MATRIX, {rows, config->kv_rank}};
    const struct dk_piece_weight v = {&w->v_up, name, DK_WEIGHT_MATRIX, {rows, config->kv_rank}};
    const struct dk_heads_part k_part = {
        .heads = heads, .head_rows = head_rows, .first = 0, .rows = config->nope_dim, .transposed = true};
    const struct dk_heads_part v_part = {
        .heads = heads, .head_rows = head_rows, .first = config->nope_dim, .rows = config->value_dim};
    int rc = dk_piece_load_heads(c, layer, &k, &k_part, err);

    return rc == 0 ? dk_piece_load_heads(c, layer, &v, &v_part, err) : rc;
}

int dk_mla_load(struct dk_piece_context *c, uint32_t layer, struct dk_mla *m, struct dk_err *err)
{
    const struct dk_mla_config *config = &c->config->mla;
    uint64_t hidden = c->config->hidden, values = (uint64_t)c->config->heads * config->value_dim;
    struct dk_mla_layer *w = &m->layers[layer];
    const struct dk_piece_weight weights[] = {
        {&w->kv_a,
         "self_attn.kv_a_proj_with_mqa.weight",
         DK_WEIGHT_MATRIX,
         {config->kv_rank + config->rope_dim, hidden}},
        {&w->kv_norm, "self_attn.kv_a_layernorm.weight", DK_WEIGHT_VECTOR, {config->kv_rank}},
        {&w->o, "self_attn.o_proj.weight", DK_WEIGHT_MATRIX, {hidden, values}},
    };
    int rc;

    w->ordinal = m->count++;
    rc = load_queries(c, layer, w, err);
    if (rc == 0)
        rc = dk_piece_load(c, layer, weights, sizeof(weights) / sizeof(weights[0]), err);
    if (rc == 0)
        rc = load_up(c, layer, w, err);
    return rc == 0 && c->config->index.heads ? dk_indexer_load(c, layer, &m->indexer, err) : rc;
}

void dk_mla_close(const struct dk_piece_context *c, struct dk_mla *m)
{
    dk_indexer_close(c, &m->indexer);
    if (m->cache)
        c->ops->latents_close(c->backend, m->cache);
    free(m->layers);
}

void dk_mla_queries(const struct dk_piece_context *c, uint32_t layer, const struct dk_mla *m)
{
    const struct dk_mla_config *config = &c->config->mla;
    const struct dk_mla_layer *w = &m->layers[layer];
    const struct dk_backend_ops *ops = c->ops;
    uint32_t n = c->batch.rows, heads = c->config->heads;

    if (config->q_rank) {
        ops->linear(c->backend, n, c->h, w->q_a, m->q_a);
        ops->rmsnorm(c->backend, n, m->q_a, config->q_rank, w->q_a_norm, LATENT_NORM_EPS, m->q_a);
        ops->linear(c->backend, n, m->q_a, w->q_b, m->q);
    } else {
        ops->linear(c->backend, n, c->h, w->q, m->q);
    }
    ops->slice(c->backend, n, m->q, heads, 0, m->q_nope);
    ops->slice(c->backend, n, m->q, heads, config->nope_dim, m->q_pe);
    ops->rope(c->backend, n, m->q_pe, config->rope_dim, 0, DK_ROPE_NEIGHBOURS, c->angles);
}

void dk_mla_latents(const struct dk_piece_context *c, uint32_t layer, const struct dk_mla *m)
{
    const struct dk_mla_config *config = &c->config->mla;
    const struct dk_mla_layer *w = &m->layers[layer];
    const struct dk_backend_ops *ops = c->ops;
    uint32_t n = c->batch.rows;

    ops->linear(c->backend, n, c->h, w->kv_a, m->kv);
    ops->slice(c->backend, n, m->kv, 1, 0, m->latent);
    ops->rmsnorm(c->backend, n, m->latent, config->kv_rank, w->kv_norm, LATENT_NORM_EPS, m->latent);
    ops->slice(c->backend, n, m->kv, 1, config->kv_rank, m->k_pe);
    ops->rope(c->backend, n, m->k_pe, config->rope_dim, 0, DK_ROPE_NEIGHBOURS, c->angles);
    dk_piece_trace(c, layer, "kv_latent", 0, m->latent);
    dk_piece_trace(c, layer, "k_pe", 0, m->k_pe);
}

void dk_mla_select(const struct dk_piece_context *c, uint32_t layer, const struct dk_mla *m)
{
    if (m->indexer.picks)
        dk_indexer_select(c, layer, &m->indexer, m->q_a, m->cache, m->layers[layer].ordinal);
}

void dk_mla_attend(const struct dk_piece_context *c, uint32_t layer, const struct dk_mla *m)
{
    const struct dk_mla_layer *w = &m->layers[layer];

    c->ops->linear_heads(c->backend, c->batch.rows, m->q_nope, w->k_up, m->q_latent);
    c->ops->attend_latent(c->backend, m->cache, w->ordinal, c->batch.spans, c->batch.span_count, c->config->heads,
                          m->scale, m->q_latent, m->q_pe, m->latent, m->k_pe, m->indexer.picks, m->y);
}

void dk_mla_output(const struct dk_piece_context *c, uint32_t layer, const struct dk_mla *m)
{
    const struct dk_mla_layer *w = &m->layers[layer];
    uint32_t n = c->batch.rows;

    c->ops->linear_heads(c->backend, n, m->y, w->v_up, m->values);
    c->ops->linear(c->backend, n, m->values, w->o, c->h);
}
