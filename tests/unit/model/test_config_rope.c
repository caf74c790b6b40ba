/* SPDX-License-Identifier: Apache-2.0 */
/* config.json: rotary position embedding in both spellings, and its scaling. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "config_text.h"
#include "model_folder.h"

#define DENSE   "Qwen3-0.6B"             /* rope_theta, rope_scaling null */
#define NEW     "Qwen3-14B"              /* rope_parameters */
#define LLAMA_  "Llama-3.1-8B"           /* rope_theta, rope_scaling */
#define LLAMA_5 "Llama-3.3-70B-Instruct" /* rope_parameters with scaling */
#define NESTED  "Qwen3.5-27B"            /* text_config.rope_parameters */
#define NEWER   "Qwen3.6-27B"            /* the same, and partial_rotary_factor beside it */
#define YARN    "{\"rope_type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":32768"

Test(config_rope, plain_in_both_spellings)
{
    static const char *const releases[] = {DENSE, NEW};

    for (int i = 0; i < 2; i++) {
        struct dk_model_config c = config_released(releases[i]);

        cr_expect_eq(c.rope.scaling, DK_ROPE_PLAIN);
        cr_expect_eq(c.rope.theta, 1e6);
        cr_expect_eq(c.rope.dims, 128);
        cr_expect_eq(c.rope.factor, 0);
    }
}

Test(config_rope, llama3_in_both_spellings)
{
    static const char *const releases[] = {LLAMA_, LLAMA_5};

    for (int i = 0; i < 2; i++) {
        struct dk_model_config c = config_released(releases[i]);

        cr_expect_eq(c.rope.scaling, DK_ROPE_LLAMA3);
        cr_expect_eq(c.rope.theta, 5e5);
        cr_expect(c.rope.dims == 128 && c.rope.factor == 8 && c.rope.original_context == 8192);
        cr_expect(c.rope.low_freq_factor == 1 && c.rope.high_freq_factor == 4);
        cr_expect_eq(c.context_max, 131072);
    }
}

Test(config_rope, yarn_of_deepseek)
{
    struct dk_model_config c = config_released("DeepSeek-V3");

    cr_expect_eq(c.rope.scaling, DK_ROPE_YARN);
    cr_expect_eq(c.rope.theta, 1e4);
    cr_expect(c.rope.dims == 64 && c.rope.factor == 40 && c.rope.original_context == 4096);
    cr_expect(c.rope.beta_fast == 32 && c.rope.beta_slow == 1 && c.rope.mscale == 1 && c.rope.mscale_all_dim == 1);
    cr_expect(c.rope.attention_factor == 0 && c.rope.truncate);
    cr_expect_eq(c.context_max, 163840);
}

/* The card of Qwen3: the field is added, and nothing else is changed. */
Test(config_rope, yarn_as_the_card_of_qwen3_says)
{
    struct dk_model_config c = config_with(DENSE, "rope_scaling", YARN "}");

    cr_expect_eq(c.rope.scaling, DK_ROPE_YARN);
    cr_expect(c.rope.factor == 4 && c.rope.original_context == 32768 && c.rope.beta_fast == 32 &&
              c.rope.beta_slow == 1);
    cr_expect(c.rope.mscale == 0 && c.rope.mscale_all_dim == 0 && c.rope.attention_factor == 0 && c.rope.truncate);
    cr_expect_eq(c.context_max, 131072);
    c = config_with(DENSE, "rope_scaling", "{\"type\":\"yarn\",\"factor\":2}");
    cr_expect(c.rope.original_context == 40960 && c.context_max == 81920, "the reference's default");
    c = config_with(DENSE, "rope_scaling",
                    YARN ",\"beta_fast\":16,\"beta_slow\":2,\"attention_factor\":1.5,\"truncate\":false}");
    cr_expect(c.rope.beta_fast == 16 && c.rope.beta_slow == 2 && c.rope.attention_factor == 1.5 && !c.rope.truncate);
    c = config_with(DENSE, "rope_scaling",
                    "{\"type\":\"yarn\",\"factor\":10000,"
                    "\"original_max_position_embeddings\":268435456}");
    cr_expect_eq(c.context_max, 1u << 28, "the limit");
}

