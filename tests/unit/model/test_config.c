/* SPDX-License-Identifier: Apache-2.0 */
/* config.json: what all families share, and the fields of Qwen3 and Llama. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config_text.h"
#include "model_folder.h"

#define DENSE  "Qwen3-0.6B"
#define MOE    "Qwen3-30B-A3B-FP8"
#define LLAMA_ "Llama-3.1-8B"

Test(config, fields_of_a_dense_release)
{
    struct dk_model_config c = config_released(DENSE);

    cr_expect_eq(c.family, DK_FAMILY_QWEN3);
    cr_expect_str_eq(c.model_type, "qwen3");
    cr_expect(c.hidden == 1024 && c.layers == 28 && c.heads == 16 && c.kv_heads == 8 && c.head_dim == 128);
    cr_expect(c.intermediate == 3072 && c.moe_intermediate == 0 && c.experts == 0 && c.top_k == 0);
    cr_expect(c.vocab == 151936 && c.context_max == 40960 && c.tied && c.scale_block == 0);
    cr_expect(c.qk_norm && !c.qkv_bias && !c.output_gate && !c.norm_one_plus);
    cr_expect(c.delta.conv_taps == 0 && c.mla.kv_rank == 0 && c.index.heads == 0 && c.mtp_layers == 0);
    cr_expect(c.shared_intermediate == 0 && !c.shared_gate && c.routed_scale == 1);
    cr_expect_eq(c.rms_eps, 1e-6f);
    for (uint32_t i = 0; i < 512; i++)
        cr_expect(!c.layer_is_moe[i] && c.mixer[i] == DK_MIXER_ATTENTION);
}

Test(config, fields_of_a_moe_release)
{
    struct dk_model_config c = config_released(MOE);

    cr_expect_eq(c.family, DK_FAMILY_QWEN3_MOE);
    cr_expect(c.intermediate == 0 && c.moe_intermediate == 768 && c.experts == 128 && c.top_k == 8 && c.norm_topk);
    cr_expect(c.router == DK_ROUTER_SOFTMAX && c.routed_scale == 1 && c.shared_intermediate == 0);
    cr_expect(c.qk_norm && c.scale_block == 128 && !c.tied);
    for (uint32_t i = 0; i < 512; i++)
        cr_expect_eq(c.layer_is_moe[i], i < 48);
}

Test(config, fields_of_a_llama_release)
{
    struct dk_model_config c = config_released(LLAMA_);

    cr_expect_eq(c.family, DK_FAMILY_LLAMA);
    cr_expect(c.head_dim == 128 && c.kv_heads == 8 && !c.qk_norm && !c.qkv_bias && !c.tied);
    cr_expect_eq(c.rms_eps, 1e-5f);
}

Test(config, names_of_families)
{
    static const char *const names[] = {"llama",   "mistral",     "qwen2",       "qwen3",       "qwen3_moe",
                                        "qwen3_5", "qwen3_5_moe", "deepseek_v3", "deepseek_v32"};

    cr_assert_eq(sizeof names / sizeof *names, DK_FAMILY_COUNT);
    for (int i = 0; i < DK_FAMILY_COUNT; i++)
        cr_expect_str_eq(dk_family_name((enum dk_family)i), names[i]);
    cr_expect_str_eq(dk_family_name(DK_FAMILY_COUNT), "unknown");
}

static const struct config_case refusals[] = {
    {DENSE, "model_type", "\"gpt2\"", -ENOTSUP, "\"gpt2\"|llama|mistral|qwen2|qwen3_moe|qwen3_5_text|deepseek_v32"},
    {DENSE, "model_type", NULL, -EINVAL, "missing"},
    {DENSE, "model_type", "3", -EINVAL, "3|text"},
    {DENSE, "architectures", "[\"Qwen3ForSequenceClassification\"]", -ENOTSUP, "Qwen3ForSequenceClassification"},
    {DENSE, "architectures", "\"Qwen3ForCausalLM\"", -ENOTSUP, "ForCausalLM"},
    {DENSE, "attention_bias", "true", -ENOTSUP, "true|false"},
    {DENSE, "attention_bias", "0", -EINVAL, "0|true or false"},
    {LLAMA_, "mlp_bias", "true", -ENOTSUP, "true|false"},
    {DENSE, "hidden_act", "\"gelu\"", -ENOTSUP, "gelu|silu"},
    {DENSE, "hidden_act", "[]", -EINVAL, "[]|text"},
    {DENSE, "layer_types", "[\"full_attention\",\"full_attention\"]", -EINVAL, "num_hidden_layers"},
    {DENSE, "layer_types", "{}", -EINVAL, "list"},
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
    {DENSE, "head_dim", NULL, -EINVAL, "missing"},
    {MOE, "head_dim", NULL, -EINVAL, "missing"},
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
    {MOE, "num_local_experts", "64", -EINVAL, "num_experts is 128|num_local_experts"},
    {MOE, "num_local_experts", "0", -EINVAL, "0|from 1"},
    {MOE, "num_experts_per_tok", NULL, -EINVAL, "missing"},
    {MOE, "num_experts_per_tok", "0", -EINVAL, "0|from 1"},
    {MOE, "num_experts_per_tok", "129", -EINVAL, "129|num_experts"},
    {MOE, "moe_intermediate_size", NULL, -EINVAL, "missing"},
    {MOE, "moe_intermediate_size", "0", -EINVAL, "0|from 1"},
    {MOE, "moe_intermediate_size", "1048577", -EINVAL, "1048577|1048576"},
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
    {MOE, "quantization_config", "{\"quant_method\":\"fp8\",\"weight_block_size\":null}", -ENOTSUP,
     "weight_block_size|null|blocks of 128 x 128"},
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
    config_cases_run(refusals, sizeof refusals / sizeof *refusals);
}

static const struct config_case allowances[] = {
    {DENSE, "some_new_field", "{\"a\":[1,2]}", 0, NULL},
    {DENSE, "torch_dtype", "\"float8_e4m3fn\"", 0, NULL},
    {DENSE, "torch_dtype", NULL, 0, NULL},
    {DENSE, "dtype", "5", 0, NULL},
    {DENSE, "architectures", NULL, 0, NULL},
    {DENSE, "architectures", "[]", 0, NULL},
    {DENSE, "sliding_window", "4096", 0, NULL},     /* not in use */
    {DENSE, "use_sliding_window", "true", 0, NULL}, /* with sliding_window null */
    {DENSE, "attention_bias", NULL, 0, NULL},
    {DENSE, "hidden_act", NULL, 0, NULL},
    {DENSE, "quantization_config", "null", 0, NULL},
    {DENSE, "quantization_config", "{\"quant_method\":\"fp8\",\"scale_fmt\":\"ue8m0\",\"weight_block_size\":[128,128]}",
     0, NULL},
    {MOE, "num_local_experts", "128", 0, NULL},
    {MOE, "decoder_sparse_step", NULL, 0, NULL},
    {MOE, "mlp_only_layers", NULL, 0, NULL},
    {MOE, "intermediate_size", NULL, 0, NULL}, /* no layer is dense */
    {MOE, "shared_expert_intermediate_size", "0", 0, NULL},
    {LLAMA_, "num_key_value_heads", NULL, 0, NULL},
    {LLAMA_, "head_dim", "128", 0, NULL},
};

