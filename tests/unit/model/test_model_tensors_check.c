/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints as releases cut and name them, and checkpoints that are wrong in one way. The lists are those of the
 * fixtures, with one thing changed; the weights themselves are holes. */
#include <criterion/criterion.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/model_tensors.h"
#include "tensor_list.h"

#define DENSE   "qwen3-fp8-tiny"
#define TIED    "qwen3-tiny"
#define HYBRID  "qwen3_5-fp8-tiny"
#define EXPERTS "qwen3_5_moe-fp8-tiny"
#define V3      "deepseek_v3-fp8-tiny"
#define V32     "deepseek_v32-fp8-tiny"

static struct model_folder folder;
static struct tensor_list l;
static struct dk_checkpoint *ck;
static struct dk_model_config config;
static struct dk_err err;

static void begin(void)
{
    folder_make(&folder);
}

static void end(void)
{
    dk_checkpoint_close(ck);
    tensor_list_end(&l);
    folder_remove(&folder);
}

TestSuite(model_tensors_check, .init = begin, .fini = end);

static void list_of(const char *fixture)
{
    tensor_list_end(&l);
    tensor_list_of(&l, fixture);
}

/* Writes the list into the files and checks the model. */
static int check_files(const char *const *files, unsigned count, int index)
{
    dk_checkpoint_close(ck);
    ck = NULL;
    memset(&err, 0, sizeof err);
    tensor_list_write(&l, &folder, files, count, index);
    cr_assert_eq(dk_model_config_load(folder.path, &config, &err), 0, "%s", err.text);
    cr_assert_eq(dk_checkpoint_open(folder.path, &ck, &err), 0, "%s", err.text);
    return dk_model_tensors_check(&config, ck, &err);
}

static int check(void)
{
    static const char *const one[] = {"model.safetensors"};

    return check_files(one, 1, 0);
}

static void refused(int rc, const char *words)
{
    int got = check();

    cr_expect_eq(got, rc, "%d: %s", got, err.text);
    cr_expect_eq(err.rc, rc);
    expect_words(err.text, words);
}

static void stray_count(void *ctx, const struct dk_tensor *t)
{
    *(unsigned *)ctx += !dk_model_tensor_skipped(&config, t->name);
}

/* Tensors that were not asked for and belong to no part that is left out. */
static unsigned strays(void)
{
    unsigned n = 0;

    dk_checkpoint_unused(ck, stray_count, &n);
    return n;
}

/* Whatever the files are called and however the tensors are spread over them, the index says it. */
Test(model_tensors_check, files_of_all_styles)
{
    static const struct {
        const char *fixture, *files[3];
        unsigned count;
    } cases[] = {
        {DENSE, {"model.safetensors"}, 1},
        {DENSE, {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}, 2},
        {V3, {"model-00001-of-000163.safetensors", "model-00002-of-000163.safetensors"}, 2},
        {HYBRID, {"model.safetensors-00001-of-00001.safetensors"}, 1},
        {HYBRID, {"model.safetensors-00001-of-00002.safetensors", "model.safetensors-00002-of-00002.safetensors"}, 2},
        {EXPERTS, {"layers-0.safetensors", "outside.safetensors", "mtp.safetensors"}, 3},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        list_of(cases[i].fixture);
        for (size_t k = 0; k < l.count; k++)
            l.items[k].file = (unsigned)(k * 7 % cases[i].count); /* a weight and its scales are rarely together */
        cr_expect_eq(check_files(cases[i].files, cases[i].count, 1), 0, "%s: %s", cases[i].files[0], err.text);
        cr_expect_eq(strays(), 0);
        folder_remove(&folder);
        folder_make(&folder);
    }
}

Test(model_tensors_check, one_file_without_an_index)
{
    static const char *const fixtures[] = {DENSE, TIED, "qwen3-moe-fp8-tiny", HYBRID, EXPERTS, V3, V32};

    for (size_t i = 0; i < sizeof fixtures / sizeof *fixtures; i++) {
        list_of(fixtures[i]);
        cr_expect_eq(check(), 0, "%s: %s", fixtures[i], err.text);
        cr_expect_eq(strays(), 0, "%s", fixtures[i]);
    }
}

Test(model_tensors_check, weight_and_scales_in_different_files)
{
    static const char *const files[] = {"a.safetensors", "b.safetensors"};

    list_of(V32);
    for (size_t i = 0; i < l.count; i++)
        l.items[i].file = strstr(l.items[i].name, "_scale_inv") != NULL;
    cr_expect_eq(check_files(files, 2, 1), 0, "%s", err.text);
}

