/* SPDX-License-Identifier: Apache-2.0 */
/* Names and shapes: the releases' files, and the modules of transformers that they are loaded into. */
#include "model/model_tensors.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/ffn_tensors.h"

#define OUTSIDE UINT32_MAX

struct walk {
    const struct dk_model_config *c;
    int (*fn)(void *ctx, const struct dk_tensor_want *t);
    void *ctx;
    uint32_t layer;
    enum dk_tensor_place place;
    int rc; /* of fn; nothing more is listed once it is not 0 */
};

static void list(struct walk *w, bool linear, uint32_t rank, const uint64_t *shape, const char *part, const char *end)
{
    struct dk_tensor_want t = {.rank = rank, .place = w->place, .linear = linear, .layer = w->layer};
    char name[160];

    if (w->rc)
        return;
    if (w->layer == OUTSIDE)
        snprintf(name, sizeof name, "%s%s", part, end);
    else
        snprintf(name, sizeof name, "model.layers.%u.%s%s", w->layer, part, end);
    memcpy(t.shape, shape, rank * sizeof *shape);
    t.name = name;
    w->rc = w->fn(w->ctx, &t);
}

static void vector(struct walk *w, const char *part, const char *end, uint64_t n)
{
    list(w, false, 1, &n, part, end);
}

/* A matrix that no release has in FP8. */
static void matrix(struct walk *w, const char *part, uint64_t rows, uint64_t cols)
{
    const uint64_t shape[2] = {rows, cols};

    list(w, false, 2, shape, part, ".weight");
}

static void linear(struct walk *w, const char *part, uint64_t rows, uint64_t cols)
{
    const uint64_t shape[2] = {rows, cols};

    list(w, true, 2, shape, part, ".weight");
}

static void attention_list(struct walk *w)
{
    const struct dk_model_config *c = w->c;
    uint64_t q = (uint64_t)c->heads * c->head_dim, kv = (uint64_t)c->kv_heads * c->head_dim;
    uint64_t q_rows = c->output_gate ? 2 * q : q;

    linear(w, "self_attn.q_proj", q_rows, c->hidden);
    linear(w, "self_attn.k_proj", kv, c->hidden);
    linear(w, "self_attn.v_proj", kv, c->hidden);
    linear(w, "self_attn.o_proj", c->hidden, q);
    if (c->qkv_bias) {
        vector(w, "self_attn.q_proj", ".bias", q_rows);
        vector(w, "self_attn.k_proj", ".bias", kv);
        vector(w, "self_attn.v_proj", ".bias", kv);
    }
    if (c->qk_norm) {
        vector(w, "self_attn.q_norm", ".weight", c->head_dim);
        vector(w, "self_attn.k_norm", ".weight", c->head_dim);
    }
}

static void delta_list(struct walk *w)
{
    const struct dk_delta_config *d = &w->c->delta;
    uint64_t values = (uint64_t)d->value_heads * d->value_dim;
    uint64_t channels = 2ull * d->key_heads * d->key_dim + values, hidden = w->c->hidden;
    const uint64_t taps[3] = {channels, 1, d->conv_taps};

    linear(w, "linear_attn.in_proj_qkv", channels, hidden);
    linear(w, "linear_attn.in_proj_z", values, hidden);
    matrix(w, "linear_attn.in_proj_b", d->value_heads, hidden);
    matrix(w, "linear_attn.in_proj_a", d->value_heads, hidden);
    list(w, false, 3, taps, "linear_attn.conv1d", ".weight");
    vector(w, "linear_attn.A_log", "", d->value_heads);
    vector(w, "linear_attn.dt_bias", "", d->value_heads);
    vector(w, "linear_attn.norm", ".weight", d->value_dim);
    linear(w, "linear_attn.out_proj", hidden, values);
}

static void index_list(struct walk *w)
{
    const struct dk_index_config *x = &w->c->index;

    linear(w, "self_attn.indexer.wq_b", (uint64_t)x->heads * x->dim, w->c->mla.q_rank);
    linear(w, "self_attn.indexer.wk", x->dim, w->c->hidden);
    vector(w, "self_attn.indexer.k_norm", ".weight", x->dim);
    vector(w, "self_attn.indexer.k_norm", ".bias", x->dim);
    matrix(w, "self_attn.indexer.weights_proj", x->heads, w->c->hidden);
}

