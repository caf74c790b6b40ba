/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "model/chat.h"
#include "token_cases.h"

static enum dk_thinking thinking_of(const json_t *args)
{
    const json_t *v = json_object_get(args, "enable_thinking");

    v = v ? v : json_object_get(args, "thinking");
    return !v ? DK_THINKING_DEFAULT : json_is_true(v) ? DK_THINKING_ON : DK_THINKING_OFF;
}

static void check_case(const json_t *c, enum dk_chat_format format)
{
    const json_t *args = json_object_get(c, "args");
    const char *want = json_string_value(json_object_get(c, "text")),
               *name = json_string_value(json_object_get(c, "case"));
    struct dk_err err = {0};
    char *text = NULL;
    int rc = dk_chat_render(format, json_object_get(c, "messages"), json_object_get(c, "tools"), thinking_of(args),
                            json_is_true(json_object_get(args, "add_generation_prompt")), &text, &err);

    if (!want) {
        cr_expect_eq(rc, -EINVAL, "%s: %s must fail", dk_chat_format_name(format), name);
        cr_expect(strstr(err.text, "messages"), "%s: \"%s\"", name, err.text);
        cr_expect_null(text);
    } else {
        cr_expect_eq(rc, 0, "%s: %s: %s", dk_chat_format_name(format), name, err.text);
        cr_expect(text && strcmp(text, want) == 0, "%s: %s: expected\n%s\ngot\n%s", dk_chat_format_name(format), name,
                  want, text ? text : "");
    }
    free(text);
}

static bool knows_tools(enum dk_chat_format format)
{
    bool deepseek = format >= DK_CHAT_DEEPSEEK_V3 && format <= DK_CHAT_DEEPSEEK_V31_TERMINUS;

    return !deepseek && format != DK_CHAT_LLAMA3 && format != DK_CHAT_QWEN2_INSTRUCT && format != DK_CHAT_SMOLLM2;
}

static void check_cases(const char *path, const char *family, enum dk_chat_format format, size_t count, size_t failing)
{
    json_t *file = cases_load(path), *cases = json_object_get(file, "cases");
    size_t total = 0, with_tools = 0, errors = 0;

    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);

        if (strcmp(json_string_value(json_object_get(c, "family")), family) != 0)
            continue;
        total++;
        with_tools += json_is_array(json_object_get(c, "tools"));
        errors += !json_object_get(c, "text");
        check_case(c, format);
    }
    cr_assert_eq(total, count, "%s: %zu cases", family, total);
    cr_assert_eq(errors, failing, "%s: %zu errors", family, errors);
    cr_assert(with_tools > 0 || !knows_tools(format));
    json_decref(file);
}

Test(chat, renders_every_family_as_the_reference_does)
{
    static const char path[] = FIXTURES "/tokenizers/chat_cases.json";

    check_cases(path, "qwen3", DK_CHAT_QWEN3, 120, 0);
    check_cases(path, "qwen3_5", DK_CHAT_QWEN3_5, 117, 5);
    check_cases(path, "deepseek_v3", DK_CHAT_DEEPSEEK_V3, 46, 0);
    check_cases(path, "deepseek_v32", DK_CHAT_DEEPSEEK_V32, 114, 5);
}

Test(chat, renders_the_variants_as_the_reference_does)
{
    check_cases(CHAT_VARIANTS, "qwen2", DK_CHAT_QWEN2, 53, 0);
    check_cases(CHAT_VARIANTS, "qwen2_instruct", DK_CHAT_QWEN2_INSTRUCT, 22, 0);
    check_cases(CHAT_VARIANTS, "qwen3_instruct_2507", DK_CHAT_QWEN3_INSTRUCT, 53, 0);
    check_cases(CHAT_VARIANTS, "qwen3_thinking_2507", DK_CHAT_QWEN3_THINKING, 53, 0);
    check_cases(CHAT_VARIANTS, "qwen3_5_thinking_off", DK_CHAT_QWEN3_5_OFF, 70, 5);
    check_cases(CHAT_VARIANTS, "qwq", DK_CHAT_QWQ, 55, 0);
}

Test(chat, renders_deepseeks_variants_as_the_reference_does)
{
    check_cases(CHAT_VARIANTS, "deepseek_r1", DK_CHAT_DEEPSEEK_R1, 37, 2);
    check_cases(CHAT_VARIANTS, "deepseek_r1_distill", DK_CHAT_DEEPSEEK_R1_DISTILL, 51, 1);
    check_cases(CHAT_VARIANTS, "deepseek_r1_distill_free", DK_CHAT_DEEPSEEK_R1_DISTILL_FREE, 37, 1);
    check_cases(CHAT_VARIANTS, "deepseek_v3_0324", DK_CHAT_DEEPSEEK_V3_0324, 38, 2);
    check_cases(CHAT_VARIANTS, "deepseek_r1_0528", DK_CHAT_DEEPSEEK_R1_0528, 50, 2);
    check_cases(CHAT_VARIANTS, "deepseek_v31", DK_CHAT_DEEPSEEK_V31, 87, 2);
    check_cases(CHAT_VARIANTS, "deepseek_v31_terminus", DK_CHAT_DEEPSEEK_V31_TERMINUS, 70, 2);
}

Test(chat, renders_llamas_as_the_reference_does)
{
    check_cases(CHAT_VARIANTS, "llama3", DK_CHAT_LLAMA3, 31, 0);
    check_cases(CHAT_VARIANTS, "llama3_1", DK_CHAT_LLAMA3_1, 59, 5);
}

Test(chat, renders_mistrals_as_the_reference_does)
{
    check_cases(CHAT_VARIANTS, "mistral_nemo", DK_CHAT_MISTRAL_NEMO, 67, 13);
}

static void expect_text(enum dk_chat_format format, const char *messages, const char *tools, const char *want)
{
    json_t *m = json_loads(messages, 0, NULL), *t = tools ? json_loads(tools, 0, NULL) : NULL;
    struct dk_err err = {0};
    char *text = NULL;

    cr_assert(m && (t || !tools), "the test's JSON is wrong: %s", messages);
    cr_expect_eq(dk_chat_render(format, m, t, DK_THINKING_DEFAULT, 0, &text, &err), 0, "%s: %s", messages, err.text);
    cr_expect(text && strcmp(text, want) == 0, "expected\n%s\ngot\n%s", want, text ? text : "");
    free(text);
    json_decref(m);
    json_decref(t);
}

