/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GOLDEN_MODELS_H
#define GOLDEN_MODELS_H

#include "local_model.h"

/* The small models in tests/fixtures that have expected values: X(name in C, folder, full attention). */
#define GOLDEN_MODELS(X)                                  \
    X(qwen2, "qwen2-tiny", false)                         \
    X(mistral, "mistral-tiny", false)                     \
    X(llama3_rope, "llama3-rope-tiny", false)             \
    X(llama_linear_rope, "llama-linear-rope-tiny", false) \
    X(llama_yarn, "llama-yarn-tiny", false)               \
    X(qwen3, "qwen3-tiny", false)                         \
    X(qwen3_fp8, "qwen3-fp8-tiny", false)                 \
    X(qwen3_moe_fp8, "qwen3-moe-fp8-tiny", false)         \
    X(qwen3_5_fp8, "qwen3_5-fp8-tiny", false)             \
    X(qwen3_5_moe_fp8, "qwen3_5_moe-fp8-tiny", false)     \
    X(deepseek_v3_fp8, "deepseek_v3-fp8-tiny", false)     \
    X(deepseek_v32_fp8, "deepseek_v32-fp8-tiny", false)

/* The same, and the one with an indexer once more attending to every position. */
#define GOLDEN_MODES(X) GOLDEN_MODELS(X) X(deepseek_v32_fp8_full, "deepseek_v32-fp8-tiny", true)

#define GOLDEN_PROMPTS_MAX 8

struct golden_prompt {
    char name[32];
    uint32_t *ids, count;
};

/* The path of a file in a model's folder. */
void golden_path(char *path, size_t size, const char *model, const char *file);
/* All of these end the test if something is missing. */
void golden_open(struct local_model *m, const char *model, const struct local_options *o);
uint32_t golden_prompts(const char *model, struct golden_prompt *prompts); /* how many there are */
void golden_prompts_free(struct golden_prompt *prompts, uint32_t count);
uint32_t *golden_prompt_ids(const char *model, const char *name, uint32_t *count);

#endif
