/* SPDX-License-Identifier: Apache-2.0 */
/* config.json: attention of all kinds: windows, biases, Qwen3.5's nested file and Gated DeltaNet, latent attention. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config_text.h"
#include "model_folder.h"

#define MISTRAL "Mistral-7B-Instruct-v0.3"
#define QWEN2   "Qwen2.5-7B-Instruct"
#define DENSE   "Qwen3-0.6B"
#define MOE     "Qwen3-30B-A3B-FP8"
#define HYBRID  "Qwen3.5-27B-FP8"
#define NEWER   "Qwen3.6-27B"
#define EXPERTS "Qwen3.6-35B-A3B-FP8"
#define ALONE   "Qwen3.6-35B-A3B-text-only"
#define V3      "DeepSeek-V3"
#define V32     "DeepSeek-V3.2"

Test(config_attention, mistral)
{
    struct dk_model_config c = config_released(MISTRAL);

    cr_expect_eq(c.family, DK_FAMILY_MISTRAL);
    cr_expect(c.head_dim == 128 && c.kv_heads == 8 && !c.qk_norm && !c.qkv_bias && !c.output_gate);
    c = config_with(MISTRAL, "head_dim", "160"); /* Mistral-Nemo's is not hidden / heads either */
    cr_expect_eq(c.head_dim, 160);
}

Test(config_attention, qwen2)
{
    struct dk_model_config c = config_released(QWEN2);

    cr_expect_eq(c.family, DK_FAMILY_QWEN2);
    cr_expect(c.head_dim == 128 && c.kv_heads == 4 && !c.qk_norm && c.qkv_bias);
}

static void hybrid_check(const struct dk_model_config *c)
{
    cr_expect(c->heads == 24 && c->kv_heads == 4 && c->head_dim == 256 && c->hidden == 5120 && c->layers == 64);
    cr_expect(c->qk_norm && c->output_gate && c->norm_one_plus && !c->qkv_bias && !c->tied);
    cr_expect(c->delta.key_heads == 16 && c->delta.value_heads == 48 && c->delta.conv_taps == 4);
    cr_expect(c->delta.key_dim == 128 && c->delta.value_dim == 128 && c->mla.kv_rank == 0);
    cr_expect(c->mtp_layers == 1 && c->vocab == 248320 && c->context_max == 262144 && c->intermediate == 17408);
    for (uint32_t i = 0; i < 64; i++)
        cr_expect_eq(c->mixer[i], i % 4 == 3 ? DK_MIXER_ATTENTION : DK_MIXER_DELTA, "layer %u", i);
}

Test(config_attention, qwen3_5_and_its_successor)
{
    struct dk_model_config c = config_released(HYBRID);

    cr_expect_eq(c.family, DK_FAMILY_QWEN3_5);
    cr_expect_str_eq(c.model_type, "qwen3_5");
    cr_expect_eq(c.scale_block, 128);
    hybrid_check(&c);
    c = config_released(NEWER);
    cr_expect_eq(c.scale_block, 0);
    hybrid_check(&c);
}

/* The same model as a file of its own. */
Test(config_attention, qwen3_5_moe_and_its_text_alone)
{
    struct dk_model_config nested = config_released(EXPERTS), flat = config_released(ALONE);

    cr_expect_eq(flat.family, DK_FAMILY_QWEN3_5_MOE);
    cr_expect_str_eq(flat.model_type, "qwen3_5_moe_text");
    cr_expect_str_eq(nested.model_type, "qwen3_5_moe");
    memcpy(flat.model_type, nested.model_type, sizeof flat.model_type);
    cr_expect_arr_eq(&flat, &nested, sizeof flat);
}

/* Either field alone says which layers are which; with none it is the reference's default, every fourth. */
Test(config_attention, layers_from_either_field)
{
    char *text = config_of(NEWER), *no_types = config_changed(text, "text_config.layer_types", NULL),
         *neither = config_changed(no_types, "text_config.full_attention_interval", NULL),
         *third = config_changed(no_types, "text_config.full_attention_interval", "3");
    struct dk_model_config c = config_with(NEWER, "text_config.full_attention_interval", NULL);
    struct dk_err err;

    hybrid_check(&c);
    cr_assert_eq(config_parse(no_types, &c, &err), 0, "%s", err.text);
    hybrid_check(&c);
    cr_assert_eq(config_parse(neither, &c, &err), 0, "%s", err.text);
    hybrid_check(&c);
    cr_assert_eq(config_parse(third, &c, &err), 0, "%s", err.text);
    for (uint32_t i = 0; i < 64; i++)
        cr_expect_eq(c.mixer[i], i % 3 == 2 ? DK_MIXER_ATTENTION : DK_MIXER_DELTA, "layer %u", i);
    free(third);
    free(neither);
    free(no_types);
    free(text);
}

