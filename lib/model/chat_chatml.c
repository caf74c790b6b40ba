/* SPDX-License-Identifier: Apache-2.0 */
/* ChatML as SmolLM2-Instruct's template has it: a default system message before a conversation that brings none;
 * tools and thinking are unknown to it. */
#include "model/chat_qwen.h"

#include <string.h>

int dk_chat_render_chatml(struct dk_chat_text *t, const struct dk_chat *c, struct dk_err *err)
{
    for (size_t i = 0; i < json_array_size(c->messages); i++) {
        const char *role = dk_chat_role_of(c->messages, i);
        struct dk_span content;
        int rc = dk_chat_content(c->messages, i, &content, err);

        if (rc < 0)
            return rc;
        if (i == 0 && strcmp(role, "system") != 0)
            dk_chat_puts(t, "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
                            "<|im_end|>\n");
        dk_qwen_add_message(t, role, content);
    }
    if (c->add_generation_prompt)
        dk_chat_puts(t, "<|im_start|>assistant\n");
    return 0;
}
