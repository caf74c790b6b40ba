/* SPDX-License-Identifier: Apache-2.0 */
/* The text of the Qwen3 chat template. Thoughts of turns that are over are left out; those after the last question
 * stay, because a chain of tool calls still builds on them. A message with a role that the template does not know is
 * left out, as there. */
#include "model/chat_text.h"

#include <string.h>

/* Where `needle` stands first or last in s; NULL if it does not. */
static const char *find_first(struct dk_span s, const char *needle)
{
    return s.bytes ? memmem(s.text, s.bytes, needle, strlen(needle)) : NULL;
}

static const char *find_last(struct dk_span s, const char *needle)
{
    const char *at, *found = NULL;
    struct dk_span rest = s;

    while ((at = find_first(rest, needle))) {
        found = at;
        rest.text = at + strlen(needle);
        rest.bytes = (size_t)(s.text + s.bytes - rest.text);
    }
    return found;
}

static struct dk_span span_between(const char *from, const char *to)
{
    return (struct dk_span){from, (size_t)(to - from)};
}

static bool begins_and_ends(struct dk_span s, const char *head, const char *tail)
{
    size_t h = strlen(head), n = strlen(tail);

    return s.bytes >= h && s.bytes >= n && memcmp(s.text, head, h) == 0 && memcmp(s.text + s.bytes - n, tail, n) == 0;
}

/* The index of the last message that a person wrote: a user's message that is not a tool's answer in disguise. The last
 * message when there is none. Roles and contents have been checked. */
static size_t last_question(const json_t *messages)
{
    size_t count = json_array_size(messages);

    for (size_t i = count; i-- > 0;) {
        const json_t *m = json_array_get(messages, i), *content = json_object_get(m, "content");
        struct dk_span s = {json_string_value(content), json_string_length(content)};

        if (strcmp(json_string_value(json_object_get(m, "role")), "user") == 0 && json_is_string(content) &&
            !begins_and_ends(s, "<tool_response>", "</tool_response>"))
            return i;
    }
    return count - 1;
}

static int add_system(struct dk_chat_text *t, const json_t *messages, const json_t *tools, struct dk_err *err)
{
    bool first = strcmp(json_string_value(json_object_get(json_array_get(messages, 0), "role")), "system") == 0;
    struct dk_span content = {NULL, 0};

    if (first) {
        int rc = dk_chat_field(messages, 0, "content", &content, err);

        if (rc < 0)
            return rc;
        if (!content.text)
            return dk_err_set(err, -EINVAL, "messages[0].content is missing");
    }
    if (json_array_size(tools) == 0) {
        if (first) {
            dk_chat_puts(t, "<|im_start|>system\n");
            dk_chat_add_span(t, content);
            dk_chat_puts(t, "<|im_end|>\n");
        }
        return 0;
    }
    dk_chat_puts(t, "<|im_start|>system\n");
    if (first) {
        dk_chat_add_span(t, content);
        dk_chat_puts(t, "\n\n");
    }
    dk_chat_puts(t, "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
                    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        dk_chat_puts(t, "\n");
        dk_chat_json(t, json_array_get(tools, i));
    }
    dk_chat_puts(t, "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
                    "within <tool_call></tool_call> XML tags:\n<tool_call>\n"
                    "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n");
    return 0;
}

static bool is_filled_object(const json_t *v)
{
    return json_is_object(v) && json_object_size(v) > 0;
}

/* One call: {"function": {"name", "arguments"}} or the inner object alone; arguments are JSON or its text. */
static int add_call(struct dk_chat_text *t, const json_t *call, size_t message, size_t index, struct dk_err *err)
{
    const json_t *f = json_object_get(call, "function"), *name, *arguments;

    if (f && !json_is_null(f) && !json_is_object(f))
        return dk_err_set(err, -EINVAL, "messages[%zu].tool_calls[%zu].function is not an object", message, index);
    f = is_filled_object(f) ? f : call;
    name = json_object_get(f, "name");
    arguments = json_object_get(f, "arguments");
    if (!json_is_string(name))
        return dk_err_set(err, -EINVAL, "messages[%zu].tool_calls[%zu].name is not a text", message, index);
    if (!arguments)
        return dk_err_set(err, -EINVAL, "messages[%zu].tool_calls[%zu].arguments is missing", message, index);
    if (strlen(json_string_value(name)) != json_string_length(name) ||
        (json_is_string(arguments) && strlen(json_string_value(arguments)) != json_string_length(arguments)))
        return dk_err_set(err, -EINVAL, "messages[%zu].tool_calls[%zu] has a NUL character", message, index);
    dk_chat_puts(t, "<tool_call>\n{\"name\": \"");
    dk_chat_add(t, json_string_value(name), json_string_length(name));
    dk_chat_puts(t, "\", \"arguments\": ");
    if (json_is_string(arguments))
        dk_chat_add(t, json_string_value(arguments), json_string_length(arguments));
    else
        dk_chat_json(t, arguments);
    dk_chat_puts(t, "}\n</tool_call>");
    return 0;
}

