/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen3 and Qwen3-MoE (arXiv 2505.09388; model cards of Qwen3-32B-FP8 and Qwen3-30B-A3B-FP8): grouped-query attention
 * with an RMSNorm of each head of q and k before rotation; in MoE layers a router whose logits leave with the
 * feed-forward's input. */
#include "attention-worker/family/gqa_layer.h"

#include <stdio.h>
#include <stdlib.h>

struct qwen3_layer {
    struct dk_gqa_layer attention;
    struct dk_weight *ffn_norm;
    struct dk_weight *router; /* [experts][hidden]; NULL in dense layers */
};

struct dk_family_model {
    struct dk_model_config config;
    struct dk_piece_context context;
    struct dk_token_ends ends;
    struct dk_gqa_step step;
    struct dk_rows router_logits; /* [rows][experts] */
    struct qwen3_layer *layers;
};

static void qwen3_close(struct dk_family_model *m)
{
    if (!m)
        return;
    for (uint32_t i = 0; m->layers && i < m->config.layers; i++) {
        dk_gqa_layer_free(&m->context, &m->layers[i].attention);
        m->context.ops->weight_free(m->context.backend, m->layers[i].ffn_norm);
        m->context.ops->weight_free(m->context.backend, m->layers[i].router);
    }
    dk_token_ends_free(&m->context, &m->ends);
    dk_gqa_step_close(&m->context, &m->step);
    free(m->layers);
    free(m);
}

static int load_moe(struct dk_family_model *m, uint32_t layer, struct dk_err *err)
{
    const struct dk_model_config *config = &m->config;
    char name[96];
    int rc;

    snprintf(name, sizeof(name), "model.layers.%u.mlp.gate.weight", layer);
    rc = dk_piece_load(&m->context, DK_WEIGHT_MATRIX, name, config->experts, config->hidden, &m->layers[layer].router,
                       err);
    for (uint32_t e = 0; e < config->experts && rc == 0; e++) {
        snprintf(name, sizeof(name), "model.layers.%u.mlp.experts.%u", layer, e);
        rc = dk_ffn_tensors_check(&m->context, name, config->moe_intermediate, err);
    }
    return rc;
}

static int load_layer(struct dk_family_model *m, uint32_t layer, struct dk_err *err)
{
    char name[96];
    int rc;

    rc = dk_gqa_layer_load(&m->context, layer, true, &m->layers[layer].attention, err);
    if (rc < 0)
        return rc;
    snprintf(name, sizeof(name), "model.layers.%u.post_attention_layernorm.weight", layer);
    rc = dk_piece_load(&m->context, DK_WEIGHT_VECTOR, name, m->config.hidden, 0, &m->layers[layer].ffn_norm, err);
    if (rc < 0)
        return rc;
    if (m->config.layer_is_moe[layer])
        return load_moe(m, layer, err);
    snprintf(name, sizeof(name), "model.layers.%u.mlp", layer);
    return dk_ffn_tensors_check(&m->context, name, m->config.intermediate, err);
}

static int qwen3_load(const struct dk_backend_ops *ops, struct dk_backend *b, const struct dk_model_config *config,
                      struct dk_checkpoint *ck, uint32_t page_tokens, uint32_t pages, struct dk_family_model **out,
                      struct dk_err *err)
{
    struct dk_family_model *m = calloc(1, sizeof(*m));
    int rc;

    *out = NULL;
    if (!m)
        return dk_err_set(err, -ENOMEM, "out of memory");
    m->config = *config;
    m->context = (struct dk_piece_context){.ops = ops, .backend = b, .config = &m->config, .checkpoint = ck};
    ops->rows_reset(b);
    m->layers = calloc(config->layers, sizeof(*m->layers));
    rc = m->layers ? 0 : dk_err_set(err, -ENOMEM, "out of memory");
    if (rc == 0)
        rc = dk_gqa_step_open(&m->context, page_tokens, pages, &m->step, err);
    if (rc == 0 && config->experts > 0) {
        rc = ops->rows_take(b, config->experts, &m->router_logits);
        if (rc < 0)
            dk_err_set(err, rc, "the back end's scratch is too small for this model");
    }
    if (rc == 0)
        rc = dk_token_ends_load(&m->context, &m->ends, err);
    for (uint32_t i = 0; i < config->layers && rc == 0; i++)
        rc = load_layer(m, i, err);
    if (rc < 0)
        goto fail;
    m->context.checkpoint = NULL;
    *out = m;
    return 0;
fail:
    qwen3_close(m);
    return rc;
}

static void qwen3_begin(struct dk_family_model *m, const struct dk_family_batch *batch)
{
    dk_gqa_step_begin(&m->context, &m->ends, &m->step, batch);
}

static void qwen3_attend(struct dk_family_model *m, uint32_t layer, float *ffn_in, float *router_logits)
{
    const struct qwen3_layer *l = &m->layers[layer];
    uint32_t n = m->step.batch.rows;

    dk_gqa_layer_run(&m->context, &l->attention, layer, &m->step);
    dk_gqa_ffn_input(&m->context, l->ffn_norm, &m->step, ffn_in);
    if (l->router) {
        m->context.ops->linear(m->context.backend, n, m->step.h, l->router, m->router_logits);
        m->context.ops->download(m->context.backend, m->router_logits, 0, n, router_logits);
    }
}

static void qwen3_finish(struct dk_family_model *m, uint32_t layer, const float *ffn_out)
{
    dk_gqa_ffn_output(&m->context, &m->step, ffn_out);
}

static void qwen3_head(struct dk_family_model *m, const uint32_t *rows, uint32_t count, float *logits)
{
    dk_token_ends_head(&m->context, &m->ends, m->step.x, rows, count, logits);
}

const struct dk_family_ops dk_family_qwen3 = {
    .family = DK_FAMILY_QWEN3,
    .load = qwen3_load,
    .close = qwen3_close,
    .begin = qwen3_begin,
    .attend = qwen3_attend,
    .finish = qwen3_finish,
    .head = qwen3_head,
};

const struct dk_family_ops dk_family_qwen3_moe = {
    .family = DK_FAMILY_QWEN3_MOE,
    .load = qwen3_load,
    .close = qwen3_close,
    .begin = qwen3_begin,
    .attend = qwen3_attend,
    .finish = qwen3_finish,
    .head = qwen3_head,
};
