/* SPDX-License-Identifier: Apache-2.0 */
/* The released vocabulary of Qwen3, 151669 tokens. REAL_QWEN3 is the unpacked file. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "token_cases.h"

static struct dk_tokenizer *tokenizer;

static void open_it(void)
{
    tokenizer = cases_tokenizer(REAL_QWEN3);
}

static void close_it(void)
{
    dk_tokenizer_close(tokenizer);
}

TestSuite(tokenizer_real, .init = open_it, .fini = close_it, .timeout = 300);

Test(tokenizer_real, gives_the_reference_ids_and_texts)
{
    json_t *file = cases_load(FIXTURES "/tokenizers/real/qwen3.cases.json");
    size_t encoded = 0, decoded = 0, round = 0;

    cr_expect_eq(cases_encode(tokenizer, json_object_get(file, "cases"), "ids", &encoded), 0);
    cr_expect_eq(cases_decode(tokenizer, json_object_get(file, "decode"), &decoded), 0);
    cr_expect_eq(cases_round_trip(tokenizer, json_object_get(file, "cases"), 1, &round), 0);
    cr_assert_eq(encoded, 484);
    cr_assert_eq(round, 484);
    cr_assert_geq(decoded, 60, "only %zu cases", decoded);
    cr_log_info("%zu encode, %zu decode, %zu round trips", encoded, decoded, round);
    json_decref(file);
}

static json_t *chat_cases(json_t *file, const char *family)
{
    json_t *out = json_array(), *all = json_object_get(file, "cases");

    for (size_t i = 0; i < json_array_size(all); i++) {
        json_t *c = json_array_get(all, i);

        if (strcmp(json_string_value(json_object_get(c, "family")), family) == 0)
            json_array_append(out, c);
    }
    return out;
}

Test(tokenizer_real, gives_the_reference_ids_of_chats)
{
    json_t *file = cases_load(FIXTURES "/tokenizers/chat_cases.json"), *cases = chat_cases(file, "qwen3");
    size_t total = 0;

    cr_expect_eq(cases_encode(tokenizer, cases, "real_ids", &total), 0);
    cr_assert_eq(total, 120);
    json_decref(cases);
    json_decref(file);
}

Test(tokenizer_real, knows_its_special_tokens)
{
    uint32_t id;

    cr_assert_eq(dk_tokenizer_size(tokenizer), 151669);
    cr_assert_eq(dk_tokenizer_id(tokenizer, "<|im_end|>", &id), 0);
    cr_assert_eq(id, 151645);
    cr_assert(dk_tokenizer_is_special(tokenizer, id));
    cr_assert_eq(dk_tokenizer_id(tokenizer, "</think>", &id), 0);
    cr_assert_not(dk_tokenizer_is_special(tokenizer, id));
    cr_assert_eq(dk_tokenizer_id(tokenizer, "<|im_end", &id), -ENOENT);
}

/* The hang limit of the suite is the check: quadratic work on these would take hours. */
Test(tokenizer_real, long_monotonous_texts_end)
{
    static const char *const units[] = {"a",        " ", "\n", " \n", "中", "e\xCC\x81\xCC\xA7",
                                        "<|im_end", "1", "'s", "\xF0"};
    size_t bytes = 1 << 20, count;
    char *text = malloc(bytes);

    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        struct dk_err err = {0};
        uint32_t *ids;

        for (size_t at = 0, n = strlen(units[i]); at < bytes; at++)
            text[at] = units[i][at % n];
        cr_assert_eq(dk_tokenizer_encode(tokenizer, text, bytes, &ids, &count, &err), 0, "%s: %s", units[i], err.text);
        cr_assert_gt(count, 0);
        free(ids);
    }
    free(text);
}
