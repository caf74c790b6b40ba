/* SPDX-License-Identifier: Apache-2.0 */
/* The text that DeepSeek-V3.2's encoder makes; the release has no Jinja template. A user's message already opens the
 * answer, so a prompt for it is never added. Roles other than system, user, assistant and tool are refused. */
#include "model/chat/chat_deepseek.h"

#include <string.h>

#define MARK "｜DSML｜"

struct state {
    const struct dk_chat *c;
    bool thinks;
    /* Message numbers from 1; 0: none. */
    size_t last_user; /* the last user's message of all */
    size_t caller;    /* the last message that was not a tool's; results count from there */
};

static int add_tools(struct dk_chat_text *t, const json_t *tools, struct dk_err *err)
{
    dk_chat_puts(
        t, "\n\n## Tools\n\nYou have access to a set of tools you can use to answer the user's question.\n"
           "You can invoke functions by writing a \"<" MARK "function_calls>\" block like the following as "
           "part of your reply to the user:\n<" MARK "function_calls>\n<" MARK "invoke name=\"$FUNCTION_NAME\">\n<" MARK
           "parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</" MARK "parameter>\n...\n</" MARK
           "invoke>\n<" MARK "invoke name=\"$FUNCTION_NAME2\">\n...\n</" MARK "invoke>\n</" MARK "function_calls>\n\n"
           "String and scalar parameters should be specified as is without any escaping or quotes, while "
           "lists and objects should use JSON format. The \"string\" attribute should be set to \"true\" for "
           "string type parameters and \"false\" for other types (numbers, booleans, arrays, objects).\n\n"
           "If the thinking_mode is enabled, then after function results you should strongly consider "
           "outputting a thinking block. Here is an example:\n\n<" MARK "function_calls>\n...\n</" MARK
           "function_calls>\n\n<function_results>\n...\n</function_results>\n\n"
           "<think>...thinking about results</think>\n\n"
           "Here are the functions available in JSONSchema format:\n<functions>\n");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *f = json_object_get(json_array_get(tools, i), "function");

        if (!f)
            return dk_err_set(err, -EINVAL, "tools[%zu].function is missing", i);
        dk_chat_json(t, f);
        dk_chat_puts(t, "\n");
    }
    dk_chat_puts(t, "</functions>\n");
    return 0;
}

/* How an answer behind message number `at` begins. */
static const char *opening(const struct state *s, size_t at)
{
    return s->thinks && at >= s->last_user ? "<think>" : "</think>";
}

static int add_system(struct dk_chat_text *t, const struct state *s, size_t i, struct dk_err *err)
{
    struct dk_span body;
    int rc = dk_chat_field(s->c->messages, i, "content", &body, err);

    if (rc < 0)
        return rc;
    dk_chat_add_span(t, body);
    return i == 0 && s->c->tools ? add_tools(t, s->c->tools, err) : 0;
}

static int add_user(struct dk_chat_text *t, const struct state *s, size_t i, struct dk_err *err)
{
    struct dk_span body;
    int rc = dk_chat_content(s->c->messages, i, &body, err);

    if (rc < 0)
        return rc;
    dk_chat_puts(t, DK_DEEPSEEK_USER);
    dk_chat_add_span(t, body);
    dk_chat_puts(t, DK_DEEPSEEK_ASSISTANT);
    dk_chat_puts(t, opening(s, i + 1));
    return 0;
}

static void add_parameter(struct dk_chat_text *t, const char *key, const json_t *value)
{
    dk_chat_puts(t, "<" MARK "parameter name=\"");
    dk_chat_puts(t, key);
    dk_chat_puts(t, json_is_string(value) ? "\" string=\"true\">" : "\" string=\"false\">");
    if (json_is_string(value))
        dk_chat_add(t, json_string_value(value), json_string_length(value));
    else
        dk_chat_json(t, value);
    dk_chat_puts(t, "</" MARK "parameter>");
}

static int add_call(struct dk_chat_text *t, const json_t *calls, size_t i, size_t k, struct dk_err *err)
{
    const char *key, *between = "";
    struct dk_chat_call call;
    json_t *arguments = NULL, *value;
    int rc = dk_chat_call_read(calls, i, k, &call, err);

    if (rc == 0)
        rc = dk_chat_call_object(&call, i, k, &arguments, err);
    if (rc < 0)
        return rc;
    dk_chat_puts(t, "<" MARK "invoke name=\"");
    dk_chat_add_span(t, call.name);
    dk_chat_puts(t, "\">\n");
    json_object_foreach(arguments, key, value)
    {
        dk_chat_puts(t, between);
        add_parameter(t, key, value);
        between = "\n";
    }
    dk_chat_puts(t, "\n</" MARK "invoke>\n");
    json_decref(arguments);
    return 0;
}