Test(config, allowed_fields)
{
    config_cases_run(allowances, sizeof allowances / sizeof *allowances);
}

Test(config, defaults_of_absent_fields)
{
    struct dk_model_config c = config_with(LLAMA_, "num_key_value_heads", NULL);

    cr_expect_eq(c.kv_heads, 32);
    c = config_with(DENSE, "tie_word_embeddings", NULL);
    cr_expect_not(c.tied);
    c = config_with(MOE, "norm_topk_prob", NULL);
    cr_expect_not(c.norm_topk);
}

Test(config, head_dim_cannot_be_deduced)
{
    static const struct config_case cases[] = {
        {LLAMA_, "hidden_size", "4100", -EINVAL, "4100|head_dim"},
        {LLAMA_, "hidden_size", "131104", -EINVAL, "131104|head_dim"}, /* 4097: above the limit of a head */
    };
    char *text = config_of(LLAMA_), *odd = config_changed(text, "hidden_size", "2080"); /* 65 */
    struct dk_model_config c;
    struct dk_err err;

    config_cases_run(cases, sizeof cases / sizeof *cases);
    cr_expect_eq(config_parse(odd, &c, &err), -EINVAL);
    expect_words(err.text, "head_dim|even");
    free(odd);
    free(text);
}

/* Both fields together: layer i has experts if (i + 1) % decoder_sparse_step == 0 and mlp_only_layers lists it not. */
Test(config, dense_layers_between_experts)
{
    char *text = config_of(MOE), *step = config_changed(text, "decoder_sparse_step", "3"),
         *both = config_changed(step, "mlp_only_layers", "[5,0]");
    struct dk_model_config c;
    struct dk_err err;
    uint32_t moe = 0;

    cr_assert_eq(config_parse(both, &c, &err), 0, "%s", err.text);
    for (uint32_t i = 0; i < 48; i++) {
        cr_expect_eq(c.layer_is_moe[i], i % 3 == 2 && i != 5, "layer %u", i);
        moe += c.layer_is_moe[i];
    }
    cr_expect_eq(moe, 15);
    cr_expect_eq(c.intermediate, 6144);
    c = config_with(MOE, "decoder_sparse_step", "49"); /* no layer has experts */
    cr_expect(c.experts == 0 && c.top_k == 0 && c.moe_intermediate == 0 && c.intermediate == 6144);
    free(both);
    free(step);
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
    char *whole = config_of(DENSE);
    struct dk_model_config c;
    struct dk_err err;

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        cr_expect_eq(config_parse(texts[i], &c, &err), -EINVAL, "%s", texts[i]);
        expect_words(err.text, "config.json: not ");
    }
    cr_expect_eq(dk_model_config_parse(whole, strlen(whole) - 1, "config.json", &c, NULL), -EINVAL);
    free(whole);
}

