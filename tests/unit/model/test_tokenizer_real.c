/* SPDX-License-Identifier: Apache-2.0 */
/* The released vocabularies of Qwen3, Qwen3.5 and DeepSeek-V3. REAL_FOLDER has their unpacked files. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "token_cases.h"

struct chats {
    const char *family;
    size_t count;
};

static struct dk_tokenizer *open_real(const char *name)
{
    char path[500];

    snprintf(path, sizeof path, REAL_FOLDER "/%s.tokenizer.json", name);
    return cases_tokenizer(path);
}

static void check_chats(const struct dk_tokenizer *t, const struct chats *want)
{
    json_t *file = cases_load(FIXTURES "/tokenizers/chat_cases.json"), *all = json_object_get(file, "cases");
    json_t *cases = json_array();
    size_t total = 0;

    for (size_t i = 0; i < json_array_size(all); i++) {
        json_t *c = json_array_get(all, i);

        if (strcmp(json_string_value(json_object_get(c, "family")), want->family) == 0)
            json_array_append(cases, c);
    }
    cr_expect_eq(cases_encode(t, cases, "real_ids", &total), 0, "%s", want->family);
    cr_assert_eq(total, want->count, "%s: %zu chats", want->family, total);
    json_decref(cases);
    json_decref(file);
}

/* 484 texts, 60 or more lists of ids, the chats of up to two families. */
static void check_real(const char *name, int nfc, const struct chats *first, const struct chats *second)
{
    struct dk_tokenizer *t = open_real(name);
    size_t encoded = 0, decoded = 0, round = 0;
    char path[500];
    json_t *file;

    snprintf(path, sizeof path, FIXTURES "/tokenizers/real/%s.cases.json", name);
    file = cases_load(path);
    cr_expect_eq(cases_encode(t, json_object_get(file, "cases"), "ids", &encoded), 0);
    cr_expect_eq(cases_decode(t, json_object_get(file, "decode"), &decoded), 0);
    cr_expect_eq(cases_round_trip(t, json_object_get(file, "cases"), nfc, &round), 0);
    cr_assert_eq(encoded, 484);
    cr_assert_eq(round, 484);
    cr_assert_geq(decoded, 60, "only %zu cases", decoded);
    cr_log_info("%s: %zu encode, %zu decode, %zu round trips", name, encoded, decoded, round);
    json_decref(file);
    check_chats(t, first);
    if (second)
        check_chats(t, second);
    dk_tokenizer_close(t);
}

TestSuite(tokenizer_real, .timeout = 300);

Test(tokenizer_real, qwen3_gives_the_reference_ids_and_texts)
{
    check_real("qwen3", 1, &(struct chats){"qwen3", 120}, NULL);
}

Test(tokenizer_real, qwen3_5_gives_the_reference_ids_and_texts)
{
    check_real("qwen3_5", 1, &(struct chats){"qwen3_5", 112}, NULL);
}

Test(tokenizer_real, deepseek_v3_gives_the_reference_ids_and_texts)
{
    check_real("deepseek_v3", 0, &(struct chats){"deepseek_v3", 46}, &(struct chats){"deepseek_v32", 109});
}

/* Ids from the files themselves. */
Test(tokenizer_real, knows_their_special_tokens)
{
    static const struct {
        const char *name, *token;
        uint32_t size, id;
        bool special;
    } cases[] = {
        {"qwen3", "<|im_end|>", 151669, 151645, true},
        {"qwen3", "</think>", 151669, 151668, false},
        {"qwen3_5", "<|im_end|>", 248077, 248046, true},
        {"deepseek_v3", "<｜end▁of▁sentence｜>", 128815, 1, true},
        {"deepseek_v3", "<｜Assistant｜>", 128815, 128804, false},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dk_tokenizer *t = open_real(cases[i].name);
        size_t bytes;
        const uint8_t *text = dk_tokenizer_token(t, cases[i].id, &bytes);

        cr_expect_eq(dk_tokenizer_size(t), cases[i].size, "%s: %u", cases[i].name, dk_tokenizer_size(t));
        cr_expect(bytes == strlen(cases[i].token) && !memcmp(text, cases[i].token, bytes), "%s", cases[i].token);
        cr_expect_eq(dk_tokenizer_is_special(t, cases[i].id), cases[i].special, "%s", cases[i].token);
        dk_tokenizer_close(t);
    }
}

/* The hang limit of the suite is the check: quadratic work on these would take hours. */
static void check_long_texts(const char *name)
{
    static const char *const units[] = {"a",        " ",   "\n", " \n", "中",   "e\xCC\x81\xCC\xA7",
                                        "<|im_end", "<｜", "1",  "'s",  "\xF0", "+"};
    struct dk_tokenizer *t = open_real(name);
    size_t bytes = 1 << 20, count;
    char *text = malloc(bytes);

    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        struct dk_err err = {0};
        uint32_t *ids;

        for (size_t at = 0, n = strlen(units[i]); at < bytes; at++)
            text[at] = units[i][at % n];
        cr_assert_eq(dk_tokenizer_encode(t, text, bytes, &ids, &count, &err), 0, "%s: %s", units[i], err.text);
        cr_assert_gt(count, 0);
        free(ids);
    }
    free(text);
    dk_tokenizer_close(t);
}

Test(tokenizer_real, long_monotonous_texts_end_qwen3)
{
    check_long_texts("qwen3");
}

Test(tokenizer_real, long_monotonous_texts_end_qwen3_5)
{
    check_long_texts("qwen3_5");
}

Test(tokenizer_real, long_monotonous_texts_end_deepseek_v3)
{
    check_long_texts("deepseek_v3");
}
