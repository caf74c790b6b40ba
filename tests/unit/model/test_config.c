/* SPDX-License-Identifier: Apache-2.0 */
/* config.json: the fixtures, the published releases, and every field that changes the model. */
#include <criterion/criterion.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/config.h"
#include "model_folder.h"

/* The fields of a release, in the spelling of its time. */
#define COMMON                                                                                                 \
    "\"attention_bias\":false,\"attention_dropout\":0.0,\"bos_token_id\":1,\"eos_token_id\":2,\"hidden_act\":" \
    "\"silu\","                                                                                                \
    "\"initializer_range\":0.02,\"use_cache\":true,\"transformers_version\":\"4.51.0\",\"torch_dtype\":\"bfloat16\","
#define FP8                                                                                                 \
    "\"quantization_config\":{\"activation_scheme\":\"dynamic\",\"fmt\":\"e4m3\",\"quant_method\":\"fp8\"," \
    "\"weight_block_size\":[128,128],\"modules_to_not_convert\":[\"lm_head\",\"model.layers.0.mlp.gate\"]},"
#define SIZES(hidden, layers, heads, kv, inter, vocab)                                              \
    "\"hidden_size\":" #hidden ",\"num_hidden_layers\":" #layers ",\"num_attention_heads\":" #heads \
    ",\"num_key_value_heads\":" #kv ",\"intermediate_size\":" #inter ",\"vocab_size\":" #vocab ","
#define QWEN3(type, architecture)                                                                                   \
    "\"model_type\":\"" type "\",\"architectures\":[\"" architecture "\"],\"head_dim\":128,\"rms_norm_eps\":1e-06," \
    "\"rope_scaling\":null,\"rope_theta\":1000000,\"sliding_window\":null,\"use_sliding_window\":false,"            \
    "\"max_window_layers\":28,\"max_position_embeddings\":40960,"
#define QWEN3_DENSE(sizes, tied) "{" COMMON QWEN3("qwen3", "Qwen3ForCausalLM") sizes "\"tie_word_embeddings\":" tied "}"
#define QWEN3_MOE(sizes, moe_inter)                                                                                    \
    "{" COMMON QWEN3("qwen3_moe", "Qwen3MoeForCausalLM") sizes FP8                                                     \
        "\"tie_word_embeddings\":false,\"decoder_sparse_step\":1,\"mlp_only_layers\":[],\"norm_topk_prob\":true,"      \
        "\"num_experts\":128,\"num_experts_per_tok\":8,\"output_router_logits\":false,\"router_aux_loss_coef\":0.001," \
        "\"moe_intermediate_size\":" #moe_inter "}"
/* Written by transformers 5: rope_parameters and dtype. No head_dim. */
#define LLAMA(sizes)                                                                                                 \
    "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"hidden_act\":\"silu\",\"mlp_bias\":false," \
    "\"attention_bias\":false,\"pretraining_tp\":1,\"rms_norm_eps\":1e-05,\"max_position_embeddings\":131072,"       \
    "\"dtype\":\"bfloat16\",\"tie_word_embeddings\":false," sizes                                                    \
    "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":500000.0}}"

static const struct release {
    const char *name, *config;
    double parameters; /* 1e9, as published */
} releases[] = {
    {"Qwen3-0.6B", QWEN3_DENSE(SIZES(1024, 28, 16, 8, 3072, 151936), "true"), 0.596},
    {"Qwen3-1.7B", QWEN3_DENSE(SIZES(2048, 28, 16, 8, 6144, 151936), "true"), 1.721},
    {"Qwen3-4B", QWEN3_DENSE(SIZES(2560, 36, 32, 8, 9728, 151936), "true"), 4.022},
    {"Qwen3-8B", QWEN3_DENSE(SIZES(4096, 36, 32, 8, 12288, 151936), "false"), 8.191},
    {"Qwen3-14B", QWEN3_DENSE(SIZES(5120, 40, 40, 8, 17408, 151936), "false"), 14.768},
    {"Qwen3-32B", QWEN3_DENSE(SIZES(5120, 64, 64, 8, 25600, 151936), "false"), 32.762},
    {"Qwen3-30B-A3B-FP8", QWEN3_MOE(SIZES(2048, 48, 32, 4, 6144, 151936), 768), 30.53},
    {"Qwen3-235B-A22B-FP8", QWEN3_MOE(SIZES(4096, 94, 64, 4, 12288, 151936), 1536), 235.09},
    {"Llama-3.1-8B", LLAMA(SIZES(4096, 32, 32, 8, 14336, 128256)), 8.030},
    {"Llama-3.1-70B", LLAMA(SIZES(8192, 80, 64, 8, 28672, 128256)), 70.554},
};

