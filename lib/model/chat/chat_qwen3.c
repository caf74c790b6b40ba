/* SPDX-License-Identifier: Apache-2.0 */
/* The text of the Qwen3 chat templates. Thoughts of turns that are over are left out; those after the last question
 * stay, because a chain of tool calls still builds on them. The templates of 2507 differ little: Instruct knows no
 * thoughts and prints an answer as it is, Thinking opens the thought in the prompt. A message with a role that the
 * template does not know is left out, as there. */
#include "model/chat/chat_qwen.h"

#include <string.h>

/* The index of the last message that a person wrote: a user's message that is not a tool's answer in disguise. The last
 * message when there is none. Roles and contents have been checked. */
static size_t last_question(const json_t *messages)
{
    size_t count = json_array_size(messages);

    for (size_t i = count; i-- > 0;) {
        const json_t *content = json_object_get(json_array_get(messages, i), "content");
        struct dk_span s = {json_string_value(content), json_string_length(content)};

        if (strcmp(dk_chat_role_of(messages, i), "user") == 0 && json_is_string(content) &&
            !dk_qwen_is_wrapped_answer(s))
            return i;
    }
    return count - 1;
}

static int add_system(struct dk_chat_text *t, const struct dk_chat *c, struct dk_err *err)
{
    bool first = strcmp(dk_chat_role_of(c->messages, 0), "system") == 0;
    struct dk_span content = {NULL, 0};
    int rc = first ? dk_chat_content(c->messages, 0, &content, err) : 0;

    if (rc < 0)
        return rc;
    if (!c->tools) {
        if (first)
            dk_qwen_add_message(t, "system", content);
        return 0;
    }
    dk_chat_puts(t, "<|im_start|>system\n");
    if (first) {
        dk_chat_add_span(t, content);
        dk_chat_puts(t, "\n\n");
    }
    dk_qwen_add_tools(t, c->tools);
    return 0;
}

/* Arguments are JSON or its text, which is printed as it is. */
static int add_calls(struct dk_chat_text *t, const json_t *messages, size_t i, bool text_before, struct dk_err *err)
{
    const json_t *calls;
    int rc = dk_chat_calls(messages, i, &calls, err);

    for (size_t k = 0; k < json_array_size(calls) && rc == 0; k++) {
        struct dk_chat_call call;

        rc = dk_chat_call_read(calls, i, k, &call, err);
        if (rc < 0)
            return rc;
        if (!call.arguments)
            return dk_err_set(err, -EINVAL, "messages[%zu].tool_calls[%zu].arguments is missing", i, k);
        dk_chat_puts(t, k > 0 || text_before ? "\n<tool_call>\n{\"name\": \"" : "<tool_call>\n{\"name\": \"");
        dk_chat_add_span(t, call.name);
        dk_chat_puts(t, "\", \"arguments\": ");
        if (json_is_string(call.arguments))
            dk_chat_add(t, json_string_value(call.arguments), json_string_length(call.arguments));
        else
            dk_chat_json(t, call.arguments);
        dk_chat_puts(t, "}\n</tool_call>");
    }
    return rc;
}

static int add_assistant(struct dk_chat_text *t, const struct dk_chat *c, size_t i, size_t question,
                         struct dk_span body, struct dk_err *err)
{
    struct dk_span thought;
    int rc = dk_chat_field(c->messages, i, "reasoning_content", &thought, err);

    if (rc < 0)
        return rc;
    if (!thought.text && c->format != DK_CHAT_QWEN3_INSTRUCT)
        dk_qwen_split_thought(&body, &thought);
    dk_chat_puts(t, "<|im_start|>assistant\n");
    if (c->format != DK_CHAT_QWEN3_INSTRUCT && i > question &&
        (i + 1 == json_array_size(c->messages) || thought.bytes > 0)) {
        dk_chat_puts(t, "<think>\n");
        dk_chat_add_span(t, dk_span_trim_right(dk_span_trim_left(thought, '\n'), '\n'));
        dk_chat_puts(t, "\n</think>\n\n");
        dk_chat_add_span(t, dk_span_trim_left(body, '\n'));
    } else {
        dk_chat_add_span(t, body);
    }
    rc = add_calls(t, c->messages, i, body.bytes > 0, err);
    dk_chat_puts(t, "<|im_end|>\n");
    return rc;
}

static void add_prompt(struct dk_chat_text *t, const struct dk_chat *c)
{
    dk_chat_puts(t, "<|im_start|>assistant\n");
    if (c->format == DK_CHAT_QWEN3_THINKING)
        dk_chat_puts(t, "<think>\n");
    else if (c->format == DK_CHAT_QWEN3 && c->thinking == DK_THINKING_OFF)
        dk_chat_puts(t, "<think>\n\n</think>\n\n");
}

int dk_chat_render_qwen3(struct dk_chat_text *t, const struct dk_chat *c, struct dk_err *err)
{
    size_t question = last_question(c->messages);
    int rc = add_system(t, c, err);

    for (size_t i = 0; i < json_array_size(c->messages) && rc == 0; i++) {
        const char *role = dk_chat_role_of(c->messages, i);
        struct dk_span body;

        rc = dk_chat_field(c->messages, i, "content", &body, err);
        if (rc < 0)
            break;
        if (strcmp(role, "user") == 0 || (strcmp(role, "system") == 0 && i > 0))
            dk_qwen_add_message(t, role, body);
        else if (strcmp(role, "assistant") == 0)
            rc = add_assistant(t, c, i, question, body, err);
        else if (strcmp(role, "tool") == 0)
            dk_qwen_add_answer(t, c->messages, i, i == 0 || strcmp(dk_chat_role_of(c->messages, i - 1), "tool") != 0,
                               body);
    }
    if (c->add_generation_prompt)
        add_prompt(t, c);
    return rc;
}
