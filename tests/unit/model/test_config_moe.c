/* SPDX-License-Identifier: Apache-2.0 */
/* config.json: experts, shared experts and routers of Qwen3.5-MoE and DeepSeek. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config_text.h"
#include "model_folder.h"

#define QWEN "Qwen3.5-35B-A3B-FP8"
#define V3   "DeepSeek-V3"

Test(config_moe, qwen3_5)
{
    struct dk_model_config c = config_released(QWEN);

    cr_expect_eq(c.family, DK_FAMILY_QWEN3_5_MOE);
    cr_expect(c.experts == 256 && c.top_k == 8 && c.moe_intermediate == 512 && c.intermediate == 0);
    cr_expect(c.shared_intermediate == 512 && c.shared_gate && c.norm_topk && c.routed_scale == 1);
    cr_expect(c.router == DK_ROUTER_SOFTMAX && c.router_groups == 0 && c.norm_one_plus);
    for (uint32_t i = 0; i < 512; i++)
        cr_expect_eq(c.layer_is_moe[i], i < 40);
}

Test(config_moe, deepseek)
{
    struct dk_model_config c = config_released(V3);

    cr_expect(c.experts == 256 && c.top_k == 8 && c.moe_intermediate == 2048 && c.intermediate == 18432);
    cr_expect(c.shared_intermediate == 2048 && !c.shared_gate && c.norm_topk && c.routed_scale == 2.5f);
    cr_expect(c.router == DK_ROUTER_GROUPS && c.router_groups == 8 && c.groups_kept == 4);
    for (uint32_t i = 0; i < 512; i++)
        cr_expect_eq(c.layer_is_moe[i], i >= 3 && i < 61);
    c = config_with(V3, "n_shared_experts", "2");
    cr_expect_eq(c.shared_intermediate, 4096);
    c = config_with(V3, "n_shared_experts", "0");
    cr_expect_eq(c.shared_intermediate, 0);
    c = config_with(V3, "norm_topk_prob", "false");
    cr_expect_not(c.norm_topk);
    c = config_with(V3, "norm_topk_prob", NULL);
    cr_expect(c.norm_topk, "the reference's default");
}

/* All layers of one kind: what the other kind needs may be absent. */
Test(config_moe, deepseek_without_dense_or_without_experts)
{
    struct dk_model_config c = config_with(V3, "first_k_dense_replace", "0");

    cr_expect(c.layer_is_moe[0] && c.intermediate == 0);
    c = config_with(V3, "first_k_dense_replace", "61");
    cr_expect(!c.layer_is_moe[60] && c.experts == 0 && c.moe_intermediate == 0 && c.shared_intermediate == 0);
    c = config_with(V3, "first_k_dense_replace", "512");
    cr_expect(!c.layer_is_moe[60] && !c.layer_is_moe[511]);
}

static const struct config_case cases[] = {
    {QWEN, "text_config.num_experts", NULL, -EINVAL, "missing"},
    {QWEN, "text_config.num_experts_per_tok", "257", -EINVAL, "257|number of experts"},
    {QWEN, "text_config.shared_expert_intermediate_size", NULL, -EINVAL, "missing"},
    {QWEN, "text_config.shared_expert_intermediate_size", "0", -EINVAL, "0|from 1"},
    {QWEN, "text_config.norm_topk_prob", "false", -ENOTSUP, "false|only true"},
    {QWEN, "text_config.norm_topk_prob", "true", 0, NULL},
    {QWEN, "text_config.mlp_only_layers", "[0]", -ENOTSUP, "[0]|only []"},
    {QWEN, "text_config.mlp_only_layers", NULL, 0, NULL},
    {QWEN, "text_config.decoder_sparse_step", "2", -ENOTSUP, "2|only 1"},
    {QWEN, "text_config.decoder_sparse_step", "1", 0, NULL},
    {QWEN, "text_config.moe_intermediate_size", "1048576", 0, NULL}, /* 256 times that is the limit */
    {"Qwen3.6-35B-A3B-text-only", "num_experts", "257", 0, NULL},
    {V3, "n_routed_experts", NULL, -EINVAL, "missing"},
    {V3, "n_routed_experts", "0", -EINVAL, "0|from 1"},
    {V3, "n_routed_experts", "4097", -EINVAL, "4097|4096"},
    {V3, "moe_intermediate_size", "1048577", -EINVAL, "1048577"},
    {V3, "intermediate_size", NULL, -EINVAL, "missing"},
    {V3, "first_k_dense_replace", NULL, -EINVAL, "missing"},
    {V3, "first_k_dense_replace", "-1", -EINVAL, "-1|from 0"},
    {V3, "mlp_layer_types", "[\"dense\"]", -EINVAL, "[\"dense\"]|num_hidden_layers"},
    {V3, "mlp_layer_types", "3", -EINVAL, "3|list"},
    {V3, "num_local_experts", "256", 0, NULL},
    {V3, "num_local_experts", "128", -EINVAL, "n_routed_experts is 256"},
    {V3, "moe_layer_freq", "2", -ENOTSUP, "2|only 1"},
    {V3, "moe_layer_freq", NULL, 0, NULL},
    {V3, "scoring_func", "\"softmax\"", -ENOTSUP, "softmax|sigmoid"},
    {V3, "scoring_func", NULL, 0, NULL},
    {V3, "topk_method", "\"greedy\"", -ENOTSUP, "greedy|noaux_tc"},
    {V3, "topk_method", NULL, 0, NULL},
    {V3, "n_group", NULL, -EINVAL, "missing"},
    {V3, "n_group", "0", -EINVAL, "0|from 1"},
    {V3, "n_group", "7", -EINVAL, "7|divide"},
    {V3, "n_group", "256", -EINVAL, "256|2 experts"},
    {V3, "n_group", "128", 0, NULL},
    {V3, "topk_group", NULL, -EINVAL, "missing"},
    {V3, "topk_group", "0", -EINVAL, "0|from 1"},
    {V3, "topk_group", "9", -EINVAL, "9|n_group"},
    {V3, "topk_group", "8", 0, NULL},
    {V3, "num_experts_per_tok", "129", -EINVAL, "129|topk_group"}, /* 4 groups of 32 */
    {V3, "num_experts_per_tok", "128", 0, NULL},
    {V3, "num_experts_per_tok", "0", -EINVAL, "0|from 1"},
    {V3, "routed_scaling_factor", NULL, -EINVAL, "missing"},
    {V3, "routed_scaling_factor", "0", -EINVAL, "0|number"},
    {V3, "routed_scaling_factor", "\"2.5\"", -EINVAL, "number"},
    {V3, "n_shared_experts", NULL, -EINVAL, "missing"},
    {V3, "n_shared_experts", "257", -EINVAL, "257|256"},
    {V3, "ep_size", "8", 0, NULL},
};