#define DENSE_BASE releases[0].config
#define MOE_BASE   releases[6].config
#define LLAMA_BASE releases[8].config

static int parse(const char *text, struct dk_model_config *c, struct dk_err *err)
{
    memset(err, 0, sizeof *err);
    return dk_model_config_parse(text, strlen(text), "config.json", c, err);
}

Test(config, parameters_of_the_releases)
{
    for (size_t i = 0; i < sizeof releases / sizeof *releases; i++) {
        struct dk_model_config c;
        struct dk_err err;

        cr_assert_eq(parse(releases[i].config, &c, &err), 0, "%s: %s", releases[i].name, err.text);
        cr_expect_float_eq((double)dk_model_parameters(&c) / 1e9 / releases[i].parameters, 1, 0.005, "%s: %.4f",
                           releases[i].name, (double)dk_model_parameters(&c) / 1e9);
    }
}

Test(config, fields_of_a_dense_release)
{
    struct dk_model_config c;
    struct dk_err err;

    cr_assert_eq(parse(DENSE_BASE, &c, &err), 0, "%s", err.text);
    cr_expect_eq(c.family, DK_FAMILY_QWEN3);
    cr_expect_str_eq(c.model_type, "qwen3");
    cr_expect(c.hidden == 1024 && c.layers == 28 && c.heads == 16 && c.kv_heads == 8 && c.head_dim == 128);
    cr_expect(c.intermediate == 3072 && c.moe_intermediate == 0 && c.experts == 0 && c.top_k == 0);
    cr_expect(c.vocab == 151936 && c.context_max == 40960 && c.tied && c.scale_block == 0);
    cr_expect_eq(c.rms_eps, 1e-6f);
    cr_expect_eq(c.rope_theta, 1e6);
    for (uint32_t i = 0; i < 512; i++)
        cr_expect_not(c.layer_is_moe[i]);
}

Test(config, fields_of_a_moe_release)
{
    struct dk_model_config c;
    struct dk_err err;

    cr_assert_eq(parse(MOE_BASE, &c, &err), 0, "%s", err.text);
    cr_expect_eq(c.family, DK_FAMILY_QWEN3_MOE);
    cr_expect(c.intermediate == 0 && c.moe_intermediate == 768 && c.experts == 128 && c.top_k == 8 && c.norm_topk);
    cr_expect(c.scale_block == 128 && !c.tied);
    for (uint32_t i = 0; i < 512; i++)
        cr_expect_eq(c.layer_is_moe[i], i < 48);
}

Test(config, fields_of_a_llama_release)
{
    struct dk_model_config c;
    struct dk_err err;

    cr_assert_eq(parse(LLAMA_BASE, &c, &err), 0, "%s", err.text);
    cr_expect_eq(c.family, DK_FAMILY_LLAMA);
    cr_expect_eq(c.head_dim, 128);
    cr_expect_eq(c.rope_theta, 5e5);
    cr_expect_eq(c.rms_eps, 1e-5f);
}

/* base with one field replaced: value is JSON, or NULL to take the field away. */
static char *changed(const char *base, const char *field, const char *value)
{
    json_t *root = json_loads(base, 0, NULL), *v;
    char *text;

    cr_assert(root);
    if (value) {
        v = json_loads(value, JSON_DECODE_ANY, NULL);
        cr_assert(v, "%s", value);
        json_object_set_new(root, field, v);
    } else {
        cr_assert_eq(json_object_del(root, field), 0, "%s", field);
    }
    text = json_dumps(root, 0);
    json_decref(root);
    return text;
}

static int parse_changed(const char *base, const char *field, const char *value, struct dk_model_config *c,
                         struct dk_err *err)
{
    char *text = changed(base, field, value);
    int rc = parse(text, c, err);

    free(text);
    return rc;
}

enum base { DENSE, MOE, LLAMA_ };

static const char *base_text(enum base b)
{
    return b == DENSE ? DENSE_BASE : b == MOE ? MOE_BASE : LLAMA_BASE;
}

