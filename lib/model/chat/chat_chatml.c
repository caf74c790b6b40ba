/* SPDX-License-Identifier: Apache-2.0 */
/* ChatML alone: tools and thinking are unknown to it. The templates of Qwen2-Instruct and SmolLM2-Instruct have a
 * default system message before a conversation that brings none. */
#include "model/chat/chat_qwen.h"

#include <string.h>

static const char *default_system(enum dk_chat_format format)
{
    if (format == DK_CHAT_SMOLLM2)
        return "You are a helpful AI assistant named SmolLM, trained by Hugging Face";
    return format == DK_CHAT_QWEN2_INSTRUCT ? "You are a helpful assistant." : NULL;
}

int dk_chat_render_chatml(struct dk_chat_text *t, const struct dk_chat *c, struct dk_err *err)
{
    const char *system = default_system(c->format);

    if (system && strcmp(dk_chat_role_of(c->messages, 0), "system") != 0)
        dk_qwen_add_message(t, "system", (struct dk_span){system, strlen(system)});
    for (size_t i = 0; i < json_array_size(c->messages); i++) {
        struct dk_span content;
        int rc = dk_chat_content(c->messages, i, &content, err);

        if (rc < 0)
            return rc;
        dk_qwen_add_message(t, dk_chat_role_of(c->messages, i), content);
    }
    if (c->add_generation_prompt)
        dk_chat_puts(t, "<|im_start|>assistant\n");
    return 0;
}
