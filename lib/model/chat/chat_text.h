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
/* Python's str.strip(), Jinja's trim: without the white space at both ends. Valid UTF-8. */
struct dk_span dk_span_strip(struct dk_span s);
/* Where `needle` stands first or last in s; NULL if it does not. */
const char *dk_span_first(struct dk_span s, const char *needle);
const char *dk_span_last(struct dk_span s, const char *needle);
struct dk_span dk_span_between(const char *from, const char *to);
bool dk_span_begins_and_ends(struct dk_span s, const char *head, const char *tail);

/* Python's json.dumps(v, ensure_ascii=False), which is what the tojson filter of transformers prints. */
void dk_chat_json(struct dk_chat_text *t, const json_t *v);
/* json.dumps(v, ensure_ascii=False, indent=indent): a line for each entry. At most as deep as DK_CHAT_INDENT_LEVELS. */
void dk_chat_json_indented(struct dk_chat_text *t, const json_t *v, unsigned indent);
/* Blanks before an entry count as text, so nesting is bounded where it is indented. */
#define DK_CHAT_INDENT_LEVELS 64
bool dk_chat_json_is_deeper(const json_t *v, unsigned levels);
/* Python's str(v) of a number, true, false or null. */
void dk_chat_python_scalar(struct dk_chat_text *t, const json_t *v);

/* The role of message i. -EINVAL when the message is not an object or has no role. */
int dk_chat_role(const json_t *messages, size_t i, const char **role, struct dk_err *err);
/* The same, of a message whose role has been checked; NULL behind the last message. */
const char *dk_chat_role_of(const json_t *messages, size_t i);
/* A text field of message i; null and absent give text NULL. -EINVAL for other types. */
int dk_chat_field(const json_t *messages, size_t i, const char *name, struct dk_span *out, struct dk_err *err);
/* The same for "content", which must be there. */
int dk_chat_content(const json_t *messages, size_t i, struct dk_span *out, struct dk_err *err);

/* "tool_calls" of message i; NULL when it is absent or null. -EINVAL: not a list. */
int dk_chat_calls(const json_t *messages, size_t i, const json_t **calls, struct dk_err *err);
/* Call k of that list, {"function": {"name", "arguments"}} or the inner object alone. */
struct dk_chat_call {
    const json_t *call;      /* borrowed, as all of this */
    struct dk_span name;     /* without NUL */
    const json_t *arguments; /* NULL: absent; a text has no NUL */
};
int dk_chat_call_read(const json_t *calls, size_t i, size_t k, struct dk_chat_call *out, struct dk_err *err);
/* The arguments as an object, a new reference: an object as it is, text parsed, and none for null, absent and empty
 * text. -EINVAL: neither an object nor the JSON text of one, or a text in it has a NUL. */
int dk_chat_call_object(const struct dk_chat_call *call, size_t i, size_t k, json_t **out, struct dk_err *err);

/* What is rendered. Roles have been checked; tools is NULL or has at least one entry. */
struct dk_chat {
    enum dk_chat_format format;
    const json_t *messages, *tools;
    enum dk_thinking thinking;
    bool add_generation_prompt;
};
typedef int dk_chat_render_fn(struct dk_chat_text *t, const struct dk_chat *c, struct dk_err *err);
dk_chat_render_fn dk_chat_render_qwen3, dk_chat_render_qwen3_5, dk_chat_render_qwen2, dk_chat_render_deepseek_v3,
    dk_chat_render_deepseek_r1_distill, dk_chat_render_deepseek_v3_0324, dk_chat_render_deepseek_v31,
    dk_chat_render_deepseek_v32, dk_chat_render_llama3, dk_chat_render_llama3_1, dk_chat_render_mistral_nemo,
    dk_chat_render_chatml;

#endif