static const struct refusal {
    enum base base;
    const char *field, *value;
    int rc;
    const char *words; /* beside the file and the field */
} refusals[] = {
    {DENSE, "model_type", "\"qwen3_5\"", -ENOTSUP, "\"qwen3_5\"|llama|qwen3|qwen3_moe"},
    {DENSE, "model_type", NULL, -EINVAL, "missing"},
    {DENSE, "model_type", "3", -EINVAL, "3|text"},
    {DENSE, "architectures", "[\"Qwen3ForSequenceClassification\"]", -ENOTSUP, "Qwen3ForSequenceClassification"},
    {DENSE, "architectures", "\"Qwen3ForCausalLM\"", -ENOTSUP, "ForCausalLM"},
    {DENSE, "attention_bias", "true", -ENOTSUP, "true|false"},
    {DENSE, "attention_bias", "0", -EINVAL, "0|true or false"},
    {LLAMA_, "mlp_bias", "true", -ENOTSUP, "true|false"},
    {DENSE, "hidden_act", "\"gelu\"", -ENOTSUP, "gelu|silu"},
    {DENSE, "hidden_act", "[]", -EINVAL, "[]|text"},
    {DENSE, "layer_types", "[\"full_attention\",\"sliding_attention\"]", -ENOTSUP, "sliding_attention|full_attention"},
    {DENSE, "layer_types", "[1]", -ENOTSUP, "full_attention"},
    {DENSE, "layer_types", "{}", -EINVAL, "list"},
    {DENSE, "partial_rotary_factor", "0.5", -ENOTSUP, "0.5|only 1"},
    /* rotation */
    {DENSE, "rope_scaling", "{\"type\":\"yarn\",\"factor\":4.0}", -ENOTSUP, "type|yarn|default"},
    {DENSE, "rope_scaling", "{\"rope_type\":\"llama3\",\"factor\":8.0}", -ENOTSUP, "rope_type|llama3|default"},
    {DENSE, "rope_scaling", "{\"factor\":8.0}", -ENOTSUP, "factor|default"},
    {DENSE, "rope_scaling", "\"yarn\"", -EINVAL, "yarn|object"},
    {DENSE, "rope_scaling", "{\"type\":2}", -EINVAL, "type|2"},
    {LLAMA_, "rope_parameters", "{\"rope_type\":\"llama3\",\"rope_theta\":500000.0,\"factor\":8.0}", -ENOTSUP,
     "llama3"},
    {LLAMA_, "rope_parameters", "{\"rope_type\":\"default\",\"rope_theta\":5e5,\"partial_rotary_factor\":0.25}",
     -ENOTSUP, "partial_rotary_factor|0.25"},
    {LLAMA_, "rope_parameters", "{\"rope_type\":\"default\",\"rope_theta\":\"5e5\"}", -EINVAL, "rope_theta|number"},
    {LLAMA_, "rope_parameters", "{\"full_attention\":{\"rope_type\":\"default\"}}", -ENOTSUP, "full_attention"},
    {DENSE, "rope_parameters", "{\"rope_type\":\"default\",\"rope_theta\":5000000}", -EINVAL, ""},
    {DENSE, "rope_theta", NULL, -EINVAL, "missing"},
    {DENSE, "rope_theta", "0", -EINVAL, "0|number"},
    {DENSE, "rope_theta", "-1e6", -EINVAL, "number"},
    {DENSE, "rope_theta", "\"1e6\"", -EINVAL, "number"},
    /* sizes */
    {DENSE, "hidden_size", NULL, -EINVAL, "missing"},
    {DENSE, "hidden_size", "null", -EINVAL, "missing"},
    {DENSE, "hidden_size", "0", -EINVAL, "0|from 1"},
    {DENSE, "hidden_size", "-1024", -EINVAL, "-1024|from 1"},
    {DENSE, "hidden_size", "1024.0", -EINVAL, "1024.0|whole number"},
    {DENSE, "hidden_size", "\"1024\"", -EINVAL, "whole number"},
    {DENSE, "hidden_size", "4294968320", -EINVAL, "4294968320|whole number"},
    {DENSE, "hidden_size", "9223372036854775807", -EINVAL, "whole number"},
    {DENSE, "num_hidden_layers", NULL, -EINVAL, "missing"},
    {DENSE, "num_hidden_layers", "513", -EINVAL, "513|512"},
    {DENSE, "num_hidden_layers", "0", -EINVAL, "0|from 1"},
    {DENSE, "num_attention_heads", NULL, -EINVAL, "missing"},
    {DENSE, "num_attention_heads", "0", -EINVAL, "0|from 1"},
    {DENSE, "num_key_value_heads", NULL, -EINVAL, "missing"},
    {DENSE, "num_key_value_heads", "3", -EINVAL, "3|divide"},
    {DENSE, "num_key_value_heads", "0", -EINVAL, "0|from 1"},
    {DENSE, "num_key_value_heads", "32", -EINVAL, "32|divide"},
    {DENSE, "head_dim", "127", -EINVAL, "127|even"},
    {DENSE, "head_dim", "0", -EINVAL, "0|from 2"},
    {DENSE, "head_dim", "true", -EINVAL, "true|whole number"},
    {DENSE, "intermediate_size", NULL, -EINVAL, "missing"},
    {DENSE, "intermediate_size", "0", -EINVAL, "0|from 1"},
    {DENSE, "intermediate_size", "100000000", -EINVAL, "100000000"},
    {DENSE, "vocab_size", NULL, -EINVAL, "missing"},
    {DENSE, "vocab_size", "0", -EINVAL, "0|from 1"},
    {DENSE, "vocab_size", "2000000000", -EINVAL, "2000000000"},
    {DENSE, "max_position_embeddings", NULL, -EINVAL, "missing"},
    {DENSE, "max_position_embeddings", "0", -EINVAL, "0|from 1"},
    {DENSE, "rms_norm_eps", NULL, -EINVAL, "missing"},
    {DENSE, "rms_norm_eps", "0", -EINVAL, "0|number"},
    {DENSE, "rms_norm_eps", "1.5", -EINVAL, "1.5|number"},
    {DENSE, "tie_word_embeddings", "\"yes\"", -EINVAL, "yes|true or false"},
    /* experts */
    {MOE, "num_experts", NULL, -EINVAL, "missing"},
    {MOE, "num_experts", "0", -EINVAL, "0|from 1"},
    {MOE, "num_experts", "5000", -EINVAL, "5000"},
    {MOE, "num_experts_per_tok", NULL, -EINVAL, "missing"},
    {MOE, "num_experts_per_tok", "0", -EINVAL, "0|from 1"},
    {MOE, "num_experts_per_tok", "129", -EINVAL, "129|num_experts"},
    {MOE, "moe_intermediate_size", NULL, -EINVAL, "missing"},
    {MOE, "moe_intermediate_size", "0", -EINVAL, "0|from 1"},
    {MOE, "norm_topk_prob", "1", -EINVAL, "1|true or false"},
    {MOE, "decoder_sparse_step", "0", -EINVAL, "0|from 1"},
    {MOE, "mlp_only_layers", "[48]", -EINVAL, "48|47"},
    {MOE, "mlp_only_layers", "[-1]", -EINVAL, "-1"},
    {MOE, "mlp_only_layers", "[\"0\"]", -EINVAL, "whole number"},
    {MOE, "shared_expert_intermediate_size", "512", -ENOTSUP, "512|shared"},
    {MOE, "n_shared_experts", "1", -ENOTSUP, "1|shared"},
    /* quantisation */
    {MOE, "quantization_config", "[]", -EINVAL, "object"},
    {MOE, "quantization_config", "{}", -EINVAL, "quant_method|missing"},
    {MOE, "quantization_config", "{\"quant_method\":\"gptq\",\"bits\":4}", -ENOTSUP, "quant_method|gptq|fp8"},
    {MOE, "quantization_config", "{\"quant_method\":\"fp8\"}", -EINVAL, "weight_block_size|missing"},
    {MOE, "quantization_config", "{\"quant_method\":\"fp8\",\"weight_block_size\":[64,128]}", -ENOTSUP,
     "weight_block_size|[64,128]|[128,128]"},
    {MOE, "quantization_config", "{\"quant_method\":\"fp8\",\"weight_block_size\":[128,64]}", -ENOTSUP,
     "weight_block_size|[128,64]|[128,128]"},
    {MOE, "quantization_config", "{\"quant_method\":\"fp8\",\"weight_block_size\":[128]}", -ENOTSUP,
     "weight_block_size|[128]|[128,128]"},
    {MOE, "quantization_config", "{\"quant_method\":\"fp8\",\"weight_block_size\":128}", -ENOTSUP,
     "weight_block_size|128|[128,128]"},
    {MOE, "quantization_config", "{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128,128]}", -EINVAL,
     "weight_block_size"},
    {MOE, "quantization_config", "{\"quant_method\":\"fp8\",\"fmt\":\"e5m2\",\"weight_block_size\":[128,128]}",
     -ENOTSUP, "fmt|e5m2|e4m3"},
    {MOE, "quantization_config",
     "{\"quant_method\":\"fp8\",\"activation_scheme\":\"static\",\"weight_block_size\":[128,128]}", -ENOTSUP,
     "activation_scheme|static|dynamic"},
    {DENSE, "compression_config", "{\"quant_method\":\"compressed-tensors\"}", -ENOTSUP, "compressed-tensors"},
};