Test(chat, prints_json_as_python_does)
{
    static const char head[] = "<|im_start|>assistant\n<tool_call>\n{\"name\": \"f\", \"arguments\": ",
                      tail[] = "}\n</tool_call><|im_end|>\n<|im_start|>user\nx<|im_end|>\n";
    /* The right column is what json.dumps(json.loads(left), ensure_ascii=False) gives. */
    static const char *const cases[][2] = {
        {"{\"a\":[1,-2,3.0,1e3]}", "{\"a\": [1, -2, 3.0, 1000.0]}"},
        {"[0.1,1e-4,1e-5,1.5e-7,-0.0]", "[0.1, 0.0001, 1e-05, 1.5e-07, -0.0]"},
        {"[1e15,1e16,123456789012345680.0,1.7976931348623157e308]",
         "[1000000000000000.0, 1e+16, 1.2345678901234568e+17, 1.7976931348623157e+308]"},
        {"[123.456,0.001234,5e-324,100.25]", "[123.456, 0.001234, 5e-324, 100.25]"},
        {"[true,false,null,{},[],\"\"]", "[true, false, null, {}, [], \"\"]"},
        {"\"\\u0001\\b\\f\\n\\r\\t\\\"\\\\\\/\\u007f\\u00e9\"", NULL}, /* a text is printed as it is */
        {"[\"\\u0001\\u001f\\b\\f\\n\\r\\t\\\"\\\\\\/\"]", "[\"\\u0001\\u001f\\b\\f\\n\\r\\t\\\"\\\\/\"]"},
        {"[\"\\u007f\\u00e9\\ud83d\\ude00<>&'\"]", "[\"\x7f\xc3\xa9\xf0\x9f\x98\x80<>&'\"]"},
        {"{\"z\":{\"y\":1},\"a\":2}", "{\"z\": {\"y\": 1}, \"a\": 2}"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char messages[700], want[700];

        snprintf(messages, sizeof messages,
                 "[{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"f\",\"arguments\":%s}]},"
                 "{\"role\":\"user\",\"content\":\"x\"}]",
                 cases[i][0]);
        snprintf(want, sizeof want, "%s%s%s", head, cases[i][1] ? cases[i][1] : "\x01\b\f\n\r\t\"\\/\x7f\xc3\xa9",
                 tail);
        expect_text(DK_CHAT_QWEN3, messages, NULL, want);
    }
}

/* The right column is what json.dumps(json.loads(left), ensure_ascii=False, indent=4) gives. */
Test(chat, prints_tools_as_python_indents)
{
    static const char *const cases[][2] = {
        {"{}", "{}"},
        {"{\"a\":[],\"b\":{}}", "{\n    \"a\": [],\n    \"b\": {}\n}"},
        {"{\"a\":[1,[true,\"é\"]],\"b\":{\"c\":1e-7}}",
         "{\n    \"a\": [\n        1,\n        [\n            true,\n            \"é\"\n        ]\n    ],\n"
         "    \"b\": {\n        \"c\": 1e-07\n    }\n}"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char tools[100], want[1000];

        snprintf(tools, sizeof tools, "[%s]", cases[i][0]);
        snprintf(
            want, sizeof want,
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nEnvironment: ipython\nCutting Knowledge "
            "Date: December 2023\nToday Date: 26 Jul 2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
            "Given the following functions, please respond with a JSON for a function call with its proper "
            "arguments that best answers the given prompt.\n\nRespond in the format {\"name\": function name, "
            "\"parameters\": dictionary of argument name and its value}.Do not use variables.\n\n%s\n\nx<|eot_id|>",
            cases[i][1]);
        expect_text(DK_CHAT_LLAMA3_1, "[{\"role\":\"user\",\"content\":\"x\"}]", tools, want);
    }
}

/* Each level of nesting costs blanks before every entry, so there are 64 at most. */
Test(chat, nested_tools_have_a_limit)
{
    json_t *messages = json_loads("[{\"role\":\"user\",\"content\":\"x\"}]", 0, NULL);

    for (size_t depth = 63; depth <= 65; depth++) {
        json_t *tools, *inner = json_array();
        struct dk_err err = {0};
        char *text = NULL;
        int rc;

        for (size_t i = 1; i < depth; i++)
            inner = i % 2 ? json_pack("{so}", "k", inner) : json_pack("[o]", inner);
        tools = json_pack("[{},o]", inner);
        rc = dk_chat_render(DK_CHAT_LLAMA3_1, messages, tools, DK_THINKING_DEFAULT, 0, &text, &err);
        cr_expect_eq(rc, depth <= 64 ? 0 : -EINVAL, "%zu levels: %s", depth, err.text);
        cr_expect((text != NULL) == (rc == 0));
        cr_expect(rc == 0 || strstr(err.text, "tools[1]"), "%s", err.text);
        free(text);
        json_decref(tools);
    }
    json_decref(messages);
}

Test(chat, templates_without_tools_ignore_them)
{
    json_t *messages = json_loads("[{\"role\":\"user\",\"content\":\"x\"}]", 0, NULL),
           *tools = json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]", 0, NULL);

    for (int f = 0; f < DK_CHAT_GUESS_QWEN3; f++) {
        struct dk_err err = {0};
        char *with = NULL, *without = NULL;

        cr_assert_eq(dk_chat_render(f, messages, tools, DK_THINKING_DEFAULT, 1, &with, &err), 0, "%s", err.text);
        cr_assert_eq(dk_chat_render(f, messages, NULL, DK_THINKING_DEFAULT, 1, &without, &err), 0, "%s", err.text);
        cr_expect_eq(strcmp(with, without) != 0, knows_tools(f), "%s", dk_chat_format_name(f));
        free(with);
        free(without);
    }
    json_decref(messages);
    json_decref(tools);
}

Test(chat, chatml_with_and_without_a_default_system_message)
{
    static const char hi[] = "[{\"role\":\"user\",\"content\":\"Hi\"}]",
                      kind[] = "[{\"role\":\"system\",\"content\":\"Be kind.\"},{\"role\":\"user\",\"content\":\"\"}]",
                      kind_text[] = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n<|im_end|>\n";

    expect_text(DK_CHAT_SMOLLM2, hi, NULL,
                "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
                "<|im_start|>user\nHi<|im_end|>\n");
    expect_text(DK_CHAT_QWEN2_INSTRUCT, hi, NULL,
                "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n");
    expect_text(DK_CHAT_GUESS_CHATML, hi, NULL, "<|im_start|>user\nHi<|im_end|>\n");
    expect_text(DK_CHAT_SMOLLM2, kind, NULL, kind_text);
    expect_text(DK_CHAT_QWEN2_INSTRUCT, kind, NULL, kind_text);
    expect_text(DK_CHAT_GUESS_CHATML, kind, NULL, kind_text);
}

/* The turns are those of the family's own format. */
Test(chat, guesses_are_the_familys_format_without_tools)
{
    static const enum dk_chat_format of[][2] = {{DK_CHAT_GUESS_QWEN3, DK_CHAT_QWEN3},
                                                {DK_CHAT_GUESS_QWEN3_5, DK_CHAT_QWEN3_5},
                                                {DK_CHAT_GUESS_DEEPSEEK_V3, DK_CHAT_DEEPSEEK_V3},
                                                {DK_CHAT_GUESS_DEEPSEEK_V32, DK_CHAT_DEEPSEEK_V32},
                                                {DK_CHAT_GUESS_LLAMA3, DK_CHAT_LLAMA3}};
    json_t *turns = json_loads(
               "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"x\"},{\"role\":"
               "\"assistant\",\"content\":\"y\",\"tool_calls\":[]},{\"role\":\"user\",\"content\":\"z\"}]",
               0, NULL),
           *calls = json_loads(
               "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{"
               "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}]",
               0, NULL),
           *tools = json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]", 0, NULL);

    cr_assert(turns && calls && tools);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        for (int thinking = DK_THINKING_DEFAULT; thinking <= DK_THINKING_OFF; thinking++) {
            char *guess = NULL, *known = NULL;

            cr_assert_eq(dk_chat_render(of[i][0], turns, NULL, thinking, 1, &guess, NULL), 0);
            cr_assert_eq(dk_chat_render(of[i][1], turns, NULL, thinking, 1, &known, NULL), 0);
            cr_expect_str_eq(guess, known);
            free(guess);
            free(known);
        }
    }
    for (int f = DK_CHAT_GUESS_QWEN3; f < DK_CHAT_NONE; f++) {
        struct dk_err err = {0};
        char *text = NULL;

        cr_expect_eq(dk_chat_render(f, turns, tools, DK_THINKING_DEFAULT, 1, &text, &err), -ENOTSUP, "%d", f);
        cr_expect(strstr(err.text, "tools") && strstr(err.text, "template"), "%s", err.text);
        cr_expect_null(text);
        cr_expect_eq(dk_chat_render(f, calls, NULL, DK_THINKING_DEFAULT, 1, &text, &err), -ENOTSUP, "%d", f);
        cr_expect(strstr(err.text, "messages[1].tool_calls"), "%s", err.text);
        cr_expect_null(text);
        cr_expect(strstr(dk_chat_format_name(f), "_guessed"), "%s", dk_chat_format_name(f));
    }
    json_decref(turns);
    json_decref(calls);
    json_decref(tools);
}

