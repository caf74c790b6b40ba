/* SPDX-License-Identifier: Apache-2.0 */
/* Grouped-query attention with rotary positions (arXiv 2305.13245, 2104.09864), as Llama and Qwen3 have it: norm, q k v
 * projections, perhaps an RMSNorm of each head of q and k, rotation of halves, causal attention, output projection. */
#include "attention-worker/family/gqa_layer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

int dk_piece_load(const struct dk_piece_context *c, enum dk_weight_use use, const char *name, uint32_t rows,
                  uint32_t cols, struct dk_weight **out, struct dk_err *err)
{
    const struct dk_tensor *weight, *scales = NULL;
    int rc;

    if (use == DK_WEIGHT_MATRIX)
        rc = dk_checkpoint_get_weight(c->checkpoint, name, rows, cols, &weight, &scales, err);
    else
        rc = dk_checkpoint_get(c->checkpoint, name, rows, cols, 0, &weight, err);
    if (rc < 0)
        return rc;
    return c->ops->weight_load(c->backend, use, weight, scales, out, err);
}

static void inverse_frequencies(const struct dk_model_config *config, float *out)
{
    /* theta^(-2i / head_dim), each operation rounded to f32: at position 10000 one unit in the last place of a
     * frequency is an angle of 1e-3, so the released models' own rounding is kept. */
    for (uint32_t i = 0; i < config->head_dim / 2; i++) {
        float exponent = (float)(2 * i) / (float)config->head_dim;

        out[i] = 1.0f / (float)pow(config->rope_theta, (double)exponent);
    }
}

int dk_gqa_step_open(const struct dk_piece_context *c, uint32_t page_tokens, uint32_t pages, struct dk_gqa_step *s,
                     struct dk_err *err)
{
    const struct dk_model_config *config = c->config;
    const struct dk_kv_shape shape = {.layers = config->layers,
                                      .kv_heads = config->kv_heads,
                                      .head_dim = config->head_dim,
                                      .page_tokens = page_tokens,
                                      .pages = pages};
    const struct {
        struct dk_rows *rows;
        uint32_t width;
    } slots[] = {
        {&s->x, config->hidden},
        {&s->h, config->hidden},
        {&s->q, config->heads * config->head_dim},
        {&s->mix, config->heads * config->head_dim},
        {&s->k, config->kv_heads * config->head_dim},
        {&s->v, config->kv_heads * config->head_dim},
        {&s->angles, config->head_dim},
    };
    int rc;

    for (size_t i = 0; i < sizeof(slots) / sizeof(slots[0]); i++) {
        rc = c->ops->rows_take(c->backend, slots[i].width, slots[i].rows);
        if (rc < 0)
            return dk_err_set(err, rc, "the back end's scratch is too small for this model");
    }
    s->inverse_frequency = calloc(config->head_dim / 2, sizeof(float));
    if (!s->inverse_frequency)
        return dk_err_set(err, -ENOMEM, "out of memory");
    inverse_frequencies(config, s->inverse_frequency);
    return c->ops->kv_open(c->backend, &shape, &s->kv, err);
}

void dk_gqa_step_close(const struct dk_piece_context *c, struct dk_gqa_step *s)
{
    c->ops->kv_close(c->backend, s->kv);
    free(s->inverse_frequency);
}

void dk_gqa_step_begin(const struct dk_piece_context *c, const struct dk_token_ends *e, struct dk_gqa_step *s,
                       const struct dk_family_batch *batch)
{
    s->batch = *batch;
    c->ops->embed(c->backend, e->table, batch->rows, batch->ids, s->x);
    c->ops->rope_angles(c->backend, batch->spans, batch->span_count, s->inverse_frequency, s->angles);
}