/* A model of 64 layers with one type in all but one of them; types are JSON. */
static int with_types(const char *all, uint32_t layer, const char *one, struct dk_model_config *c, struct dk_err *err)
{
    char *text = config_of(NEWER), *free_of = config_changed(text, "text_config.full_attention_interval", NULL),
         *changed;
    char list[4096] = "[";
    int rc;

    for (uint32_t i = 0; i < 64; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? "," : "", i == layer ? one : all);
    strcat(list, "]");
    changed = config_changed(free_of, "text_config.layer_types", list);
    rc = config_parse(changed, c, err);
    free(changed);
    free(free_of);
    free(text);
    return rc;
}

Test(config_attention, layer_types)
{
    struct dk_model_config c;
    struct dk_err err;

    cr_assert_eq(with_types("\"linear_attention\"", 5, "\"full_attention\"", &c, &err), 0, "%s", err.text);
    for (uint32_t i = 0; i < 64; i++)
        cr_expect_eq(c.mixer[i], i == 5 ? DK_MIXER_ATTENTION : DK_MIXER_DELTA, "layer %u", i);
    cr_assert_eq(with_types("\"full_attention\"", 5, "\"full_attention\"", &c, &err), 0, "%s", err.text);
    cr_expect_eq(c.delta.conv_taps, 0, "no such layer");
    cr_expect_eq(with_types("\"full_attention\"", 63, "\"sliding_attention\"", &c, &err), -ENOTSUP);
    expect_words(err.text, "layer_types|linear_attention");
    cr_expect_eq(with_types("\"full_attention\"", 0, "null", &c, &err), -ENOTSUP);
    expect_words(err.text, "layer_types");
}

Test(config_attention, mla)
{
    struct dk_model_config c = config_released(V3);

    cr_expect_eq(c.family, DK_FAMILY_DEEPSEEK_V3);
    cr_expect(c.mla.q_rank == 1536 && c.mla.kv_rank == 512 && c.mla.nope_dim == 128 && c.mla.rope_dim == 64);
    cr_expect(c.mla.value_dim == 128 && c.heads == 128 && c.kv_heads == 128 && c.head_dim == 192);
    cr_expect(c.index.heads == 0 && c.mtp_layers == 1 && !c.qk_norm && !c.norm_one_plus && c.delta.conv_taps == 0);
    for (uint32_t i = 0; i < 61; i++)
        cr_expect_eq(c.mixer[i], DK_MIXER_MLA);
    c = config_with(V3, "q_lora_rank", "null");
    cr_expect_eq(c.mla.q_rank, 0);
}

Test(config_attention, indexer)
{
    struct dk_model_config c = config_released(V32);

    cr_expect_eq(c.family, DK_FAMILY_DEEPSEEK_V32);
    cr_expect(c.index.heads == 64 && c.index.dim == 128 && c.index.top_k == 2048);
    cr_expect_eq(c.mla.q_rank, 1536);
}