/* The list stands before each question that equals the last one. */
Test(chat, mistrals_tools_are_written_a_limited_number_of_times)
{
    json_t *tools = json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]", 0, NULL);

    for (int questions = 32; questions <= 33; questions++) {
        json_t *messages = json_array();
        struct dk_err err = {0};
        char *text = NULL;
        int lists = 0;

        for (int i = 0; i < questions; i++) {
            json_array_append_new(messages, json_pack("{ssss}", "role", "user", "content", "go on"));
            json_array_append_new(messages, json_pack("{ssss}", "role", "assistant", "content", "ok"));
        }
        cr_expect_eq(dk_chat_render(DK_CHAT_MISTRAL_NEMO, messages, tools, DK_THINKING_DEFAULT, 1, &text, &err),
                     questions == 32 ? 0 : -EINVAL, "%s", err.text);
        for (const char *p = text; p && (p = strstr(p, "[AVAILABLE_TOOLS]")); p++)
            lists++;
        cr_expect_eq(lists, questions == 32 ? 32 : 0);
        free(text);
        json_decref(messages);
    }
    json_decref(tools);
}

Test(chat, messages_that_give_no_text_give_an_empty_one)
{
    expect_text(DK_CHAT_QWEN3, "[{\"role\":\"critic\",\"content\":\"no\"}]", "[]", "");
}

#define USER "{\"role\":\"user\",\"content\":\"x\"}"
#define CALL(arguments)                                                                            \
    "{\"role\":\"assistant\",\"tool_calls\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"," \
    "\"arguments\":" arguments "}}]}"

