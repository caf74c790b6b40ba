/* SPDX-License-Identifier: Apache-2.0 */
/* The text of the chat templates of DeepSeek-V3 and, with a prompt that opens the thought, DeepSeek-R1. All system
 * messages come first, two newlines apart; tools are unknown to it; a message with another role is left out. As
 * released, its two memories of calls and of results are never cleared, so that later rounds lack their opening tokens.
 */
#include "model/chat/chat_deepseek.h"

#include <string.h>

struct state {
    bool called;  /* a call has been printed */
    bool results; /* results of tools stand open */
    bool opened;  /* results have been opened once */
};

static int add_calls(struct dk_chat_text *t, const json_t *messages, size_t i, const json_t *calls, struct state *s,
                     struct dk_err *err)
{
    struct dk_span body;
    int rc = dk_chat_field(messages, i, "content", &body, err);

    for (size_t k = 0; k < json_array_size(calls) && rc == 0; k++) {
        if (s->called) {
            dk_chat_puts(t, "\n");
        } else {
            dk_chat_puts(t, DK_DEEPSEEK_ASSISTANT);
            dk_chat_add_span(t, body);
            dk_chat_puts(t, DK_DEEPSEEK_CALLS_BEGIN);
        }
        rc = dk_deepseek_add_call(t, calls, i, k, err);
        s->called = true;
    }
    dk_chat_puts(t, DK_DEEPSEEK_CALLS_END DK_DEEPSEEK_EOS);
    s->results = false;
    return rc;
}

static int add_assistant(struct dk_chat_text *t, const json_t *messages, size_t i, struct state *s, struct dk_err *err)
{
    struct dk_span body;
    const json_t *calls;
    int rc = dk_chat_calls(messages, i, &calls, err);

    if (rc == 0 && calls)
        return add_calls(t, messages, i, calls, s, err);
    if (rc == 0)
        rc = dk_chat_content(messages, i, &body, err);
    if (rc < 0)
        return rc;
    dk_chat_puts(t, s->results ? DK_DEEPSEEK_OUTPUTS_END : DK_DEEPSEEK_ASSISTANT);
    dk_chat_add_span(t, s->results ? body : dk_deepseek_after_last_thought(body));
    dk_chat_puts(t, DK_DEEPSEEK_EOS);
    s->results = false;
    return 0;
}

static int add_message(struct dk_chat_text *t, const json_t *messages, size_t i, struct state *s, struct dk_err *err)
{
    const char *role = dk_chat_role_of(messages, i);
    bool user = strcmp(role, "user") == 0;
    struct dk_span body;
    int rc;

    if (strcmp(role, "assistant") == 0)
        return add_assistant(t, messages, i, s, err);
    if (!user && strcmp(role, "tool") != 0)
        return 0;
    rc = dk_chat_content(messages, i, &body, err);
    if (rc < 0)
        return rc;
    if (user) {
        dk_chat_puts(t, DK_DEEPSEEK_USER);
        dk_chat_add_span(t, body);
        s->results = false;
        return 0;
    }
    dk_chat_puts(t, s->opened ? DK_DEEPSEEK_OUTPUT_BEGIN : DK_DEEPSEEK_OUTPUTS_BEGIN DK_DEEPSEEK_OUTPUT_BEGIN);
    dk_chat_add_span(t, body);
    dk_chat_puts(t, DK_DEEPSEEK_OUTPUT_END);
    s->results = s->opened = true;
    return 0;
}

int dk_chat_render_deepseek_v3(struct dk_chat_text *t, const struct dk_chat *c, struct dk_err *err)
{
    struct state s = {.called = false};
    int rc;

    dk_chat_puts(t, DK_DEEPSEEK_BOS);
    rc = dk_deepseek_add_systems(t, c->messages, err);
    for (size_t i = 0; i < json_array_size(c->messages) && rc == 0; i++)
        rc = add_message(t, c->messages, i, &s, err);
    if (s.results)
        dk_chat_puts(t, DK_DEEPSEEK_OUTPUTS_END);
    else if (c->add_generation_prompt)
        dk_chat_puts(t, c->format == DK_CHAT_DEEPSEEK_R1 ? DK_DEEPSEEK_ASSISTANT "<think>\n" : DK_DEEPSEEK_ASSISTANT);
    return rc;
}
