/* SPDX-License-Identifier: Apache-2.0 */
/* The text of the chat templates of DeepSeek-V3.1 and V3.1-Terminus. Every answer opens with <think> or </think>;
 * thoughts of the history are left out. An answer whose "prefix" is true is the beginning of the one to come. Tools are
 * unknown to them (the releases describe them in the system message); a message with another role is left out. */
#include "model/chat/chat_deepseek.h"

#include <string.h>

struct state {
    bool thinks;
    bool terminus;
    bool asked;       /* the last message that counts is a user's: the answer is not open yet */
    bool results;     /* the last one is a tool's result */
    bool only_system; /* there are system messages, and nothing else so far */
    bool prefixed;    /* an answer was a prefix */
};

static const char *opening(bool thinks)
{
    return thinks ? DK_DEEPSEEK_ASSISTANT "<think>" : DK_DEEPSEEK_ASSISTANT "</think>";
}

static int add_calls(struct dk_chat_text *t, const json_t *messages, size_t i, const json_t *calls, struct state *s,
                     struct dk_err *err)
{
    struct dk_span body;
    int rc = dk_chat_field(messages, i, "content", &body, err);

    if (s->asked || (s->terminus && s->only_system))
        dk_chat_puts(t, opening(false));
    for (size_t k = 0; k < json_array_size(calls) && rc == 0; k++) {
        struct dk_chat_call call;

        rc = dk_deepseek_call_read(calls, i, k, &call, err);
        if (rc < 0)
            return rc;
        if (k == 0) {
            dk_chat_add_span(t, body);
            dk_chat_puts(t, DK_DEEPSEEK_CALLS_BEGIN);
        }
        dk_chat_puts(t, DK_DEEPSEEK_CALL_BEGIN);
        dk_chat_add_span(t, call.name);
        dk_chat_puts(t, DK_DEEPSEEK_CALL_SEP);
        dk_deepseek_add_arguments(t, &call);
        dk_chat_puts(t, DK_DEEPSEEK_CALL_END);
    }
    dk_chat_puts(t, DK_DEEPSEEK_CALLS_END DK_DEEPSEEK_EOS);
    return rc;
}

static int add_assistant(struct dk_chat_text *t, const json_t *messages, size_t i, struct state *s, struct dk_err *err)
{
    bool prefix = json_is_true(json_object_get(json_array_get(messages, i), "prefix"));
    struct dk_span body;
    const json_t *calls;
    int rc = dk_chat_calls(messages, i, &calls, err);

    if (rc == 0 && calls)
        return add_calls(t, messages, i, calls, s, err);
    if (rc == 0)
        rc = dk_chat_content(messages, i, &body, err);
    if (rc < 0)
        return rc;
    if (s->asked)
        dk_chat_puts(t, opening(prefix && s->thinks));
    dk_chat_add_span(t, s->results ? body : dk_deepseek_after_first_thought(body));
    dk_chat_puts(t, DK_DEEPSEEK_EOS);
    s->prefixed = s->prefixed || prefix;
    return 0;
}

static int add_other(struct dk_chat_text *t, const json_t *messages, size_t i, bool user, struct dk_err *err)
{
    struct dk_span body;
    int rc = dk_chat_content(messages, i, &body, err);

    if (rc < 0)
        return rc;
    dk_chat_puts(t, user ? DK_DEEPSEEK_USER : DK_DEEPSEEK_OUTPUT_BEGIN);
    dk_chat_add_span(t, body);
    dk_chat_puts(t, user ? "" : DK_DEEPSEEK_OUTPUT_END);
    return 0;
}

static int add_message(struct dk_chat_text *t, const json_t *messages, size_t i, struct state *s, struct dk_err *err)
{
    const char *role = dk_chat_role_of(messages, i);
    bool user = strcmp(role, "user") == 0, tool = strcmp(role, "tool") == 0;
    int rc = 0;

    if (strcmp(role, "system") == 0)
        return 0;
    if (user || tool)
        rc = add_other(t, messages, i, user, err);
    else if (strcmp(role, "assistant") == 0)
        rc = add_assistant(t, messages, i, s, err);
    s->only_system = false;
    if (user || tool || strcmp(role, "assistant") == 0) {
        s->asked = user;
        s->results = tool;
    }
    return rc;
}

static bool has_system(const json_t *messages)
{
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (strcmp(dk_chat_role_of(messages, i), "system") == 0)
            return true;
    return false;
}

int dk_chat_render_deepseek_v31(struct dk_chat_text *t, const struct dk_chat *c, struct dk_err *err)
{
    struct state s = {.thinks = c->thinking == DK_THINKING_ON,
                      .terminus = c->format == DK_CHAT_DEEPSEEK_V31_TERMINUS,
                      .only_system = has_system(c->messages)};
    int rc;

    dk_chat_puts(t, DK_DEEPSEEK_BOS);
    rc = dk_deepseek_add_systems(t, c->messages, err);
    for (size_t i = 0; i < json_array_size(c->messages) && rc == 0; i++)
        rc = add_message(t, c->messages, i, &s, err);
    if (c->add_generation_prompt && !s.results && (s.asked || (s.terminus && (s.only_system || !s.prefixed))))
        dk_chat_puts(t, opening(s.thinks));
    return rc;
}
