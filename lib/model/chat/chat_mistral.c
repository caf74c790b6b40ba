/* SPDX-License-Identifier: Apache-2.0 */
/* The text of Mistral-Nemo-Instruct-2407's chat template: questions in [INST], the system message in the last one if
 * that ends the conversation, answers without a mark. The prompt for an answer is the question itself. Arguments that
 * come as text are parsed first: the template would print the text once more as a JSON string. */
#include "model/chat/chat_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BOS           "<s>"
#define EOS           "</s>"
#define ID_CHARACTERS 9
/* The template puts the tools before each question that equals the last one, so that many short messages could make a
 * long text of a long list. */
#define TOOL_LISTS_MAX 32

struct mistral {
    const struct dk_chat *chat;
    size_t first; /* message behind the system's */
    struct dk_span system;
    bool has_system;
    const json_t *last_question; /* NULL: there is none */
    unsigned tool_lists;
};

static bool is_question(const json_t *messages, size_t i)
{
    return strcmp(dk_chat_role_of(messages, i), "user") == 0;
}

/* Questions and answers must alternate; calls and their results do not count. */
static int turns_check(const struct mistral *m, struct dk_err *err)
{
    const json_t *messages = m->chat->messages, *calls;
    bool question = true;
    int rc;

    for (size_t i = m->first; i < json_array_size(messages); i++) {
        const char *role = dk_chat_role_of(messages, i);

        rc = dk_chat_calls(messages, i, &calls, err);
        if (rc < 0)
            return rc;
        if (json_array_size(calls) || strcmp(role, "tool") == 0 || strcmp(role, "tool_results") == 0)
            continue;
        if (is_question(messages, i) != question)
            return dk_err_set(err, -EINVAL,
                              "messages[%zu].role is \"%.40s\"; behind the system message the roles of this model are "
                              "user and assistant in turn",
                              i, role);
        question = !question;
    }
    return 0;
}

static int begin(struct mistral *m, struct dk_err *err)
{
    const json_t *messages = m->chat->messages;
    int rc = 0;

    m->has_system = strcmp(dk_chat_role_of(messages, 0), "system") == 0;
    m->first = m->has_system;
    if (m->has_system)
        rc = dk_chat_content(messages, 0, &m->system, err);
    for (size_t i = m->first; i < json_array_size(messages); i++)
        if (is_question(messages, i))
            m->last_question = json_array_get(messages, i);
    return rc == 0 ? turns_check(m, err) : rc;
}

/* Texts are printed as they are, without escapes. */
static int add_tool(struct dk_chat_text *t, const json_t *tool, size_t i, struct dk_err *err)
{
    const json_t *function = json_object_get(tool, "function");
    const char *key, *comma = "";
    json_t *v;

    if (!json_is_object(function))
        return dk_err_set(err, -EINVAL, "tools[%zu].function is not an object", i);
    dk_chat_puts(t, "{\"type\": \"function\", \"function\": {");
    json_object_foreach((json_t *)function, key, v)
    {
        if (strcmp(key, "return") == 0)
            continue;
        dk_chat_puts(t, comma);
        dk_chat_puts(t, "\"");
        dk_chat_puts(t, key);
        dk_chat_puts(t, "\": ");
        comma = ", ";
        if (!json_is_string(v)) {
            dk_chat_json(t, v);
            continue;
        }
        if (memchr(json_string_value(v), 0, json_string_length(v)))
            return dk_err_set(err, -EINVAL, "tools[%zu].function.%.40s has a NUL character", i, key);
        dk_chat_puts(t, "\"");
        dk_chat_add(t, json_string_value(v), json_string_length(v));
        dk_chat_puts(t, "\"");
    }
    dk_chat_puts(t, "}}");
    return 0;
}

static int add_tools(struct dk_chat_text *t, struct mistral *m, size_t i, struct dk_err *err)
{
    const json_t *tools = m->chat->tools;
    int rc = 0;

    if (m->tool_lists++ == TOOL_LISTS_MAX)
        return dk_err_set(err, -EINVAL,
                          "messages[%zu]: more than %d questions equal the last one, and the tools stand "
                          "before each of them",
                          i, TOOL_LISTS_MAX);
    dk_chat_puts(t, "[AVAILABLE_TOOLS][");
    for (size_t k = 0; k < json_array_size(tools) && rc == 0; k++) {
        dk_chat_puts(t, k ? ", " : "");
        rc = add_tool(t, json_array_get(tools, k), k, err);
    }
    dk_chat_puts(t, "][/AVAILABLE_TOOLS]");
    return rc;
}

static int add_question(struct dk_chat_text *t, struct mistral *m, size_t i, struct dk_err *err)
{
    const json_t *messages = m->chat->messages;
    struct dk_span content;
    int rc = dk_chat_content(messages, i, &content, err);

    if (rc == 0 && m->chat->tools && json_equal(json_array_get(messages, i), m->last_question))
        rc = add_tools(t, m, i, err);
    if (rc < 0)
        return rc;
    dk_chat_puts(t, "[INST]");
    if (m->has_system && i + 1 == json_array_size(messages)) {
        dk_chat_add_span(t, m->system);
        dk_chat_puts(t, "\n\n");
    }
    dk_chat_add_span(t, content);
    dk_chat_puts(t, "[/INST]");
    return 0;
}

