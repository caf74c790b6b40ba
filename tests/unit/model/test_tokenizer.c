/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "token_cases.h"

#define SMALL FIXTURES "/tokenizers/small_qwen3.tokenizer.json"

/* Counts the chats of one family; each must have the reference's ids. */
static size_t check_chats(const struct dk_tokenizer *t, const char *chat_family)
{
    json_t *file = cases_load(FIXTURES "/tokenizers/chat_cases.json"), *cases = json_object_get(file, "cases");
    size_t chats = 0;

    for (size_t i = 0; i < json_array_size(cases); i++) {
        json_t *c = json_array_get(cases, i), *one;

        if (strcmp(json_string_value(json_object_get(c, "family")), chat_family) != 0)
            continue;
        one = json_pack("[O]", c);
        cr_expect_eq(cases_encode(t, one, "small_ids", &chats), 0);
        json_decref(one);
    }
    json_decref(file);
    return chats;
}

static void check_family(const char *name, int nfc, const char *chat_family, size_t chats)
{
    char path[500];
    struct dk_tokenizer *t;
    json_t *file;
    size_t encoded = 0, decoded = 0, round = 0, chat = 0;

    snprintf(path, sizeof path, FIXTURES "/tokenizers/small_%s.tokenizer.json", name);
    t = cases_tokenizer(path);
    snprintf(path, sizeof path, FIXTURES "/tokenizers/small_%s.cases.json", name);
    file = cases_load(path);
    cr_expect_eq(cases_encode(t, json_object_get(file, "cases"), "ids", &encoded), 0);
    cr_expect_eq(cases_decode(t, json_object_get(file, "decode"), &decoded), 0);
    cr_expect_eq(cases_round_trip(t, json_object_get(file, "cases"), nfc, &round), 0);
    cr_assert_eq(encoded, 484);
    cr_assert_eq(round, 484);
    cr_assert_geq(decoded, 60, "only %zu cases", decoded);
    json_decref(file);

    chat = check_chats(t, chat_family);
    cr_assert_eq(chat, chats, "%zu chats", chat);
    cr_log_info("%s: %zu encode, %zu decode, %zu round trips, %zu chats", name, encoded, decoded, round, chat);
    dk_tokenizer_close(t);
}

Test(tokenizer, small_qwen3_gives_the_reference_ids)
{
    check_family("qwen3", 1, "qwen3", 120);
}

/* The same pipeline with another pattern. Five of the 117 chats have no ids: rendering them must fail. */
Test(tokenizer, small_qwen3_5_gives_the_reference_ids)
{
    check_family("qwen3_5", 1, "qwen3_5", 112);
}

/* Three patterns one after the other, and no normal form: the text comes back as it was. */
Test(tokenizer, small_deepseek_gives_the_reference_ids)
{
    check_family("deepseek", 0, "deepseek_v3", 46);
    check_family("deepseek", 0, "deepseek_v32", 109);
}

Test(tokenizer, opens_a_model_folder)
{
    struct dk_tokenizer *t = NULL;
    struct dk_err err = {0};
    size_t bytes;

    cr_assert_eq(dk_tokenizer_open(FIXTURES "/qwen3-tiny", &t, &err), 0, "%s", err.text);
    cr_assert_eq(dk_tokenizer_size(t), 988);
    cr_assert_eq(memcmp(dk_tokenizer_token(t, 986, &bytes), "<think>", 7), 0);
    cr_assert_eq(bytes, 7);
    cr_assert_not(dk_tokenizer_is_special(t, 986));
    cr_assert_eq(memcmp(dk_tokenizer_token(t, 962, &bytes), "<|endoftext|>", 13), 0);
    cr_assert(dk_tokenizer_is_special(t, 962));
    cr_assert_eq(memcmp(dk_tokenizer_token(t, 258, &bytes), " t", 2), 0, "the file calls it \xC4\xA0t");
    cr_assert_eq(bytes, 2);
    cr_assert_null(dk_tokenizer_token(t, 988, &bytes));
    cr_assert_null(dk_tokenizer_token(t, UINT32_MAX, &bytes));
    cr_assert_not(dk_tokenizer_is_special(t, UINT32_MAX));
    dk_tokenizer_close(t);
    cr_assert_eq(dk_tokenizer_open(FIXTURES "/smollm2", &t, &err), -ENOENT);
    cr_assert(strstr(err.text, "tokenizer.json"), "%s", err.text);
    cr_assert_null(t);
    dk_tokenizer_close(NULL);
}

