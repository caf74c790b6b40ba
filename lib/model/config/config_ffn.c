/* SPDX-License-Identifier: Apache-2.0 */
/* Dense feed-forward, experts and their router. */
#include <string.h>

#include "model/config/config_internal.h"

#define SHARED_MAX 256u /* shared experts of a layer */

static void qwen3_layers_mark(struct dk_json_reader *r, struct dk_model_config *c)
{
    uint32_t step = 1, dense[DK_LAYERS_MAX], dense_count = 0;

    dk_json_u32(r, "decoder_sparse_step", 1, DK_LAYERS_MAX, &step);
    dk_json_u32_list(r, "mlp_only_layers", c->layers ? c->layers - 1 : 0, dense, DK_LAYERS_MAX, &dense_count);
    if (r->rc < 0)
        return;
    for (uint32_t i = 0; i < c->layers; i++)
        c->layer_is_moe[i] = (i + 1) % step == 0;
    for (uint32_t i = 0; i < dense_count; i++)
        c->layer_is_moe[dense[i]] = false;
}

/* Every layer of Qwen3.5-MoE has experts; its reference does not read these fields, so they must not say otherwise. */
static void qwen3_5_layers_mark(struct dk_json_reader *r, struct dk_model_config *c)
{
    const json_t *dense = dk_json_field(r, "mlp_only_layers");
    uint32_t step = 1;

    if (dk_json_u32(r, "decoder_sparse_step", 0, DK_LAYERS_MAX, &step) && step != 1)
        dk_json_refuse(r, -ENOTSUP, "decoder_sparse_step", "only 1 is supported in this family");
    if (dense && (!json_is_array(dense) || json_array_size(dense) > 0))
        dk_json_refuse(r, -ENOTSUP, "mlp_only_layers", "only [] is supported in this family");
    for (uint32_t i = 0; i < c->layers; i++)
        c->layer_is_moe[i] = true;
}

/* The layers one by one, as transformers 5 writes them for DeepSeek-V3.2. Returns whether the field was there. */
static bool mlp_types_read(struct dk_json_reader *r, struct dk_model_config *c)
{
    const json_t *types = dk_json_field(r, "mlp_layer_types");

    if (r->rc < 0 || !types)
        return false;
    if (json_array_size(types) != c->layers) /* 0 when it is no list */
        dk_json_refuse(r, -EINVAL, "mlp_layer_types", "a list of num_hidden_layers texts is allowed");
    for (uint32_t i = 0; i < c->layers && r->rc == 0; i++) {
        const char *type = json_string_value(json_array_get(types, i));

        c->layer_is_moe[i] = type && !strcmp(type, "sparse");
        if (!type || (strcmp(type, "sparse") && strcmp(type, "dense")))
            dk_json_refuse(r, -ENOTSUP, "mlp_layer_types", "\"dense\" and \"sparse\" are supported");
    }
    return true;
}

static void deepseek_layers_mark(struct dk_json_reader *r, struct dk_model_config *c)
{
    bool types_known = mlp_types_read(r, c);
    uint32_t dense = 0, step = 1;

    if (!types_known)
        dk_json_need(r, "first_k_dense_replace");
    if (dk_json_u32(r, "moe_layer_freq", 0, DK_LAYERS_MAX, &step) && step != 1)
        dk_json_refuse(r, -ENOTSUP, "moe_layer_freq", "only 1 is supported");
    if (!dk_json_u32(r, "first_k_dense_replace", 0, DK_LAYERS_MAX, &dense))
        return;
    for (uint32_t i = 0; i < c->layers; i++) {
        if (types_known && c->layer_is_moe[i] != (i >= dense)) {
            dk_json_refuse(r, -EINVAL, "first_k_dense_replace", "mlp_layer_types says something else");
            return;
        }
        c->layer_is_moe[i] = i >= dense;
    }
}

static uint32_t layers_moe(const struct dk_model_config *c)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < c->layers; i++)
        n += c->layer_is_moe[i];
    return n;
}

/* experts: the field with their number. */
static void experts_read(struct dk_json_reader *r, struct dk_model_config *c, const char *experts)
{
    uint32_t again = 0;

    /* transformers 5 writes num_local_experts where the files of transformers 4 have the family's own name. */
    if (dk_json_u32(r, "num_local_experts", 1, DK_EXPERTS_MAX, &again))
        c->experts = again;
    else
        dk_json_need(r, experts);
    dk_json_need(r, "num_experts_per_tok");
    dk_json_need(r, "moe_intermediate_size");
    if (dk_json_u32(r, experts, 1, DK_EXPERTS_MAX, &c->experts) && again && again != c->experts)
        dk_json_refuse(r, -EINVAL, experts, "num_local_experts has another value");
    dk_json_u32(r, "num_experts_per_tok", 1, DK_EXPERTS_MAX, &c->top_k);
    dk_json_u32(r, "moe_intermediate_size", 1, DK_WIDTH_MAX, &c->moe_intermediate);
    if (r->rc == 0 && c->top_k > c->experts)
        dk_json_refuse(r, -EINVAL, "num_experts_per_tok", "it is more than the number of experts");
    if (r->rc == 0 && (uint64_t)c->experts * c->moe_intermediate > DK_EXPERT_ROWS)
        dk_json_refuse(r, -EINVAL, "moe_intermediate_size",
                       "times the number of experts it must not be above 268435456");
}

