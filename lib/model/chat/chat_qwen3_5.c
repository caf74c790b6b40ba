/* SPDX-License-Identifier: Apache-2.0 */
/* The text of the Qwen3.5 chat templates: contents lose the white space at their ends, calls are tags instead of JSON,
 * every answer after the last question shows its thought, empty or not. Two templates differ only in what an absent
 * thinking switch means. */
#include "model/chat/chat_qwen.h"

#include <stdlib.h>
#include <string.h>

/* A message's content, stripped. A list of text parts is joined in memory that the next call uses again. */
struct content {
    char *joined;
    size_t joined_max;
};

static int join_parts(struct content *m, const json_t *parts, size_t i, struct dk_span *out, struct dk_err *err)
{
    size_t bytes = 0, used = 0;

    for (size_t k = 0; k < json_array_size(parts); k++) {
        const json_t *text = json_object_get(json_array_get(parts, k), "text");

        if (!json_is_string(text))
            return dk_err_set(err, -EINVAL, "messages[%zu].content[%zu] has no text; only text parts are rendered", i,
                              k);
        if (memchr(json_string_value(text), 0, json_string_length(text)))
            return dk_err_set(err, -EINVAL, "messages[%zu].content[%zu] has a NUL character", i, k);
        bytes += json_string_length(text);
    }
    if (bytes > m->joined_max) {
        free(m->joined);
        m->joined = malloc(bytes);
        m->joined_max = m->joined ? bytes : 0;
        if (!m->joined)
            return dk_err_set(err, -ENOMEM, "no memory for the chat's text");
    }
    for (size_t k = 0; k < json_array_size(parts) && bytes; k++) {
        const json_t *text = json_object_get(json_array_get(parts, k), "text");

        memcpy(m->joined + used, json_string_value(text), json_string_length(text));
        used += json_string_length(text);
    }
    *out = (struct dk_span){bytes ? m->joined : "", bytes};
    return 0;
}

/* text is not NULL afterwards: null and absent count as empty. */
static int content_read(struct content *m, const json_t *messages, size_t i, struct dk_span *out, struct dk_err *err)
{
    const json_t *v = json_object_get(json_array_get(messages, i), "content");
    int rc = json_is_array(v) ? join_parts(m, v, i, out, err) : dk_chat_field(messages, i, "content", out, err);

    if (rc < 0)
        return rc;
    *out = out->text ? dk_span_strip(*out) : (struct dk_span){"", 0};
    return 0;
}

/* The index of the last message that a person wrote: a user's message that is not a tool's answer in disguise. */
static int last_question(struct content *m, const json_t *messages, size_t *question, struct dk_err *err)
{
    for (size_t i = json_array_size(messages); i-- > 0;) {
        struct dk_span body;
        int rc;

        if (strcmp(dk_chat_role_of(messages, i), "user") != 0)
            continue;
        rc = content_read(m, messages, i, &body, err);
        if (rc < 0)
            return rc;
        if (!dk_qwen_is_wrapped_answer(body)) {
            *question = i;
            return 0;
        }
    }
    return dk_err_set(err, -EINVAL, "messages has no question of a user; this model's template needs one");
}

static void add_tools(struct dk_chat_text *t, const json_t *tools)
{
    dk_chat_puts(t, "# Tools\n\nYou have access to the following functions:\n\n<tools>");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        dk_chat_puts(t, "\n");
        dk_chat_json(t, json_array_get(tools, i));
    }
    dk_chat_puts(t,
                 "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
                 "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n"
                 "</parameter>\n<parameter=example_parameter_2>\nThis is the value for the second parameter\n"
                 "that can span\nmultiple lines\n</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n"
                 "- Function calls MUST follow the specified format: an inner <function=...></function> block must be "
                 "nested within <tool_call></tool_call> XML tags\n- Required parameters MUST be specified\n"
                 "- You may provide optional reasoning for your function call in natural language BEFORE the function "
                 "call, but NOT after\n- If there is no function call available, answer the question like normal with "
                 "your current knowledge and do not tell the user about function calls\n</IMPORTANT>");
}

static int add_system(struct dk_chat_text *t, struct content *m, const struct dk_chat *c, struct dk_err *err)
{
    bool first = strcmp(dk_chat_role_of(c->messages, 0), "system") == 0;
    struct dk_span content = {"", 0};
    int rc = first ? content_read(m, c->messages, 0, &content, err) : 0;

    if (rc < 0)
        return rc;
    if (!c->tools) {
        if (first)
            dk_qwen_add_message(t, "system", content);
        return 0;
    }
    dk_chat_puts(t, "<|im_start|>system\n");
    add_tools(t, c->tools);
    if (content.bytes) {
        dk_chat_puts(t, "\n\n");
        dk_chat_add_span(t, content);
    }
    dk_chat_puts(t, "<|im_end|>\n");
    return 0;
}