Test(config, refused_fields)
{
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const struct refusal *f = &refusals[i];
        struct dk_model_config c;
        struct dk_err err;
        int rc = parse_changed(base_text(f->base), f->field, f->value, &c, &err);

        cr_expect_eq(rc, f->rc, "%s = %s: %d %s", f->field, f->value ? f->value : "(absent)", rc, err.text);
        cr_expect_eq(err.rc, rc);
        expect_words(err.text, "config.json: ");
        expect_words(err.text, f->field);
        expect_words(err.text, f->words);
        cr_expect_eq(c.hidden, 0, "nothing is left of a config that is refused");
    }
}

static const struct allowance {
    enum base base;
    const char *field, *value;
} allowances[] = {
    {DENSE, "some_new_field", "{\"a\":[1,2]}"},
    {DENSE, "torch_dtype", "\"float8_e4m3fn\""},
    {DENSE, "torch_dtype", NULL},
    {DENSE, "dtype", "5"},
    {DENSE, "architectures", NULL},
    {DENSE, "architectures", "[]"},
    {DENSE, "rope_scaling", NULL},
    {DENSE, "rope_scaling", "{\"type\":\"default\"}"},
    {DENSE, "rope_scaling", "{\"rope_type\":\"default\",\"type\":\"default\"}"},
    {DENSE, "rope_theta", "1000000.0"},
    {DENSE, "rope_parameters", "{\"rope_type\":\"default\",\"rope_theta\":1e6,\"partial_rotary_factor\":1.0}"},
    {DENSE, "partial_rotary_factor", "1.0"},
    {DENSE, "sliding_window", "4096"},     /* not in use */
    {DENSE, "use_sliding_window", "true"}, /* with sliding_window null */
    {DENSE, "layer_types", "[\"full_attention\",\"full_attention\"]"},
    {DENSE, "attention_bias", NULL},
    {DENSE, "hidden_act", NULL},
    {DENSE, "quantization_config", "null"},
    {DENSE, "quantization_config",
     "{\"quant_method\":\"fp8\",\"scale_fmt\":\"ue8m0\",\"weight_block_size\":[128,128]}"},
    {MOE, "decoder_sparse_step", NULL},
    {MOE, "mlp_only_layers", NULL},
    {MOE, "intermediate_size", NULL}, /* no layer is dense */
    {MOE, "shared_expert_intermediate_size", "0"},
    {LLAMA_, "num_key_value_heads", NULL},
    {LLAMA_, "head_dim", "128"},
    {LLAMA_, "rope_parameters", NULL},
};

