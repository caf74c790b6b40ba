/* SPDX-License-Identifier: Apache-2.0 */
#include "config_check.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "model/ffn_tensors.h"
#include "model/model_tensors.h"

#define LISTED_MAX 5000u /* a config may have millions of experts */

struct listed {
    const struct dk_model_config *c;
    uint32_t count;
};

static int tensor_check(void *ctx, const struct dk_tensor_want *t)
{
    struct listed *l = ctx;
    uint64_t elements = 1;

    assert(t->name[0] && strlen(t->name) < 160);
    assert(t->rank >= 1 && t->rank <= 3);
    for (uint32_t i = 0; i < t->rank; i++) {
        assert(t->shape[i] > 0 && t->shape[i] <= 1u << 23);
        elements *= t->shape[i];
    }
    assert(elements <= 1ull << 46);
    assert(!t->linear || t->rank == 2);
    assert(t->layer == UINT32_MAX || t->layer < l->c->layers);
    assert(!dk_model_tensor_skipped(l->c, t->name));
    return ++l->count >= LISTED_MAX;
}

static void rope_check(const struct dk_rope_config *p, uint32_t head_dim)
{
    assert(p->dims >= 2 && p->dims % 2 == 0 && p->dims <= head_dim && p->theta >= 2);
    if (p->scaling != DK_ROPE_PLAIN)
        assert(p->factor >= 1);
    if (p->scaling == DK_ROPE_LLAMA3)
        assert(p->original_context && p->low_freq_factor > 0 && p->high_freq_factor > p->low_freq_factor);
    if (p->scaling == DK_ROPE_YARN)
        assert(p->original_context && p->beta_slow > 0 && p->beta_fast >= p->beta_slow && p->mscale >= 0 &&
               p->mscale_all_dim >= 0 && p->attention_factor >= 0);
}

static void mixer_check(const struct dk_model_config *c, uint32_t layer)
{
    switch ((enum dk_mixer)c->mixer[layer]) {
    case DK_MIXER_ATTENTION:
        assert(c->heads % c->kv_heads == 0 && c->head_dim % 2 == 0);
        return;
    case DK_MIXER_DELTA:
        assert(c->delta.key_heads && c->delta.value_heads % c->delta.key_heads == 0 && c->delta.conv_taps >= 2);
        assert(c->delta.key_dim && c->delta.value_dim);
        return;
    case DK_MIXER_MLA:
        assert(c->mla.kv_rank && c->mla.nope_dim % 32 == 0 && c->mla.value_dim % 32 == 0);
        assert(c->head_dim == c->mla.nope_dim + c->mla.rope_dim && c->kv_heads == c->heads);
        assert(!c->index.heads || (c->mla.q_rank && c->index.dim >= c->mla.rope_dim && c->index.top_k));
        return;
    }
    assert(!"a mixer that is none");
}

static void ffn_check(const struct dk_model_config *c, uint32_t layer)
{
    assert(dk_ffn_width(c, layer) > 0 && dk_ffn_experts(c, layer) > 0);
    if (!c->layer_is_moe[layer])
        return;
    assert(c->top_k && c->top_k <= c->experts && c->routed_scale > 0);
    assert(!c->shared_gate || c->shared_intermediate);
    if (c->router == DK_ROUTER_GROUPS)
        assert(c->router_groups && c->experts % c->router_groups == 0 && c->groups_kept <= c->router_groups &&
               c->experts / c->router_groups >= 2 && c->top_k <= c->experts / c->router_groups * c->groups_kept);
}

static void accepted_check(const struct dk_model_config *c)
{
    struct listed l = {.c = c};

    assert(c->hidden && c->layers && c->layers <= 512 && c->vocab && c->context_max && c->rms_eps > 0);
    assert(c->heads && c->kv_heads && c->head_dim && c->head_dim <= 1024);
    assert((unsigned)c->family < DK_FAMILY_COUNT && c->model_type[0]);
    rope_check(&c->rope, c->head_dim);
    for (uint32_t i = 0; i < c->layers; i++) {
        mixer_check(c, i);
        ffn_check(c, i);
    }
    dk_model_tensors(c, tensor_check, &l);
    assert(l.count > 5);
    assert(dk_model_parameters(c) > 0 && dk_model_parameters(c) < 1ull << 60);
}

static void discard(void *ctx, enum dk_log_level level, const char *line)
{
}

bool config_check(const char *json, size_t bytes, struct dk_err *reason)
{
    char *copy = malloc(bytes ? bytes : 1);
    struct dk_model_config c;
    struct dk_err err = {0};
    bool accepted;

    assert(copy);
    if (bytes)
        memcpy(copy, json, bytes);
    dk_log_setup(discard, NULL, DK_LOG_DEBUG, "config_check");
    accepted = dk_model_config_parse(copy, bytes, "input", &c, &err) == 0;
    if (accepted) {
        assert(err.rc == 0);
        accepted_check(&c);
    } else {
        assert(err.rc < 0 && err.text[0] && c.layers == 0);
    }
    free(copy);
    if (reason)
        *reason = err;
    return accepted;
}