Test(config_rope, linear)
{
    struct dk_model_config c = config_with(DENSE, "rope_scaling", "{\"type\":\"linear\",\"factor\":2.5}");

    cr_expect_eq(c.rope.scaling, DK_ROPE_LINEAR);
    cr_expect_eq(c.rope.factor, 2.5);
    cr_expect_eq(c.context_max, 40960);
    c = config_with("Mistral-7B-Instruct-v0.3", "rope_scaling", "{\"rope_type\":\"linear\",\"factor\":2}");
    cr_expect_eq(c.rope.scaling, DK_ROPE_LINEAR);
}

Test(config_rope, partial)
{
    struct dk_model_config c = config_released(NESTED);

    cr_expect_eq(c.rope.dims, 64);
    cr_expect_eq(c.rope.theta, 1e7);
    c = config_released(NEWER);
    cr_expect_eq(c.rope.dims, 64);
    c = config_with(NESTED, "text_config.rope_parameters", "{\"rope_type\":\"default\",\"rope_theta\":1e7}");
    cr_expect_eq(c.rope.dims, 64, "a quarter is the family's default");
    c = config_with(NESTED, "text_config.rope_parameters",
                    "{\"rope_type\":\"default\",\"rope_theta\":1e7,\"partial_rotary_factor\":0.5,"
                    "\"mrope_section\":[22,22,20]}");
    cr_expect_eq(c.rope.dims, 128);
}

