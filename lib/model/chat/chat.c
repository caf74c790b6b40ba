/* SPDX-License-Identifier: Apache-2.0 */
#include "model/chat.h"

#include <stdlib.h>

#include "model/chat/chat_text.h"

static const struct {
    const char *name;
    dk_chat_render_fn *render;
    enum dk_chat_format like; /* of a guess: what is rendered */
} formats[] = {
    [DK_CHAT_QWEN3] = {"qwen3", dk_chat_render_qwen3},
    [DK_CHAT_QWEN3_INSTRUCT] = {"qwen3_instruct_2507", dk_chat_render_qwen3},
    [DK_CHAT_QWEN3_THINKING] = {"qwen3_thinking_2507", dk_chat_render_qwen3},
    [DK_CHAT_QWEN3_5] = {"qwen3_5", dk_chat_render_qwen3_5},
    [DK_CHAT_QWEN3_5_OFF] = {"qwen3_5_thinking_off", dk_chat_render_qwen3_5},
    [DK_CHAT_QWEN2] = {"qwen2", dk_chat_render_qwen2},
    [DK_CHAT_QWEN2_INSTRUCT] = {"qwen2_instruct", dk_chat_render_chatml},
    [DK_CHAT_QWQ] = {"qwq", dk_chat_render_qwen2},
    [DK_CHAT_DEEPSEEK_V3] = {"deepseek_v3", dk_chat_render_deepseek_v3},
    [DK_CHAT_DEEPSEEK_R1] = {"deepseek_r1", dk_chat_render_deepseek_v3},
    [DK_CHAT_DEEPSEEK_R1_DISTILL] = {"deepseek_r1_distill", dk_chat_render_deepseek_r1_distill},
    [DK_CHAT_DEEPSEEK_R1_DISTILL_FREE] = {"deepseek_r1_distill_free", dk_chat_render_deepseek_r1_distill},
    [DK_CHAT_DEEPSEEK_V3_0324] = {"deepseek_v3_0324", dk_chat_render_deepseek_v3_0324},
    [DK_CHAT_DEEPSEEK_R1_0528] = {"deepseek_r1_0528", dk_chat_render_deepseek_v3_0324},
    [DK_CHAT_DEEPSEEK_V31] = {"deepseek_v31", dk_chat_render_deepseek_v31},
    [DK_CHAT_DEEPSEEK_V31_TERMINUS] = {"deepseek_v31_terminus", dk_chat_render_deepseek_v31},
    [DK_CHAT_DEEPSEEK_V32] = {"deepseek_v32", dk_chat_render_deepseek_v32},
    [DK_CHAT_LLAMA3] = {"llama3", dk_chat_render_llama3},
    [DK_CHAT_LLAMA3_1] = {"llama3_1", dk_chat_render_llama3_1},
    [DK_CHAT_MISTRAL_NEMO] = {"mistral_nemo", dk_chat_render_mistral_nemo},
    [DK_CHAT_SMOLLM2] = {"smollm2", dk_chat_render_chatml},
    [DK_CHAT_GUESS_QWEN3] = {"qwen3_guessed", dk_chat_render_qwen3, DK_CHAT_QWEN3},
    [DK_CHAT_GUESS_QWEN3_5] = {"qwen3_5_guessed", dk_chat_render_qwen3_5, DK_CHAT_QWEN3_5},
    [DK_CHAT_GUESS_DEEPSEEK_V3] = {"deepseek_v3_guessed", dk_chat_render_deepseek_v3, DK_CHAT_DEEPSEEK_V3},
    [DK_CHAT_GUESS_DEEPSEEK_V32] = {"deepseek_v32_guessed", dk_chat_render_deepseek_v32, DK_CHAT_DEEPSEEK_V32},
    [DK_CHAT_GUESS_LLAMA3] = {"llama3_guessed", dk_chat_render_llama3, DK_CHAT_LLAMA3},
    [DK_CHAT_GUESS_CHATML] = {"chatml_guessed", dk_chat_render_chatml, DK_CHAT_GUESS_CHATML},
    [DK_CHAT_NONE] = {"none", NULL},
};

const char *dk_chat_format_name(enum dk_chat_format format)
{
    return formats[format].name;
}

