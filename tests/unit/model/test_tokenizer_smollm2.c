/* SPDX-License-Identifier: Apache-2.0 */
/* The tokenizer and the chat format of SmolLM2-135M-Instruct. Its files are not part of the repository: DUCK_SMOLLM2
 * names the folder that the converter made; without it the test is reported as skipped. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/chat.h"
#include "token_cases.h"

#define SKIPPED 77

static size_t check_prompts(const struct dk_tokenizer *t, const json_t *prompts, enum dk_chat_format format)
{
    const char *name;
    size_t bad = 0;
    json_t *p;

    json_object_foreach((json_t *)prompts, name, p)
    {
        const char *want = json_string_value(json_object_get(p, "text"));
        json_t *list = json_pack("[O]", p);
        struct dk_err err = {0};
        size_t total = 0;
        char *text = NULL;

        if (dk_chat_render(format, json_object_get(p, "messages"), NULL, DK_THINKING_DEFAULT, 1, &text, &err) < 0 ||
            strcmp(text, want) != 0) {
            fprintf(stderr, "prompt %s: expected \"%s\", got \"%s\" %s\n", name, want, text ? text : "", err.text);
            bad++;
        }
        bad += cases_encode(t, list, "ids", &total);
        json_decref(list);
        free(text);
    }
    return bad;
}

int main(void)
{
    const char *dir = getenv("DUCK_SMOLLM2");
    struct dk_tokenizer *t = NULL;
    enum dk_chat_format format;
    struct dk_err err = {0};
    size_t total = 0, bad;
    char folder[4096];
    json_t *file;

    if (!dir || !*dir) {
        printf("skipped: DUCK_SMOLLM2 does not name a folder with BF16/tokenizer.json\n");
        return SKIPPED;
    }
    snprintf(folder, sizeof folder, "%s/BF16", dir);
    if (dk_tokenizer_open(folder, &t, &err) < 0 || dk_chat_format_detect(folder, DK_FAMILY_LLAMA, &format, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    file = cases_load(FIXTURES "/smollm2/golden.json");
    bad = format != DK_CHAT_SMOLLM2;
    bad += cases_encode(t, json_object_get(file, "tokenizer_cases"), "ids", &total);
    bad += check_prompts(t, json_object_get(file, "prompts"), format);
    printf("%zu tokenizer cases, %zu prompts, %zu wrong\n", total, json_object_size(json_object_get(file, "prompts")),
           bad);
    bad += total != 13;
    json_decref(file);
    dk_tokenizer_close(t);
    return bad ? 1 : 0;
}