Test(config, allowed_fields)
{
    for (size_t i = 0; i < sizeof allowances / sizeof *allowances; i++) {
        const struct allowance *a = &allowances[i];
        struct dk_model_config c;
        struct dk_err err;

        cr_expect_eq(parse_changed(base_text(a->base), a->field, a->value, &c, &err), 0, "%s = %s: %s", a->field,
                     a->value ? a->value : "(absent)", err.text);
        cr_expect_eq(err.rc, 0);
    }
}

Test(config, sliding_window_in_use)
{
    char *text = changed(DENSE_BASE, "sliding_window", "4096");
    struct dk_model_config c;
    struct dk_err err;

    cr_expect_eq(parse_changed(text, "use_sliding_window", "true", &c, &err), -ENOTSUP);
    expect_words(err.text, "use_sliding_window|true");
    free(text);
}

Test(config, defaults_of_absent_fields)
{
    struct dk_model_config c;
    struct dk_err err;

    cr_assert_eq(parse_changed(LLAMA_BASE, "rope_parameters", NULL, &c, &err), 0);
    cr_expect_eq(c.rope_theta, 10000);
    cr_assert_eq(parse_changed(LLAMA_BASE, "num_key_value_heads", NULL, &c, &err), 0);
    cr_expect_eq(c.kv_heads, 32);
    cr_assert_eq(parse_changed(DENSE_BASE, "tie_word_embeddings", NULL, &c, &err), 0);
    cr_expect_not(c.tied);
    cr_assert_eq(parse_changed(DENSE_BASE, "head_dim", NULL, &c, &err), 0);
    cr_expect_eq(c.head_dim, 64);
    cr_assert_eq(parse_changed(MOE_BASE, "norm_topk_prob", NULL, &c, &err), 0);
    cr_expect_not(c.norm_topk);
}

