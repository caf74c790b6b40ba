/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/family/ffn_side.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/dtype.h"
#include "model/ffn_tensors.h"

/* The shared expert is computed in pieces: for each block of rows its gate, then up, then down. */
#define BLOCK_ROWS 32u
enum shared_part { SHARED_GATE, SHARED_UP, SHARED_DOWN, SHARED_PARTS };

int dk_ffn_side_take(struct dk_piece_context *c, struct dk_ffn_side *f, struct dk_err *err)
{
    const struct dk_model_config *config = c->config;
    const struct dk_piece_rows routed[] = {{&f->router_logits, config->experts}};
    const struct dk_piece_rows shared[] = {
        {&f->gate, config->shared_intermediate},
        {&f->up, config->shared_intermediate},
        {&f->shared, config->hidden},
        {&f->shared_gate, 1},
    };
    int rc = 0;

    if (config->experts)
        rc = dk_piece_take(c, routed, 1, err);
    if (rc == 0 && config->shared_intermediate)
        rc = dk_piece_take(c, shared, config->shared_gate ? 4 : 3, err);
    return rc;
}

int dk_ffn_side_open(const struct dk_piece_context *c, struct dk_ffn_side *f, struct dk_err *err)
{
    f->layers = calloc(c->config->layers, sizeof(*f->layers));
    return f->layers ? 0 : dk_err_set(err, -ENOMEM, "out of memory");
}

/* The router's correction bias stays on the host, where rows are routed. */
static int load_bias(const struct dk_piece_context *c, uint32_t layer, float **out, struct dk_err *err)
{
    const struct dk_tensor *t;
    char name[96];
    int rc;

    snprintf(name, sizeof(name), "model.layers.%u.mlp.gate.e_score_correction_bias", layer);
    rc = dk_checkpoint_get(c->checkpoint, name, c->config->experts, 0, 0, &t, err);
    if (rc < 0)
        return rc;
    *out = malloc(c->config->experts * sizeof(float));
    if (!*out)
        return dk_err_set(err, -ENOMEM, "out of memory");
    dk_widen(*out, t->data, t->type, c->config->experts);
    rc = dk_router_check_bias(*out, c->config->experts, err);
    return rc < 0 ? dk_err_prefix(err, "%s: tensor \"%s\"", t->file, t->name) : 0;
}

static int load_router(struct dk_piece_context *c, uint32_t layer, struct dk_ffn_side_layer *w, struct dk_err *err)
{
    const struct dk_piece_weight logits = {
        &w->router_logits, "mlp.gate.weight", DK_WEIGHT_MATRIX, {c->config->experts, c->config->hidden}};
    int rc = dk_piece_load(c, layer, &logits, 1, err);

    if (rc == 0 && c->config->router == DK_ROUTER_GROUPS)
        rc = load_bias(c, layer, &w->bias, err);
    if (rc < 0)
        return rc;
    rc = dk_router_init(&w->router, c->config, w->bias, err);
    return rc < 0 ? dk_err_prefix(err, "layer %u", layer) : 0;
}

/* DeepSeek calls it shared_experts, and has no gate. */
static int load_shared(struct dk_piece_context *c, uint32_t layer, struct dk_ffn_side_layer *w, struct dk_err *err)
{
    uint64_t hidden = c->config->hidden, width = c->config->shared_intermediate;
    const struct dk_piece_weight gated[] = {
        {&w->gate, "mlp.shared_expert.gate_proj.weight", DK_WEIGHT_MATRIX, {width, hidden}},
        {&w->up, "mlp.shared_expert.up_proj.weight", DK_WEIGHT_MATRIX, {width, hidden}},
        {&w->down, "mlp.shared_expert.down_proj.weight", DK_WEIGHT_MATRIX, {hidden, width}},
        {&w->shared_gate, "mlp.shared_expert_gate.weight", DK_WEIGHT_MATRIX, {1, hidden}},
    };
    const struct dk_piece_weight plain[] = {
        {&w->gate, "mlp.shared_experts.gate_proj.weight", DK_WEIGHT_MATRIX, {width, hidden}},
        {&w->up, "mlp.shared_experts.up_proj.weight", DK_WEIGHT_MATRIX, {width, hidden}},
        {&w->down, "mlp.shared_experts.down_proj.weight", DK_WEIGHT_MATRIX, {hidden, width}},
    };

    return c->config->shared_gate ? dk_piece_load(c, layer, gated, 4, err) : dk_piece_load(c, layer, plain, 3, err);
}

