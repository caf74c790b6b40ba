/* SPDX-License-Identifier: Apache-2.0 */
/* Llama (model_type "llama"): grouped-query attention without q/k norm, dense feed-forward. */
#include "attention-worker/family/gqa_layer.h"

#include <stdio.h>
#include <stdlib.h>

struct dk_family_model {
    struct dk_model_config config;
    struct dk_piece_context context;
    struct dk_token_ends ends;
    struct dk_gqa_step step;
    struct {
        struct dk_gqa_layer attention;
        struct dk_weight *ffn_norm;
    } * layers;
};

static void gqa_close(struct dk_family_model *m)
{
    if (!m)
        return;
    for (uint32_t i = 0; m->layers && i < m->config.layers; i++) {
        dk_gqa_layer_free(&m->context, &m->layers[i].attention);
        m->context.ops->weight_free(m->context.backend, m->layers[i].ffn_norm);
    }
    dk_token_ends_free(&m->context, &m->ends);
    dk_gqa_step_close(&m->context, &m->step);
    free(m->layers);
    free(m);
}

static int load_layer(struct dk_family_model *m, uint32_t layer, struct dk_err *err)
{
    char name[96];
    int rc;

    rc = dk_gqa_layer_load(&m->context, layer, false, &m->layers[layer].attention, err);
    if (rc < 0)
        return rc;
    snprintf(name, sizeof(name), "model.layers.%u.post_attention_layernorm.weight", layer);
    rc = dk_piece_load(&m->context, DK_WEIGHT_VECTOR, name, m->config.hidden, 0, &m->layers[layer].ffn_norm, err);
    if (rc < 0)
        return rc;
    snprintf(name, sizeof(name), "model.layers.%u.mlp", layer);
    return dk_ffn_tensors_check(&m->context, name, m->config.intermediate, err);
}

static int gqa_load(const struct dk_backend_ops *ops, struct dk_backend *b, const struct dk_model_config *config,
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
    gqa_close(m);
    return rc;
}

static void gqa_begin(struct dk_family_model *m, const struct dk_family_batch *batch)
{
    dk_gqa_step_begin(&m->context, &m->ends, &m->step, batch);
}

static void gqa_attend(struct dk_family_model *m, uint32_t layer, float *ffn_in, float *router_logits)
{
    dk_gqa_layer_run(&m->context, &m->layers[layer].attention, layer, &m->step);
    dk_gqa_ffn_input(&m->context, m->layers[layer].ffn_norm, &m->step, ffn_in);
}

static void gqa_finish(struct dk_family_model *m, uint32_t layer, const float *ffn_out)
{
    dk_gqa_ffn_output(&m->context, &m->step, ffn_out);
}

static void gqa_head(struct dk_family_model *m, const uint32_t *rows, uint32_t count, float *logits)
{
    dk_token_ends_head(&m->context, &m->ends, m->step.x, rows, count, logits);
}

const struct dk_family_ops dk_family_gqa = {
    .family = DK_FAMILY_LLAMA,
    .load = gqa_load,
    .close = gqa_close,
    .begin = gqa_begin,
    .attend = gqa_attend,
    .finish = gqa_finish,
    .head = gqa_head,
};