static void add_parameter(struct dk_chat_text *t, const char *key, const json_t *value)
{
    dk_chat_puts(t, "<parameter=");
    dk_chat_puts(t, key);
    dk_chat_puts(t, ">\n");
    if (json_is_object(value) || json_is_array(value))
        dk_chat_json(t, value);
    else if (json_is_string(value))
        dk_chat_add(t, json_string_value(value), json_string_length(value));
    else
        dk_chat_python_scalar(t, value);
    dk_chat_puts(t, "\n</parameter>\n");
}

static int add_call(struct dk_chat_text *t, const json_t *calls, size_t i, size_t k, struct dk_err *err)
{
    struct dk_chat_call call;
    json_t *arguments = NULL, *value;
    const char *key;
    int rc = dk_chat_call_read(calls, i, k, &call, err);

    if (rc == 0)
        rc = dk_chat_call_object(&call, i, k, &arguments, err);
    if (rc < 0)
        return rc;
    dk_chat_puts(t, "<tool_call>\n<function=");
    dk_chat_add_span(t, call.name);
    dk_chat_puts(t, ">\n");
    json_object_foreach(arguments, key, value) add_parameter(t, key, value);
    dk_chat_puts(t, "</function>\n</tool_call>");
    json_decref(arguments);
    return 0;
}

static int add_assistant(struct dk_chat_text *t, const json_t *messages, size_t i, size_t question, struct dk_span body,
                         struct dk_err *err)
{
    struct dk_span thought;
    const json_t *calls;
    int rc = dk_chat_field(messages, i, "reasoning_content", &thought, err);

    if (rc == 0)
        rc = dk_chat_calls(messages, i, &calls, err);
    if (rc < 0)
        return rc;
    if (!thought.text)
        dk_qwen_split_thought(&body, &thought);
    dk_chat_puts(t, "<|im_start|>assistant\n");
    if (i > question) {
        dk_chat_puts(t, "<think>\n");
        if (thought.text)
            dk_chat_add_span(t, dk_span_strip(thought));
        dk_chat_puts(t, "\n</think>\n\n");
    }
    dk_chat_add_span(t, body);
    for (size_t k = 0; k < json_array_size(calls) && rc == 0; k++) {
        if (k > 0)
            dk_chat_puts(t, "\n");
        else if (dk_span_strip(body).bytes)
            dk_chat_puts(t, "\n\n");
        rc = add_call(t, calls, i, k, err);
    }
    dk_chat_puts(t, "<|im_end|>\n");
    return rc;
}

static int add_message(struct dk_chat_text *t, struct content *m, const json_t *messages, size_t i, size_t question,
                       struct dk_err *err)
{
    const char *role = dk_chat_role_of(messages, i);
    struct dk_span body;
    int rc = content_read(m, messages, i, &body, err);

    if (rc < 0)
        return rc;
    if (strcmp(role, "assistant") == 0)
        return add_assistant(t, messages, i, question, body, err);
    if (strcmp(role, "user") == 0)
        dk_qwen_add_message(t, "user", body);
    else if (strcmp(role, "tool") == 0)
        dk_qwen_add_answer(t, messages, i, i > 0 && strcmp(dk_chat_role_of(messages, i - 1), "tool") != 0, body);
    else if (strcmp(role, "system") != 0)
        return dk_err_set(err, -EINVAL, "messages[%zu].role is neither system, user, assistant nor tool", i);
    else if (i > 0)
        return dk_err_set(err, -EINVAL, "messages[%zu].role: only the first message may be the system's", i);
    return 0;
}

static bool thinks(const struct dk_chat *c)
{
    return c->format == DK_CHAT_QWEN3_5_OFF ? c->thinking == DK_THINKING_ON : c->thinking != DK_THINKING_OFF;
}

int dk_chat_render_qwen3_5(struct dk_chat_text *t, const struct dk_chat *c, struct dk_err *err)
{
    struct content m = {NULL, 0};
    size_t question = 0;
    int rc = last_question(&m, c->messages, &question, err);

    if (rc == 0)
        rc = add_system(t, &m, c, err);
    for (size_t i = 0; i < json_array_size(c->messages) && rc == 0; i++)
        rc = add_message(t, &m, c->messages, i, question, err);
    free(m.joined);
    if (c->add_generation_prompt)
        dk_chat_puts(t,
                     thinks(c) ? "<|im_start|>assistant\n<think>\n" : "<|im_start|>assistant\n<think>\n\n</think>\n\n");
    return rc;
}