Test(config_moe, fields)
{
    config_cases_run(cases, sizeof cases / sizeof *cases);
}

/* mlp_layer_types of DeepSeek-V3.2 with `dense` layers first, then a sparse one for each of the others; one of them may
 * be another text. */
static char *mlp_types(uint32_t dense, uint32_t odd, const char *text)
{
    char *list = malloc(61 * 20), *p = list;

    for (uint32_t i = 0; i < 61; i++)
        p += sprintf(p, "%c\"%s\"", i ? ',' : '[', i == odd ? text : i < dense ? "dense" : "sparse");
    strcpy(p, "]");
    return list;
}

static int with_mlp_types(uint32_t dense, uint32_t odd, const char *text, const char *first, struct dk_model_config *c,
                          struct dk_err *err)
{
    char *types = mlp_types(dense, odd, text), *release = config_of("DeepSeek-V3.2"),
         *typed = config_changed(release, "mlp_layer_types", types),
         *changed = config_changed(typed, "first_k_dense_replace", first);
    int rc = config_parse(changed, c, err);

    free(changed);
    free(typed);
    free(release);
    free(types);
    return rc;
}

Test(config_moe, dense_layers_one_by_one)
{
    struct dk_model_config c;
    struct dk_err err;

    cr_expect_eq(with_mlp_types(3, 61, "", "3", &c, &err), 0, "%s", err.text);
    cr_expect(!c.layer_is_moe[2] && c.layer_is_moe[3]);
    cr_expect_eq(with_mlp_types(2, 61, "", NULL, &c, &err), 0, "%s", err.text);
    cr_expect(!c.layer_is_moe[1] && c.layer_is_moe[2]);
    cr_expect_eq(with_mlp_types(1, 7, "dense", NULL, &c, &err), 0, "%s", err.text);
    cr_expect(!c.layer_is_moe[0] && c.layer_is_moe[1] && !c.layer_is_moe[7] && c.layer_is_moe[8]);
    cr_expect_eq(with_mlp_types(2, 61, "", "3", &c, &err), -EINVAL);
    expect_words(err.text, "first_k_dense_replace|3|mlp_layer_types");
    cr_expect_eq(with_mlp_types(3, 60, "dense", "3", &c, &err), -EINVAL);
    expect_words(err.text, "first_k_dense_replace");
    cr_expect_eq(with_mlp_types(3, 5, "moe", "3", &c, &err), -ENOTSUP);
    expect_words(err.text, "mlp_layer_types|dense|sparse");
}

/* Each size alone is within its limit. */
static void product_refused(const char *release, const char *first, const char *first_value, const char *second,
                            const char *second_value, const char *words)
{
    char *text = config_of(release), *one = config_changed(text, first, first_value),
         *two = config_changed(one, second, second_value);
    struct dk_model_config c;
    struct dk_err err;

    cr_expect_eq(config_parse(two, &c, &err), -EINVAL);
    expect_words(err.text, words);
    free(two);
    free(one);
    free(text);
}

Test(config_moe, sizes_whose_product_is_too_large)
{
    product_refused("Qwen3.6-35B-A3B-text-only", "moe_intermediate_size", "1048576", "num_experts", "257",
                    "moe_intermediate_size|1048576|268435456");
    product_refused(V3, "moe_intermediate_size", "8192", "n_shared_experts", "129", "n_shared_experts|129|1048576");
}