static void mla_list(struct walk *w)
{
    const struct dk_mla_config *m = &w->c->mla;
    uint64_t heads = w->c->heads, hidden = w->c->hidden;

    if (m->q_rank) {
        linear(w, "self_attn.q_a_proj", m->q_rank, hidden);
        vector(w, "self_attn.q_a_layernorm", ".weight", m->q_rank);
        linear(w, "self_attn.q_b_proj", heads * w->c->head_dim, m->q_rank);
    } else {
        linear(w, "self_attn.q_proj", heads * w->c->head_dim, hidden);
    }
    linear(w, "self_attn.kv_a_proj_with_mqa", (uint64_t)m->kv_rank + m->rope_dim, hidden);
    vector(w, "self_attn.kv_a_layernorm", ".weight", m->kv_rank);
    linear(w, "self_attn.kv_b_proj", heads * (m->nope_dim + m->value_dim), m->kv_rank);
    linear(w, "self_attn.o_proj", hidden, heads * m->value_dim);
    if (w->c->index.heads)
        index_list(w);
}

static void ffn_list(struct walk *w, const char *prefix, uint64_t width)
{
    char part[64];

    snprintf(part, sizeof part, "%s.gate_proj", prefix);
    linear(w, part, width, w->c->hidden);
    snprintf(part, sizeof part, "%s.up_proj", prefix);
    linear(w, part, width, w->c->hidden);
    snprintf(part, sizeof part, "%s.down_proj", prefix);
    linear(w, part, w->c->hidden, width);
}

static void router_list(struct walk *w)
{
    const struct dk_model_config *c = w->c;

    matrix(w, "mlp.gate", c->experts, c->hidden);
    if (c->router == DK_ROUTER_GROUPS)
        vector(w, "mlp.gate.e_score_correction_bias", "", c->experts);
    if (c->shared_intermediate) /* one module in Qwen's, all in one matrix in DeepSeek's */
        ffn_list(w, c->shared_gate ? "mlp.shared_expert" : "mlp.shared_experts", c->shared_intermediate);
    if (c->shared_gate)
        matrix(w, "mlp.shared_expert_gate", 1, c->hidden);
}

/* The feed-forward that the ducks keep. */
static void ducks_list(struct walk *w, uint32_t experts)
{
    char prefix[48];

    w->place = DK_PLACE_DUCKS;
    if (!w->c->layer_is_moe[w->layer])
        ffn_list(w, "mlp", w->c->intermediate);
    else
        for (uint32_t e = 0; e < experts && !w->rc; e++) {
            snprintf(prefix, sizeof prefix, "mlp.experts.%u", e);
            ffn_list(w, prefix, w->c->moe_intermediate);
        }
    w->place = DK_PLACE_WORKER;
}

static void layer_list(struct walk *w, uint32_t layer, uint32_t experts)
{
    w->layer = layer;
    vector(w, "input_layernorm", ".weight", w->c->hidden);
    if (w->c->mixer[layer] == DK_MIXER_DELTA)
        delta_list(w);
    else if (w->c->mixer[layer] == DK_MIXER_MLA)
        mla_list(w);
    else
        attention_list(w);
    vector(w, "post_attention_layernorm", ".weight", w->c->hidden);
    if (w->c->layer_is_moe[layer])
        router_list(w);
    ducks_list(w, experts);
    w->layer = OUTSIDE;
}

/* experts: how many of each MoE layer are listed. */
static int model_list(const struct dk_model_config *c, uint32_t experts,
                      int (*fn)(void *ctx, const struct dk_tensor_want *t), void *ctx)
{
    struct walk w = {.c = c, .fn = fn, .ctx = ctx, .layer = OUTSIDE, .place = DK_PLACE_WORKER};

    matrix(&w, "model.embed_tokens", c->vocab, c->hidden);
    for (uint32_t i = 0; i < c->layers && !w.rc; i++)
        layer_list(&w, i, experts);
    vector(&w, "model.norm", ".weight", c->hidden);
    if (!c->tied)
        matrix(&w, "lm_head", c->vocab, c->hidden);
    return w.rc;
}

int dk_model_tensors(const struct dk_model_config *c, int (*fn)(void *ctx, const struct dk_tensor_want *t), void *ctx)
{
    return model_list(c, c->experts, fn, ctx);
}

static int elements_add(void *ctx, const struct dk_tensor_want *t)
{
    uint64_t n = 1;

    for (uint32_t i = 0; i < t->rank; i++)
        n *= t->shape[i];
    *(uint64_t *)ctx += n;
    return 0;
}

