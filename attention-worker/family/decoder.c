/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/family/decoder.h"

#include <assert.h>
#include <stdlib.h>

#include "attention-worker/family/rope_frequencies.h"

static bool has(const struct dk_family_model *m, enum dk_mixer mixer)
{
    return dk_piece_layers(m->context.config, mixer) > 0;
}

int dk_decoder_take(struct dk_family_model *m, struct dk_err *err)
{
    struct dk_piece_context *c = &m->context;
    const struct dk_piece_rows rows[] = {
        {&c->x, c->config->hidden}, {&c->h, c->config->hidden}, {&c->angles, c->config->rope.dims}};
    int rc = dk_piece_take(c, rows, sizeof(rows) / sizeof(rows[0]), err);

    if (rc == 0)
        rc = dk_token_ends_take(c, &m->ends, err);
    if (rc == 0 && has(m, DK_MIXER_ATTENTION))
        rc = dk_gqa_take(c, &m->gqa, err);
    if (rc == 0 && has(m, DK_MIXER_DELTA))
        rc = dk_delta_take(c, &m->delta, err);
    if (rc == 0 && has(m, DK_MIXER_MLA))
        rc = dk_mla_take(c, &m->mla, err);
    if (rc == 0)
        rc = dk_ffn_side_take(c, &m->ffn, err);
    return rc;
}

static int open_parts(struct dk_family_model *m, const struct dk_family_load *l, struct dk_err *err)
{
    const struct dk_piece_context *c = &m->context;
    int rc = 0;

    m->input_norms = calloc(c->config->layers, sizeof(struct dk_weight *));
    m->inverse_frequency = calloc(c->config->rope.dims / 2, sizeof(float));
    if (!m->input_norms || !m->inverse_frequency)
        return dk_err_set(err, -ENOMEM, "out of memory");
    m->rope_factor = dk_rope_frequencies(&c->config->rope, m->inverse_frequency);
    if (has(m, DK_MIXER_ATTENTION))
        rc = dk_gqa_open(c, l, &m->gqa, err);
    if (rc == 0 && has(m, DK_MIXER_DELTA))
        rc = dk_delta_open(c, l, &m->delta, err);
    if (rc == 0 && has(m, DK_MIXER_MLA))
        rc = dk_mla_open(c, l, &m->mla, err);
    if (rc == 0)
        rc = dk_ffn_side_open(c, &m->ffn, err);
    return rc;
}

static int load_layer(struct dk_family_model *m, uint32_t layer, struct dk_err *err)
{
    struct dk_piece_context *c = &m->context;
    const struct dk_piece_weight norm = {
        &m->input_norms[layer], "input_layernorm.weight", dk_piece_norm_use(c->config), {c->config->hidden}};
    int rc = dk_piece_load(c, layer, &norm, 1, err);

    if (rc < 0)
        return rc;
    switch ((enum dk_mixer)c->config->mixer[layer]) {
    case DK_MIXER_ATTENTION:
        rc = dk_gqa_load(c, layer, &m->gqa, err);
        break;
    case DK_MIXER_DELTA:
        rc = dk_delta_load(c, layer, &m->delta, err);
        break;
    case DK_MIXER_MLA:
        rc = dk_mla_load(c, layer, &m->mla, err);
        break;
    }
    return rc == 0 ? dk_ffn_side_load(c, layer, &m->ffn, err) : rc;
}

int dk_decoder_load(const struct dk_family_load *l, void (*mix)(const struct dk_family_model *m, uint32_t layer),
                    struct dk_family_model **out, struct dk_err *err)
{
    struct dk_family_model *m = calloc(1, sizeof(*m));
    int rc;

    *out = NULL;
    if (!m)
        return dk_err_set(err, -ENOMEM, "out of memory");
    m->config = *l->config;
    m->mix = mix;
    m->context = (struct dk_piece_context){
        .ops = l->ops, .backend = l->backend, .config = &m->config, .checkpoint = l->checkpoint};
    m->mla.full_attention = l->full_attention; /* before scratch is taken: the indexer's is not */
    l->ops->rows_reset(l->backend);
    rc = dk_decoder_take(m, err);
    if (rc == 0)
        rc = open_parts(m, l, err);
    if (rc == 0)
        rc = dk_token_ends_load(&m->context, &m->ends, err);
    for (uint32_t i = 0; i < m->config.layers && rc == 0; i++)
        rc = load_layer(m, i, err);
    m->context.checkpoint = NULL;
    if (rc < 0) {
        dk_decoder_close(m);
        return rc;
    }
    *out = m;
    return 0;
}