static int add_calls(struct dk_chat_text *t, const json_t *messages, size_t i, bool text_before, struct dk_err *err)
{
    const json_t *calls = json_object_get(json_array_get(messages, i), "tool_calls");

    if (!calls || json_is_null(calls))
        return 0;
    if (!json_is_array(calls))
        return dk_err_set(err, -EINVAL, "messages[%zu].tool_calls is not a list", i);
    for (size_t k = 0; k < json_array_size(calls); k++) {
        const json_t *call = json_array_get(calls, k);
        int rc;

        if (!json_is_object(call))
            return dk_err_set(err, -EINVAL, "messages[%zu].tool_calls[%zu] is not an object", i, k);
        if (k > 0 || text_before)
            dk_chat_puts(t, "\n");
        rc = add_call(t, call, i, k, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Splits "<think>...</think>answer", which clients send back as it came, into its two parts. */
static void split_thought(struct dk_span *body, struct dk_span *thought)
{
    const char *first = find_first(*body, "</think>"), *last = find_last(*body, "</think>"), *open;

    if (!first)
        return;
    *thought = dk_span_trim_right(span_between(body->text, first), '\n');
    open = find_last(*thought, "<think>");
    if (open)
        *thought = span_between(open + strlen("<think>"), thought->text + thought->bytes);
    *thought = dk_span_trim_left(*thought, '\n');
    *body = dk_span_trim_left(span_between(last + strlen("</think>"), body->text + body->bytes), '\n');
}

static int add_assistant(struct dk_chat_text *t, const json_t *messages, size_t i, size_t question, struct dk_span body,
                         struct dk_err *err)
{
    struct dk_span thought;
    int rc = dk_chat_field(messages, i, "reasoning_content", &thought, err);

    if (rc < 0)
        return rc;
    if (!thought.text)
        split_thought(&body, &thought);
    dk_chat_puts(t, "<|im_start|>assistant\n");
    if (i > question && (i + 1 == json_array_size(messages) || thought.bytes > 0)) {
        dk_chat_puts(t, "<think>\n");
        dk_chat_add_span(t, dk_span_trim_right(dk_span_trim_left(thought, '\n'), '\n'));
        dk_chat_puts(t, "\n</think>\n\n");
        dk_chat_add_span(t, dk_span_trim_left(body, '\n'));
    } else {
        dk_chat_add_span(t, body);
    }
    rc = add_calls(t, messages, i, body.bytes > 0, err);
    dk_chat_puts(t, "<|im_end|>\n");
    return rc;
}

/* Answers of tools that follow each other share one user's turn. */
static void add_tool_answer(struct dk_chat_text *t, const char *previous, const char *next, struct dk_span body)
{
    if (!previous || strcmp(previous, "tool") != 0)
        dk_chat_puts(t, "<|im_start|>user");
    dk_chat_puts(t, "\n<tool_response>\n");
    dk_chat_add_span(t, body);
    dk_chat_puts(t, "\n</tool_response>");
    if (!next || strcmp(next, "tool") != 0)
        dk_chat_puts(t, "<|im_end|>\n");
}

static const char *role_of(const json_t *messages, size_t i)
{
    return json_string_value(json_object_get(json_array_get(messages, i), "role"));
}

int dk_chat_render_qwen3(struct dk_chat_text *t, const json_t *messages, const json_t *tools, enum dk_thinking thinking,
                         bool add_generation_prompt, struct dk_err *err)
{
    size_t count = json_array_size(messages), question;
    const char *role;
    int rc = 0;

    for (size_t i = 0; i < count && rc == 0; i++)
        rc = dk_chat_role(messages, i, &role, err);
    if (rc == 0)
        rc = add_system(t, messages, tools, err);
    if (rc < 0)
        return rc;
    question = last_question(messages);
    for (size_t i = 0; i < count && rc == 0; i++) {
        struct dk_span body;

        role = role_of(messages, i);
        rc = dk_chat_field(messages, i, "content", &body, err);
        if (rc < 0)
            break;
        if (strcmp(role, "user") == 0 || (strcmp(role, "system") == 0 && i > 0)) {
            dk_chat_puts(t, "<|im_start|>");
            dk_chat_puts(t, role);
            dk_chat_puts(t, "\n");
            dk_chat_add_span(t, body);
            dk_chat_puts(t, "<|im_end|>\n");
        } else if (strcmp(role, "assistant") == 0) {
            rc = add_assistant(t, messages, i, question, body, err);
        } else if (strcmp(role, "tool") == 0) {
            add_tool_answer(t, i ? role_of(messages, i - 1) : NULL, role_of(messages, i + 1), body);
        }
    }
    if (add_generation_prompt) {
        dk_chat_puts(t, "<|im_start|>assistant\n");
        if (thinking == DK_THINKING_OFF)
            dk_chat_puts(t, "<think>\n\n</think>\n\n");
    }
    return rc;
}
