/* SPDX-License-Identifier: Apache-2.0 */
#include "local_model.h"

#include <stdlib.h>
#include <string.h>

#include "attention-worker/backend/cpu/backend_cpu.h"
#include "model/ffn_tensors.h"

struct local_options local_defaults(void)
{
    return (struct local_options){
        .threads = 1, .rows_max = 320, .context = 448, .sequences_max = 8, .page_tokens = 16, .pages = 8 * 28};
}

static struct dk_matrix_source source_of(const struct dk_tensor *weight, const struct dk_tensor *scales)
{
    struct dk_matrix_source s = {.data = weight->data, .type = weight->type, .row_stride = weight->shape[1]};

    if (scales) {
        s.scales = scales->data;
        s.scale_type = scales->type;
        s.scale_stride = scales->shape[1];
    }
    return s;
}

static int load_ffn(struct local_model *m, struct dk_checkpoint *ck, uint32_t layer, uint32_t expert,
                    struct dk_ffn *ffn, struct dk_err *err)
{
    uint32_t width = dk_ffn_width(&m->config, layer);
    struct dk_matrix_source source[3];
    struct dk_ffn_tensors t;
    int rc;

    rc = dk_ffn_tensors_find(ck, &m->config, layer, expert, &t, err);
    if (rc < 0)
        return rc;
    for (int i = 0; i < 3; i++)
        source[i] = source_of(&t.weight[i], t.scale[i]);
    rc = dk_ffn_alloc(ffn, dk_matrix_packed_type(t.weight[0].type), m->config.hidden, width, 0, t.scale[0] != NULL);
    if (rc < 0)
        return dk_err_set(err, rc, "layer %u: out of memory", layer);
    return dk_ffn_pack(ffn, 0, width, &source[0], &source[1], &source[2], err);
}

static int load_ffns(struct local_model *m, struct dk_checkpoint *ck, struct dk_err *err)
{
    const struct dk_model_config *c = &m->config;
    int rc = 0;

    m->experts_max = c->experts ? c->experts : 1;
    m->ffns = calloc((size_t)c->layers * m->experts_max, sizeof(*m->ffns));
    for (uint32_t layer = 0; layer < c->layers && rc == 0; layer++) {
        for (uint32_t e = 0; e < dk_ffn_experts(c, layer) && rc == 0; e++)
            rc = load_ffn(m, ck, layer, e, &m->ffns[(size_t)layer * m->experts_max + e], err);
    }
    return rc;
}

static void alloc_buffers(struct local_model *m)
{
    const struct dk_model_config *c = &m->config;
    uint32_t rows = m->options.rows_max, top_k = c->experts ? c->top_k : 1;
    uint32_t width = c->intermediate > c->moe_intermediate ? c->intermediate : c->moe_intermediate;
    size_t scratch_bytes = dk_moe_scratch_bytes(rows, top_k, m->experts_max, width);

    m->ffn_in = calloc((size_t)rows * c->hidden, sizeof(float));
    m->ffn_out = calloc((size_t)rows * c->hidden, sizeof(float));
    m->router_logits = calloc((size_t)rows * m->experts_max, sizeof(float));
    m->expert_weights = calloc((size_t)rows * top_k, sizeof(float));
    m->expert_ids = calloc((size_t)rows * top_k, sizeof(int32_t));
    m->moe_scratch = aligned_alloc(64, (scratch_bytes + 127) / 64 * 64);
    m->ids = calloc(rows, sizeof(uint32_t));
    m->head_rows = calloc(rows, sizeof(uint32_t));
    m->spans = calloc(m->options.sequences_max, sizeof(*m->spans));
}

static void copy_page(void *ctx, uint32_t from, uint32_t to)
{
    struct local_model *m = ctx;

    m->family->copy_page(m->model, from, to);
}

static void copy_state(void *ctx, uint32_t from, uint32_t to)
{
    struct local_model *m = ctx;

    m->family->copy_state(m->model, from, to);
}

static int open_family(struct local_model *m, struct dk_checkpoint *ck, struct dk_err *err)
{
    const struct local_options *o = &m->options;
    struct dk_backend_config config = {
        .isa = o->isa, .threads = o->threads, .rows_max = o->rows_max, .context = o->context};
    struct dk_family_load load = {.ops = o->ops,
                                  .config = &m->config,
                                  .checkpoint = ck,
                                  .page_tokens = o->page_tokens,
                                  .pages = o->pages,
                                  .state_slots = o->sequences_max,
                                  .full_attention = o->full_attention};
    struct dk_family_needs needs;
    int rc;

    dk_family_needs(&load, &config, &needs);
    config.scratch_floats_per_row = needs.scratch_floats_per_row;
    rc = o->ops->open(&config, &m->backend, err);
    if (rc < 0)
        return rc;
    load.backend = m->backend;
    m->exec = dk_backend_cpu_exec(m->backend);
    m->kernels = dk_backend_cpu_kernels(m->backend);
    m->family = dk_family_find(m->config.family);
    return m->family->load(&load, &m->model, err);
}

static int open_cache(struct local_model *m)
{
    const struct local_options *o = &m->options;
    const struct dk_cache_shape shape = {
        .page_tokens = o->page_tokens, .pages = o->pages, .sequences_max = o->sequences_max, .context = o->context};
    const struct dk_cache_store store = {.ctx = m, .copy_page = copy_page, .copy_state = copy_state};

    return dk_cache_open(&shape, &store, &m->cache);
}