Test(chat, refuses_bad_messages_by_name)
{
    static const struct {
        enum dk_chat_format format;
        const char *messages, *tools, *names;
        int rc;
    } cases[] = {
        {DK_CHAT_NONE, "[{\"role\":\"user\",\"content\":\"x\"}]", NULL, "chat template", -ENOTSUP},
        {DK_CHAT_QWEN3, "{}", NULL, "messages", -EINVAL},
        {DK_CHAT_QWEN3, "[]", NULL, "messages", -EINVAL},
        {DK_CHAT_SMOLLM2, "[]", NULL, "messages", -EINVAL},
        {DK_CHAT_QWEN3, "[1]", NULL, "messages[0]", -EINVAL},
        {DK_CHAT_QWEN3, "[{\"content\":\"x\"}]", NULL, "messages[0].role", -EINVAL},
        {DK_CHAT_QWEN3, "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":7}]", NULL, "messages[1].role", -EINVAL},
        {DK_CHAT_QWEN3, "[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]", NULL, "messages[0].content",
         -EINVAL},
        {DK_CHAT_QWEN3, "[{\"role\":\"system\"}]", NULL, "messages[0].content", -EINVAL},
        {DK_CHAT_QWEN3, "[{\"role\":\"user\",\"content\":\"a\\u0000b\"}]", NULL, "NUL", -EINVAL},
        {DK_CHAT_QWEN3, "[{\"role\":\"user\\u0000\",\"content\":\"a\"}]", NULL, "messages[0].role", -EINVAL},
        {DK_CHAT_GUESS_CHATML, "[{\"role\":\"user\",\"content\":null}]", NULL, "messages[0].content", -EINVAL},
        {DK_CHAT_QWEN3, "[{\"role\":\"assistant\",\"reasoning_content\":1}]", NULL, "reasoning_content", -EINVAL},
        {DK_CHAT_QWEN3, "[{\"role\":\"assistant\",\"tool_calls\":{}}]", NULL, "messages[0].tool_calls", -EINVAL},
        {DK_CHAT_QWEN3, "[{\"role\":\"assistant\",\"tool_calls\":[3]}]", NULL, "tool_calls[0]", -EINVAL},
        {DK_CHAT_QWEN3, "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":\"f\"}]}]", NULL, "function", -EINVAL},
        {DK_CHAT_QWEN3, "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}]", NULL, "name", -EINVAL},
        {DK_CHAT_QWEN3, "[{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"f\"}]}]", NULL, "arguments", -EINVAL},
        {DK_CHAT_QWEN3, "[{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"f\",\"arguments\":\"a\\u0000\"}]}]", NULL,
         "NUL", -EINVAL},
        {DK_CHAT_QWEN3, "[{\"role\":\"user\",\"content\":\"x\"}]", "{\"a\":1}", "tools", -EINVAL},
        {DK_CHAT_QWEN3_5, "[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]", NULL, "messages[0].content[0]",
         -EINVAL},
        {DK_CHAT_QWEN3_5, "[{\"role\":\"user\",\"content\":[{\"text\":\"a\"},{\"text\":\"a\\u0000\"}]}]", NULL,
         "messages[0].content[1]", -EINVAL},
        {DK_CHAT_QWEN3_5, "[{\"role\":\"user\",\"content\":7}]", NULL, "messages[0].content", -EINVAL},
        {DK_CHAT_QWEN3_5, "[" USER ",{\"role\":\"critic\"}]", NULL, "messages[1].role", -EINVAL},
        {DK_CHAT_QWEN3_5, "[" USER ",{\"role\":\"system\",\"content\":\"s\"}]", NULL, "messages[1].role", -EINVAL},
        {DK_CHAT_QWEN3_5, "[" USER "," CALL("\"{\"") "]", NULL, "messages[1].tool_calls[0].arguments", -EINVAL},
        {DK_CHAT_QWEN3_5, "[" USER "," CALL("\"[1]\"") "]", NULL, "messages[1].tool_calls[0].arguments", -EINVAL},
        {DK_CHAT_QWEN3_5, "[" USER "," CALL("[1]") "]", NULL, "messages[1].tool_calls[0].arguments", -EINVAL},
        {DK_CHAT_QWEN3_5, "[" USER "," CALL("{\"k\":\"\\u0000\"}") "]", NULL, "\"k\" has a NUL", -EINVAL},
        {DK_CHAT_QWEN3_5, "[" USER "," CALL("\"{\\\"k\\\":\\\"\\\\u0000\\\"}\"") "]", NULL, "arguments", -EINVAL},
        {DK_CHAT_QWEN2, "[" USER "," CALL("3") "]", NULL, "arguments", -EINVAL},
        {DK_CHAT_QWEN2, "[{\"role\":\"assistant\"}]", NULL, "messages[0].content", -EINVAL},
        {DK_CHAT_QWEN2, "[{\"role\":\"system\"}]", NULL, "messages[0].content", -EINVAL},
        {DK_CHAT_DEEPSEEK_V3, "[{\"role\":\"assistant\"}]", NULL, "messages[0].content", -EINVAL},
        {DK_CHAT_DEEPSEEK_V3, "[" USER ",{\"role\":\"system\"}]", NULL, "messages[1].content", -EINVAL},
        {DK_CHAT_DEEPSEEK_V3, "[{\"role\":\"tool\"}]", NULL, "messages[0].content", -EINVAL},
        {DK_CHAT_DEEPSEEK_V3,
         "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"\"}}]}]", NULL,
         "tool_calls[0].type", -EINVAL},
        {DK_CHAT_DEEPSEEK_V3, "[" CALL("7") "]", NULL, "tool_calls[0].arguments", -EINVAL},
        {DK_CHAT_DEEPSEEK_R1, "[" CALL("7") "]", NULL, "tool_calls[0].arguments", -EINVAL},
        {DK_CHAT_DEEPSEEK_R1_DISTILL, "[" USER ",{\"role\":\"system\"}]", NULL, "messages[1].content", -EINVAL},
        {DK_CHAT_DEEPSEEK_R1_DISTILL, "[" USER "," CALL("7") "]", NULL, "messages[1].tool_calls[0].arguments", -EINVAL},
        {DK_CHAT_DEEPSEEK_R1_DISTILL, "[{\"role\":\"tool\"}]", NULL, "messages[0].content", -EINVAL},
        {DK_CHAT_DEEPSEEK_R1_0528, "[{\"role\":\"assistant\"}]", NULL, "messages[0].content", -EINVAL},
        {DK_CHAT_DEEPSEEK_R1_0528, "[" USER "," CALL("7") "]", NULL, "messages[1].tool_calls[0].arguments", -EINVAL},
        {DK_CHAT_DEEPSEEK_V31, "[" USER "," CALL("7") "]", NULL, "messages[1].tool_calls[0].arguments", -EINVAL},
        {DK_CHAT_DEEPSEEK_V31, "[{\"role\":\"tool\"}]", NULL, "messages[0].content", -EINVAL},
        {DK_CHAT_DEEPSEEK_V31_TERMINUS, "[{\"role\":\"system\"}]", NULL, "messages[0].content", -EINVAL},
        {DK_CHAT_QWQ, "[{\"role\":\"assistant\"}]", NULL, "messages[0].content", -EINVAL},
        {DK_CHAT_LLAMA3, "[{\"role\":\"user\",\"content\":null}]", NULL, "messages[0].content", -EINVAL},
        {DK_CHAT_LLAMA3_1, "[{\"role\":\"system\"}]", NULL, "messages[0].content", -EINVAL},
        {DK_CHAT_LLAMA3_1, "[" USER ",{\"role\":\"tool\"}]", NULL, "messages[1].content", -EINVAL},
        {DK_CHAT_LLAMA3_1, "[" USER "," CALL("\"[1]\"") "]", NULL, "messages[1].tool_calls[0].arguments", -EINVAL},
        {DK_CHAT_LLAMA3_1, "[{\"role\":\"system\",\"content\":\"s\"}]", "[{}]", "messages", -EINVAL},
        {DK_CHAT_MISTRAL_NEMO, "[" USER ",{\"role\":\"assistant\"}]", NULL, "messages[1].content", -EINVAL},
        {DK_CHAT_MISTRAL_NEMO, "[{\"role\":\"system\",\"content\":null}]", NULL, "messages[0].content", -EINVAL},
        {DK_CHAT_MISTRAL_NEMO, "[" USER "," USER "]", NULL, "messages[1].role", -EINVAL},
        {DK_CHAT_MISTRAL_NEMO, "[" USER "," CALL("7") "]", NULL, "messages[1].tool_calls[0].arguments", -EINVAL},
        {DK_CHAT_MISTRAL_NEMO, "[" USER "," CALL("{}") "]", NULL, "messages[1].tool_calls[0].id", -EINVAL},
        {DK_CHAT_MISTRAL_NEMO, "[" USER ",{\"role\":\"tool\",\"content\":\"r\",\"tool_call_id\":\"12345678\\u0000\"}]",
         NULL, "messages[1].tool_call_id", -EINVAL},
        {DK_CHAT_MISTRAL_NEMO, "[" USER ",{\"role\":\"tool\",\"content\":[1],\"tool_call_id\":\"123456789\"}]", NULL,
         "messages[1].content", -EINVAL},
        {DK_CHAT_MISTRAL_NEMO, "[" USER ",{\"role\":\"tool\",\"content\":\"\\u0000\",\"tool_call_id\":\"123456789\"}]",
         NULL, "messages[1].content", -EINVAL},
        {DK_CHAT_MISTRAL_NEMO, "[" USER ",{\"role\":\"tool\",\"tool_call_id\":\"123456789\"}]", NULL,
         "messages[1].content", -EINVAL},
        {DK_CHAT_MISTRAL_NEMO, "[" USER "]", "[{\"type\":\"function\"}]", "tools[0].function", -EINVAL},
        {DK_CHAT_DEEPSEEK_V32, "[{\"role\":\"user\"}]", NULL, "messages[0].content", -EINVAL},
        {DK_CHAT_DEEPSEEK_V32, "[" USER "]", "[{\"type\":\"function\"}]", "tools[0].function", -EINVAL},
        {DK_CHAT_DEEPSEEK_V32,
         "[" CALL("{}") ",{\"role\":\"tool\",\"content\":\"a\"},{\"role\":\"tool\",\"content\":\"b\"}]", NULL,
         "messages[2]", -EINVAL},
        {DK_CHAT_DEEPSEEK_V32, "[" CALL("{}") ",{\"role\":\"tool\"}]", NULL, "messages[1].content", -EINVAL},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *m = json_loads(cases[i].messages, JSON_ALLOW_NUL, NULL),
               *t = cases[i].tools ? json_loads(cases[i].tools, 0, NULL) : NULL;
        struct dk_err err = {0};
        char *text = (char *)"left as it was";

        cr_assert(m, "the test's JSON is wrong: %s", cases[i].messages);
        cr_expect_eq(dk_chat_render(cases[i].format, m, t, DK_THINKING_DEFAULT, 1, &text, &err), cases[i].rc, "%s: %s",
                     cases[i].messages, err.text);
        cr_expect(strstr(err.text, cases[i].names), "\"%s\" does not name %s", err.text, cases[i].names);
        cr_expect_null(text);
        json_decref(m);
        json_decref(t);
    }
}