/* Qwen3-0.6B and 1.7B have a copy of the embedding as their head. */
Test(model_tensors_check, tied_model_with_a_head)
{
    list_of(TIED);
    cr_assert_eq(check(), 0, "%s", err.text);
    tensor_list_add(&l, "lm_head.weight", "BF16", 1024, 128);
    cr_expect_eq(check(), 0, "%s", err.text);
    cr_expect_eq(strays(), 0);
}

Test(model_tensors_check, with_and_without_the_prefix)
{
    static const char *const starts[] = {"model.", "language_model.model.", "model.language_model."};

    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        list_of(HYBRID);
        tensor_list_move(&l, "model.language_model.", starts[i]);
        if (i == 1)
            tensor_list_move(&l, "lm_head.", "language_model.lm_head.");
        cr_expect_eq(check(), 0, "%s: %s", starts[i], err.text);
        cr_expect_eq(strays(), 0, "%s", starts[i]);
    }
}

/* A release of the text alone: a flat config.json, plain names and none of the other parts. */
Test(model_tensors_check, text_only_release)
{
    json_t *root;

    list_of(EXPERTS);
    for (size_t i = l.count; i-- > 0;)
        if (!strncmp(l.items[i].name, "mtp.", 4) || !strncmp(l.items[i].name, "model.visual.", 13))
            l.items[i] = l.items[--l.count];
    tensor_list_move(&l, "model.language_model.", "model.");
    root = json_loads(l.config, 0, NULL);
    free(l.config);
    l.config = json_dumps(json_object_get(root, "text_config"), 0);
    json_decref(root);
    cr_expect_eq(check(), 0, "%s", err.text);
    cr_expect_str_eq(config.model_type, "qwen3_5_moe_text");
    cr_expect_eq(strays(), 0);
}

/* Qwen3.6 has in BF16 what Qwen3.5 has in F32, and DeepSeek's later releases the other way round. */
Test(model_tensors_check, types_of_what_is_not_quantised)
{
    static const char *const types[] = {"BF16", "F32", "F16"};

    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        list_of(HYBRID);
        tensor_list_retype(&l, "A_log", types[i]);
        tensor_list_retype(&l, "norm", types[i]);
        tensor_list_retype(&l, "dt_bias", types[i]);
        cr_expect_eq(check(), 0, "%s: %s", types[i], err.text);
        list_of(V3);
        tensor_list_retype(&l, "norm", types[i]);
        tensor_list_retype(&l, "e_score_correction_bias", types[i]);
        cr_expect_eq(check(), 0, "%s: %s", types[i], err.text);
    }
}

Test(model_tensors_check, types_of_scales)
{
    list_of(V3);
    tensor_list_retype(&l, "_scale_inv", "BF16");
    cr_expect_eq(check(), 0, "%s", err.text);
    tensor_list_retype(&l, "layers.2.self_attn.kv_b_proj.weight_scale_inv", "F16");
    refused(-EINVAL, "layers.2.self_attn.kv_b_proj.weight_scale_inv|F16|F32 or BF16");
}

