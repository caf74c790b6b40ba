/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "model/config.h"
#include "model_folder.h"

static struct model_folder folder;
static struct dk_generation_config g;
static struct dk_err err;

static void begin(void)
{
    folder_make(&folder);
}

static void end(void)
{
    folder_remove(&folder);
}

TestSuite(generation_config, .init = begin, .fini = end);

/* generation: NULL for none. */
static int load(const char *generation, const char *config)
{
    if (generation)
        folder_text(&folder, "generation_config.json", generation);
    folder_text(&folder, "config.json", config);
    memset(&err, 0, sizeof err);
    return dk_generation_config_load(folder.path, &g, &err);
}

Test(generation_config, of_a_release)
{
    cr_assert_eq(dk_generation_config_load(FIXTURES "/qwen3-tiny", &g, &err), 0, "%s", err.text);
    cr_expect_eq(g.temperature, 0.6);
    cr_expect_eq(g.top_p, 0.95);
    cr_expect_eq(g.top_k, 20);
    cr_assert_eq(g.eos_count, 2);
    cr_expect_eq(g.eos[0], 964);
    cr_expect_eq(g.eos[1], 962);
}

Test(generation_config, missing_file_is_greedy)
{
    cr_assert_eq(load(NULL, "{\"eos_token_id\":128001}"), 0, "%s", err.text);
    cr_expect_eq(err.rc, 0);
    cr_expect_eq(g.temperature, 0);
    cr_expect_eq(g.top_p, 1);
    cr_expect_eq(g.top_k, 0);
    cr_assert_eq(g.eos_count, 1);
    cr_expect_eq(g.eos[0], 128001);
}

Test(generation_config, defaults)
{
    cr_assert_eq(load("{}", "{\"eos_token_id\":[7,8]}"), 0, "%s", err.text);
    cr_expect_eq(g.temperature, 0, "do_sample is absent");
    cr_expect_eq(g.eos_count, 2);
    cr_assert_eq(load("{\"do_sample\":true,\"top_k\":-1,\"top_p\":null,\"eos_token_id\":3}", "{}"), 0, "%s", err.text);
    cr_expect_eq(g.temperature, 1);
    cr_expect_eq(g.top_p, 1);
    cr_expect_eq(g.top_k, 0);
    cr_expect(g.eos_count == 1 && g.eos[0] == 3);
    cr_assert_eq(load("{\"do_sample\":false,\"temperature\":0.7}", "{\"eos_token_id\":null}"), 0, "%s", err.text);
    cr_expect_eq(g.temperature, 0);
    cr_expect_eq(g.eos_count, 0);
}

Test(generation_config, generation_config_wins_over_config)
{
    cr_assert_eq(load("{\"eos_token_id\":[248046,248044]}", "{\"eos_token_id\":248044}"), 0, "%s", err.text);
    cr_expect(g.eos_count == 2 && g.eos[0] == 248046 && g.eos[1] == 248044);
}

/* Qwen3.5: config.json knows the end of a text only, generation_config.json the end of a turn as well. */
Test(generation_config, of_a_multimodal_release)
{
    cr_assert_eq(dk_generation_config_load(FIXTURES "/qwen3_5-fp8-tiny", &g, &err), 0, "%s", err.text);
    cr_expect(g.eos_count == 2 && g.eos[0] == 965 && g.eos[1] == 963, "%u %u %u", g.eos_count, g.eos[0], g.eos[1]);
    cr_assert_eq(load(NULL, "{\"text_config\":{\"eos_token_id\":248044}}"), 0, "%s", err.text);
    cr_expect(g.eos_count == 1 && g.eos[0] == 248044);
    cr_assert_eq(load(NULL, "{\"eos_token_id\":[1,2],\"text_config\":{\"eos_token_id\":248044}}"), 0, "%s", err.text);
    cr_expect(g.eos_count == 2 && g.eos[0] == 1 && g.eos[1] == 2);
    cr_assert_eq(load(NULL, "{\"text_config\":null}"), 0, "%s", err.text);
    cr_expect_eq(g.eos_count, 0);
}