/* What the reference says of these is in no file of cases: Python's str.strip() and str.isspace(). */
Test(chat, strips_the_white_space_that_python_strips)
{
    expect_text(DK_CHAT_QWEN3_5,
                "[{\"role\":\"user\",\"content\":\"\\u2003\\u001f\\u0085\\u00a0\\u3000 a \\u180e\\u200b\\u2028\\t\"}]",
                NULL, "<|im_start|>user\na \xe1\xa0\x8e\xe2\x80\x8b<|im_end|>\n");
    expect_text(DK_CHAT_QWEN3_5, "[{\"role\":\"user\",\"content\":\"\\u205f\\u202f\\u1680\\u200a\\u2029\\u000b\"}]",
                NULL, "<|im_start|>user\n<|im_end|>\n");
}

/* Null and empty arguments are none; an object is what its text would be. */
Test(chat, arguments_of_calls_in_any_form)
{
    static const char *const none[] = {"null", "\"\"", "{}", "\"{}\""};
    char messages[400];

    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        snprintf(messages, sizeof messages, "[" USER "," CALL("%s") "]", none[i]);
        expect_text(DK_CHAT_QWEN3_5, messages, NULL,
                    "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n<tool_call>\n"
                    "<function=f>\n</function>\n</tool_call><|im_end|>\n");
    }
    expect_text(DK_CHAT_DEEPSEEK_V3, "[" USER "," CALL("{\"a\":[1]}") "]", NULL,
                "<｜begin▁of▁sentence｜><｜User｜>x<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<"
                "｜tool▁sep｜>f\n"
                "```json\n{\"a\": [1]}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>");
    expect_text(DK_CHAT_DEEPSEEK_V3, "[{\"role\":\"assistant\",\"content\":\"a\",\"tool_calls\":null}]", NULL,
                "<｜begin▁of▁sentence｜><｜Assistant｜>a<｜end▁of▁sentence｜>");
}

/* What the template itself fails on, although a client may send it and its meaning is plain. */
Test(chat, fields_that_are_null_or_empty)
{
    static const char plain[] =
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: "
        "December 2023\nToday Date: 26 Jul 2024\n\n<|eot_id|><|start_header_id|>assistant"
        "<|end_header_id|>\n\na<|eot_id|>";

    expect_text(DK_CHAT_LLAMA3_1, "[{\"role\":\"assistant\",\"content\":\"a\",\"tool_calls\":null}]", NULL, plain);
    expect_text(DK_CHAT_LLAMA3_1, "[{\"role\":\"assistant\",\"content\":\"a\",\"tool_calls\":[]}]", NULL, plain);
    expect_text(DK_CHAT_DEEPSEEK_R1_0528, "[" USER "," CALL("\"{}\"") "]", NULL,
                "<｜begin▁of▁sentence｜><｜User｜>x<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function"
                "<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>");
    expect_text(DK_CHAT_DEEPSEEK_V31, "[" USER "," CALL("{\"a\":[1]}") "]", NULL,
                "<｜begin▁of▁sentence｜><｜User｜>x<｜Assistant｜></think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f"
                "<｜tool▁sep｜>{\"a\": [1]}<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>");
    expect_text(DK_CHAT_MISTRAL_NEMO, "[" USER ",{\"role\":\"assistant\",\"content\":\"a\",\"tool_calls\":[]}]", NULL,
                "<s>[INST]x[/INST]a</s>");
    expect_text(DK_CHAT_MISTRAL_NEMO,
                "[" USER
                ",{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"f\",\"arguments\":\"\",\"id\":\"123456789\"}]}]",
                NULL, "<s>[INST]x[/INST][TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}, \"id\": \"123456789\"}]</s>");
    expect_text(DK_CHAT_DEEPSEEK_R1_DISTILL, "[{\"role\":\"assistant\"}," USER "]", NULL,
                "<｜begin▁of▁sentence｜><｜User｜>x");
    expect_text(DK_CHAT_QWQ, "[" CALL("{}") "," USER "]", NULL,
                "<|im_start|>assistant\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call><|im_end|>\n"
                "<|im_start|>user\nx<|im_end|>\n");
}

/* jansson reads 2048 levels. Deeper text is refused, not followed. */
Test(chat, deep_arguments_end)
{
    static const enum dk_chat_format formats[] = {DK_CHAT_QWEN2, DK_CHAT_QWEN3_5, DK_CHAT_DEEPSEEK_V32,
                                                  DK_CHAT_LLAMA3_1};

    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        for (size_t depth = 2000; depth <= 100000; depth *= 50) {
            char *arguments = malloc(2 * depth + 20), *text = NULL;
            struct dk_err err = {0};
            json_t *messages;
            int rc;

            memcpy(arguments, "{\"a\":", 5);
            memset(arguments + 5, '[', depth);
            memset(arguments + 5 + depth, ']', depth);
            memcpy(arguments + 5 + 2 * depth, "}", 2);
            messages = json_pack("[{ssss},{sss[{ssss}]}]", "role", "user", "content", "x", "role", "assistant",
                                 "tool_calls", "name", "f", "arguments", arguments);
            cr_assert_not_null(messages);
            rc = dk_chat_render(formats[i], messages, NULL, DK_THINKING_DEFAULT, 0, &text, &err);
            cr_expect_eq(rc, depth == 2000 ? 0 : -EINVAL, "%s", err.text);
            if (depth == 2000)
                cr_expect(text && memmem(text, strlen(text), arguments + 5, 2 * depth));
            free(text);
            free(arguments);
            json_decref(messages);
        }
    }
}

static char folder[64], last_log[600];
static enum dk_log_level last_level;

static void keep_log(void *ctx, enum dk_log_level level, const char *line)
{
    last_level = level;
    snprintf(last_log, sizeof last_log, "%s", line);
}