static const struct config_case refusals[] = {
    {MISTRAL, "sliding_window", "4096", -ENOTSUP, "4096|null"},
    {MISTRAL, "sliding_window", NULL, -ENOTSUP, "absent|4096|write null"},
    {MISTRAL, "sliding_window", "32767", -ENOTSUP, "32767|null|as long as the context"},
    {MISTRAL, "sliding_window", "0", -EINVAL, "0|from 1"},
    {MISTRAL, "sliding_window", "\"no\"", -EINVAL, "no|whole number"},
    {MISTRAL, "num_key_value_heads", NULL, -EINVAL, "missing"},
    {MISTRAL, "attention_bias", "true", -ENOTSUP, "only false"},
    {QWEN2, "num_key_value_heads", "5", -EINVAL, "5|divide"},
    /* where the fields are */
    {HYBRID, "text_config", NULL, -EINVAL, "missing"},
    {HYBRID, "text_config", "[]", -EINVAL, "object"},
    {HYBRID, "text_config.model_type", "\"qwen3_5_moe_text\"", -ENOTSUP, "text_config|qwen3_5_moe_text|belong"},
    {HYBRID, "text_config.hidden_size", NULL, -EINVAL, "text_config|missing"},
    {HYBRID, "text_config.tie_word_embeddings", "1", -EINVAL, "text_config|1|true or false"},
    {HYBRID, "tie_word_embeddings", "\"no\"", -EINVAL, "no|true or false"},
    {HYBRID, "text_config.quantization_config", "{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}", -EINVAL,
     "outside"},
    {HYBRID, "quantization_config.weight_block_size", "[64,64]", -ENOTSUP, "quantization_config|[64,64]"},
    {NEWER, "text_config.quantization_config", "{\"quant_method\":\"gptq\"}", -ENOTSUP, "text_config|gptq"},
    {NEWER, "compression_config", "{}", -ENOTSUP, "FP8"},
    {NEWER, "text_config.compression_config", "{}", -ENOTSUP, "FP8"},
    {HYBRID, "architectures", "[\"Qwen3_5ForSequenceClassification\"]", -ENOTSUP, "ForConditionalGeneration"},
    {ALONE, "architectures", "[\"Qwen3_5MoeForConditionalGeneration\"]", -ENOTSUP, "only language models"},
    {DENSE, "text_config", "{}", -ENOTSUP, "qwen3_5"},
    /* Gated DeltaNet */
    {HYBRID, "text_config.attn_output_gate", "false", -ENOTSUP, "false|only true"},
    {HYBRID, "text_config.attention_bias", "true", -ENOTSUP, "only false"},
    {HYBRID, "text_config.head_dim", NULL, -EINVAL, "missing"},
    {HYBRID, "text_config.layer_types", "[\"full_attention\"]", -EINVAL, "num_hidden_layers"},
    {HYBRID, "text_config.full_attention_interval", "2", -EINVAL, "2|layer_types"},
    {HYBRID, "text_config.full_attention_interval", "0", -EINVAL, "0|from 1"},
    {HYBRID, "text_config.linear_num_key_heads", NULL, -EINVAL, "missing"},
    {HYBRID, "text_config.linear_num_key_heads", "0", -EINVAL, "0|from 1"},
    {HYBRID, "text_config.linear_num_key_heads", "32", -EINVAL, "32|linear_num_value_heads"},
    {HYBRID, "text_config.linear_num_value_heads", "2000", -EINVAL, "2000|1024"},
    {HYBRID, "text_config.linear_key_head_dim", "0", -EINVAL, "0|from 1"},
    {HYBRID, "text_config.linear_value_head_dim", "4096", -EINVAL, "4096|1024"},
    {HYBRID, "text_config.linear_conv_kernel_dim", "1", -EINVAL, "1|from 2"},
    {HYBRID, "text_config.linear_conv_kernel_dim", "17", -EINVAL, "17|16"},
    {NEWER, "text_config.output_gate_type", "\"sigmoid\"", -ENOTSUP, "sigmoid|silu"},
    {HYBRID, "text_config.mtp_num_hidden_layers", "-1", -EINVAL, "-1|from 0"},
    /* latent attention */
    {V3, "attention_bias", "true", -ENOTSUP, "only false"},
    {V3, "rope_interleave", "false", -ENOTSUP, "false|only true"},
    {V3, "q_lora_rank", NULL, -EINVAL, "missing"},
    {V3, "q_lora_rank", "0", -EINVAL, "0|from 1"},
    {V3, "kv_lora_rank", NULL, -EINVAL, "missing"},
    {V3, "kv_lora_rank", "4294967808", -EINVAL, "4294967808|1048576"},
    {V3, "qk_nope_head_dim", NULL, -EINVAL, "missing"},
    {V3, "qk_nope_head_dim", "100", -ENOTSUP, "100|multiples of 32"},
    {V3, "qk_nope_head_dim", "1024", -EINVAL, "1024|qk_rope_head_dim"},
    {V3, "qk_rope_head_dim", "63", -EINVAL, "63|even"},
    {V3, "qk_rope_head_dim", "0", -EINVAL, "0|from 2"},
    {V3, "v_head_dim", "80", -ENOTSUP, "80|multiples of 32"},
    {V3, "v_head_dim", NULL, -EINVAL, "missing"},
    {V3, "num_key_value_heads", "64", -EINVAL, "64|num_attention_heads"},
    {V3, "num_nextn_predict_layers", "65", -EINVAL, "65|64"},
    {V32, "q_lora_rank", "null", -EINVAL, "missing"},
    {V32, "index_n_heads", NULL, -EINVAL, "missing"},
    {V32, "index_n_heads", "0", -EINVAL, "0|from 1"},
    {V32, "index_head_dim", NULL, -EINVAL, "missing"},
    {V32, "index_head_dim", "32", -EINVAL, "32|qk_rope_head_dim"},
    {V32, "index_topk", NULL, -EINVAL, "missing"},
    {V32, "index_topk", "0", -EINVAL, "0|from 1"},
};

