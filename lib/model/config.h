/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_MODEL_CONFIG_H
#define DK_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* config.json and generation_config.json of a Hugging Face folder, read by hand. */

enum dk_family {
    DK_FAMILY_LLAMA,     /* plain grouped-query attention: model_type "llama" */
    DK_FAMILY_QWEN3,     /* q/k norm: "qwen3" */
    DK_FAMILY_QWEN3_MOE, /* "qwen3_moe" */
    DK_FAMILY_COUNT
};

struct dk_model_config {
    enum dk_family family;
    char model_type[32];
    uint32_t hidden, layers, heads, kv_heads, head_dim;
    uint32_t intermediate;                     /* dense FFN; 0 if there is none */
    uint32_t moe_intermediate, experts, top_k; /* experts 0: dense everywhere */
    bool norm_topk;                            /* the chosen experts' weights are divided by their sum */
    uint32_t vocab, context_max;               /* max_position_embeddings */
    float rms_eps;
    double rope_theta;
    bool tied;              /* lm_head is embed_tokens */
    uint32_t scale_block;   /* 128 with FP8 weights, else 0 */
    bool layer_is_moe[512]; /* decoder_sparse_step and mlp_only_layers */
};

struct dk_generation_config {
    double temperature;          /* 0 when do_sample is false; 1 absent */
    double top_p;                /* 1 absent */
    uint32_t top_k;              /* 0 absent or -1 */
    uint32_t eos[16], eos_count; /* from generation_config.json, else config.json */
};

/* Reads dir/config.json. Fields that change the math and are not implemented are errors that name the field:
 * sliding windows in use, rope scaling, biases, other activations, other quantisation. -ENOENT, -EINVAL
 * (damaged or out of range), -ENOTSUP (known, not implemented). */
int dk_model_config_load(const char *dir, struct dk_model_config *out, struct dk_err *err);
/* The same from memory; `where` is named in errors. The fuzzer's way in. */
int dk_model_config_parse(const char *json, size_t bytes, const char *where, struct dk_model_config *out,
                          struct dk_err *err);
/* dir/generation_config.json may be missing; then config.json's eos and greedy defaults of the model. */
int dk_generation_config_load(const char *dir, struct dk_generation_config *out, struct dk_err *err);

/* Parameters of the whole model, for people. */
uint64_t dk_model_parameters(const struct dk_model_config *c);

#endif