static void make_folder(void)
{
    snprintf(folder, sizeof folder, "/tmp/duck_chat_XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
    dk_log_setup(keep_log, NULL, DK_LOG_INFO, "test");
}

static void path_of(char *path, size_t bytes, const char *name)
{
    snprintf(path, bytes, "%s/%s", folder, name);
}

static void remove_file(const char *name)
{
    char path[200];

    path_of(path, sizeof path, name);
    unlink(path);
}

static void remove_folder(void)
{
    remove_file("chat_template.jinja");
    remove_file("tokenizer_config.json");
    rmdir(folder);
}

static void put_file(const char *name, const char *text)
{
    char path[200];
    FILE *f;

    path_of(path, sizeof path, name);
    f = fopen(path, "w");
    cr_assert_not_null(f);
    fputs(text, f);
    fclose(f);
}

/* What the folder gives, and one log line that has all three words. */
static void expect_format(const char *dir, enum dk_family family, enum dk_chat_format want, enum dk_log_level level,
                          const char *id, const char *word)
{
    enum dk_chat_format format = DK_CHAT_NONE;
    struct dk_err err = {0};
    char used[100], of[60];

    last_log[0] = 0;
    cr_assert_eq(dk_chat_format_detect(dir, family, &format, &err), 0, "%s", err.text);
    cr_expect_eq(format, want, "%s: %s instead of %s", last_log, dk_chat_format_name(format),
                 dk_chat_format_name(want));
    snprintf(used, sizeof used, "used=%s ", dk_chat_format_name(want));
    snprintf(of, sizeof of, "family=%s ", dk_family_name(family));
    cr_expect_eq(last_level, level, "%s", last_log);
    cr_expect(strstr(last_log, id) && strstr(last_log, used) && strstr(last_log, of) && strstr(last_log, word),
              "\"%s\" lacks one of \"%s\", \"%s\", \"%s\", \"%s\"", last_log, id, used, of, word);
}

static void expect_alike(enum dk_family family, enum dk_chat_format want)
{
    expect_format(folder, family, want, DK_LOG_WARN, "chat.template.alike", "sha256=");
}

static void expect_unknown(enum dk_family family, enum dk_chat_format want)
{
    expect_format(folder, family, want, DK_LOG_WARN, "chat.template.unknown", "sha256=");
}

static void expect_missing(enum dk_family family, enum dk_chat_format want)
{
    expect_format(folder, family, want, DK_LOG_INFO, "chat.template.missing", folder);
}

TestSuite(chat_detect, .init = make_folder, .fini = remove_folder);

static const struct {
    enum dk_family family;
    enum dk_chat_format own, other, unread; /* without a template; with one that is not known and not ChatML; with one
                                             * that cannot be read */
} families[] = {
    {DK_FAMILY_LLAMA, DK_CHAT_NONE, DK_CHAT_NONE, DK_CHAT_NONE},
    {DK_FAMILY_MISTRAL, DK_CHAT_NONE, DK_CHAT_NONE, DK_CHAT_NONE},
    {DK_FAMILY_QWEN2, DK_CHAT_QWEN2, DK_CHAT_NONE, DK_CHAT_GUESS_CHATML},
    {DK_FAMILY_QWEN3, DK_CHAT_QWEN3, DK_CHAT_GUESS_QWEN3, DK_CHAT_GUESS_QWEN3},
    {DK_FAMILY_QWEN3_MOE, DK_CHAT_QWEN3, DK_CHAT_GUESS_QWEN3, DK_CHAT_GUESS_QWEN3},
    {DK_FAMILY_QWEN3_5, DK_CHAT_QWEN3_5, DK_CHAT_GUESS_QWEN3_5, DK_CHAT_GUESS_QWEN3_5},
    {DK_FAMILY_QWEN3_5_MOE, DK_CHAT_QWEN3_5, DK_CHAT_GUESS_QWEN3_5, DK_CHAT_GUESS_QWEN3_5},
    {DK_FAMILY_DEEPSEEK_V3, DK_CHAT_DEEPSEEK_V3, DK_CHAT_GUESS_DEEPSEEK_V3, DK_CHAT_GUESS_DEEPSEEK_V3},
    {DK_FAMILY_DEEPSEEK_V32, DK_CHAT_DEEPSEEK_V32, DK_CHAT_GUESS_DEEPSEEK_V32, DK_CHAT_GUESS_DEEPSEEK_V32},
};

Test(chat_detect, a_family_without_a_template_has_its_own_format)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        expect_missing(families[i].family, families[i].own);
    put_file("tokenizer_config.json", "{\"chat_template\": null}");
    expect_missing(DK_FAMILY_DEEPSEEK_V32, DK_CHAT_DEEPSEEK_V32);
}

/* The digest is what Python's hashlib gives. */
Test(chat_detect, unknown_templates_are_logged_with_family_and_hash)
{
    put_file("chat_template.jinja", "{{ messages }}");
    put_file("tokenizer_config.json", "{\"chat_template\": \"<|im_start|>\"}"); /* the .jinja file counts */
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        expect_format(folder, families[i].family, families[i].other, DK_LOG_WARN, "chat.template.unknown",
                      "sha256=f24189f08c85a1eb19a737306c3a13e85462ee33d964f28108d64a2485fa2171");
    remove_file("chat_template.jinja");
    expect_unknown(DK_FAMILY_LLAMA, DK_CHAT_GUESS_CHATML);
    expect_unknown(DK_FAMILY_MISTRAL, DK_CHAT_GUESS_CHATML);
    expect_unknown(DK_FAMILY_QWEN2, DK_CHAT_GUESS_CHATML);
    expect_unknown(DK_FAMILY_QWEN3_5, DK_CHAT_GUESS_QWEN3_5);
}

Test(chat_detect, templates_in_tokenizer_config)
{
    static const char smollm[] = "<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
                                 "Face<|im_end|>";
    char config[600];

    snprintf(config, sizeof config, "{\"chat_template\": \"%s\"}", smollm);
    put_file("tokenizer_config.json", config);
    expect_alike(DK_FAMILY_LLAMA, DK_CHAT_SMOLLM2);
    snprintf(config, sizeof config,
             "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"x\"}, {\"name\": \"default\", \"template\": "
             "\"%s\"}]}",
             smollm);
    put_file("tokenizer_config.json", config);
    expect_alike(DK_FAMILY_LLAMA, DK_CHAT_SMOLLM2);
}

