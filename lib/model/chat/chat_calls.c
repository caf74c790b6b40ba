/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of tools in the history, as clients of the OpenAI interface send them back. */
#include "model/chat/chat_text.h"

#include <string.h>

int dk_chat_calls(const json_t *messages, size_t i, const json_t **calls, struct dk_err *err)
{
    const json_t *v = json_object_get(json_array_get(messages, i), "tool_calls");

    *calls = NULL;
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_array(v))
        return dk_err_set(err, -EINVAL, "messages[%zu].tool_calls is not a list", i);
    *calls = v;
    return 0;
}

static bool has_nul(const json_t *text)
{
    return memchr(json_string_value(text), 0, json_string_length(text)) != NULL;
}

int dk_chat_call_read(const json_t *calls, size_t i, size_t k, struct dk_chat_call *out, struct dk_err *err)
{
    const json_t *call = json_array_get(calls, k), *f = json_object_get(call, "function"), *name;

    if (!json_is_object(call))
        return dk_err_set(err, -EINVAL, "messages[%zu].tool_calls[%zu] is not an object", i, k);
    if (f && !json_is_null(f) && !json_is_object(f))
        return dk_err_set(err, -EINVAL, "messages[%zu].tool_calls[%zu].function is not an object", i, k);
    if (json_object_size(f) == 0)
        f = call;
    name = json_object_get(f, "name");
    out->call = call;
    out->arguments = json_object_get(f, "arguments");
    if (!json_is_string(name))
        return dk_err_set(err, -EINVAL, "messages[%zu].tool_calls[%zu].name is not a text", i, k);
    if (has_nul(name) || (json_is_string(out->arguments) && has_nul(out->arguments)))
        return dk_err_set(err, -EINVAL, "messages[%zu].tool_calls[%zu] has a NUL character", i, k);
    out->name = (struct dk_span){json_string_value(name), json_string_length(name)};
    return 0;
}

int dk_chat_call_object(const struct dk_chat_call *call, size_t i, size_t k, json_t **out, struct dk_err *err)
{
    const json_t *a = call->arguments;
    json_error_t bad = {.text = ""};
    const char *key;
    json_t *v;

    if (!a || json_is_null(a) || (json_is_string(a) && json_string_length(a) == 0))
        *out = json_object();
    else if (json_is_string(a))
        *out = json_loadb(json_string_value(a), json_string_length(a), 0, &bad);
    else
        *out = json_is_object(a) ? json_incref((json_t *)a) : NULL;
    if (!json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        return dk_err_set(err, -EINVAL,
                          "messages[%zu].tool_calls[%zu].arguments is neither an object nor the JSON text of one%s%s",
                          i, k, bad.text[0] ? ": " : "", bad.text);
    }
    json_object_foreach(*out, key, v)
    {
        if (json_is_string(v) && has_nul(v)) {
            dk_err_set(err, -EINVAL, "messages[%zu].tool_calls[%zu].arguments: \"%.40s\" has a NUL character", i, k,
                       key);
            json_decref(*out);
            *out = NULL;
            return -EINVAL;
        }
    }
    return 0;
}
