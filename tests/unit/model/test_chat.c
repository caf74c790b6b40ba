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

    return !v ? DK_THINKING_DEFAULT : json_is_true(v) ? DK_THINKING_ON : DK_THINKING_OFF;
}

Test(chat, renders_qwen3_as_the_template_does)
{
    json_t *file = cases_load(FIXTURES "/tokenizers/chat_cases.json"), *cases = json_object_get(file, "cases");
    size_t total = 0, with_tools = 0;

    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i), *args = json_object_get(c, "args");
        const char *want = json_string_value(json_object_get(c, "text"));
        struct dk_err err = {0};
        char *text = NULL;
        int rc;

        if (strcmp(json_string_value(json_object_get(c, "family")), "qwen3") != 0)
            continue;
        total++;
        with_tools += json_is_array(json_object_get(c, "tools"));
        rc = dk_chat_render(DK_CHAT_QWEN3, json_object_get(c, "messages"), json_object_get(c, "tools"),
                            thinking_of(args), json_is_true(json_object_get(args, "add_generation_prompt")), &text,
                            &err);
        if (!want) {
            cr_expect_lt(rc, 0, "case %zu must fail", i);
        } else {
            cr_expect_eq(rc, 0, "case %zu: %s", i, err.text);
            cr_expect(text && strcmp(text, want) == 0, "case %zu: expected\n%s\ngot\n%s", i, want, text ? text : "");
        }
        free(text);
    }
    cr_assert_eq(total, 120);
    cr_assert_gt(with_tools, 0);
    json_decref(file);
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

Test(chat, chatml_has_a_default_system_message)
{
    expect_text(DK_CHAT_CHATML, "[{\"role\":\"user\",\"content\":\"Hi\"}]", NULL,
                "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
                "<|im_start|>user\nHi<|im_end|>\n");
    expect_text(DK_CHAT_CHATML, "[{\"role\":\"system\",\"content\":\"Be kind.\"},{\"role\":\"user\",\"content\":\"\"}]",
                NULL, "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n<|im_end|>\n");
}

Test(chat, messages_that_give_no_text_give_an_empty_one)
{
    expect_text(DK_CHAT_QWEN3, "[{\"role\":\"critic\",\"content\":\"no\"}]", "[]", "");
}

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
        {DK_CHAT_CHATML, "[]", NULL, "messages", -EINVAL},
        {DK_CHAT_QWEN3, "[1]", NULL, "messages[0]", -EINVAL},
        {DK_CHAT_QWEN3, "[{\"content\":\"x\"}]", NULL, "messages[0].role", -EINVAL},
        {DK_CHAT_QWEN3, "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":7}]", NULL, "messages[1].role", -EINVAL},
        {DK_CHAT_QWEN3, "[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]", NULL, "messages[0].content",
         -EINVAL},
        {DK_CHAT_QWEN3, "[{\"role\":\"system\"}]", NULL, "messages[0].content", -EINVAL},
        {DK_CHAT_QWEN3, "[{\"role\":\"user\",\"content\":\"a\\u0000b\"}]", NULL, "NUL", -EINVAL},
        {DK_CHAT_QWEN3, "[{\"role\":\"user\\u0000\",\"content\":\"a\"}]", NULL, "messages[0].role", -EINVAL},
        {DK_CHAT_CHATML, "[{\"role\":\"user\",\"content\":null}]", NULL, "messages[0].content", -EINVAL},
        {DK_CHAT_QWEN3, "[{\"role\":\"assistant\",\"reasoning_content\":1}]", NULL, "reasoning_content", -EINVAL},
        {DK_CHAT_QWEN3, "[{\"role\":\"assistant\",\"tool_calls\":{}}]", NULL, "messages[0].tool_calls", -EINVAL},
        {DK_CHAT_QWEN3, "[{\"role\":\"assistant\",\"tool_calls\":[3]}]", NULL, "tool_calls[0]", -EINVAL},
        {DK_CHAT_QWEN3, "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":\"f\"}]}]", NULL, "function", -EINVAL},
        {DK_CHAT_QWEN3, "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}]", NULL, "name", -EINVAL},
        {DK_CHAT_QWEN3, "[{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"f\"}]}]", NULL, "arguments", -EINVAL},
        {DK_CHAT_QWEN3, "[{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"f\",\"arguments\":\"a\\u0000\"}]}]", NULL,
         "NUL", -EINVAL},
        {DK_CHAT_QWEN3, "[{\"role\":\"user\",\"content\":\"x\"}]", "{\"a\":1}", "tools", -EINVAL},
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