Test(chat_detect, the_fixtures_templates_are_known_by_their_hash)
{
    static const struct {
        const char *dir;
        enum dk_family family;
        enum dk_chat_format format;
    } cases[] = {
        {FIXTURES "/qwen3-tiny", DK_FAMILY_QWEN3, DK_CHAT_QWEN3},
        {FIXTURES "/qwen3-fp8-tiny", DK_FAMILY_QWEN3, DK_CHAT_QWEN3},
        {FIXTURES "/qwen3-moe-fp8-tiny", DK_FAMILY_QWEN3_MOE, DK_CHAT_QWEN3},
        {FIXTURES "/qwen3_5-fp8-tiny", DK_FAMILY_QWEN3_5, DK_CHAT_QWEN3_5},
        {FIXTURES "/qwen3_5_moe-fp8-tiny", DK_FAMILY_QWEN3_5_MOE, DK_CHAT_QWEN3_5},
        {FIXTURES "/deepseek_v3-fp8-tiny", DK_FAMILY_DEEPSEEK_V3, DK_CHAT_DEEPSEEK_V3},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_format(cases[i].dir, cases[i].family, cases[i].format, DK_LOG_INFO, "chat.template.known", "sha256=");
    expect_format(FIXTURES "/deepseek_v32-fp8-tiny", DK_FAMILY_DEEPSEEK_V32, DK_CHAT_DEEPSEEK_V32, DK_LOG_INFO,
                  "chat.template.missing", "deepseek_v32-fp8-tiny");
}

/* Replaces the last `from` of text; malloc'ed. */
static char *changed(const char *text, const char *from, const char *to)
{
    char *out = malloc(strlen(text) + strlen(to) + 1);
    const char *at = NULL;

    for (const char *p = strstr(text, from); p; p = strstr(p + 1, from))
        at = p;
    cr_assert(out && at, "no \"%s\"", from);
    sprintf(out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    return out;
}

static void put_changed(const char *text, const char *from, const char *to)
{
    char *more = changed(text, from, to);

    put_file("chat_template.jinja", more);
    free(more);
}

#define PROMPT_END "{{'<｜Assistant｜>'}}{% endif %}"

/* The template of a release: known by its hash, with another hash by its words, and not at all once it writes <think>
 * somewhere. What stands in R1's prompt makes it R1's template. */
Test(chat_detect, a_released_template)
{
    json_t *config = cases_load(FIXTURES "/tokenizers/real/deepseek_v3.tokenizer_config.json");
    const char *text = json_string_value(json_object_get(config, "chat_template"));

    put_file("chat_template.jinja", text);
    expect_format(folder, DK_FAMILY_DEEPSEEK_V3, DK_CHAT_DEEPSEEK_V3, DK_LOG_INFO, "chat.template.known",
                  "sha256=3a3036eeb96ca0e48565fc1f19b4d7d3fa17ada32bb1b3d5ed539ae74cf22923");
    put_changed(text, PROMPT_END, PROMPT_END "{#- -#}");
    expect_alike(DK_FAMILY_DEEPSEEK_V3, DK_CHAT_DEEPSEEK_V3);
    put_changed(text, PROMPT_END, PROMPT_END "<think>");
    expect_unknown(DK_FAMILY_DEEPSEEK_V3, DK_CHAT_GUESS_DEEPSEEK_V3);
    put_changed(text, PROMPT_END, "{{'<｜Assistant｜><think>\\n'}}{% endif %}");
    expect_format(folder, DK_FAMILY_DEEPSEEK_V3, DK_CHAT_DEEPSEEK_R1, DK_LOG_INFO, "chat.template.known",
                  "sha256=563b1ce7d61d50a9b4c7439a912a1116f095b712df5b5e4d3e1116049874eb64");
    put_changed(text, PROMPT_END, "{{'<｜Assistant｜><think>\\n'}}{% endif %}{#- -#}");
    expect_alike(DK_FAMILY_QWEN2, DK_CHAT_DEEPSEEK_R1);
    json_decref(config);
}

/* Only the words count here, so these are not whole templates. */
#define CHATML_CALLS "<|im_start|>assistant\\n' <tool_call> <tool_response> '\", \"arguments\": ' "
#define CHATML_TAGS \
    "<|im_start|> with NO suffix <function= <parameter= <tool_response> last_query_index reasoning_content "

#define FENCED    "<｜tool▁outputs▁begin｜> ```json split('</think>')[-1] "
#define LAST_USER "message['tool_calls'] is not none not ns.is_last_user is_first_sp "
#define V31                                                                                           \
    "{% if not thinking is defined %} <｜Assistant｜></think> split('</think>', 1)[1] is_first_sp " \
    "message['prefix'] is defined and message['prefix'] and thinking "
#define HEADER "bos_token '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' "
#define DATES                                                                                                        \
    "Cutting Knowledge Date: December 2023\\n Today Date: 26 Jul 2024 Environment: ipython\\n tojson(indent=4) "     \
    "{{- \"Given the following functions, please respond with a JSON This model only supports single tool-calls at " \
    "once! "

#define DEFAULT_SYSTEM "<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n messages[0]['role'] != 'system' "
#define TURNS          "'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' "
#define NEMO                                                                                                      \
    "[AVAILABLE_TOOLS][ \"[TOOL_CALLS][\" [TOOL_RESULTS]{\"content\": message == user_messages[-1] out[:-1] "     \
    "loop.last and system_message \"[INST]\" + system_message + \"\\n\\n\" + message[\"content\"] + \"[/INST]\" " \
    "message[\"content\"] + eos_token "

Test(chat_detect, variants_differ_by_words)
{
    static const struct {
        const char *text;
        enum dk_family family;
        enum dk_chat_format format;
        bool known;
    } cases[] = {
        {CHATML_CALLS "last_query_index reasoning_content enable_thinking is false", DK_FAMILY_QWEN3_MOE, DK_CHAT_QWEN3,
         true},
        {CHATML_CALLS "last_query_index reasoning_content", DK_FAMILY_QWEN3_MOE, DK_CHAT_GUESS_QWEN3, false},
        {CHATML_CALLS "last_query_index reasoning_content '<|im_start|>assistant\\n<think>\\n'", DK_FAMILY_QWEN3,
         DK_CHAT_QWEN3_THINKING, true},
        {CHATML_CALLS "'<|im_start|>assistant\\n<think>\\n'", DK_FAMILY_QWEN3, DK_CHAT_GUESS_QWEN3, false},
        {CHATML_CALLS "message.content is string + message.role + '\\n' + content }}", DK_FAMILY_QWEN3,
         DK_CHAT_QWEN3_INSTRUCT, true},
        {CHATML_CALLS "message.content is string + message.role + '\\n' + content }} </think>", DK_FAMILY_QWEN3,
         DK_CHAT_GUESS_QWEN3, false},
        {CHATML_CALLS "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>", DK_FAMILY_QWEN2,
         DK_CHAT_QWEN2, true},
        {CHATML_CALLS "You are a helpful assistant.<|im_end|>", DK_FAMILY_QWEN2, DK_CHAT_GUESS_CHATML, false},
        {DEFAULT_SYSTEM TURNS, DK_FAMILY_QWEN2, DK_CHAT_QWEN2_INSTRUCT, true},
        {DEFAULT_SYSTEM TURNS, DK_FAMILY_LLAMA, DK_CHAT_QWEN2_INSTRUCT, true},
        {DEFAULT_SYSTEM TURNS "<tool_call>", DK_FAMILY_QWEN2, DK_CHAT_GUESS_CHATML, false},
        {"<|im_start|>system\\nBe brief.<|im_end|>\\n messages[0]['role'] != 'system'" TURNS, DK_FAMILY_QWEN2,
         DK_CHAT_GUESS_CHATML, false},
        {NEMO, DK_FAMILY_MISTRAL, DK_CHAT_MISTRAL_NEMO, true},
        {NEMO "[SYSTEM_PROMPT]", DK_FAMILY_MISTRAL, DK_CHAT_NONE, false},
        /* The template counts, not the family. */
        {CHATML_CALLS "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>", DK_FAMILY_QWEN3,
         DK_CHAT_QWEN2, true},
        {CHATML_TAGS "enable_thinking is false", DK_FAMILY_QWEN3_5, DK_CHAT_QWEN3_5, true},
        {CHATML_TAGS "enable_thinking is true", DK_FAMILY_QWEN3_5, DK_CHAT_QWEN3_5_OFF, true},
        {CHATML_TAGS "enable_thinking is true enable_thinking is false", DK_FAMILY_QWEN3_5, DK_CHAT_GUESS_QWEN3_5,
         false},
        {CHATML_TAGS "enable_thinking is false preserve_thinking is undefined", DK_FAMILY_QWEN3_5,
         DK_CHAT_GUESS_QWEN3_5, false},
        {CHATML_TAGS, DK_FAMILY_QWEN3_MOE, DK_CHAT_GUESS_QWEN3, false},
        {CHATML_CALLS "'<|im_start|>assistant\\n<think>\\n' not loop.last split('</think>')[-1].lstrip('\\n')",
         DK_FAMILY_QWEN2, DK_CHAT_QWQ, true},
        {FENCED "{{'<｜Assistant｜><think>\\n'}} 'tool_calls' in message is_first_sp", DK_FAMILY_DEEPSEEK_V3,
         DK_CHAT_DEEPSEEK_R1, true},
        {FENCED "{{'<｜Assistant｜><think>\\n'}} 'tool_calls' in message is_first_sp {% if tools %}",
         DK_FAMILY_DEEPSEEK_V3, DK_CHAT_GUESS_DEEPSEEK_V3, false},
        {FENCED "{{'<｜Assistant｜><think>\\n'}} ns.system_prompt = message['content'] message['content'] is none "
                "\\n<｜tool▁output▁begin｜>",
         DK_FAMILY_QWEN2, DK_CHAT_DEEPSEEK_R1_DISTILL, true},
        {FENCED "{{'<｜Assistant｜>'}} ns.system_prompt = message['content'] message['content'] is none "
                "\\n<｜tool▁output▁begin｜>",
         DK_FAMILY_LLAMA, DK_CHAT_DEEPSEEK_R1_DISTILL_FREE, true},
        {FENCED "{{'<｜Assistant｜>'}} ns.system_prompt = message['content'] message['content'] is none",
         DK_FAMILY_LLAMA, DK_CHAT_NONE, false},
        {"<｜tool▁outputs▁begin｜> ```json " LAST_USER "+ message['content'] + '<｜Assistant｜>'}}",
         DK_FAMILY_DEEPSEEK_V3, DK_CHAT_DEEPSEEK_V3_0324, true},
        {FENCED LAST_USER "+ message['content'] + '<｜Assistant｜>'}}", DK_FAMILY_DEEPSEEK_V3,
         DK_CHAT_GUESS_DEEPSEEK_V3, false},
        {FENCED LAST_USER "+ content + '<｜Assistant｜>'}}", DK_FAMILY_QWEN3, DK_CHAT_DEEPSEEK_R1_0528, true},
        {FENCED LAST_USER "+ content + '<｜Assistant｜>'}} enable_thinking", DK_FAMILY_DEEPSEEK_V3,
         DK_CHAT_GUESS_DEEPSEEK_V3, false},
        {V31 "ns.is_last_user and not ns.is_tool", DK_FAMILY_DEEPSEEK_V3, DK_CHAT_DEEPSEEK_V31, true},
        {V31 "ns.is_last_user or ns.is_only_sys or not ns.is_prefix", DK_FAMILY_DEEPSEEK_V32,
         DK_CHAT_DEEPSEEK_V31_TERMINUS, true},
        {V31 "ns.is_last_user and not ns.is_tool {% if tools %}", DK_FAMILY_DEEPSEEK_V3, DK_CHAT_GUESS_DEEPSEEK_V3,
         false},
        {HEADER "message['content'] | trim + '<|eot_id|>' '<|start_header_id|>assistant<|end_header_id|>",
         DK_FAMILY_LLAMA, DK_CHAT_LLAMA3, true},
        {HEADER DATES, DK_FAMILY_LLAMA, DK_CHAT_LLAMA3_1, true},
        /* An unknown template with headers counts as one that has nothing else. */
        {HEADER DATES "image", DK_FAMILY_LLAMA, DK_CHAT_GUESS_LLAMA3, false},
        {HEADER DATES "image", DK_FAMILY_QWEN3, DK_CHAT_GUESS_QWEN3, false},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_file("chat_template.jinja", cases[i].text);
        if (cases[i].known)
            expect_alike(cases[i].family, cases[i].format);
        else
            expect_unknown(cases[i].family, cases[i].format);
    }
}

/* A chat template is not worth refusing a model for: the weights may be used with plain prompts. */
Test(chat_detect, files_that_cannot_be_read_are_warnings)
{
    static const char *const damaged[] = {"{", "[]", "{\"chat_template\": 3}",
                                          "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"x\"}]}",
                                          "{\"chat_template\": [{\"name\": \"default\"}, 7]}"};
    char path[200];

    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        put_file("tokenizer_config.json", damaged[i]);
        for (size_t k = 0; k < sizeof families / sizeof *families; k++)
            expect_format(folder, families[k].family, families[k].unread, DK_LOG_WARN, "chat.template.unreadable",
                          "tokenizer_config.json");
    }
    path_of(path, sizeof path, "chat_template.jinja");
    cr_assert_eq(mkdir(path, 0700), 0);
    expect_format(folder, DK_FAMILY_QWEN3, DK_CHAT_GUESS_QWEN3, DK_LOG_WARN, "chat.template.unreadable",
                  "chat_template.jinja");
    rmdir(path);
}

/* transformers writes "no limit" as int(1e30). */
Test(chat_detect, a_number_that_64_bits_do_not_hold_is_no_damage)
{
    put_file("tokenizer_config.json", "{\"model_max_length\": 1000000000000000019884624838656, \"chat_template\": "
                                      "\"<|im_start|> You are a helpful AI assistant named SmolLM, trained by Hugging "
                                      "Face<|im_end|>\"}");
    expect_alike(DK_FAMILY_LLAMA, DK_CHAT_SMOLLM2);
}