static void qwen3_router_read(struct dk_json_reader *r, struct dk_model_config *c)
{
    static const char *const shared[] = {"shared_expert_intermediate_size", "n_shared_experts", "num_shared_experts"};
    uint32_t n = 0;

    dk_json_bool(r, "norm_topk_prob", &c->norm_topk);
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++)
        if (dk_json_u32(r, shared[i], 0, DK_WIDTH_MAX, &n) && n > 0)
            dk_json_refuse(r, -ENOTSUP, shared[i], "shared experts are not supported in this family");
}

static void qwen3_5_router_read(struct dk_json_reader *r, struct dk_model_config *c)
{
    c->norm_topk = true;
    if (dk_json_bool(r, "norm_topk_prob", &c->norm_topk) && !c->norm_topk)
        dk_json_refuse(r, -ENOTSUP, "norm_topk_prob", "only true is supported in this family");
    dk_json_need(r, "shared_expert_intermediate_size");
    dk_json_u32(r, "shared_expert_intermediate_size", 1, DK_WIDTH_MAX, &c->shared_intermediate);
    c->shared_gate = true;
}

static void groups_check(struct dk_json_reader *r, const struct dk_model_config *c)
{
    uint32_t size = c->router_groups ? c->experts / c->router_groups : 0;

    if (r->rc < 0)
        return;
    if (c->experts % c->router_groups)
        dk_json_refuse(r, -EINVAL, "n_group", "it must divide n_routed_experts");
    else if (size < 2)
        dk_json_refuse(r, -EINVAL, "n_group",
                       "a group must have 2 experts or more: its score is the sum of the best two");
    else if (c->groups_kept > c->router_groups)
        dk_json_refuse(r, -EINVAL, "topk_group", "it is more than n_group");
    else if (c->top_k > size * c->groups_kept)
        dk_json_refuse(r, -EINVAL, "num_experts_per_tok", "it is more than the experts in topk_group groups");
}

static void shared_experts_read(struct dk_json_reader *r, struct dk_model_config *c)
{
    uint32_t count = 0;

    dk_json_need(r, "n_shared_experts");
    dk_json_u32(r, "n_shared_experts", 0, SHARED_MAX, &count);
    if (r->rc == 0 && (uint64_t)count * c->moe_intermediate > DK_WIDTH_MAX)
        dk_json_refuse(r, -EINVAL, "n_shared_experts", "times moe_intermediate_size it must not be above 1048576");
    else
        c->shared_intermediate = count * c->moe_intermediate;
}

static void deepseek_router_read(struct dk_json_reader *r, struct dk_model_config *c)
{
    static const char *const needed[] = {"n_group", "topk_group", "routed_scaling_factor"};
    double scale = 1;

    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        dk_json_need(r, needed[i]);
    c->router = DK_ROUTER_GROUPS;
    c->norm_topk = true;
    dk_json_bool(r, "norm_topk_prob", &c->norm_topk);
    dk_config_text_check(r, "scoring_func", "sigmoid", "sigmoid", "only \"sigmoid\" is supported");
    dk_config_text_check(r, "topk_method", "noaux_tc", "noaux_tc", "only \"noaux_tc\" is supported");
    dk_json_u32(r, "n_group", 1, DK_EXPERTS_MAX, &c->router_groups);
    dk_json_u32(r, "topk_group", 1, DK_EXPERTS_MAX, &c->groups_kept);
    dk_json_double(r, "routed_scaling_factor", 1e-6, 1e6, &scale);
    c->routed_scale = (float)scale;
    groups_check(r, c);
    shared_experts_read(r, c);
}

void dk_config_ffn_read(struct dk_json_reader *r, struct dk_model_config *c)
{
    bool deepseek = dk_family_is_deepseek(c->family);

    c->routed_scale = 1;
    if (c->family == DK_FAMILY_QWEN3_MOE)
        qwen3_layers_mark(r, c);
    else if (c->family == DK_FAMILY_QWEN3_5_MOE)
        qwen3_5_layers_mark(r, c);
    else if (deepseek)
        deepseek_layers_mark(r, c);
    if (r->rc < 0)
        return;
    if (layers_moe(c) < c->layers) {
        dk_json_need(r, "intermediate_size");
        dk_json_u32(r, "intermediate_size", 1, DK_WIDTH_MAX, &c->intermediate);
    }
    if (layers_moe(c) == 0)
        return;
    experts_read(r, c, deepseek ? "n_routed_experts" : "num_experts");
    if (deepseek)
        deepseek_router_read(r, c);
    else if (c->family == DK_FAMILY_QWEN3_5_MOE)
        qwen3_5_router_read(r, c);
    else
        qwen3_router_read(r, c);
}