uint64_t dk_model_parameters(const struct dk_model_config *c)
{
    uint64_t total = 0;

    model_list(c, 0, elements_add, &total); /* all experts are alike: no need to name them */
    for (uint32_t i = 0; i < c->layers; i++)
        if (c->layer_is_moe[i])
            total += 3ull * c->experts * c->moe_intermediate * c->hidden;
    return total;
}

struct check {
    const struct dk_model_config *c;
    struct dk_checkpoint *ck;
    struct dk_err *first; /* of the first bad tensor */
    uint64_t bad;
    uint32_t fused_layer; /* the last layer that was found to have its experts in one tensor; OUTSIDE: none yet */
};

static void bad_add(struct check *k, int rc, const struct dk_err *err)
{
    if (rc < 0 && k->bad++ == 0)
        dk_err_set(k->first, rc, "%s", err->text);
}

static bool experts_are_fused(struct check *k, uint32_t layer)
{
    char name[96];

    snprintf(name, sizeof name, "model.layers.%u.mlp.experts.gate_up_proj", layer);
    if (k->fused_layer != layer && dk_checkpoint_find(k->ck, name))
        k->fused_layer = layer;
    return k->fused_layer == layer;
}

/* Tensors one by one, so that each bad one counts; fused ones are seen by ffns_check. */
static int tensor_check(void *ctx, const struct dk_tensor_want *t)
{
    const struct dk_tensor *weight, *scales;
    struct check *k = ctx;
    struct dk_err err = {0};
    int rc;

    if (t->place == DK_PLACE_DUCKS && k->c->layer_is_moe[t->layer] && experts_are_fused(k, t->layer))
        return 0;
    if (t->linear)
        rc = dk_checkpoint_get_weight(k->ck, t->name, t->shape[0], t->shape[1], &weight, &scales, &err);
    else
        rc = dk_checkpoint_get_shape(k->ck, t->name, t->rank, t->shape, 0, &weight, &err);
    bad_add(k, rc, &err);
    return 0;
}

static void ffns_check(struct check *k)
{
    for (uint32_t i = 0; i < k->c->layers; i++) {
        bool fused = k->c->layer_is_moe[i] && experts_are_fused(k, i);
        uint32_t count = fused ? 1 : dk_ffn_experts(k->c, i);

        if (k->bad && !fused)
            continue; /* what is missing in it was counted tensor by tensor */
        for (uint32_t e = 0; e < count; e++) {
            struct dk_ffn_tensors f;
            struct dk_err err = {0};

            bad_add(k, dk_ffn_tensors_find(k->ck, k->c, i, e, &f, &err), &err);
        }
    }
}

int dk_model_tensors_check(const struct dk_model_config *c, struct dk_checkpoint *ck, struct dk_err *err)
{
    struct dk_err first = {0};
    struct check k = {.c = c, .ck = ck, .first = &first, .fused_layer = OUTSIDE};

    model_list(c, c->experts, tensor_check, &k);
    ffns_check(&k);
    if (c->tied)
        dk_checkpoint_find(ck, "lm_head.weight"); /* some releases have the copy all the same */
    if (k.bad > 1)
        return dk_err_set(err, first.rc, "%" PRIu64 " tensors are missing or wrong, the first: %s", k.bad, first.text);
    return k.bad ? dk_err_set(err, first.rc, "%s", first.text) : 0;
}

static bool starts_with(const char *text, const char *start)
{
    return !strncmp(text, start, strlen(start));
}

const char *dk_model_tensor_skipped(const struct dk_model_config *c, const char *name)
{
    static const char *const vision[] = {"model.visual.", "visual.", "model.vision_tower.", "vision_tower."};
    static const char layers[] = "model.layers.";

    for (size_t i = 0; i < sizeof vision / sizeof *vision; i++)
        if (starts_with(name, vision[i]))
            return "vision";
    if (starts_with(name, "mtp."))
        return "multi-token prediction";
    if (starts_with(name, layers)) { /* DeepSeek's are layers behind the last one */
        char *end;
        unsigned long n = strtoul(name + sizeof layers - 1, &end, 10);

        if (*end == '.' && n >= c->layers && n < (unsigned long)c->layers + c->mtp_layers)
            return "multi-token prediction";
    }
    return NULL;
}