static const struct config_case refusals[] = {
    {DENSE, "rope_theta", NULL, -EINVAL, "missing"},
    {"Mistral-7B-Instruct-v0.3", "rope_theta", NULL, -EINVAL, "missing"},
    {NEW, "rope_parameters.rope_theta", NULL, -EINVAL, "missing"},
    {DENSE, "rope_theta", "0", -EINVAL, "0|number"},
    {DENSE, "rope_theta", "1", -EINVAL, "1|from 2"},
    {DENSE, "rope_theta", "-1e6", -EINVAL, "number"},
    {DENSE, "rope_theta", "1e300", -EINVAL, "number"},
    {DENSE, "rope_theta", "\"1e6\"", -EINVAL, "number"},
    {DENSE, "rope_parameters", "{\"rope_type\":\"default\",\"rope_theta\":5000000}", -EINVAL, ""},
    {LLAMA_5, "rope_parameters.rope_theta", "\"5e5\"", -EINVAL, "rope_parameters|number"},
    {LLAMA_5, "rope_theta", "10000", -EINVAL, "10000"},
    /* kinds */
    {LLAMA_, "rope_scaling.rope_type", "2", -EINVAL, "2|text"},
    {DENSE, "rope_scaling", "\"yarn\"", -EINVAL, "yarn|object"},
    {DENSE, "rope_scaling", "[]", -EINVAL, "object"},
    {DENSE, "rope_scaling", "{\"type\":\"dynamic\",\"factor\":2}", -ENOTSUP, "type|dynamic|linear|llama3|yarn"},
    {DENSE, "rope_scaling", "{\"rope_type\":\"longrope\",\"factor\":2}", -ENOTSUP, "rope_type|longrope|yarn"},
    {DENSE, "rope_scaling", "{\"rope_type\":\"yarn\",\"type\":\"linear\",\"factor\":2}", -EINVAL,
     "type|linear|rope_type"},
    {DENSE, "rope_scaling", "{\"factor\":8.0}", -ENOTSUP, "factor|type"},
    {NEW, "rope_parameters", "{\"factor\":8.0,\"rope_theta\":1e6}", -ENOTSUP, "factor|type"},
    {NEW, "rope_parameters", "{\"full_attention\":{\"rope_type\":\"default\"}}", -ENOTSUP, "full_attention"},
    {NEW, "rope_scaling", "{\"type\":\"linear\",\"factor\":2}", -EINVAL, "linear|rope_parameters"},
    {NEW, "rope_scaling", "{\"type\":\"default\",\"rope_theta\":10000}", -EINVAL, "rope_parameters"},
    {LLAMA_5, "rope_scaling", "{\"type\":\"default\"}", -EINVAL, "rope_parameters"},
    {LLAMA_5, "rope_scaling", "{\"type\":\"linear\",\"factor\":8}", -EINVAL, "linear|rope_parameters"},
    {NESTED, "text_config.rope_parameters.rope_type", "\"linear\"", -ENOTSUP, "linear|default|yarn"},
    {"DeepSeek-V3", "rope_scaling.type", "\"llama3\"", -ENOTSUP, "llama3|default|yarn"},
    /* scaling */
    {DENSE, "rope_scaling", "{\"type\":\"linear\"}", -EINVAL, "factor is missing"},
    {DENSE, "rope_scaling", "{\"type\":\"linear\",\"factor\":0.5}", -EINVAL, "factor|0.5|from 1"},
    {LLAMA_, "rope_scaling.factor", NULL, -EINVAL, "missing"},
    {LLAMA_, "rope_scaling.factor", "100000", -EINVAL, "100000|10000"},
    {LLAMA_, "rope_scaling.low_freq_factor", NULL, -EINVAL, "missing"},
    {LLAMA_, "rope_scaling.low_freq_factor", "0", -EINVAL, "0|number"},
    {LLAMA_, "rope_scaling.high_freq_factor", NULL, -EINVAL, "missing"},
    {LLAMA_, "rope_scaling.high_freq_factor", "1", -EINVAL, "1|low_freq_factor"},
    {LLAMA_, "rope_scaling.original_max_position_embeddings", NULL, -EINVAL, "missing"},
    {LLAMA_, "rope_scaling.original_max_position_embeddings", "0", -EINVAL, "0|from 1"},
    {"DeepSeek-V3", "rope_scaling.factor", "null", -EINVAL, "missing"},
    {"DeepSeek-V3", "rope_scaling.original_max_position_embeddings", "1.5", -EINVAL, "1.5|whole number"},
    {"DeepSeek-V3", "rope_scaling.beta_fast", "0.5", -EINVAL, "0.5|beta_slow"},
    {"DeepSeek-V3", "rope_scaling.beta_slow", "0", -EINVAL, "0|number"},
    {"DeepSeek-V3", "rope_scaling.mscale", "-1", -EINVAL, "-1|number"},
    {"DeepSeek-V3", "rope_scaling.mscale_all_dim", "1e9", -EINVAL, "number"},
    {"DeepSeek-V3", "rope_scaling.attention_factor", "0", -EINVAL, "0|number"},
    {"DeepSeek-V3", "rope_scaling.truncate", "1", -EINVAL, "1|true or false"},
    /* other rotations under a name that is known */
    {DENSE, "rope_scaling", YARN ",\"llama_4_scaling_beta\":0.1}", -ENOTSUP, "rope_scaling: llama_4_scaling_beta|0.1"},
    {LLAMA_, "rope_scaling.long_factor", "[1.0,2.0]", -ENOTSUP, "[1.0,2.0]|rotation"},
    {LLAMA_, "rope_scaling.short_factor", "[1.0,2.0]", -ENOTSUP, "rotation"},
    {"DeepSeek-V3", "rope_scaling.attn_factor", "1.2", -ENOTSUP, "1.2|rotation"},
    {NEW, "rope_parameters.alpha", "1000", -ENOTSUP, "1000|rotation"},
    {DENSE, "dual_chunk_attention_config", "{}", -EINVAL, "original_max_position_embeddings is missing"},
    {DENSE, "dual_chunk_attention_config", "3", -EINVAL, "3|object"},
    {DENSE, "dual_chunk_attention_config",
     "{\"original_max_position_embeddings\":4096,\"chunk_size\":1024,\"local_size\":1024}", -EINVAL,
     "local_size|1024|chunk_size"},
    /* a part of a head */
    {DENSE, "partial_rotary_factor", "0.5", -ENOTSUP, "0.5|only 1"},
    {LLAMA_5, "rope_parameters.partial_rotary_factor", "0.25", -ENOTSUP, "only 1"},
    {"DeepSeek-V3", "partial_rotary_factor", "0.5", -ENOTSUP, "0.5|only 1"},
    {NESTED, "text_config.partial_rotary_factor", "0.5", -EINVAL, "0.5|another"},
    {NESTED, "text_config.rope_parameters.partial_rotary_factor", "1.5", -EINVAL, "1.5|number"},
    {NESTED, "text_config.rope_parameters.partial_rotary_factor", "0", -EINVAL, "0|number"},
    {NESTED, "text_config.rope_parameters.partial_rotary_factor", "0.002", -EINVAL, "even"},
    {NESTED, "text_config.rope_parameters.partial_rotary_factor", "0.255", -EINVAL, "even"}, /* 65 */
    {NESTED, "text_config.rope_parameters.mrope_section", "[11,11,11]", -EINVAL, "[11,11,11]|half"},
    {NESTED, "text_config.rope_parameters.mrope_section", "[11,11]", -EINVAL, "[11,11]|half"},
    {NESTED, "text_config.rope_parameters.mrope_section", "[11,-11,32]", -EINVAL, "whole numbers"},
    {NESTED, "text_config.rope_parameters.mrope_section", "[4294967295,33]", -EINVAL, "whole numbers"},
    {NESTED, "text_config.rope_parameters.mrope_interleaved", "1", -EINVAL, "true or false"},
};

