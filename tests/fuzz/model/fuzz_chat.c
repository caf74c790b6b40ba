/* SPDX-License-Identifier: Apache-2.0 */
/* {"messages": ..., "tools": ...} through every renderer. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char prompt[] = "<|im_start|>assistant\n";
    char *copy = malloc(size ? size : 1);
    json_t *root;

    if (size)
        memcpy(copy, data, size);
    root = json_loadb(copy, size, JSON_ALLOW_NUL, NULL);
    free(copy);
    for (int i = 0; root && i < 12; i++) {
        enum dk_thinking thinking = (enum dk_thinking)(i % 3);
        int add = i / 3 % 2, rc;
        struct dk_err err = {0};
        char *text = NULL;

        rc = dk_chat_render(i < 6 ? DK_CHAT_QWEN3 : DK_CHAT_CHATML, json_object_get(root, "messages"),
                            json_object_get(root, "tools"), thinking, add, &text, &err);
        if ((rc == 0) != (text != NULL) || (rc < 0 && !err.text[0]))
            abort();
        if (text && add && !strstr(text, prompt))
            abort();
        free(text);
    }
    json_decref(root);
    return 0;
}
