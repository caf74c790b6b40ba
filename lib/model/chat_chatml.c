/* SPDX-License-Identifier: Apache-2.0 */
/* ChatML as SmolLM2-Instruct's template has it: a default system message before a conversation that brings none;
 * tools and thinking are unknown to it. */
#include "model/chat_text.h"

#include <string.h>

int dk_chat_render_chatml(struct dk_chat_text *t, const json_t *messages, bool add_generation_prompt,
                          struct dk_err *err)
{
    for (size_t i = 0; i < json_array_size(messages); i++) {
        struct dk_span content;
        const char *role;
        int rc = dk_chat_role(messages, i, &role, err);

        if (rc == 0)
            rc = dk_chat_field(messages, i, "content", &content, err);
        if (rc < 0)
            return rc;
        if (!content.text)
            return dk_err_set(err, -EINVAL, "messages[%zu].content is missing", i);
        if (i == 0 && strcmp(role, "system") != 0)
            dk_chat_puts(t, "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
                            "<|im_end|>\n");
        dk_chat_puts(t, "<|im_start|>");
        dk_chat_puts(t, role);
        dk_chat_puts(t, "\n");
        dk_chat_add_span(t, content);
        dk_chat_puts(t, "<|im_end|>\n");
    }
    if (add_generation_prompt)
        dk_chat_puts(t, "<|im_start|>assistant\n");
    return 0;
}
