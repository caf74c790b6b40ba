/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_MODEL_CHAT_TEXT_H
#define DK_MODEL_CHAT_TEXT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "model/chat.h"

/* What the renderers of chat templates share: a growing text, JSON as templates print it, fields of messages. */

struct dk_chat_text {
    char *data; /* malloc'ed; NUL-terminated once something was added */
    size_t used, capacity;
    bool no_memory; /* stays set; later additions do nothing */
};
void dk_chat_add(struct dk_chat_text *t, const char *text, size_t bytes);
void dk_chat_puts(struct dk_chat_text *t, const char *text);

/* A stretch of text that is not owned. */
struct dk_span {
    const char *text;
    size_t bytes;
};
void dk_chat_add_span(struct dk_chat_text *t, struct dk_span s);
struct dk_span dk_span_trim_left(struct dk_span s, char c);
struct dk_span dk_span_trim_right(struct dk_span s, char c);

/* Python's json.dumps(v, ensure_ascii=False), which is what the tojson filter of transformers prints. */
void dk_chat_json(struct dk_chat_text *t, const json_t *v);

/* The role of message i. -EINVAL when the message is not an object or has no role. */
int dk_chat_role(const json_t *messages, size_t i, const char **role, struct dk_err *err);
/* A text field of message i; null and absent give text NULL. -EINVAL for other types. */
int dk_chat_field(const json_t *messages, size_t i, const char *name, struct dk_span *out, struct dk_err *err);

int dk_chat_render_qwen3(struct dk_chat_text *t, const json_t *messages, const json_t *tools, enum dk_thinking thinking,
                         bool add_generation_prompt, struct dk_err *err);
int dk_chat_render_chatml(struct dk_chat_text *t, const json_t *messages, bool add_generation_prompt,
                          struct dk_err *err);

#endif