Test(model_tensors_check, missing_tensor)
{
    static const struct {
        const char *fixture, *name;
    } cases[] = {
        {DENSE, "model.embed_tokens.weight"},
        {DENSE, "model.norm.weight"},
        {DENSE, "lm_head.weight"},
        {DENSE, "model.layers.2.self_attn.q_norm.weight"},
        {DENSE, "model.layers.1.mlp.up_proj.weight"},
        {HYBRID, "model.language_model.layers.0.linear_attn.A_log"},
        {HYBRID, "model.language_model.layers.4.linear_attn.conv1d.weight"},
        {HYBRID, "model.language_model.layers.7.self_attn.k_norm.weight"},
        {EXPERTS, "model.language_model.layers.5.mlp.shared_expert_gate.weight"},
        {EXPERTS, "model.language_model.layers.5.mlp.shared_expert.up_proj.weight"},
        {EXPERTS, "model.language_model.layers.7.mlp.experts.31.down_proj.weight"},
        {V3, "model.layers.3.mlp.gate.e_score_correction_bias"},
        {V3, "model.layers.1.mlp.shared_experts.gate_proj.weight"},
        {V3, "model.layers.0.self_attn.q_a_layernorm.weight"},
        {V32, "model.layers.3.self_attn.indexer.k_norm.bias"},
        {V32, "model.layers.0.self_attn.indexer.wq_b.weight"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *end_of_name = strstr(cases[i].name, "layers.");

        list_of(cases[i].fixture);
        tensor_list_drop(&l, cases[i].name);
        refused(-ENOENT, "model.safetensors: |there is no tensor");
        expect_words(err.text, end_of_name ? end_of_name : cases[i].name);
        cr_expect_null(strstr(err.text, "missing or wrong"), "only one: %s", err.text);
    }
}

Test(model_tensors_check, all_bad_tensors_are_counted)
{
    list_of(DENSE);
    tensor_list_drop(&l, "model.layers.1.mlp.up_proj.weight");
    tensor_list_drop(&l, "model.layers.1.mlp.gate_proj.weight");
    tensor_list_drop(&l, "model.norm.weight");
    tensor_list_get(&l, "model.layers.0.self_attn.k_proj.weight")->shape[0]++;
    refused(-EINVAL, "4 tensors|the first: |layers.0.self_attn.k_proj.weight");
    list_of(EXPERTS);
    for (size_t i = l.count; i-- > 0;)
        if (strstr(l.items[i].name, "language_model.layers.3.mlp.experts.") && !strstr(l.items[i].name, "_scale_inv"))
            l.items[i] = l.items[--l.count];
    refused(-ENOENT, "96 tensors|layers.3.mlp.experts.0.gate_proj.weight");
}

Test(model_tensors_check, missing_or_wrong_scales)
{
    list_of(DENSE);
    tensor_list_drop(&l, "model.layers.1.mlp.down_proj.weight_scale_inv");
    refused(-ENOENT, "scales|model.layers.1.mlp.down_proj.weight_scale_inv");
    list_of(DENSE);
    tensor_list_get(&l, "model.layers.1.mlp.down_proj.weight_scale_inv")->shape[1] = 2;
    refused(-EINVAL, "model.layers.1.mlp.down_proj.weight_scale_inv|[2, 2]|[2, 3]");
    list_of(V3);
    tensor_list_get(&l, "model.layers.0.self_attn.q_b_proj.weight_scale_inv")->shape[0] = 1;
    refused(-EINVAL, "q_b_proj.weight_scale_inv|[1, 1]|[2, 1]");
}

Test(model_tensors_check, wrong_shapes)
{
    static const struct {
        const char *fixture, *name, *words;
        unsigned at;
        uint64_t size;
    } cases[] = {
        {DENSE, "model.embed_tokens.weight", "[1000, 192]|[1024, 192]", 0, 1000},
        {DENSE, "model.norm.weight", "[191]|[192]", 0, 191},
        {HYBRID, "model.language_model.layers.3.self_attn.q_proj.weight", "[256, 192]|[512, 192]", 0, 256},
        {HYBRID, "model.language_model.layers.0.linear_attn.conv1d.weight", "[256, 1, 3]|[256, 1, 4]", 2, 3},
        {HYBRID, "model.language_model.layers.0.linear_attn.norm.weight", "[128]|[32]", 0, 128},
        {EXPERTS, "model.language_model.layers.0.mlp.shared_expert_gate.weight", "[2, 128]|[1, 128]", 0, 2},
        {EXPERTS, "model.language_model.layers.0.mlp.experts.3.gate_proj.weight", "[64, 128]|[32, 128]", 0, 64},
        {V3, "model.layers.1.mlp.gate.weight", "[16, 160]|[32, 160]", 0, 16},
        {V32, "model.layers.0.self_attn.indexer.weights_proj.weight", "[4, 160]|[16, 160]", 0, 4},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        list_of(cases[i].fixture);
        tensor_list_get(&l, cases[i].name)->shape[cases[i].at] = cases[i].size;
        refused(-EINVAL, cases[i].name);
        expect_words(err.text, cases[i].words);
    }
}

Test(model_tensors_check, fp8_where_none_is_expected)
{
    list_of(V32);
    snprintf(tensor_list_get(&l, "model.layers.0.self_attn.indexer.weights_proj.weight")->dtype, 16, "F8_E4M3");
    refused(-EINVAL, "weights_proj.weight|F8_E4M3|BF16, F16 or F32");
}

Test(model_tensors_check, extra_tensor_is_left_over)
{
    list_of(DENSE);
    tensor_list_add(&l, "model.layers.0.self_attn.rotary_emb.inv_freq", "F32", 32, 0);
    cr_expect_eq(check(), 0, "%s", err.text);
    cr_expect_eq(strays(), 1);
}

/* gate, up and down of one feed-forward are multiplied by one kernel. */
Test(model_tensors_check, types_within_a_feed_forward)
{
    list_of(DENSE);
    snprintf(tensor_list_get(&l, "model.layers.1.mlp.down_proj.weight")->dtype, 16, "BF16");
    tensor_list_drop(&l, "model.layers.1.mlp.down_proj.weight_scale_inv");
    refused(-ENOTSUP, "layers.1.mlp.gate_proj.weight|F8_E4M3|layers.1.mlp.down_proj.weight|BF16");
}

Test(model_tensors_check, fused_experts)
{
    list_of(EXPERTS);
    tensor_list_fuse(&l, 8, 32);
    cr_expect_eq(check(), 0, "%s", err.text);
    cr_expect_eq(strays(), 0);
    tensor_list_get(&l, "model.language_model.layers.6.mlp.experts.gate_up_proj")->shape[1] = 32;
    refused(-EINVAL, "layers.6.mlp.experts.gate_up_proj|[32, 32, 128]|[32, 64, 128]");
    list_of(EXPERTS);
    tensor_list_fuse(&l, 8, 32);
    tensor_list_drop(&l, "model.language_model.layers.2.mlp.experts.down_proj");
    tensor_list_drop(&l, "model.language_model.norm.weight");
    refused(-ENOENT, "2 tensors|model.norm.weight");
}

/* One layer each of the families that have no fixture. */
static void family_list(const char *model_type, int biases)
{
    char text[512];

    snprintf(text, sizeof text,
             "{\"model_type\":\"%s\",\"hidden_size\":64,\"num_hidden_layers\":1,\"num_attention_heads\":4,"
             "\"num_key_value_heads\":2,\"vocab_size\":100,\"max_position_embeddings\":128,\"rms_norm_eps\":1e-6,"
             "\"intermediate_size\":96,\"rope_theta\":10000,\"sliding_window\":null}",
             model_type);
    tensor_list_end(&l);
    tensor_list_begin(&l, text);
    tensor_list_add(&l, "model.embed_tokens.weight", "BF16", 100, 64);
    tensor_list_add(&l, "model.norm.weight", "BF16", 64, 0);
    tensor_list_add(&l, "lm_head.weight", "BF16", 100, 64);
    tensor_list_add(&l, "model.layers.0.input_layernorm.weight", "BF16", 64, 0);
    tensor_list_add(&l, "model.layers.0.post_attention_layernorm.weight", "BF16", 64, 0);
    tensor_list_add(&l, "model.layers.0.self_attn.q_proj.weight", "BF16", 64, 64);
    tensor_list_add(&l, "model.layers.0.self_attn.k_proj.weight", "BF16", 32, 64);
    tensor_list_add(&l, "model.layers.0.self_attn.v_proj.weight", "BF16", 32, 64);
    tensor_list_add(&l, "model.layers.0.self_attn.o_proj.weight", "BF16", 64, 64);
    tensor_list_add(&l, "model.layers.0.mlp.gate_proj.weight", "BF16", 96, 64);
    tensor_list_add(&l, "model.layers.0.mlp.up_proj.weight", "BF16", 96, 64);
    tensor_list_add(&l, "model.layers.0.mlp.down_proj.weight", "BF16", 64, 96);
    if (!biases)
        return;
    tensor_list_add(&l, "model.layers.0.self_attn.q_proj.bias", "BF16", 64, 0);
    tensor_list_add(&l, "model.layers.0.self_attn.k_proj.bias", "BF16", 32, 0);
    tensor_list_add(&l, "model.layers.0.self_attn.v_proj.bias", "BF16", 32, 0);
}

Test(model_tensors_check, llama_mistral_and_qwen2)
{
    static const char *const types[] = {"llama", "mistral", "qwen2"};

    for (size_t i = 0; i < 3; i++) {
        family_list(types[i], i == 2);
        cr_expect_eq(check(), 0, "%s: %s", types[i], err.text);
        cr_expect_eq(strays(), 0);
    }
    family_list("llama", 1); /* biases would change the result: the caller says that they are left over */
    cr_expect_eq(check(), 0, "%s", err.text);
    cr_expect_eq(strays(), 3);
    family_list("qwen2", 0);
    refused(-ENOENT, "3 tensors|model.layers.0.self_attn.q_proj.bias");
}
