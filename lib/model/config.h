/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_MODEL_CONFIG_H
#define DK_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* config.json and generation_config.json of a Hugging Face folder, read by hand. */

enum dk_family {
    DK_FAMILY_LLAMA,        /* plain grouped-query attention: model_type "llama" */
    DK_FAMILY_MISTRAL,      /* the same without sliding window: "mistral" */
    DK_FAMILY_QWEN2,        /* with biases of q, k and v: "qwen2" */
    DK_FAMILY_QWEN3,        /* q/k norm: "qwen3" */
    DK_FAMILY_QWEN3_MOE,    /* "qwen3_moe" */
    DK_FAMILY_QWEN3_5,      /* Gated DeltaNet and gated attention: "qwen3_5", "qwen3_5_text" */
    DK_FAMILY_QWEN3_5_MOE,  /* "qwen3_5_moe", "qwen3_5_moe_text" */
    DK_FAMILY_DEEPSEEK_V3,  /* MLA: "deepseek_v3" */
    DK_FAMILY_DEEPSEEK_V32, /* MLA with the DSA indexer: "deepseek_v32" */
    DK_FAMILY_COUNT
};

/* What mixes the positions of a sequence in a layer. */
enum dk_mixer {
    DK_MIXER_ATTENTION, /* grouped-query attention over keys and values */
    DK_MIXER_DELTA,     /* Gated DeltaNet (arXiv 2412.06464): a causal convolution and a recurrent state */
    DK_MIXER_MLA,       /* multi-head latent attention (arXiv 2405.04434) */
};

enum dk_rope_scaling {
    DK_ROPE_PLAIN,
    DK_ROPE_LINEAR, /* frequencies / factor */
    DK_ROPE_LLAMA3, /* low frequencies / factor, a ramp between two wavelengths (card of Llama-3.1) */
    DK_ROPE_YARN,   /* arXiv 2309.00071 */
};

struct dk_rope_config {
    uint32_t dims; /* rotated dimensions of a head, even */
    double theta;
    enum dk_rope_scaling scaling;
    double factor;                 /* of all kinds but PLAIN */
    uint32_t original_context;     /* original_max_position_embeddings; LLAMA3 and YARN */
    double low_freq_factor;        /* LLAMA3 */
    double high_freq_factor;       /* LLAMA3 */
    double beta_fast, beta_slow;   /* YARN: 32 and 1 if absent */
    double mscale, mscale_all_dim; /* YARN; 0: absent */
    double attention_factor;       /* YARN; 0: absent */
    bool truncate;                 /* YARN: the ramp's ends are whole numbers; true if absent */
};

/* Gated DeltaNet. Convolution channels: q | k | v = 2 * key_heads * key_dim + value_heads * value_dim. */
struct dk_delta_config {
    uint32_t key_heads, value_heads; /* key_heads divides value_heads */
    uint32_t key_dim, value_dim;     /* of a head */
    uint32_t conv_taps;              /* linear_conv_kernel_dim */
};

struct dk_mla_config {
    uint32_t q_rank;             /* q_lora_rank; 0: q_proj instead of q_a_proj and q_b_proj */
    uint32_t kv_rank;            /* kv_lora_rank */
    uint32_t nope_dim, rope_dim; /* of a query or key head */
    uint32_t value_dim;          /* of a value head */
};

/* DeepSeek sparse attention: the lightning indexer (technical report of DeepSeek-V3.2). */
struct dk_index_config {
    uint32_t heads, dim; /* heads 0: the model has none */
    uint32_t top_k;      /* positions that attention keeps */
};

enum dk_router_kind {
    DK_ROUTER_SOFTMAX, /* softmax over all experts, top-k */
    DK_ROUTER_GROUPS,  /* sigmoid, correction bias, top-k inside the best groups (arXiv 2412.19437, 2.1.2) */
};

struct dk_model_config {
    enum dk_family family;
    char model_type[32];
    uint32_t hidden, layers;
    uint32_t heads, kv_heads, head_dim; /* full attention; MLA: kv_heads is heads, head_dim is nope_dim + rope_dim */
    bool qk_norm, qkv_bias;             /* full attention: RMSNorm of each head of q and k; biases */
    bool output_gate;                   /* full attention: q_proj gives query and gate of each head */
    bool norm_one_plus;                 /* norms multiply by 1 + w (all but the one in Gated DeltaNet) */
    struct dk_rope_config rope;
    struct dk_delta_config delta; /* conv_taps 0: no such layer */
    struct dk_mla_config mla;     /* kv_rank 0: no such layer */
    struct dk_index_config index;
    uint32_t intermediate;                     /* dense FFN; 0 if there is none */
    uint32_t moe_intermediate, experts, top_k; /* experts 0: dense everywhere */
    uint32_t shared_intermediate;              /* of all shared experts of a MoE layer together; 0: none */
    bool shared_gate;                          /* the shared expert's output times sigmoid(shared_expert_gate x) */
    enum dk_router_kind router;
    bool norm_topk;                      /* the chosen experts' weights are divided by their sum */
    uint32_t router_groups, groups_kept; /* GROUPS: n_group, topk_group */
    float routed_scale;                  /* times the chosen experts' weights; 1 if the family has none */
    uint32_t vocab;
    uint32_t context_max; /* max_position_embeddings; YaRN: factor * original_context if that is more; dual chunk
                           * attention: as far as it is plain attention */
    float rms_eps;
    bool tied;              /* lm_head is embed_tokens */
    uint32_t scale_block;   /* 128 with FP8 weights, else 0 */
    uint32_t mtp_layers;    /* layers for multi-token prediction in the checkpoint, which are not run */
    bool layer_is_moe[512]; /* decoder_sparse_step, mlp_only_layers, first_k_dense_replace */
    uint8_t mixer[512];     /* enum dk_mixer of each layer */
};

struct dk_generation_config {
    double temperature;          /* 0 unless do_sample is true; then 1 if absent */
    double top_p;                /* 1 absent */
    uint32_t top_k;              /* 0 absent or -1 */
    uint32_t eos[16], eos_count; /* from generation_config.json, else config.json */
};

/* Reads dir/config.json. The language part of a multimodal file is in "text_config". Fields that change the math and
 * are not implemented are errors that name the field: sliding windows in use, unknown rope scaling, other activations,
 * other quantisation. Fields that are there twice must agree (of tie_word_embeddings the one outside text_config
 * counts, as in transformers 5). Fields of the rope object that are not read are warnings in the log. -ENOENT, -EINVAL
 * (damaged or out of range), -ENOTSUP (known, not implemented). */
int dk_model_config_load(const char *dir, struct dk_model_config *out, struct dk_err *err);
/* The same from memory; `where` is named in errors. The fuzzer's way in. */
int dk_model_config_parse(const char *json, size_t bytes, const char *where, struct dk_model_config *out,
                          struct dk_err *err);
/* dir/generation_config.json may be missing; then config.json's eos and greedy defaults of the model. */
int dk_generation_config_load(const char *dir, struct dk_generation_config *out, struct dk_err *err);

/* "qwen3_moe", ...: for logs and messages. */
const char *dk_family_name(enum dk_family family);

#endif