Test(generation_config, refused)
{
    static const struct {
        const char *generation, *config, *words;
    } cases[] = {
        {"", "{}", "generation_config.json|not valid JSON"},
        {"[]", "{}", "generation_config.json|not a JSON object"},
        {"{\"do_sample\":1}", "{}", "do_sample|true or false"},
        {"{\"temperature\":-0.1}", "{}", "temperature|-0.1"},
        {"{\"temperature\":1e9}", "{}", "temperature"},
        {"{\"temperature\":\"1\"}", "{}", "temperature|number"},
        {"{\"top_p\":0}", "{}", "top_p|0"},
        {"{\"top_p\":1.5}", "{}", "top_p|1.5"},
        {"{\"top_k\":-2}", "{}", "top_k|-2"},
        {"{\"top_k\":1.5}", "{}", "top_k|1.5"},
        {"{\"eos_token_id\":-1}", "{}", "eos_token_id|-1"},
        {"{\"eos_token_id\":\"</s>\"}", "{}", "eos_token_id|</s>"},
        {"{\"eos_token_id\":[1,\"2\"]}", "{}", "eos_token_id"},
        {"{\"eos_token_id\":4294967296}", "{}", "eos_token_id|4294967296"},
        {"{\"eos_token_id\":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}", "{}", "eos_token_id|16"},
        {"{}", "{\"eos_token_id\":true}", "/config.json|eos_token_id|true"},
        {"{}", "{\"text_config\":{\"eos_token_id\":-1}}", "/config.json|text_config|eos_token_id|-1"},
        {"{}", "{\"text_config\":[]}", "/config.json|text_config|object"},
        {"{}", "{", "/config.json|not valid JSON"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int rc = load(cases[i].generation, cases[i].config);

        cr_expect_eq(rc, -EINVAL, "%s: %d", cases[i].generation, rc);
        expect_words(err.text, folder.path);
        expect_words(err.text, cases[i].words);
    }
}

static char logged[256];

static void keep_line(void *ctx, enum dk_log_level level, const char *line)
{
    snprintf(logged, sizeof logged, "%s", line);
}

Test(generation_config, repetition_penalty_is_mentioned)
{
    dk_log_setup(keep_line, NULL, DK_LOG_WARN, NULL);
    cr_assert_eq(load("{\"repetition_penalty\":1.0}", "{\"eos_token_id\":3}"), 0, "%s", err.text);
    cr_expect_str_empty(logged);
    cr_assert_eq(load("{\"repetition_penalty\":1.05}", "{\"eos_token_id\":3}"), 0, "%s", err.text);
    expect_words(logged, "repetition_penalty|1.05");
}

Test(generation_config, without_an_end_token)
{
    dk_log_setup(keep_line, NULL, DK_LOG_WARN, NULL);
    cr_assert_eq(load("{}", "{\"eos_token_id\":3}"), 0, "%s", err.text);
    cr_assert_eq(load("{\"eos_token_id\":3}", "{}"), 0, "%s", err.text);
    cr_expect_str_empty(logged);
    cr_assert_eq(load("{}", "{\"eos_token_id\":null}"), 0, "%s", err.text);
    expect_words(logged, "eos_token_id|absent");
    expect_words(logged, folder.path);
}

Test(generation_config, numbers_that_64_bits_do_not_hold)
{
    cr_assert_eq(load("{\"max_length\":1000000000000000019884624838656,\"do_sample\":true,\"top_k\":7}",
                      "{\"model_max_length\":-1000000000000000019884624838656,\"eos_token_id\":[5]}"),
                 0, "%s", err.text);
    cr_expect(g.temperature == 1 && g.top_k == 7 && g.eos_count == 1 && g.eos[0] == 5);
}

Test(generation_config, no_files)
{
    cr_expect_eq(dk_generation_config_load(folder.path, &g, &err), -ENOENT);
    expect_words(err.text, "config.json");
}