Test(config, head_dim_cannot_be_deduced)
{
    char *text = changed(DENSE_BASE, "head_dim", NULL);
    struct dk_model_config c;
    struct dk_err err;

    cr_expect_eq(parse_changed(text, "hidden_size", "1000", &c, &err), -EINVAL);
    expect_words(err.text, "hidden_size|1000|head_dim");
    cr_expect_eq(parse_changed(text, "hidden_size", "1040", &c, &err), -EINVAL); /* 65: odd */
    expect_words(err.text, "head_dim|even");
    free(text);
}

/* Both fields together: layer i has experts if (i + 1) % decoder_sparse_step == 0 and mlp_only_layers lists it not. */
Test(config, dense_layers_between_experts)
{
    char *text = changed(MOE_BASE, "decoder_sparse_step", "3");
    struct dk_model_config c;
    struct dk_err err;
    uint32_t moe = 0;

    cr_assert_eq(parse_changed(text, "mlp_only_layers", "[5,0]", &c, &err), 0, "%s", err.text);
    for (uint32_t i = 0; i < 48; i++) {
        cr_expect_eq(c.layer_is_moe[i], i % 3 == 2 && i != 5, "layer %u", i);
        moe += c.layer_is_moe[i];
    }
    cr_expect_eq(moe, 15);
    cr_expect_eq(c.intermediate, 6144);
    free(text);
    text = changed(MOE_BASE, "decoder_sparse_step", "49"); /* no layer has experts */
    cr_assert_eq(parse(text, &c, &err), 0, "%s", err.text);
    cr_expect(c.experts == 0 && c.top_k == 0 && c.moe_intermediate == 0 && c.intermediate == 6144);
    free(text);
}

Test(config, broken_text)
{
    static const char *const texts[] = {"",
                                        "{",
                                        "[]",
                                        "3",
                                        "{} {}",
                                        "{\"model_type\":\"qwen3\",\"model_type\":\"llama\"}",
                                        "{\"model_type\":\"\xff\"}",
                                        "null"};
    struct dk_model_config c;
    struct dk_err err;

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        cr_expect_eq(parse(texts[i], &c, &err), -EINVAL, "%s", texts[i]);
        expect_words(err.text, "config.json: not ");
    }
    cr_expect_eq(dk_model_config_parse(DENSE_BASE, strlen(DENSE_BASE) - 1, "config.json", &c, NULL), -EINVAL);
}

Test(config, load)
{
    struct model_folder f;
    struct dk_model_config c;
    struct dk_err err = {0};

    cr_expect_eq(dk_model_config_load(FIXTURES "/qwen3-moe-fp8-tiny", &c, &err), 0, "%s", err.text);
    cr_expect(c.hidden == 256 && c.experts == 16 && c.top_k == 4 && c.moe_intermediate == 192 && c.scale_block == 128);
    folder_make(&f);
    cr_expect_eq(dk_model_config_load(f.path, &c, &err), -ENOENT);
    expect_words(err.text, f.path);
    expect_words(err.text, "config.json");
    folder_text(&f, "config.json", "{}");
    cr_expect_eq(dk_model_config_load(f.path, &c, &err), -EINVAL);
    expect_words(err.text, f.path);
    expect_words(err.text, "model_type|missing");
    folder_remove(&f);
}