static char folder[64], last_log[600];

static void keep_log(void *ctx, enum dk_log_level level, const char *line)
{
    snprintf(last_log, sizeof last_log, "%s", line);
}

static void make_folder(void)
{
    snprintf(folder, sizeof folder, "/tmp/duck_chat_XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
    dk_log_setup(keep_log, NULL, DK_LOG_WARN, "test");
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

static enum dk_chat_format detect(enum dk_family family)
{
    enum dk_chat_format format = DK_CHAT_NONE;
    struct dk_err err = {0};

    last_log[0] = 0;
    cr_assert_eq(dk_chat_format_detect(folder, family, &format, &err), 0, "%s", err.text);
    return format;
}

TestSuite(chat_detect, .init = make_folder, .fini = remove_folder);

Test(chat_detect, no_template)
{
    cr_expect_eq(detect(DK_FAMILY_LLAMA), DK_CHAT_NONE);
    cr_expect_eq(detect(DK_FAMILY_QWEN3), DK_CHAT_QWEN3);
    cr_expect_str_empty(last_log);
    put_file("tokenizer_config.json", "{\"chat_template\": null}");
    cr_expect_eq(detect(DK_FAMILY_LLAMA), DK_CHAT_NONE);
}

Test(chat_detect, templates_in_tokenizer_config)
{
    static const char smollm[] = "<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
                                 "Face<|im_end|>";
    char config[600];

    snprintf(config, sizeof config, "{\"chat_template\": \"%s\"}", smollm);
    put_file("tokenizer_config.json", config);
    cr_expect_eq(detect(DK_FAMILY_LLAMA), DK_CHAT_CHATML);
    cr_expect_str_empty(last_log);
    snprintf(config, sizeof config,
             "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"x\"}, {\"name\": \"default\", \"template\": "
             "\"%s\"}]}",
             smollm);
    put_file("tokenizer_config.json", config);
    cr_expect_eq(detect(DK_FAMILY_LLAMA), DK_CHAT_CHATML);
    cr_expect_str_empty(last_log);
}

Test(chat_detect, the_fixtures_template_is_known)
{
    enum dk_chat_format format = DK_CHAT_NONE;

    last_log[0] = 0;
    cr_assert_eq(dk_chat_format_detect(FIXTURES "/qwen3-moe-fp8-tiny", DK_FAMILY_QWEN3_MOE, &format, NULL), 0);
    cr_expect_eq(format, DK_CHAT_QWEN3);
    cr_expect_str_empty(last_log);
}

Test(chat_detect, unknown_templates_are_logged_with_family_and_hash)
{
    put_file("chat_template.jinja", "{{ messages }}");
    put_file("tokenizer_config.json", "{\"chat_template\": \"<|im_start|>\"}"); /* the .jinja file counts */
    cr_expect_eq(detect(DK_FAMILY_QWEN3_MOE), DK_CHAT_QWEN3);
    cr_expect(strstr(last_log, "family=qwen3_moe"), "%s", last_log);
    cr_expect(strstr(last_log, "xxh3="), "%s", last_log);
    cr_expect_eq(detect(DK_FAMILY_LLAMA), DK_CHAT_NONE);
    cr_expect(strstr(last_log, "used=none"), "%s", last_log);
    remove_file("chat_template.jinja");
    cr_expect_eq(detect(DK_FAMILY_LLAMA), DK_CHAT_CHATML);
    cr_expect(strstr(last_log, "used=chatml"), "%s", last_log);
}

Test(chat_detect, damaged_files_are_errors)
{
    static const char *const damaged[] = {"{", "{\"chat_template\": 3}",
                                          "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"x\"}]}",
                                          "{\"chat_template\": [{\"name\": \"default\"}, 7]}"};
    enum dk_chat_format format;

    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        struct dk_err err = {0};

        put_file("tokenizer_config.json", damaged[i]);
        cr_expect_eq(dk_chat_format_detect(folder, DK_FAMILY_QWEN3, &format, &err), -EINVAL, "%s", damaged[i]);
        cr_expect(strstr(err.text, "tokenizer_config.json"), "%s", err.text);
    }
}
