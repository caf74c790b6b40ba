/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_MODEL_CHAT_DEEPSEEK_H
#define DK_MODEL_CHAT_DEEPSEEK_H

#include "model/chat/chat_text.h"

/* What the templates of DeepSeek-V3, R1 and their successors have in common. */

/* Tokens of DeepSeek-V3's vocabulary, with its own bars (U+FF5C) and blanks (U+2581). */
#define DK_DEEPSEEK_BOS           "<｜begin▁of▁sentence｜>"
#define DK_DEEPSEEK_EOS           "<｜end▁of▁sentence｜>"
#define DK_DEEPSEEK_USER          "<｜User｜>"
#define DK_DEEPSEEK_ASSISTANT     "<｜Assistant｜>"
#define DK_DEEPSEEK_CALLS_BEGIN   "<｜tool▁calls▁begin｜>"
#define DK_DEEPSEEK_CALLS_END     "<｜tool▁calls▁end｜>"
#define DK_DEEPSEEK_CALL_BEGIN    "<｜tool▁call▁begin｜>"
#define DK_DEEPSEEK_CALL_SEP      "<｜tool▁sep｜>"
#define DK_DEEPSEEK_CALL_END      "<｜tool▁call▁end｜>"
#define DK_DEEPSEEK_OUTPUTS_BEGIN "<｜tool▁outputs▁begin｜>"
#define DK_DEEPSEEK_OUTPUTS_END   "<｜tool▁outputs▁end｜>"
#define DK_DEEPSEEK_OUTPUT_BEGIN  "<｜tool▁output▁begin｜>"
#define DK_DEEPSEEK_OUTPUT_END    "<｜tool▁output▁end｜>"

/* The contents of all system messages, two newlines apart. -EINVAL: one has none. */
int dk_deepseek_add_systems(struct dk_chat_text *t, const json_t *messages, struct dk_err *err);
/* Call k of message i. The templates take arguments as text only; an object is printed as the text that a client would
 * have sent. -EINVAL: arguments of another type. */
int dk_deepseek_call_read(const json_t *calls, size_t i, size_t k, struct dk_chat_call *out, struct dk_err *err);
void dk_deepseek_add_arguments(struct dk_chat_text *t, const struct dk_chat_call *call);
/* A call with its type, and its arguments in a block of code. -EINVAL: as above, or no type. */
int dk_deepseek_add_call(struct dk_chat_text *t, const json_t *calls, size_t i, size_t k, struct dk_err *err);
/* What stands behind the first or the last "</think>"; all of s when there is none. */
struct dk_span dk_deepseek_after_first_thought(struct dk_span s);
struct dk_span dk_deepseek_after_last_thought(struct dk_span s);

#endif
