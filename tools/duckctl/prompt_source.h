/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCKCTL_PROMPT_SOURCE_H
#define DUCKCTL_PROMPT_SOURCE_H

#include "duckctl/duckctl.h"

/* Where a prompt comes from: the options of verbs that submit one, and the request made of them. */

struct prompt_options {
    const char *text, *file; /* as it is; file: in a file */
    const char *ids;
    const char *chat, *system; /* a user's message, and a system message before it */
    const char *messages;      /* file with a conversation */
    const char *tools;         /* file */
    const char *thinking;
};

/* ids and the chat's options; text and file have other names in each verb. */
#define PROMPT_OPTIONS(type)                                                                                           \
    {"ids", DK_OPT_TEXT, offsetof(type, prompt.ids), "1,2,3", "prompt of these token ids", 0, 0, NULL, NULL},          \
        {"chat",                                                                                                       \
         DK_OPT_TEXT,                                                                                                  \
         offsetof(type, prompt.chat),                                                                                  \
         "TEXT",                                                                                                       \
         "prompt of a user's message, by the model's "                                                                 \
         "chat template",                                                                                              \
         0,                                                                                                            \
         0,                                                                                                            \
         NULL,                                                                                                         \
         NULL},                                                                                                        \
        {"messages",                                                                                                   \
         DK_OPT_TEXT,                                                                                                  \
         offsetof(type, prompt.messages),                                                                              \
         "FILE.json",                                                                                                  \
         "prompt of a conversation: [{\"role\":..,\"content\":..}, ..]; - is standard input",                          \
         0,                                                                                                            \
         0,                                                                                                            \
         NULL,                                                                                                         \
         NULL},                                                                                                        \
        {"system", DK_OPT_TEXT, offsetof(type, prompt.system), "TEXT", "system message before --chat", 0, 0,           \
         NULL,     NULL},                                                                                              \
        {"tools",                                                                                                      \
         DK_OPT_TEXT,                                                                                                  \
         offsetof(type, prompt.tools),                                                                                 \
         "FILE.json",                                                                                                  \
         "tools for the chat template: [{\"type\":\"function\",\"function\":{..}}, ..]; refused where it has none",    \
         0,                                                                                                            \
         0,                                                                                                            \
         NULL,                                                                                                         \
         NULL},                                                                                                        \
    {                                                                                                                  \
        "thinking", DK_OPT_TEXT, offsetof(type, prompt.thinking), "on|off",                                            \
            "let the model think first; absent: its own default; nothing where it has no switch", 0, 0, "on|off", NULL \
    }

struct prompt {
    Dk__SubmitRequest request; /* points into the fields below and into the options */
    Dk__TokenIds ids;
    char *file_text, *messages_json, *tools_json;
    uint32_t *id_list;
};

/* What is wrong with the options, for verb_usage(); NULL: nothing. text_option: "--prompt". */
const char *prompt_options_defect(const struct prompt_options *o, const char *text_option);
/* What is done with a prompt that was submitted. */
typedef int prompt_fn(void *ctx, struct dk_rpc_client *c, const Dk__SubmitReply *submitted, struct dk_err *err);
/* Fills in the prompt of p->request, whose other fields are set, submits it to the cluster that the common options
 * name, and calls fn. What fn returns; USAGE_ERROR and errors of files: err names the option; errors of the calls,
 * which name the file if they are of its content. */
int prompt_run(const struct common_settings *common, const struct prompt_options *o, const char *text_option,
               struct prompt *p, prompt_fn *fn, void *ctx, struct dk_err *err);

#endif
