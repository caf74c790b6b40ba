/* SPDX-License-Identifier: Apache-2.0 */
/* The text of Qwen2.5-Instruct's chat template: ChatML with a default system message, no thoughts. QwQ's has no default
 * message and leaves the thoughts of all answers but the last one out. Arguments that come as text are parsed first:
 * the templates themselves would print the text once more as a JSON string. */
#include "model/chat/chat_qwen.h"

#include <string.h>

#define DEFAULT_SYSTEM "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."

static int add_system(struct dk_chat_text *t, const struct dk_chat *c, struct dk_err *err)
{
    bool first = strcmp(dk_chat_role_of(c->messages, 0), "system") == 0, qwq = c->format == DK_CHAT_QWQ;
    struct dk_span content = {qwq ? "" : DEFAULT_SYSTEM, qwq ? 0 : strlen(DEFAULT_SYSTEM)};
    int rc = first ? dk_chat_content(c->messages, 0, &content, err) : 0;

    if (rc < 0)
        return rc;
    if (!c->tools) {
        if (first || !qwq)
            dk_qwen_add_message(t, "system", content);
        return 0;
    }
    dk_chat_puts(t, "<|im_start|>system\n");
    dk_chat_add_span(t, content);
    dk_chat_puts(t, "\n\n");
    dk_qwen_add_tools(t, c->tools);
    return 0;
}

static int add_call(struct dk_chat_text *t, const json_t *calls, size_t i, size_t k, struct dk_err *err)
{
    struct dk_chat_call call;
    json_t *arguments = NULL;
    int rc = dk_chat_call_read(calls, i, k, &call, err);

    if (rc == 0)
        rc = dk_chat_call_object(&call, i, k, &arguments, err);
    if (rc < 0)
        return rc;
    dk_chat_puts(t, "\n<tool_call>\n{\"name\": \"");
    dk_chat_add_span(t, call.name);
    dk_chat_puts(t, "\", \"arguments\": ");
    dk_chat_json(t, arguments);
    dk_chat_puts(t, "}\n</tool_call>");
    json_decref(arguments);
    return 0;
}

static struct dk_span without_thought(struct dk_span body)
{
    const char *end = dk_span_last(body, "</think>");

    if (end)
        body = dk_span_between(end + strlen("</think>"), body.text + body.bytes);
    return dk_span_trim_left(body, '\n');
}

/* An answer without calls must have a content; one with calls may do without. */
static int add_assistant(struct dk_chat_text *t, const struct dk_chat *c, size_t i, struct dk_err *err)
{
    const json_t *messages = c->messages, *calls;
    struct dk_span body;
    bool has_text;
    int rc = dk_chat_calls(messages, i, &calls, err);

    if (rc == 0)
        rc = json_array_size(calls) ? dk_chat_field(messages, i, "content", &body, err)
                                    : dk_chat_content(messages, i, &body, err);
    if (rc < 0)
        return rc;
    has_text = body.bytes > 0;
    if (c->format == DK_CHAT_QWQ && i + 1 < json_array_size(messages))
        body = without_thought(body);
    if (json_array_size(calls) == 0) {
        dk_qwen_add_message(t, "assistant", body);
        return 0;
    }
    dk_chat_puts(t, "<|im_start|>assistant");
    if (has_text) {
        dk_chat_puts(t, "\n");
        dk_chat_add_span(t, body);
    }
    for (size_t k = 0; k < json_array_size(calls) && rc == 0; k++)
        rc = add_call(t, calls, i, k, err);
    dk_chat_puts(t, "<|im_end|>\n");
    return rc;
}

static int add_message(struct dk_chat_text *t, const struct dk_chat *c, size_t i, struct dk_err *err)
{
    const json_t *messages = c->messages;
    const char *role = dk_chat_role_of(messages, i);
    struct dk_span body;
    int rc;

    if (strcmp(role, "assistant") == 0)
        return add_assistant(t, c, i, err);
    if (strcmp(role, "user") != 0 && strcmp(role, "tool") != 0 && strcmp(role, "system") != 0)
        return 0;
    rc = dk_chat_content(messages, i, &body, err);
    if (rc < 0)
        return rc;
    if (strcmp(role, "tool") == 0)
        dk_qwen_add_answer(t, messages, i, i == 0 || strcmp(dk_chat_role_of(messages, i - 1), "tool") != 0, body);
    else if (strcmp(role, "user") == 0 || i > 0)
        dk_qwen_add_message(t, role, body);
    return 0;
}

int dk_chat_render_qwen2(struct dk_chat_text *t, const struct dk_chat *c, struct dk_err *err)
{
    int rc = add_system(t, c, err);

    for (size_t i = 0; i < json_array_size(c->messages) && rc == 0; i++)
        rc = add_message(t, c, i, err);
    if (c->add_generation_prompt)
        dk_chat_puts(t, c->format == DK_CHAT_QWQ ? "<|im_start|>assistant\n<think>\n" : "<|im_start|>assistant\n");
    return rc;
}
