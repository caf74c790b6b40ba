/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_MODEL_CHAT_QWEN_H
#define DK_MODEL_CHAT_QWEN_H

#include "model/chat/chat_text.h"

/* What the templates with ChatML have in common, most of them those of the Qwen families. */

/* The list of tools and how to call them as JSON; ends the system message. */
void dk_qwen_add_tools(struct dk_chat_text *t, const json_t *tools);
void dk_qwen_add_message(struct dk_chat_text *t, const char *role, struct dk_span body);
/* The answer of a tool, message i. Answers that follow each other share one user's turn; `opens`: this one begins it.
 */
void dk_qwen_add_answer(struct dk_chat_text *t, const json_t *messages, size_t i, bool opens, struct dk_span body);
/* Splits "<think>...</think>answer", which clients send back as it came, into its two parts; leaves both alone when
 * there is no "</think>". */
void dk_qwen_split_thought(struct dk_span *body, struct dk_span *thought);
/* A tool's answer that a client wrapped itself and sent as the user's words. */
bool dk_qwen_is_wrapped_answer(struct dk_span body);

#endif