int local_open(struct local_model *m, const char *dir, const struct local_options *o, struct dk_err *err)
{
    struct dk_checkpoint *ck = NULL;
    int rc;

    memset(m, 0, sizeof(*m));
    m->options = *o;
    if (!m->options.ops)
        m->options.ops = &dk_backend_cpu;
    rc = dk_model_config_load(dir, &m->config, err);
    if (rc < 0)
        return rc;
    rc = dk_checkpoint_open(dir, &ck, err);
    if (rc < 0)
        return rc;
    rc = open_family(m, ck, err);
    if (rc == 0)
        rc = load_ffns(m, ck, err);
    dk_checkpoint_close(ck);
    if (rc == 0) {
        alloc_buffers(m);
        rc = open_cache(m);
    }
    if (rc < 0)
        local_close(m);
    return rc;
}

void local_close(struct local_model *m)
{
    for (size_t i = 0; m->ffns && i < (size_t)m->config.layers * m->experts_max; i++)
        dk_ffn_free(&m->ffns[i]);
    free(m->ffns);
    dk_cache_close(m->cache);
    if (m->model)
        m->family->close(m->model);
    if (m->backend)
        m->options.ops->close(m->backend);
    free(m->ffn_in);
    free(m->ffn_out);
    free(m->router_logits);
    free(m->expert_weights);
    free(m->expert_ids);
    free(m->moe_scratch);
    free(m->ids);
    free(m->head_rows);
    free(m->spans);
    memset(m, 0, sizeof(*m));
}

void local_ffn(struct local_model *m, uint32_t layer, uint32_t rows, const float *x, const int32_t *ids,
               const float *weights, float *y)
{
    bool moe = m->config.layer_is_moe[layer];

    dk_moe(m->kernels, m->exec, m->ffns + (size_t)layer * m->experts_max, moe ? m->config.experts : 1, rows,
           moe ? m->config.top_k : 1, x, ids, weights, y, m->moe_scratch);
}

void local_trace(struct local_model *m, struct dk_trace_list *list, uint32_t run)
{
    m->list = list;
    m->list_run = run;
}

static void run_layer(struct local_model *m, uint32_t layer, uint32_t rows, const struct dk_trace *trace)
{
    const struct dk_router *router = m->family->router(m->model, layer);

    m->family->attend(m->model, layer, m->ffn_in, m->router_logits);
    if (router)
        dk_route(router, m->router_logits, rows, m->expert_ids, m->expert_weights, NULL);
    if (router && trace)
        dk_trace_experts(trace, layer, m->config.top_k, m->expert_ids, m->expert_weights);
    m->family->meanwhile(m->model, layer);
    local_ffn(m, layer, rows, m->ffn_in, router ? m->expert_ids : NULL, router ? m->expert_weights : NULL, m->ffn_out);
    m->family->finish(m->model, layer, m->ffn_out);
}

int local_step(struct local_model *m, const struct local_rows *runs, uint32_t count, bool all_rows, float *logits)
{
    struct dk_family_batch batch = {.ids = m->ids, .spans = m->spans, .span_count = count};
    struct dk_trace trace = {.put = dk_trace_list_put, .ctx = m->list};
    uint32_t head_count = 0;

    for (uint32_t i = 0; i < count; i++) {
        const struct local_rows *run = &runs[i];
        struct dk_cache_place place;
        int rc = dk_cache_extend(m->cache, run->sequence_id, run->position + run->count, &place);

        if (rc < 0)
            return rc;
        m->spans[i] = (struct dk_span){.row = batch.rows,
                                       .count = run->count,
                                       .position = run->position,
                                       .pages = place.pages,
                                       .state = place.state};
        for (uint32_t k = 0; k < run->count; k++) {
            if (all_rows || k + 1 == run->count)
                m->head_rows[head_count++] = batch.rows;
            m->ids[batch.rows++] = run->ids[k];
        }
    }
    trace.row = m->spans[m->list_run].row;
    trace.count = m->spans[m->list_run].count;
    trace.state = m->spans[m->list_run].state;
    m->family->trace(m->model, m->list ? &trace : NULL);
    m->family->begin(m->model, &batch);
    for (uint32_t layer = 0; layer < m->config.layers; layer++)
        run_layer(m, layer, batch.rows, m->list ? &trace : NULL);
    m->family->head(m->model, m->head_rows, head_count, logits);
    return 0;
}

uint32_t local_argmax(const float *logits, uint32_t vocab)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < vocab; i++) {
        if (logits[i] > logits[best])
            best = i;
    }
    return best;
}

int local_continue(struct local_model *m, uint64_t sequence_id, uint32_t position, float *row, uint32_t steps,
                   uint32_t *out, float *logits)
{
    uint32_t vocab = m->config.vocab;
    int rc = 0;

    for (uint32_t i = 0; i < steps && rc == 0; i++) {
        out[i] = local_argmax(row, vocab);
        if (logits)
            memcpy(logits + (size_t)i * vocab, row, vocab * sizeof(float));
        rc = local_step(m, &(struct local_rows){sequence_id, position + i, 1, &out[i]}, 1, false, row);
    }
    return rc;
}

int local_generate(struct local_model *m, const uint32_t *ids, uint32_t count, uint32_t chunk, uint32_t steps,
                   uint32_t *out, float *logits)
{
    const uint64_t id = 1;
    float *row = malloc(m->config.vocab * sizeof(float));
    uint32_t position = 0;
    int rc = 0;

    if (chunk == 0)
        chunk = m->options.rows_max;
    while (position < count && rc == 0) {
        uint32_t n = count - position < chunk ? count - position : chunk;

        rc = local_step(m, &(struct local_rows){id, position, n, ids + position}, 1, false, row);
        position += n;
    }
    if (rc == 0)
        rc = local_continue(m, id, position, row, steps, out, logits);
    dk_cache_release(m->cache, id);
    free(row);
    return rc;
}