int dk_gqa_layer_load(const struct dk_piece_context *c, uint32_t layer, bool qk_norm, struct dk_gqa_layer *l,
                      struct dk_err *err)
{
    const struct dk_model_config *config = c->config;
    uint32_t q_rows = config->heads * config->head_dim, kv_rows = config->kv_heads * config->head_dim;
    const struct {
        const char *name;
        enum dk_weight_use use;
        uint32_t rows, cols;
        struct dk_weight **to;
    } weights[] = {
        {"input_layernorm", DK_WEIGHT_VECTOR, config->hidden, 0, &l->norm},
        {"self_attn.q_proj", DK_WEIGHT_MATRIX, q_rows, config->hidden, &l->q},
        {"self_attn.k_proj", DK_WEIGHT_MATRIX, kv_rows, config->hidden, &l->k},
        {"self_attn.v_proj", DK_WEIGHT_MATRIX, kv_rows, config->hidden, &l->v},
        {"self_attn.o_proj", DK_WEIGHT_MATRIX, config->hidden, q_rows, &l->o},
        {"self_attn.q_norm", DK_WEIGHT_VECTOR, config->head_dim, 0, &l->q_norm},
        {"self_attn.k_norm", DK_WEIGHT_VECTOR, config->head_dim, 0, &l->k_norm},
    };
    size_t count = sizeof(weights) / sizeof(weights[0]) - (qk_norm ? 0 : 2);

    for (size_t i = 0; i < count; i++) {
        char name[96];
        int rc;

        snprintf(name, sizeof(name), "model.layers.%u.%s.weight", layer, weights[i].name);
        rc = dk_piece_load(c, weights[i].use, name, weights[i].rows, weights[i].cols, weights[i].to, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

void dk_gqa_layer_free(const struct dk_piece_context *c, struct dk_gqa_layer *l)
{
    struct dk_weight *const weights[] = {l->norm, l->q, l->k, l->v, l->o, l->q_norm, l->k_norm};

    for (size_t i = 0; i < sizeof(weights) / sizeof(weights[0]); i++)
        c->ops->weight_free(c->backend, weights[i]);
}

void dk_gqa_layer_run(const struct dk_piece_context *c, const struct dk_gqa_layer *l, uint32_t layer,
                      struct dk_gqa_step *s)
{
    const struct dk_backend_ops *ops = c->ops;
    const struct dk_model_config *config = c->config;
    struct dk_backend *b = c->backend;
    uint32_t n = s->batch.rows;

    ops->rmsnorm(b, n, s->x, config->hidden, l->norm, config->rms_eps, s->h);
    ops->linear(b, n, s->h, l->q, s->q);
    ops->linear(b, n, s->h, l->k, s->k);
    ops->linear(b, n, s->h, l->v, s->v);
    if (l->q_norm) {
        ops->rmsnorm(b, n, s->q, config->head_dim, l->q_norm, config->rms_eps, s->q);
        ops->rmsnorm(b, n, s->k, config->head_dim, l->k_norm, config->rms_eps, s->k);
    }
    ops->rope(b, n, s->q, s->angles);
    ops->rope(b, n, s->k, s->angles);
    ops->attend(b, s->kv, layer, s->batch.spans, s->batch.span_count, config->heads,
                1.0f / sqrtf((float)config->head_dim), s->q, s->k, s->v, s->mix);
    ops->linear(b, n, s->mix, l->o, s->h);
    ops->add(b, n, s->h, s->x);
}

void dk_gqa_ffn_input(const struct dk_piece_context *c, const struct dk_weight *norm, struct dk_gqa_step *s,
                      float *ffn_in)
{
    uint32_t n = s->batch.rows;

    c->ops->rmsnorm(c->backend, n, s->x, c->config->hidden, norm, c->config->rms_eps, s->h);
    c->ops->download(c->backend, s->h, 0, n, ffn_in);
}

void dk_gqa_ffn_output(const struct dk_piece_context *c, struct dk_gqa_step *s, const float *ffn_out)
{
    uint32_t n = s->batch.rows;

    c->ops->upload(c->backend, s->h, 0, n, ffn_out);
    c->ops->add(c->backend, n, s->h, s->x);
}
