/* SPDX-License-Identifier: Apache-2.0 */
#include "model/chat.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/log.h"
#include "model/chat_text.h"
#include "model/file_read.h"

#define TEMPLATE_BYTES_MAX ((size_t)1 << 20)
#define CONFIG_BYTES_MAX   ((size_t)16 << 20)

static const char *family_name(enum dk_family family)
{
    switch (family) {
    case DK_FAMILY_LLAMA:
        return "llama";
    case DK_FAMILY_QWEN3:
        return "qwen3";
    case DK_FAMILY_QWEN3_MOE:
        return "qwen3_moe";
    case DK_FAMILY_COUNT:
        break;
    }
    return "unknown";
}

/* "chat_template" of tokenizer_config.json: a text, or a list of {"name", "template"} whose "default" is meant. */
static int template_from_config(const char *dir, char **out, struct dk_err *err)
{
    const json_t *v, *list;
    json_error_t bad;
    json_t *root;
    char *json;
    size_t bytes;
    int rc = dk_file_read(dir, "tokenizer_config.json", CONFIG_BYTES_MAX, &json, &bytes, err);

    if (rc == -ENOENT)
        return 0;
    if (rc < 0)
        return rc;
    root = json_loadb(json, bytes, 0, &bad);
    free(json);
    if (!root)
        return dk_err_set(err, -EINVAL, "%s/tokenizer_config.json: line %d: %s", dir, bad.line, bad.text);
    v = list = json_object_get(root, "chat_template");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        const char *name = json_string_value(json_object_get(item, "name"));

        if (name && strcmp(name, "default") == 0 && json_object_get(item, "template"))
            v = json_object_get(item, "template");
    }
    if (json_is_string(v)) {
        *out = strdup(json_string_value(v));
        rc = *out ? 0 : dk_err_set(err, -ENOMEM, "%s/tokenizer_config.json: no memory", dir);
    } else if (v && !json_is_null(v)) {
        rc = dk_err_set(err, -EINVAL,
                        "%s/tokenizer_config.json: chat_template is neither a text nor a list with a "
                        "\"default\"",
                        dir);
    }
    json_decref(root);
    return rc;
}

/* *out NULL: the folder has no template. */
static int template_read(const char *dir, char **out, struct dk_err *err)
{
    struct dk_err unused;
    size_t bytes;
    int rc = dk_file_read(dir, "chat_template.jinja", TEMPLATE_BYTES_MAX, out, &bytes, &unused);

    if (rc == -ENOENT) {
        *out = NULL;
        return template_from_config(dir, out, err);
    }
    return rc < 0 ? dk_err_set(err, rc, "%s", unused.text) : 0;
}

/* Templates with these words print what the native renderer of that format prints: the words are those that differ
 * between the variants. Qwen3-*-Instruct-2507 lacks the switch, Qwen3-*-Thinking-2507 opens the thought itself: both
 * count as unknown. */
static bool is_known(enum dk_chat_format format, const char *text)
{
    if (format == DK_CHAT_CHATML)
        return strstr(text, "<|im_start|>") && strstr(text, "You are a helpful AI assistant named SmolLM, trained by "
                                                            "Hugging Face<|im_end|>");
    return strstr(text, "<|im_start|>") && strstr(text, "<tool_response>") && strstr(text, "reasoning_content") &&
           strstr(text, "enable_thinking");
}

int dk_chat_format_detect(const char *dir, enum dk_family family, enum dk_chat_format *out, struct dk_err *err)
{
    char *text = NULL;
    int rc = template_read(dir, &text, err);

    *out = DK_CHAT_NONE;
    if (rc < 0)
        return rc;
    if (family != DK_FAMILY_LLAMA)
        *out = DK_CHAT_QWEN3;
    else if (text && strstr(text, "<|im_start|>"))
        *out = DK_CHAT_CHATML;
    if (!text)
        dk_log(DK_LOG_INFO, "chat.template.missing", "family=%s dir=\"%s\"", family_name(family), dir);
    else if (*out == DK_CHAT_NONE || !is_known(*out, text))
        dk_log(DK_LOG_WARN, "chat.template.unknown", "family=%s xxh3=%016" PRIx64 " used=%s dir=\"%s\"",
               family_name(family), (uint64_t)XXH3_64bits(text, strlen(text)),
               *out == DK_CHAT_NONE     ? "none"
               : *out == DK_CHAT_CHATML ? "chatml"
                                        : "qwen3",
               dir);
    free(text);
    return 0;
}

int dk_chat_render(enum dk_chat_format format, const json_t *messages, const json_t *tools, enum dk_thinking thinking,
                   int add_generation_prompt, char **text, struct dk_err *err)
{
    struct dk_chat_text t = {.data = NULL};
    int rc;

    *text = NULL;
    if (format == DK_CHAT_NONE)
        return dk_err_set(err, -ENOTSUP, "the model has no chat template that is known; give it a plain prompt");
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return dk_err_set(err, -EINVAL, "messages is not a list with at least one message");
    if (tools && !json_is_null(tools) && !json_is_array(tools))
        return dk_err_set(err, -EINVAL, "tools is not a list");
    if (format == DK_CHAT_QWEN3)
        rc = dk_chat_render_qwen3(&t, messages, tools, thinking, add_generation_prompt != 0, err);
    else
        rc = dk_chat_render_chatml(&t, messages, add_generation_prompt != 0, err);
    if (rc == 0)
        dk_chat_add(&t, "", 0); /* no message may give any text */
    if (rc == 0 && t.no_memory)
        rc = dk_err_set(err, -ENOMEM, "no memory for the chat's text");
    if (rc < 0) {
        free(t.data);
        return rc;
    }
    *text = t.data;
    return 0;
}
