/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_MODEL_CHAT_H
#define DK_MODEL_CHAT_H

#include <jansson.h>
#include <stdbool.h>

#include "base/error.h"
#include "model/config.h"

/* Chat templates, rendered natively per family: the same text as the Jinja template of the release. */

enum dk_chat_format {
    DK_CHAT_QWEN3,          /* ChatML, calls as JSON; the model opens <think> itself */
    DK_CHAT_QWEN3_INSTRUCT, /* Qwen3-*-Instruct-2507: the same without thoughts */
    DK_CHAT_QWEN3_THINKING, /* Qwen3-*-Thinking-2507: the same, but the prompt opens <think>, whatever the switch */
    DK_CHAT_QWEN3_5,        /* ChatML, calls as tags; the prompt opens <think> unless thinking is off */
    DK_CHAT_QWEN3_5_OFF,    /* the same with thinking off unless it is switched on: Qwen3.5-0.8B and 2B */
    DK_CHAT_QWEN2,          /* Qwen2.5: ChatML with a default system message and tools */
    DK_CHAT_QWEN2_INSTRUCT, /* Qwen2: ChatML with another default and without tools */
    DK_CHAT_QWQ,            /* QwQ-32B: Qwen2.5 without the default; the prompt opens <think>, whatever the switch */
    DK_CHAT_DEEPSEEK_V3,    /* no switch and no tools, but calls and their results in the history */
    DK_CHAT_DEEPSEEK_R1,    /* the same, but the prompt opens <think> */
    DK_CHAT_DEEPSEEK_R1_DISTILL,      /* R1-Distill-Qwen and -Llama: the prompt opens <think> */
    DK_CHAT_DEEPSEEK_R1_DISTILL_FREE, /* their first files: the model opens it itself */
    DK_CHAT_DEEPSEEK_V3_0324,         /* a question opens the answer; as V3 otherwise */
    DK_CHAT_DEEPSEEK_R1_0528,         /* the same without old thoughts; the model opens <think> itself */
    DK_CHAT_DEEPSEEK_V31,             /* thinking off unless it is switched on; no tools, but calls and results */
    DK_CHAT_DEEPSEEK_V31_TERMINUS,    /* the same, with a prompt behind system messages and answers: V3.2-Exp too */
    DK_CHAT_DEEPSEEK_V32,             /* thinking off unless it is switched on; tools */
    DK_CHAT_LLAMA3,                   /* Llama 3: turns with headers, no tools */
    DK_CHAT_LLAMA3_1,                 /* Llama 3.1, 3.2 and 3.3: a system message with dates, tools, one call a turn */
    DK_CHAT_MISTRAL_NEMO,             /* [INST], tools, no prompt behind a question */
    DK_CHAT_SMOLLM2,                  /* ChatML with a default system message and without tools */

    /* For templates that are not known: the turns of the family's releases. How such a model calls tools can be another
     * thing (Qwen3-Coder), so tools and calls are refused. */
    DK_CHAT_GUESS_QWEN3,
    DK_CHAT_GUESS_QWEN3_5,
    DK_CHAT_GUESS_DEEPSEEK_V3,
    DK_CHAT_GUESS_DEEPSEEK_V32,
    DK_CHAT_GUESS_LLAMA3,
    DK_CHAT_GUESS_CHATML, /* the messages and nothing else: no default system message */

    DK_CHAT_NONE, /* the folder has no template that is known, and the family no format of its own */
};

enum dk_thinking { DK_THINKING_DEFAULT, DK_THINKING_ON, DK_THINKING_OFF };

/* "qwen3", ...: for logs and messages. */
const char *dk_chat_format_name(enum dk_chat_format format);

/* Whether tools have a place in it; for a guess they have none. */
bool dk_chat_takes_tools(enum dk_chat_format format);
/* Whether `thinking` below changes what is rendered. */
bool dk_chat_has_switch(enum dk_chat_format format);

/* Which format a folder uses: from its family and the template in chat_template.jinja, else in tokenizer_config.json.
 * A template is known by its SHA-256 or by words in it that only one format has. The log names a known one (info), an
 * unknown one with family and hash (warning; the family's guess is used), one that cannot be read (warning; the same),
 * and a missing one (info; the family's format is used). Families whose checkpoints come from many makers (llama,
 * mistral, qwen2) have no format for a template with neither ChatML nor, in the first two, the headers of Llama 3.
 * -ENOMEM. */
int dk_chat_format_detect(const char *dir, enum dk_family family, enum dk_chat_format *out, struct dk_err *err);

/* messages: an array of {"role", "content", "reasoning_content", "tool_calls", ...}; tools: an array of
 * {"type": "function", "function": {...}}, null or NULL. Arguments of a call are an object or its JSON text. *text is
 * malloc'ed and as long as messages and tools, times a constant. Any thread.
 * -EINVAL: names the message and the field; -ENOTSUP: DK_CHAT_NONE, or tools or calls with a format that is a guess;
 * -ENOMEM. */
int dk_chat_render(enum dk_chat_format format, const json_t *messages, const json_t *tools, enum dk_thinking thinking,
                   int add_generation_prompt, char **text, struct dk_err *err);

#endif