Test(config_attention, refused_fields)
{
    config_cases_run(refusals, sizeof refusals / sizeof *refusals);
}

static const struct config_case allowances[] = {
    {MISTRAL, "head_dim", "null", 0, NULL},
    {MISTRAL, "sliding_window", "32768", 0, NULL}, /* as long as the context */
    {QWEN2, "use_sliding_window", NULL, 0, NULL},
    {QWEN2, "use_sliding_window", "true", 0, NULL}, /* from a layer on that there is not */
    {QWEN2, "attention_bias", "false", 0, NULL},    /* the reference does not read it */
    {HYBRID, "architectures", NULL, 0, NULL},
    {HYBRID, "architectures", "[\"Qwen3_5ForCausalLM\"]", 0, NULL},
    {HYBRID, "text_config.model_type", NULL, 0, NULL},
    {HYBRID, "text_config.attn_output_gate", NULL, 0, NULL},
    {HYBRID, "text_config.mamba_ssm_dtype", "\"bfloat16\"", 0, NULL},
    {HYBRID, "text_config.mtp_num_hidden_layers", NULL, 0, NULL},
    {HYBRID, "text_config.tie_word_embeddings", "false", 0, NULL},
    {HYBRID, "text_config.tie_word_embeddings", "true", 0, NULL}, /* the other one counts */
    {NEWER, "tie_word_embeddings", NULL, 0, NULL},
    {NEWER, "text_config.output_gate_type", "\"silu\"", 0, NULL},
    {NEWER, "text_config.output_gate_type", NULL, 0, NULL},
    {NEWER, "quantization_config", "{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}", 0, NULL},
    {V3, "rope_interleave", "true", 0, NULL},
    {V3, "num_key_value_heads", NULL, 0, NULL},
    {V3, "head_dim", "64", 0, NULL}, /* transformers 5 writes the rotated part here */
    {V3, "num_nextn_predict_layers", NULL, 0, NULL},
    {V3, "pretraining_tp", "1", 0, NULL},
    {V32, "index_head_dim", "64", 0, NULL},
};

Test(config_attention, allowed_fields)
{
    config_cases_run(allowances, sizeof allowances / sizeof *allowances);
}

/* A release with some fields changed; NULL ends the list. */
static int parse_changed(const char *release, const char *const (*changes)[2], struct dk_model_config *c,
                         struct dk_err *err)
{
    char *text = config_of(release);
    int rc;

    for (; (*changes)[0]; changes++) {
        char *changed = config_changed(text, (*changes)[0], (*changes)[1]);

        free(text);
        text = changed;
    }
    rc = config_parse(text, c, err);
    free(text);
    return rc;
}

/* transformers takes 4096 for a size that is not there; null says that there is no window. Qwen2 and Qwen3 have it from
 * layer max_window_layers on, Qwen3-MoE in all layers. */
Test(config_attention, sliding_windows)
{
    static const struct {
        const char *release, *size, *first;
        int rc;
    } cases[] = {
        {DENSE, "4096", "28", 0},      {DENSE, "4096", "27", -ENOTSUP}, {DENSE, "4096", "null", -ENOTSUP},
        {DENSE, "null", "0", 0},       {DENSE, "40960", "0", 0},        {DENSE, "40959", "0", -ENOTSUP},
        {DENSE, NULL, "0", -ENOTSUP},  {QWEN2, "4096", "28", 0},        {QWEN2, "4096", "21", -ENOTSUP},
        {QWEN2, "131072", "0", 0},     {DENSE, "-1", "0", -EINVAL},     {DENSE, "4096", "true", -EINVAL},
        {MOE, "4096", "48", -ENOTSUP}, {MOE, "262144", "0", 0},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *const changes[][2] = {{"use_sliding_window", "true"},
                                          {"sliding_window", cases[i].size},
                                          {"max_window_layers", cases[i].first},
                                          {NULL, NULL}};
        struct dk_model_config c;
        struct dk_err err;
        int rc = parse_changed(cases[i].release, changes, &c, &err);

        cr_expect_eq(rc, cases[i].rc, "%s, %s, %s: %d %s", cases[i].release, cases[i].size, cases[i].first, rc,
                     err.text);
        if (cases[i].rc == -ENOTSUP)
            expect_words(err.text, "use_sliding_window|true");
    }
}

