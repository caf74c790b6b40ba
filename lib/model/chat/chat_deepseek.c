/* SPDX-License-Identifier: Apache-2.0 */
#include "model/chat/chat_deepseek.h"

#include <string.h>

int dk_deepseek_add_systems(struct dk_chat_text *t, const json_t *messages, struct dk_err *err)
{
    const char *between = "";

    for (size_t i = 0; i < json_array_size(messages); i++) {
        struct dk_span content;
        int rc;

        if (strcmp(dk_chat_role_of(messages, i), "system") != 0)
            continue;
        rc = dk_chat_content(messages, i, &content, err);
        if (rc < 0)
            return rc;
        dk_chat_puts(t, between);
        dk_chat_add_span(t, content);
        between = "\n\n";
    }
    return 0;
}

int dk_deepseek_call_read(const json_t *calls, size_t i, size_t k, struct dk_chat_call *out, struct dk_err *err)
{
    int rc = dk_chat_call_read(calls, i, k, out, err);

    if (rc == 0 && !json_is_string(out->arguments) && !json_is_object(out->arguments))
        rc = dk_err_set(err, -EINVAL, "messages[%zu].tool_calls[%zu].arguments is neither a text nor an object", i, k);
    return rc;
}

void dk_deepseek_add_arguments(struct dk_chat_text *t, const struct dk_chat_call *call)
{
    if (json_is_string(call->arguments))
        dk_chat_add(t, json_string_value(call->arguments), json_string_length(call->arguments));
    else
        dk_chat_json(t, call->arguments);
}

int dk_deepseek_add_call(struct dk_chat_text *t, const json_t *calls, size_t i, size_t k, struct dk_err *err)
{
    struct dk_chat_call call;
    const json_t *type;
    int rc = dk_deepseek_call_read(calls, i, k, &call, err);

    if (rc < 0)
        return rc;
    type = json_object_get(call.call, "type");
    if (!json_is_string(type) || strlen(json_string_value(type)) != json_string_length(type))
        return dk_err_set(err, -EINVAL, "messages[%zu].tool_calls[%zu].type is not a text", i, k);
    dk_chat_puts(t, DK_DEEPSEEK_CALL_BEGIN);
    dk_chat_puts(t, json_string_value(type));
    dk_chat_puts(t, DK_DEEPSEEK_CALL_SEP);
    dk_chat_add_span(t, call.name);
    dk_chat_puts(t, "\n```json\n");
    dk_deepseek_add_arguments(t, &call);
    dk_chat_puts(t, "\n```" DK_DEEPSEEK_CALL_END);
    return 0;
}

static struct dk_span behind(struct dk_span s, const char *end)
{
    return end ? dk_span_between(end + strlen("</think>"), s.text + s.bytes) : s;
}

struct dk_span dk_deepseek_after_first_thought(struct dk_span s)
{
    return behind(s, dk_span_first(s, "</think>"));
}

struct dk_span dk_deepseek_after_last_thought(struct dk_span s)
{
    return behind(s, dk_span_last(s, "</think>"));
}
