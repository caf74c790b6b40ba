/* SPDX-License-Identifier: Apache-2.0 */
/* The texts of the chat templates of Llama-3-Instruct (headers and nothing else) and of Llama-3.1, 3.2 and 3.3. The
 * latter begin with a system message that has two dates. 3.2 asks for today's date where its reader has a clock; here
 * it is always the date that all of them name, so that a prompt does not depend on the day. Tools stand in the first
 * message behind it, as JSON with a line for each entry, and a turn has one call at most. Arguments that come as text
 * are parsed first: the template itself would print the text once more as a JSON string. */
#include <string.h>

#include "model/chat/chat_text.h"

#define BOS    "<|begin_of_text|>"
#define EOT    "<|eot_id|>"
#define PROMPT "<|start_header_id|>assistant<|end_header_id|>\n\n"

static void add_header(struct dk_chat_text *t, const char *role)
{
    dk_chat_puts(t, "<|start_header_id|>");
    dk_chat_puts(t, role);
    dk_chat_puts(t, "<|end_header_id|>\n\n");
}

/* The content of message i and the end of its turn. */
static int add_content(struct dk_chat_text *t, const json_t *messages, size_t i, struct dk_err *err)
{
    struct dk_span body;
    int rc = dk_chat_content(messages, i, &body, err);

    if (rc < 0)
        return rc;
    dk_chat_add_span(t, dk_span_strip(body));
    dk_chat_puts(t, EOT);
    return 0;
}

static int add_turn(struct dk_chat_text *t, const json_t *messages, size_t i, struct dk_err *err)
{
    add_header(t, dk_chat_role_of(messages, i));
    return add_content(t, messages, i, err);
}

int dk_chat_render_llama3(struct dk_chat_text *t, const struct dk_chat *c, struct dk_err *err)
{
    int rc = 0;

    dk_chat_puts(t, BOS);
    for (size_t i = 0; i < json_array_size(c->messages) && rc == 0; i++)
        rc = add_turn(t, c->messages, i, err);
    if (c->add_generation_prompt)
        dk_chat_puts(t, PROMPT);
    return rc;
}

/* The system message and, with tools, the first message behind it. *done counts the messages that are printed. */
static int add_system(struct dk_chat_text *t, const struct dk_chat *c, size_t *done, struct dk_err *err)
{
    add_header(t, "system");
    if (c->tools)
        dk_chat_puts(t, "Environment: ipython\n");
    dk_chat_puts(t, "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n");
    *done = strcmp(dk_chat_role_of(c->messages, 0), "system") == 0;
    if (*done)
        return add_content(t, c->messages, 0, err);
    dk_chat_puts(t, EOT);
    return 0;
}

static int add_tools(struct dk_chat_text *t, const struct dk_chat *c, size_t *done, struct dk_err *err)
{
    if (*done == json_array_size(c->messages))
        return dk_err_set(err, -EINVAL, "messages has no message behind the system's; tools are described in it");
    add_header(t, "user");
    dk_chat_puts(t, "Given the following functions, please respond with a JSON for a function call with its proper "
                    "arguments that best answers the given prompt.\n\nRespond in the format {\"name\": function name, "
                    "\"parameters\": dictionary of argument name and its value}.Do not use variables.\n\n");
    for (size_t i = 0; i < json_array_size(c->tools); i++) {
        const json_t *tool = json_array_get(c->tools, i);

        if (dk_chat_json_is_deeper(tool, DK_CHAT_INDENT_LEVELS))
            return dk_err_set(err, -EINVAL, "tools[%zu] has more than %d levels of nesting", i, DK_CHAT_INDENT_LEVELS);
        dk_chat_json_indented(t, tool, 4);
        dk_chat_puts(t, "\n\n");
    }
    return add_content(t, c->messages, (*done)++, err);
}

static int add_call(struct dk_chat_text *t, const json_t *calls, size_t i, struct dk_err *err)
{
    struct dk_chat_call call;
    json_t *arguments = NULL;
    int rc = 0;

    if (json_array_size(calls) > 1)
        return dk_err_set(err, -EINVAL, "messages[%zu].tool_calls has more than one call; this model makes one a turn",
                          i);
    rc = dk_chat_call_read(calls, i, 0, &call, err);
    if (rc == 0)
        rc = dk_chat_call_object(&call, i, 0, &arguments, err);
    if (rc < 0)
        return rc;
    dk_chat_puts(t, PROMPT "{\"name\": \"");
    dk_chat_add_span(t, call.name);
    dk_chat_puts(t, "\", \"parameters\": ");
    dk_chat_json(t, arguments);
    dk_chat_puts(t, "}" EOT);
    json_decref(arguments);
    return 0;
}

/* A result is printed as JSON, a text in quotes; numbers and the like as Python does. */
static int add_result(struct dk_chat_text *t, const json_t *messages, size_t i, struct dk_err *err)
{
    const json_t *content = json_object_get(json_array_get(messages, i), "content");

    if (!content)
        return dk_err_set(err, -EINVAL, "messages[%zu].content is missing", i);
    add_header(t, "ipython");
    if (json_is_string(content) || json_is_object(content) || json_is_array(content))
        dk_chat_json(t, content);
    else
        dk_chat_python_scalar(t, content);
    dk_chat_puts(t, EOT);
    return 0;
}

static int add_message(struct dk_chat_text *t, const json_t *messages, size_t i, struct dk_err *err)
{
    const char *role = dk_chat_role_of(messages, i);
    const json_t *calls;
    int rc = dk_chat_calls(messages, i, &calls, err);

    if (rc < 0)
        return rc;
    if (json_array_size(calls))
        return add_call(t, calls, i, err);
    if (strcmp(role, "tool") == 0 || strcmp(role, "ipython") == 0)
        return add_result(t, messages, i, err);
    return add_turn(t, messages, i, err);
}

int dk_chat_render_llama3_1(struct dk_chat_text *t, const struct dk_chat *c, struct dk_err *err)
{
    size_t done = 0;
    int rc;

    dk_chat_puts(t, BOS);
    rc = add_system(t, c, &done, err);
    if (rc == 0 && c->tools)
        rc = add_tools(t, c, &done, err);
    for (size_t i = done; i < json_array_size(c->messages) && rc == 0; i++)
        rc = add_message(t, c->messages, i, err);
    if (c->add_generation_prompt)
        dk_chat_puts(t, PROMPT);
    return rc;
}
