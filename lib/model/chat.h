/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_MODEL_CHAT_H
#define DK_MODEL_CHAT_H

#include <jansson.h>

#include "base/error.h"
#include "model/config.h"

/* Chat templates, rendered natively per family: the same text as the Jinja template of the release. */

enum dk_chat_format {
    DK_CHAT_QWEN3,  /* ChatML, <think> */
    DK_CHAT_CHATML, /* ChatML with a default system message: SmolLM2 */
    DK_CHAT_NONE,   /* the folder has no template that is known */
};

enum dk_thinking { DK_THINKING_DEFAULT, DK_THINKING_ON, DK_THINKING_OFF };

/* Which format a folder uses: from its family and the template text in chat_template.jinja or tokenizer_config.json.
 * Logs family and hash when the text is unknown. */
int dk_chat_format_detect(const char *dir, enum dk_family family, enum dk_chat_format *out, struct dk_err *err);

/* messages: an array of {"role", "content", "reasoning_content", "tool_calls", ...}. *text is malloc'ed.
 * -EINVAL: names the message and the field; -ENOTSUP: DK_CHAT_NONE. */
int dk_chat_render(enum dk_chat_format format, const json_t *messages, const json_t *tools, enum dk_thinking thinking,
                   int add_generation_prompt, char **text, struct dk_err *err);

#endif