/* Python writes 1e30 for "no limit" as a whole number; in a field that nobody reads it does no harm. */
Test(config, numbers_that_64_bits_do_not_hold)
{
    static const char big[] = "1000000000000000019884624838656";
    char *whole = config_of(DENSE), *text = NULL;
    struct dk_model_config c, as_it_is = config_released(DENSE);
    struct dk_err err;

    cr_assert(asprintf(&text, "{\"model_max_length\": %s, \"lists\": [[%s], {\"a\": -%s}], %s", big, big, big,
                       strchr(whole, '{') + 1) > 0);
    cr_expect_eq(config_parse(text, &c, &err), 0, "%s", err.text);
    cr_expect_arr_eq(&c, &as_it_is, sizeof c);
    free(text);
    text = config_changed(whole, "hidden_size", "1e30");
    cr_expect_eq(config_parse(text, &c, &err), -EINVAL);
    expect_words(err.text, "hidden_size|whole number");
    free(text);
    cr_assert(asprintf(&text, "{\"a\": %s, \"a\": 1}", big) > 0);
    cr_expect_eq(config_parse(text, &c, &err), -EINVAL);
    expect_words(err.text, "duplicate");
    free(text);
    free(whole);
}

Test(config, a_byte_order_mark_is_named)
{
    struct dk_model_config c;
    struct dk_err err;

    cr_expect_eq(config_parse("\xEF\xBB\xBF{}", &c, &err), -EINVAL);
    expect_words(err.text, "config.json|byte order mark");
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