Test(config_rope, refused_fields)
{
    config_cases_run(refusals, sizeof refusals / sizeof *refusals);
}

static const struct config_case allowances[] = {
    {DENSE, "rope_scaling", NULL, 0, NULL},
    {DENSE, "rope_scaling", "{\"type\":\"default\"}", 0, NULL},
    {DENSE, "rope_scaling", "{\"rope_type\":\"default\",\"type\":\"default\"}", 0, NULL},
    {DENSE, "rope_theta", "1000000.0", 0, NULL},
    {DENSE, "rope_parameters", "{\"rope_type\":\"default\",\"rope_theta\":1e6,\"partial_rotary_factor\":1.0}", 0, NULL},
    {DENSE, "rope_parameters", "{\"rope_theta\":1e6}", 0, NULL},
    {DENSE, "partial_rotary_factor", "1.0", 0, NULL},
    {LLAMA_5, "rope_theta", "500000", 0, NULL},
    {LLAMA_, "rope_scaling.long_factor", "null", 0, NULL},
    {NEW, "rope_scaling", "{\"type\":\"default\"}", 0, NULL},
    {LLAMA_5, "rope_parameters.rope_theta", NULL, 0, NULL}, /* 10000: Llama's default */
    {NESTED, "text_config.rope_parameters.mrope_section", NULL, 0, NULL},
    {NESTED, "text_config.rope_parameters.mrope_interleaved", "false", 0, NULL},
    {NESTED, "text_config.partial_rotary_factor", "0.25", 0, NULL},
    {"DeepSeek-V3", "rope_scaling", "null", 0, NULL},
};

Test(config_rope, allowed_fields)
{
    config_cases_run(allowances, sizeof allowances / sizeof *allowances);
}

Test(config_rope, the_first_llama_files_have_no_theta)
{
    struct dk_model_config c = config_with(LLAMA_, "rope_theta", NULL);

    cr_expect_eq(c.rope.theta, 10000);
}