int dk_ffn_side_load(struct dk_piece_context *c, uint32_t layer, struct dk_ffn_side *f, struct dk_err *err)
{
    const struct dk_model_config *config = c->config;
    struct dk_ffn_side_layer *w = &f->layers[layer];
    const struct dk_piece_weight norm = {
        &w->norm, "post_attention_layernorm.weight", dk_piece_norm_use(config), {config->hidden}};
    uint32_t count = dk_ffn_experts(config, layer);
    int rc = dk_piece_load(c, layer, &norm, 1, err);

    if (rc == 0 && config->layer_is_moe[layer])
        rc = load_router(c, layer, w, err);
    if (rc == 0 && config->layer_is_moe[layer] && config->shared_intermediate)
        rc = load_shared(c, layer, w, err);
    for (uint32_t e = 0; e < count && rc == 0; e++) {
        struct dk_ffn_tensors of_ducks;

        rc = dk_ffn_tensors_find(c->checkpoint, config, layer, e, &of_ducks, err);
    }
    return rc;
}

void dk_ffn_side_close(const struct dk_piece_context *c, struct dk_ffn_side *f)
{
    for (uint32_t i = 0; f->layers && i < c->config->layers; i++)
        free(f->layers[i].bias);
    free(f->layers);
}

/* Host rows of the traced ones. */
static void trace_host(const struct dk_piece_context *c, uint32_t layer, const char *name, const float *rows,
                       uint32_t width)
{
    if (c->trace)
        dk_piece_trace_put(c, layer, name, DK_TRACE_F32, 2, (const uint32_t[]){c->trace->count, width},
                           rows + (size_t)c->trace->row * width);
}

void dk_ffn_side_input(const struct dk_piece_context *c, uint32_t layer, struct dk_ffn_side *f, float *in,
                       float *router_logits)
{
    const struct dk_model_config *config = c->config;
    const struct dk_ffn_side_layer *w = &f->layers[layer];
    uint32_t n = c->batch.rows;

    f->shared_next = 0;
    c->ops->rmsnorm(c->backend, n, c->x, config->hidden, w->norm, config->rms_eps, c->h);
    c->ops->download(c->backend, c->h, 0, n, in);
    if (!w->router_logits)
        return;
    c->ops->linear(c->backend, n, c->h, w->router_logits, f->router_logits);
    c->ops->download(c->backend, f->router_logits, 0, n, router_logits);
    trace_host(c, layer, "moe.in", in, config->hidden);
    trace_host(c, layer, "moe.router_logits", router_logits, config->experts);
}

/* Rows [first, first + n). */
static void shared_piece(const struct dk_piece_context *c, const struct dk_ffn_side_layer *w,
                         const struct dk_ffn_side *f, enum shared_part part, uint32_t first, uint32_t n)
{
    const struct dk_backend_ops *ops = c->ops;
    struct dk_rows h = dk_piece_rows_from(c->h, first), gate = dk_piece_rows_from(f->gate, first);
    struct dk_rows up = dk_piece_rows_from(f->up, first), shared = dk_piece_rows_from(f->shared, first);

    if (part == SHARED_GATE) {
        ops->linear(c->backend, n, h, w->gate, gate);
    } else if (part == SHARED_UP) {
        ops->linear(c->backend, n, h, w->up, up);
        ops->silu_mul(c->backend, n, gate, up, up);
    } else {
        ops->linear(c->backend, n, up, w->down, shared);
        if (w->shared_gate) {
            struct dk_rows shared_gate = dk_piece_rows_from(f->shared_gate, first);

            ops->linear(c->backend, n, h, w->shared_gate, shared_gate);
            ops->sigmoid_mul(c->backend, n, shared_gate, shared);
        }
    }
}

bool dk_ffn_side_shared(const struct dk_piece_context *c, uint32_t layer, struct dk_ffn_side *f)
{
    const struct dk_ffn_side_layer *w = &f->layers[layer];
    uint32_t n = c->batch.rows, first = f->shared_next / SHARED_PARTS * BLOCK_ROWS, count;

    if (!w->gate || first >= n)
        return false;
    count = n - first < BLOCK_ROWS ? n - first : BLOCK_ROWS;
    shared_piece(c, w, f, (enum shared_part)(f->shared_next % SHARED_PARTS), first, count);
    f->shared_next++;
    return f->shared_next % SHARED_PARTS != 0 || first + count < n;
}

void dk_ffn_side_output(const struct dk_piece_context *c, uint32_t layer, const struct dk_ffn_side *f, const float *out)
{
    const struct dk_ffn_side_layer *w = &f->layers[layer];
    uint32_t n = c->batch.rows;

    c->ops->upload(c->backend, c->h, 0, n, out);
    if (w->gate)
        c->ops->add(c->backend, n, f->shared, c->h);
    if (w->router_logits)
        dk_piece_trace(c, layer, "moe.out", 0, c->h);
    c->ops->add(c->backend, n, c->h, c->x);
}