static bool is_guess(enum dk_chat_format format)
{
    return format >= DK_CHAT_GUESS_QWEN3 && format <= DK_CHAT_GUESS_CHATML;
}

bool dk_chat_takes_tools(enum dk_chat_format format)
{
    switch (format) {
    case DK_CHAT_QWEN3:
    case DK_CHAT_QWEN3_INSTRUCT:
    case DK_CHAT_QWEN3_THINKING:
    case DK_CHAT_QWEN3_5:
    case DK_CHAT_QWEN3_5_OFF:
    case DK_CHAT_QWEN2:
    case DK_CHAT_QWQ:
    case DK_CHAT_DEEPSEEK_V32:
    case DK_CHAT_LLAMA3_1:
    case DK_CHAT_MISTRAL_NEMO:
        return true;
    default:
        return false;
    }
}

bool dk_chat_has_switch(enum dk_chat_format format)
{
    switch (format) {
    case DK_CHAT_QWEN3:
    case DK_CHAT_QWEN3_5:
    case DK_CHAT_QWEN3_5_OFF:
    case DK_CHAT_DEEPSEEK_V31:
    case DK_CHAT_DEEPSEEK_V31_TERMINUS:
    case DK_CHAT_DEEPSEEK_V32:
    case DK_CHAT_GUESS_QWEN3:
    case DK_CHAT_GUESS_QWEN3_5:
    case DK_CHAT_GUESS_DEEPSEEK_V32:
        return true;
    default:
        return false;
    }
}

/* Text that is not what the model was trained on looks like a bad model, so it is not made. */
static int guess_check(const struct dk_chat *c, struct dk_err *err)
{
    const json_t *calls;

    if (c->tools)
        return dk_err_set(err, -ENOTSUP,
                          "tools: the model's chat template is not one that is known, so nor is how it calls them; "
                          "leave them out, or render the chat yourself and send it as text");
    for (size_t i = 0; i < json_array_size(c->messages); i++) {
        int rc = dk_chat_calls(c->messages, i, &calls, err);

        if (rc < 0)
            return rc;
        if (json_array_size(calls))
            return dk_err_set(err, -ENOTSUP,
                              "messages[%zu].tool_calls: the model's chat template is not one that is known, so nor is "
                              "how it calls tools; render the chat yourself and send it as text",
                              i);
    }
    return 0;
}

/* Checks what every renderer relies on. */
static int check(const struct dk_chat *c, struct dk_err *err)
{
    const char *role;
    int rc = 0;

    if (!formats[c->format].render)
        return dk_err_set(err, -ENOTSUP, "the model has no chat template that is known; give it a plain prompt");
    if (!json_is_array(c->messages) || json_array_size(c->messages) == 0)
        return dk_err_set(err, -EINVAL, "messages is not a list with at least one message");
    for (size_t i = 0; i < json_array_size(c->messages) && rc == 0; i++)
        rc = dk_chat_role(c->messages, i, &role, err);
    return rc == 0 && is_guess(c->format) ? guess_check(c, err) : rc;
}

int dk_chat_render(enum dk_chat_format format, const json_t *messages, const json_t *tools, enum dk_thinking thinking,
                   int add_generation_prompt, char **text, struct dk_err *err)
{
    struct dk_chat c = {.format = format,
                        .messages = messages,
                        .tools = json_array_size(tools) ? tools : NULL,
                        .thinking = thinking,
                        .add_generation_prompt = add_generation_prompt != 0};
    struct dk_chat_text t = {.data = NULL};
    int rc;

    *text = NULL;
    if (tools && !json_is_null(tools) && !json_is_array(tools))
        return dk_err_set(err, -EINVAL, "tools is not a list");
    rc = check(&c, err);
    if (is_guess(format))
        c.format = formats[format].like;
    if (rc == 0)
        rc = formats[format].render(&t, &c, err);
    if (rc == 0)
        dk_chat_add(&t, "", 0); /* no message may give any text */
    if (rc == 0 && t.no_memory)
        rc = dk_err_set(err, -ENOMEM, "no memory for the chat's text");
    if (rc < 0) {
        free(t.data);
        return rc;
    }
    *text = t.data;
    return 0;
}