/* Files on their way from the old to the new spelling. */
Test(config_rope, the_same_scaling_twice)
{
    struct dk_model_config c = config_with(
        LLAMA_5, "rope_scaling",
        "{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
        "\"original_max_position_embeddings\":8192,\"rope_theta\":500000.0}");

    cr_expect_eq(c.rope.scaling, DK_ROPE_LLAMA3);
}

/* Each file says it in its own way: integers for real numbers, defaults written out, another name of the kind. */
Test(config_rope, the_same_scaling_twice_in_other_words)
{
    static const char old[] = "{\"type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":32768,"
                              "\"beta_fast\":32,\"beta_slow\":1.0}",
                      nested[] =
                          "{\"rope_type\":\"yarn\",\"factor\":4.0,"
                          "\"original_max_position_embeddings\":32768,\"truncate\":true,\"rope_theta\":1000000.0}";
    char *text = config_of(DENSE), *one = config_changed(text, "rope_scaling", old),
         *two = config_changed(one, "rope_parameters", nested),
         *three = config_changed(two, "rope_parameters.beta_fast", "31.5");
    struct dk_model_config c, plain = config_with(DENSE, "rope_scaling", old);
    struct dk_err err;

    cr_assert_eq(config_parse(two, &c, &err), 0, "%s", err.text);
    cr_expect_arr_eq(&c, &plain, sizeof c);
    cr_expect_eq(config_parse(three, &c, &err), -EINVAL);
    expect_words(err.text, "rope_scaling|rope_parameters");
    free(three);
    free(two);
    free(one);
    free(text);
}

static char logged[600];
static unsigned log_lines;

static void keep_line(void *ctx, enum dk_log_level level, const char *line)
{
    snprintf(logged, sizeof logged, "%s", line);
    log_lines++;
}

Test(config_rope, fields_that_are_not_read_are_mentioned)
{
    static const char *const quiet[][3] = {
        {LLAMA_, "rope_theta", "500000"},
        {"DeepSeek-V3", "ep_size", "1"},
        {NESTED, "text_config.rope_parameters.mrope_interleaved", "true"},
        {DENSE, "rope_scaling", YARN ",\"attention_factor\":1.0,\"truncate\":true,\"other\":null}"},
    };
    static const char *const loud[][4] = {
        {DENSE, "rope_scaling", YARN ",\"finetuned\":true}", "model.config|rope_scaling|\"finetuned\"|ignored=1"},
        {LLAMA_, "rope_scaling.beta_fast", "32", "beta_fast"},
        {NEW, "rope_parameters.factor", "2.0", "\"factor\""},
    };

    dk_log_setup(keep_line, NULL, DK_LOG_WARN, NULL);
    for (size_t i = 0; i < sizeof quiet / sizeof *quiet; i++) {
        config_with(quiet[i][0], quiet[i][1], quiet[i][2]);
        cr_expect_eq(log_lines, 0, "%s", logged);
    }
    for (size_t i = 0; i < sizeof loud / sizeof *loud; i++) {
        log_lines = 0;
        config_with(loud[i][0], loud[i][1], loud[i][2]);
        cr_expect_eq(log_lines, 1, "%s: %u", loud[i][2], log_lines);
        expect_words(logged, loud[i][3]);
    }
}

/* As Qwen2.5-7B-Instruct-1M has it, with smaller numbers. */
Test(config_rope, dual_chunk_attention_ends_the_context)
{
    static const struct {
        const char *original;
        uint32_t context;
    } cases[] = {{"8192", 8192}, {"32768", 30720}, {"1000000", 30720}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dk_model_config c;
        char value[200];

        dk_log_setup(keep_line, NULL, DK_LOG_WARN, NULL);
        snprintf(value, sizeof value,
                 "{\"chunk_size\":32768,\"local_size\":2048,\"original_max_position_embeddings\":%s}",
                 cases[i].original);
        c = config_with(DENSE, "dual_chunk_attention_config", value);
        cr_expect_eq(c.context_max, cases[i].context, "%u", c.context_max);
        expect_words(logged, "dual_chunk_attention_config|context_max");
    }
}