/* An id as the template wants it. place: "messages[1].tool_call_id". */
static int add_id(struct dk_chat_text *t, const json_t *id, const char *place, struct dk_err *err)
{
    const char *text = json_string_value(id);
    size_t characters = 0;

    for (size_t i = 0; text && i < json_string_length(id); i++)
        characters += ((unsigned char)text[i] & 0xC0) != 0x80;
    if (!text || characters != ID_CHARACTERS || strlen(text) != json_string_length(id))
        return dk_err_set(err, -EINVAL, "%s is not a text of %d characters, which this model's calls must have", place,
                          ID_CHARACTERS);
    dk_chat_puts(t, text);
    return 0;
}

/* The function object as it came, with its arguments parsed: a new reference. */
static int call_object(const json_t *calls, size_t i, size_t k, json_t **out, struct dk_err *err)
{
    struct dk_chat_call call;
    json_t *arguments, *function;
    int rc = dk_chat_call_read(calls, i, k, &call, err);

    if (rc == 0)
        rc = dk_chat_call_object(&call, i, k, &arguments, err);
    if (rc < 0)
        return rc;
    function = json_object_get(call.call, "function");
    *out = json_object_size(function) ? json_copy(function)
                                      : json_pack("{s:O}", "name", json_object_get(call.call, "name"));
    rc = *out ? 0 : -ENOMEM;
    if (rc == 0 && call.arguments)
        rc = json_object_set(*out, "arguments", arguments) < 0 ? -ENOMEM : 0;
    json_decref(arguments);
    return rc == 0 ? 0 : dk_err_set(err, rc, "no memory for the chat's text");
}

static int add_call(struct dk_chat_text *t, const json_t *calls, size_t i, size_t k, struct dk_err *err)
{
    struct dk_chat_text json = {.data = NULL};
    json_t *object = NULL;
    char place[80];
    int rc = call_object(calls, i, k, &object, err);

    if (rc < 0) {
        json_decref(object);
        return rc;
    }
    dk_chat_json(&json, object);
    json_decref(object);
    if (json.no_memory)
        t->no_memory = true;
    else
        dk_chat_add(t, json.data, json.used - 1); /* the id goes before the brace */
    free(json.data);
    dk_chat_puts(t, ", \"id\": \"");
    snprintf(place, sizeof place, "messages[%zu].tool_calls[%zu].id", i, k);
    rc = add_id(t, json_object_get(json_array_get(calls, k), "id"), place, err);
    dk_chat_puts(t, "\"}");
    return rc;
}

static int add_calls(struct dk_chat_text *t, const json_t *calls, size_t i, struct dk_err *err)
{
    int rc = 0;

    dk_chat_puts(t, "[TOOL_CALLS][");
    for (size_t k = 0; k < json_array_size(calls) && rc == 0; k++) {
        dk_chat_puts(t, k ? ", " : "");
        rc = add_call(t, calls, i, k, err);
    }
    dk_chat_puts(t, "]" EOS);
    return rc;
}

/* A result may be in an object of its own, {"content": result}. It is printed as it is, numbers and the like as Python
 * does. */
static int add_result(struct dk_chat_text *t, const json_t *messages, size_t i, struct dk_err *err)
{
    const json_t *message = json_array_get(messages, i), *content = json_object_get(message, "content"),
                 *inner = json_object_get(content, "content");
    char place[60];
    int rc;

    content = inner ? inner : content;
    if (!content || json_is_object(content) || json_is_array(content))
        return dk_err_set(err, -EINVAL, "messages[%zu].content is no text", i);
    if (json_is_string(content) && memchr(json_string_value(content), 0, json_string_length(content)))
        return dk_err_set(err, -EINVAL, "messages[%zu].content has a NUL character", i);
    dk_chat_puts(t, "[TOOL_RESULTS]{\"content\": ");
    if (json_is_string(content))
        dk_chat_add(t, json_string_value(content), json_string_length(content));
    else
        dk_chat_python_scalar(t, content);
    dk_chat_puts(t, ", \"call_id\": \"");
    snprintf(place, sizeof place, "messages[%zu].tool_call_id", i);
    rc = add_id(t, json_object_get(message, "tool_call_id"), place, err);
    dk_chat_puts(t, "\"}[/TOOL_RESULTS]");
    return rc;
}

static int add_message(struct dk_chat_text *t, struct mistral *m, size_t i, struct dk_err *err)
{
    const json_t *messages = m->chat->messages, *calls;
    const char *role = dk_chat_role_of(messages, i);
    struct dk_span content;
    int rc;

    if (is_question(messages, i))
        return add_question(t, m, i, err);
    rc = dk_chat_calls(messages, i, &calls, err);
    if (rc < 0)
        return rc;
    if (json_array_size(calls))
        return add_calls(t, calls, i, err);
    if (strcmp(role, "tool") == 0 || strcmp(role, "tool_results") == 0)
        return add_result(t, messages, i, err);
    if (strcmp(role, "assistant") != 0)
        return dk_err_set(err, -EINVAL, "messages[%zu].role is \"%.40s\", which this model does not have", i, role);
    rc = dk_chat_content(messages, i, &content, err);
    if (rc < 0)
        return rc;
    dk_chat_add_span(t, content);
    dk_chat_puts(t, EOS);
    return 0;
}

int dk_chat_render_mistral_nemo(struct dk_chat_text *t, const struct dk_chat *c, struct dk_err *err)
{
    struct mistral m = {.chat = c};
    int rc = begin(&m, err);

    dk_chat_puts(t, BOS);
    for (size_t i = m.first; i < json_array_size(c->messages) && rc == 0; i++)
        rc = add_message(t, &m, i, err);
    return rc;
}
