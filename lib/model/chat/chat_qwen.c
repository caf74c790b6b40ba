/* SPDX-License-Identifier: Apache-2.0 */
#include "model/chat/chat_qwen.h"

#include <string.h>

void dk_qwen_add_tools(struct dk_chat_text *t, const json_t *tools)
{
    dk_chat_puts(t, "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
                    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        dk_chat_puts(t, "\n");
        dk_chat_json(t, json_array_get(tools, i));
    }
    dk_chat_puts(t, "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
                    "within <tool_call></tool_call> XML tags:\n<tool_call>\n"
                    "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n");
}

void dk_qwen_add_message(struct dk_chat_text *t, const char *role, struct dk_span body)
{
    dk_chat_puts(t, "<|im_start|>");
    dk_chat_puts(t, role);
    dk_chat_puts(t, "\n");
    dk_chat_add_span(t, body);
    dk_chat_puts(t, "<|im_end|>\n");
}

void dk_qwen_add_answer(struct dk_chat_text *t, const json_t *messages, size_t i, bool opens, struct dk_span body)
{
    const char *next = dk_chat_role_of(messages, i + 1);

    if (opens)
        dk_chat_puts(t, "<|im_start|>user");
    dk_chat_puts(t, "\n<tool_response>\n");
    dk_chat_add_span(t, body);
    dk_chat_puts(t, "\n</tool_response>");
    if (!next || strcmp(next, "tool") != 0)
        dk_chat_puts(t, "<|im_end|>\n");
}

void dk_qwen_split_thought(struct dk_span *body, struct dk_span *thought)
{
    const char *first = dk_span_first(*body, "</think>"), *last = dk_span_last(*body, "</think>"), *open;

    if (!first)
        return;
    *thought = dk_span_trim_right(dk_span_between(body->text, first), '\n');
    open = dk_span_last(*thought, "<think>");
    if (open)
        *thought = dk_span_between(open + strlen("<think>"), thought->text + thought->bytes);
    *thought = dk_span_trim_left(*thought, '\n');
    *body = dk_span_trim_left(dk_span_between(last + strlen("</think>"), body->text + body->bytes), '\n');
}

bool dk_qwen_is_wrapped_answer(struct dk_span body)
{
    return dk_span_begins_and_ends(body, "<tool_response>", "</tool_response>");
}