static int add_assistant(struct dk_chat_text *t, const struct state *s, size_t i, struct dk_err *err)
{
    struct dk_span body, thought;
    const json_t *calls;
    int rc = dk_chat_calls(s->c->messages, i, &calls, err);

    if (rc == 0)
        rc = dk_chat_field(s->c->messages, i, "content", &body, err);
    if (rc == 0)
        rc = dk_chat_field(s->c->messages, i, "reasoning_content", &thought, err);
    if (rc < 0)
        return rc;
    if (s->thinks && i + 1 > s->last_user) {
        if (thought.bytes == 0 && json_array_size(calls) == 0)
            return dk_err_set(err, -EINVAL,
                              "messages[%zu]: with thinking on, an answer after the last question needs "
                              "reasoning_content or tool_calls",
                              i);
        dk_chat_add_span(t, thought);
        dk_chat_puts(t, "</think>");
    }
    dk_chat_add_span(t, body);
    if (json_array_size(calls)) {
        dk_chat_puts(t, "\n\n<" MARK "function_calls>\n");
        for (size_t k = 0; k < json_array_size(calls) && rc == 0; k++)
            rc = add_call(t, calls, i, k, err);
        dk_chat_puts(t, "</" MARK "function_calls>");
    }
    dk_chat_puts(t, DK_DEEPSEEK_EOS);
    return rc;
}

/* The result of a tool: the n-th one answers the n-th call of the assistant's message before the results. */
static int add_result(struct dk_chat_text *t, const struct state *s, size_t i, struct dk_err *err)
{
    const json_t *calls = NULL;
    size_t n = i + 1 - s->caller;
    struct dk_span body;
    int rc = 0;

    if (s->caller > 0 && strcmp(dk_chat_role_of(s->c->messages, s->caller - 1), "assistant") == 0)
        rc = dk_chat_calls(s->c->messages, s->caller - 1, &calls, err);
    if (rc == 0 && n > json_array_size(calls))
        return dk_err_set(err, -EINVAL, "messages[%zu] is a tool's result without its call", i);
    if (rc == 0)
        rc = dk_chat_content(s->c->messages, i, &body, err);
    if (rc < 0)
        return rc;
    dk_chat_puts(t, n == 1 ? "\n\n<function_results>\n<result>" : "\n<result>");
    dk_chat_add_span(t, body);
    dk_chat_puts(t, "</result>");
    if (n == json_array_size(calls)) {
        dk_chat_puts(t, "\n</function_results>\n\n");
        dk_chat_puts(t, opening(s, i + 1));
    }
    return 0;
}

static int add_message(struct dk_chat_text *t, struct state *s, size_t i, struct dk_err *err)
{
    const char *role = dk_chat_role_of(s->c->messages, i);
    int rc;

    if (strcmp(role, "tool") == 0)
        return add_result(t, s, i, err);
    if (strcmp(role, "system") == 0)
        rc = add_system(t, s, i, err);
    else if (strcmp(role, "user") == 0)
        rc = add_user(t, s, i, err);
    else if (strcmp(role, "assistant") == 0)
        rc = add_assistant(t, s, i, err);
    else
        rc = dk_err_set(err, -EINVAL, "messages[%zu].role is neither system, user, assistant nor tool", i);
    s->caller = i + 1;
    return rc;
}

int dk_chat_render_deepseek_v32(struct dk_chat_text *t, const struct dk_chat *c, struct dk_err *err)
{
    struct state s = {.c = c, .thinks = c->thinking == DK_THINKING_ON};
    int rc = 0;

    for (size_t i = 0; i < json_array_size(c->messages); i++)
        if (strcmp(dk_chat_role_of(c->messages, i), "user") == 0)
            s.last_user = i + 1;
    dk_chat_puts(t, DK_DEEPSEEK_BOS);
    if (c->tools && strcmp(dk_chat_role_of(c->messages, 0), "system") != 0)
        rc = add_tools(t, c->tools, err);
    for (size_t i = 0; i < json_array_size(c->messages) && rc == 0; i++)
        rc = add_message(t, &s, i, err);
    return rc;
}
