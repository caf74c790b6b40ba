/* SPDX-License-Identifier: Apache-2.0 */
/* The first byte chooses a renderer; the rest is {"messages": ..., "tools": ...} for it. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What stands once in a text (the description of how to call tools), and what one byte of input can become: a mark of
 * the template, or an entry of a tool with the blanks of 64 levels before it. */
#define FIXED_BYTES    4096
#define BYTES_PER_BYTE (4 * 64 + 64)

/* What every text with a prompt has; DeepSeek's add none behind results, some not even behind questions, and Mistral's
 * none at all. */
static const char *prompt_of(enum dk_chat_format format)
{
    if ((format >= DK_CHAT_DEEPSEEK_V3 && format <= DK_CHAT_DEEPSEEK_V32) || format == DK_CHAT_GUESS_DEEPSEEK_V3 ||
        format == DK_CHAT_GUESS_DEEPSEEK_V32)
        return "<｜begin▁of▁sentence｜>";
    if (format == DK_CHAT_MISTRAL_NEMO)
        return "<s>";
    if (format == DK_CHAT_LLAMA3 || format == DK_CHAT_LLAMA3_1 || format == DK_CHAT_GUESS_LLAMA3)
        return "<|start_header_id|>assistant<|end_header_id|>\n\n";
    return "<|im_start|>assistant\n";
}

static void render(enum dk_chat_format format, const json_t *root, enum dk_thinking thinking, int add, size_t size)
{
    struct dk_err err = {0};
    char *text = NULL;
    int rc = dk_chat_render(format, json_object_get(root, "messages"), json_object_get(root, "tools"), thinking, add,
                            &text, &err);

    if ((rc == 0) != (text != NULL) || (rc < 0 && !err.text[0]))
        abort();
    if (text && add && !strstr(text, prompt_of(format)))
        abort();
    if (text && strlen(text) > FIXED_BYTES + BYTES_PER_BYTE * size)
        abort();
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum dk_chat_format format = size ? (enum dk_chat_format)(data[0] % DK_CHAT_NONE) : DK_CHAT_QWEN3;
    size_t bytes = size ? size - 1 : 0;
    char *copy = malloc(bytes ? bytes : 1);
    json_t *root;

    if (bytes)
        memcpy(copy, data + 1, bytes);
    root = json_loadb(copy, bytes, JSON_ALLOW_NUL, NULL);
    free(copy);
    for (int i = 0; root && i < 6; i++)
        render(format, root, (enum dk_thinking)(i % 3), i / 3, size);
    json_decref(root);
    return 0;
}