void dk_decoder_close(struct dk_family_model *m)
{
    if (!m)
        return;
    dk_gqa_close(&m->context, &m->gqa);
    dk_delta_close(&m->context, &m->delta);
    dk_mla_close(&m->context, &m->mla);
    dk_ffn_side_close(&m->context, &m->ffn);
    dk_piece_close(&m->context);
    free(m->input_norms);
    free(m->inverse_frequency);
    free(m);
}

void dk_decoder_begin(struct dk_family_model *m, const struct dk_family_batch *batch)
{
    struct dk_piece_context *c = &m->context;

    c->batch = *batch;
    c->trace = m->step_trace = m->trace;
    assert(!c->trace || (c->trace->row <= batch->rows && c->trace->count <= batch->rows - c->trace->row));
    dk_token_ends_embed(c, &m->ends);
    c->ops->rope_angles(c->backend, batch->spans, batch->span_count, m->inverse_frequency, m->rope_factor, c->angles);
}

void dk_decoder_attend(struct dk_family_model *m, uint32_t layer, float *ffn_in, float *router_logits)
{
    struct dk_piece_context *c = &m->context;
    uint32_t n = c->batch.rows;

    c->trace = m->step_trace && dk_trace_wants(m->step_trace, layer) ? m->step_trace : NULL;
    c->ops->rmsnorm(c->backend, n, c->x, c->config->hidden, m->input_norms[layer], c->config->rms_eps, c->h);
    m->mix(m, layer);
    dk_piece_trace(c, layer, "mixer_out", 0, c->h);
    c->ops->add(c->backend, n, c->h, c->x);
    dk_ffn_side_input(c, layer, &m->ffn, ffn_in, router_logits);
}

const struct dk_router *dk_decoder_router(const struct dk_family_model *m, uint32_t layer)
{
    return m->config.layer_is_moe[layer] ? &m->ffn.layers[layer].router : NULL;
}

bool dk_decoder_meanwhile(struct dk_family_model *m, uint32_t layer)
{
    return dk_ffn_side_shared(&m->context, layer, &m->ffn);
}

void dk_decoder_finish(struct dk_family_model *m, uint32_t layer, const float *ffn_out)
{
    struct dk_piece_context *c = &m->context;

    while (dk_decoder_meanwhile(m, layer))
        continue;
    dk_ffn_side_output(c, layer, &m->ffn, ffn_out);
    dk_piece_trace(c, layer, "out", 0, c->x);
    /* The head is asked for some rows only, perhaps several times; the trace wants all of its own at once. */
    c->trace = m->step_trace;
    if (c->trace && layer + 1 == c->config->layers) {
        dk_token_ends_norm(c, &m->ends);
        dk_piece_trace(c, DK_PIECE_NO_LAYER, "final_norm", 0, c->h);
    }
}

void dk_decoder_head(struct dk_family_model *m, const uint32_t *rows, uint32_t count, float *logits)
{
    dk_token_ends_head(&m->context, &m->ends, rows, count, logits);
}

void dk_decoder_copy_page(struct dk_family_model *m, uint32_t from, uint32_t to)
{
    const struct dk_piece_context *c = &m->context;

    if (m->gqa.kv)
        c->ops->kv_copy(c->backend, m->gqa.kv, from, to);
    if (m->mla.cache)
        c->ops->latents_copy(c->backend, m->mla.cache, from, to);
}

void dk_decoder_copy_state(struct dk_family_model *m, uint32_t from, uint32_t to)
{
    if (m->delta.states)
        m->context.ops->states_copy(m->context.backend, m->delta.states, from, to);
}

void dk_decoder_trace(struct dk_family_model *m, const struct dk_trace *t)
{
    m->trace = t;
}