/* The prompts of the fixture models, as their golden files have them. */
Test(tokenizer, gives_the_golden_prompts_their_ids)
{
    static const char *const models[] = {"qwen3-tiny",           "qwen3-fp8-tiny",       "qwen3-moe-fp8-tiny",
                                         "qwen3_5-fp8-tiny",     "qwen3_5_moe-fp8-tiny", "deepseek_v3-fp8-tiny",
                                         "deepseek_v32-fp8-tiny"};
    size_t total = 0;

    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct dk_tokenizer *t = NULL;
        struct dk_err err = {0};
        json_t *file, *prompt;
        const char *name;
        char path[500];

        snprintf(path, sizeof path, FIXTURES "/%s", models[i]);
        cr_assert_eq(dk_tokenizer_open(path, &t, &err), 0, "%s", err.text);
        snprintf(path, sizeof path, FIXTURES "/%s/golden/golden.json", models[i]);
        file = cases_load(path);
        json_object_foreach(json_object_get(file, "prompts"), name, prompt)
        {
            json_t *one = json_pack("[O]", prompt);

            cr_expect_eq(cases_encode(t, one, "ids", &total), 0, "%s: %s", models[i], name);
            json_decref(one);
        }
        json_decref(file);
        dk_tokenizer_close(t);
    }
    cr_assert_eq(total, 55, "%zu prompts", total);
    cr_log_info("%zu golden prompts", total);
}

Test(tokenizer, special_tokens_are_left_out_on_request)
{
    struct dk_tokenizer *t = cases_tokenizer(SMALL);
    struct dk_detokenizer d = {{0}, 0};
    char *out = malloc(dk_detokenizer_room(t));
    const uint32_t end = 964; /* <|im_end|> */

    cr_assert_eq(dk_detokenizer_next(t, &d, end, true, out, dk_detokenizer_room(t)), 0);
    cr_assert_eq(dk_detokenizer_next(t, &d, end, false, out, dk_detokenizer_room(t)), strlen("<|im_end|>"));
    cr_assert_eq(memcmp(out, "<|im_end|>", 10), 0);
    cr_assert_eq(dk_detokenizer_next(t, &d, 999999, false, out, dk_detokenizer_room(t)), 0);
    free(out);
    dk_tokenizer_close(t);
}

Test(tokenizer, invalid_bytes_count_as_replacement_characters)
{
    /* Right: what bytes.decode("utf-8", "replace") gives. */
    static const struct {
        const char *bytes;
        size_t count;
        const char *text;
    } cases[] = {
        {"a\xFFz", 3, "a\xEF\xBF\xBDz"},
        {"\xE4\xB8", 2, "\xEF\xBF\xBD"},
        {"\xE4\xB8\xE4\xB8\xAD", 5, "\xEF\xBF\xBD\xE4\xB8\xAD"},
        {"\xF0\x9F\x98!", 4, "\xEF\xBF\xBD!"},
        {"\xED\xA0\x80", 3, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xC0\xAF", 2, "\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xF4\x90\x80\x80", 4, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xE0\x9F\xBF", 3, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\x80", 1, "\xEF\xBF\xBD"},
    };
    struct dk_tokenizer *t = cases_tokenizer(SMALL);

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t *got, *want;
        size_t got_count, want_count;

        cr_assert_eq(dk_tokenizer_encode(t, cases[i].bytes, cases[i].count, &got, &got_count, NULL), 0);
        cr_assert_eq(dk_tokenizer_encode(t, cases[i].text, strlen(cases[i].text), &want, &want_count, NULL), 0);
        cr_expect_eq(got_count, want_count, "case %zu", i);
        cr_expect(got_count == want_count && memcmp(got, want, got_count * sizeof *got) == 0, "case %zu", i);
        free(got);
        free(want);
    }
    dk_tokenizer_close(t);
}

Test(tokenizer, text_over_the_limit_is_refused)
{
    size_t bytes = ((size_t)64 << 20) + 1, count;
    struct dk_tokenizer *t = cases_tokenizer(SMALL);
    char *text = calloc(1, bytes);
    struct dk_err err = {0};
    uint32_t *ids;

    cr_assert_eq(dk_tokenizer_encode(t, text, bytes, &ids, &count, &err), -E2BIG);
    cr_assert_null(ids);
    cr_assert(strstr(err.text, "67108864"), "%s", err.text);
    free(text);
    dk_tokenizer_close(t);
}
