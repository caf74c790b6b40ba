/* SPDX-License-Identifier: Apache-2.0 */
/* The text of the chat templates of DeepSeek-V3-0324 and DeepSeek-R1-0528, which differ in whether thoughts stay in the
 * history. A question opens the answer by itself, so a prompt is added only behind something else, and none behind
 * results of tools. Tools are unknown to them; a message with another role is left out. */
#include "model/chat/chat_deepseek.h"

#include <string.h>

struct state {
    bool keeps_thoughts;
    bool asked;   /* the last message that counts is a user's: the answer is open */
    bool results; /* results of tools stand open */
    bool opened;  /* since the last calls, results have been opened */
};

/* R1-0528's own test for thoughts fails on content null; here null is the empty text that its next branch expects. */
static int add_calls(struct dk_chat_text *t, const json_t *calls, size_t i, struct dk_span body, struct state *s,
                     struct dk_err *err)
{
    int rc = 0;

    if (s->results)
        dk_chat_puts(t, DK_DEEPSEEK_OUTPUTS_END);
    for (size_t k = 0; k < json_array_size(calls) && rc == 0; k++) {
        if (k == 0)
            dk_chat_add_span(t, body);
        dk_chat_puts(t, k == 0 ? DK_DEEPSEEK_CALLS_BEGIN : "\n");
        rc = dk_deepseek_add_call(t, calls, i, k, err);
    }
    dk_chat_puts(t, DK_DEEPSEEK_CALLS_END DK_DEEPSEEK_EOS);
    s->results = s->opened = false;
    return rc;
}

static int add_assistant(struct dk_chat_text *t, const json_t *messages, size_t i, struct state *s, struct dk_err *err)
{
    struct dk_span body;
    const json_t *calls;
    int rc = dk_chat_calls(messages, i, &calls, err);

    if (rc == 0)
        rc = calls ? dk_chat_field(messages, i, "content", &body, err) : dk_chat_content(messages, i, &body, err);
    if (rc < 0)
        return rc;
    if (!s->keeps_thoughts)
        body = dk_deepseek_after_last_thought(body);
    s->asked = false;
    if (calls)
        return add_calls(t, calls, i, body, s, err);
    if (s->results)
        dk_chat_puts(t, DK_DEEPSEEK_OUTPUTS_END);
    dk_chat_add_span(t, body);
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
    if (user)
        dk_chat_puts(t, DK_DEEPSEEK_USER);
    else
        dk_chat_puts(t, s->opened ? "\n" DK_DEEPSEEK_OUTPUT_BEGIN : DK_DEEPSEEK_OUTPUTS_BEGIN DK_DEEPSEEK_OUTPUT_BEGIN);
    dk_chat_add_span(t, body);
    dk_chat_puts(t, user ? DK_DEEPSEEK_ASSISTANT : DK_DEEPSEEK_OUTPUT_END);
    s->asked = user;
    s->results = !user;
    s->opened = s->opened || !user;
    return 0;
}

int dk_chat_render_deepseek_v3_0324(struct dk_chat_text *t, const struct dk_chat *c, struct dk_err *err)
{
    struct state s = {.keeps_thoughts = c->format == DK_CHAT_DEEPSEEK_V3_0324};
    int rc;

    dk_chat_puts(t, DK_DEEPSEEK_BOS);
    rc = dk_deepseek_add_systems(t, c->messages, err);
    for (size_t i = 0; i < json_array_size(c->messages) && rc == 0; i++)
        rc = add_message(t, c->messages, i, &s, err);
    if (s.results)
        dk_chat_puts(t, DK_DEEPSEEK_OUTPUTS_END);
    else if (c->add_generation_prompt && !s.asked)
        dk_chat_puts(t, DK_DEEPSEEK_ASSISTANT);
    return rc;
}