/* YaRN makes the context longer, and with it a window visible. */
Test(config_attention, a_window_and_a_longer_context)
{
    static const char yarn[] = "{\"rope_type\":\"yarn\",\"factor\":2.0,\"original_max_position_embeddings\":32768}";
    const char *const shorter[][2] = {{"sliding_window", "65535"}, {"rope_scaling", yarn}, {NULL, NULL}},
                      *const equal[][2] = {{"sliding_window", "65536"}, {"rope_scaling", yarn}, {NULL, NULL}};
    struct dk_model_config c;
    struct dk_err err;

    cr_expect_eq(parse_changed(MISTRAL, shorter, &c, &err), -ENOTSUP);
    expect_words(err.text, "sliding_window|65535");
    cr_expect_eq(parse_changed(MISTRAL, equal, &c, &err), 0, "%s", err.text);
    cr_expect_eq(c.context_max, 65536);
}

/* A list of one type for each layer, as transformers 5 writes it. */
static char *types_of(const char *type, uint32_t layers)
{
    char *list = malloc(layers * (strlen(type) + 3) + 3);
    size_t n = 0;

    list[n++] = '[';
    for (uint32_t i = 0; i < layers; i++)
        n += (size_t)sprintf(list + n, "%s\"%s\"", i ? "," : "", type);
    strcpy(list + n, "]");
    return list;
}

Test(config_attention, the_indexer_runs_in_every_layer)
{
    static const char only_full[] = "layer_types|only \"full_attention\"",
                      only_indexed[] = "layer_types|only \"indexed_attention\"|indexer";
    static const struct {
        const char *release, *type;
        uint32_t layers;
        const char *refused; /* NULL: it is not */
    } cases[] = {{V32, "indexed_attention", 61, NULL},
                 {V32, "full_attention", 61, only_indexed},
                 {V3, "full_attention", 61, NULL},
                 {V3, "indexed_attention", 61, only_full},
                 {DENSE, "indexed_attention", 28, only_full}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *types = types_of(cases[i].type, cases[i].layers);
        const char *const changes[][2] = {{"layer_types", types}, {NULL, NULL}};
        struct dk_model_config c;
        struct dk_err err;

        cr_expect_eq(parse_changed(cases[i].release, changes, &c, &err), cases[i].refused ? -ENOTSUP : 0, "%s: %s",
                     cases[i].release, err.text);
        if (cases[i].refused)
            expect_words(err.text, cases[i].refused);
        else
            cr_expect(c.mixer[0] == DK_MIXER_MLA && c.mixer[60] == DK_MIXER_MLA);
        free(types);
    }
}

/* Both places, and each alone. */
Test(config_attention, quantization_and_ties_in_either_place)
{
    static const char fp8[] = "{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}";
    char *text = config_of(NEWER), *inner = config_changed(text, "text_config.quantization_config", fp8),
         *both = config_changed(inner, "quantization_config", fp8);
    struct dk_model_config c;
    struct dk_err err;

    cr_expect_eq(config_parse(inner, &c, &err), 0, "%s", err.text);
    cr_expect_eq(c.scale_block, 128);
    cr_expect_eq(config_parse(both, &c, &err), 0, "%s", err.text);
    cr_expect_eq(c.scale_block, 128);
    c = config_with(HYBRID, "tie_word_embeddings", "true");
    cr_expect(c.tied);
    c = config_with("Qwen3.5-27B-tied-transformers5", "text_config.tie_word_embeddings", "false");
    cr_expect(c.tied, "the value at the top counts");
    c = config_with(HYBRID, "text_config.tie_word_embeddings", "true");
    cr_expect_not(c.tied);
    c = config_with("Qwen3.5-27B-tied-transformers5", "tie_word_embeddings", NULL);
    cr_expect_not(c.tied);
    free(both);
    free(inner);
    free(text);
}
