/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors that a config implies, against the names, shapes and types in the fixtures' files and lists by hand. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "config_text.h"
#include "model/model_tensors.h"

static const struct fixture {
    const char *name;
    uint32_t vision, mtp; /* tensors of the parts that are not run */
} fixtures[] = {
    {"qwen3-tiny", 0, 0},
    {"qwen3-fp8-tiny", 0, 0},
    {"qwen3-moe-fp8-tiny", 0, 0},
    {"qwen3_5-fp8-tiny", 21, 22},
    {"qwen3_5_moe-fp8-tiny", 21, 216},
    {"deepseek_v3-fp8-tiny", 0, 218},
    {"deepseek_v32-fp8-tiny", 0, 131},
};

#define FIXTURE_COUNT (sizeof fixtures / sizeof *fixtures)

static void open_fixture(const char *name, struct dk_model_config *c, struct dk_checkpoint **ck)
{
    struct dk_err err = {0};
    char dir[512];

    snprintf(dir, sizeof dir, FIXTURES "/%s", name);
    cr_assert_eq(dk_model_config_load(dir, c, &err), 0, "%s", err.text);
    cr_assert_eq(dk_checkpoint_open(dir, ck, &err), 0, "%s", err.text);
}

struct unused {
    const struct dk_model_config *c;
    uint32_t vision, mtp;
};

static void unused_count(void *ctx, const struct dk_tensor *t)
{
    struct unused *u = ctx;
    const char *part = dk_model_tensor_skipped(u->c, t->name);

    cr_expect(part, "%s is left over", t->name);
    u->vision += part && !strcmp(part, "vision");
    u->mtp += part && !strcmp(part, "multi-token prediction");
}

/* Nothing is missing, and nothing is left over but the parts that are not run. */
Test(model_tensors, fixtures_have_all_and_no_more)
{
    for (size_t i = 0; i < FIXTURE_COUNT; i++) {
        struct dk_model_config c;
        struct unused u = {.c = &c};
        struct dk_checkpoint *ck;
        struct dk_err err = {0};

        open_fixture(fixtures[i].name, &c, &ck);
        cr_expect_eq(dk_model_tensors_check(&c, ck, &err), 0, "%s", err.text);
        cr_expect_eq(err.rc, 0);
        dk_checkpoint_unused(ck, unused_count, &u);
        cr_expect(u.vision == fixtures[i].vision && u.mtp == fixtures[i].mtp, "%s: %u of vision, %u of MTP",
                  fixtures[i].name, u.vision, u.mtp);
        dk_checkpoint_close(ck);
    }
}

struct comparison {
    const struct dk_model_config *c;
    struct dk_checkpoint *ck;
    uint64_t elements;
};

static int compare(void *ctx, const struct dk_tensor_want *want)
{
    struct comparison *k = ctx;
    const struct dk_tensor *t = dk_checkpoint_find(k->ck, want->name);
    uint64_t n = 1;

    cr_assert(t, "%s", want->name);
    cr_expect_eq(want->rank, t->rank, "%s", want->name);
    for (uint32_t i = 0; i < want->rank; i++) {
        cr_expect_eq(want->shape[i], t->shape[i], "%s", want->name);
        n *= want->shape[i];
    }
    if (k->c->scale_block)
        cr_expect_eq(want->linear, t->type == DK_F8_E4M3, "%s", want->name);
    cr_expect_eq(want->place == DK_PLACE_DUCKS,
                 strstr(want->name, ".mlp.experts.") || strstr(want->name, ".mlp.gate_proj") ||
                     strstr(want->name, ".mlp.up_proj") || strstr(want->name, ".mlp.down_proj"),
                 "%s", want->name);
    k->elements += n;
    return 0;
}

/* What is FP8 in the files is a linear here, and nothing else is. */
Test(model_tensors, shapes_and_kinds_are_those_of_the_files)
{
    for (size_t i = 0; i < FIXTURE_COUNT; i++) {
        struct dk_model_config c;
        struct comparison k = {.c = &c};

        open_fixture(fixtures[i].name, &c, &k.ck);
        cr_expect_eq(dk_model_tensors(&c, compare, &k), 0);
        cr_expect_eq(dk_model_parameters(&c), k.elements, "%s", fixtures[i].name);
        dk_checkpoint_close(k.ck);
    }
}

/* "name shape" of each tensor, one a line, "ducks" behind those that they keep, and the layer in front. */
static char listing[8192];

static int list(void *ctx, const struct dk_tensor_want *t)
{
    char line[256];
    size_t n = 0;

    n += (size_t)(t->layer == UINT32_MAX ? snprintf(line, sizeof line, "-")
                                         : snprintf(line, sizeof line, "%u", t->layer));
    n += (size_t)snprintf(line + n, sizeof line - n, " %s", t->name);
    for (uint32_t i = 0; i < t->rank; i++)
        n += (size_t)snprintf(line + n, sizeof line - n, " %u", (unsigned)t->shape[i]);
    snprintf(line + n, sizeof line - n, "%s\n", t->place == DK_PLACE_DUCKS ? " ducks" : "");
    strcat(listing, line);
    return 0;
}

#define SMALL                                                                                            \
    "\"hidden_size\":64,\"num_hidden_layers\":1,\"num_attention_heads\":4,\"num_key_value_heads\":2,"    \
    "\"vocab_size\":100,\"max_position_embeddings\":128,\"rms_norm_eps\":1e-6,\"intermediate_size\":96," \
    "\"rope_theta\":10000"
#define ATTENTION(bias)                                                                                             \
    "- model.embed_tokens.weight 100 64\n"                                                                          \
    "0 model.layers.0.input_layernorm.weight 64\n"                                                                  \
    "0 model.layers.0.self_attn.q_proj.weight 64 64\n"                                                              \
    "0 model.layers.0.self_attn.k_proj.weight 32 64\n"                                                              \
    "0 model.layers.0.self_attn.v_proj.weight 32 64\n"                                                              \
    "0 model.layers.0.self_attn.o_proj.weight 64 64\n" bias "0 model.layers.0.post_attention_layernorm.weight 64\n" \
    "0 model.layers.0.mlp.gate_proj.weight 96 64 ducks\n"                                                           \
    "0 model.layers.0.mlp.up_proj.weight 96 64 ducks\n"                                                             \
    "0 model.layers.0.mlp.down_proj.weight 64 96 ducks\n"                                                           \
    "- model.norm.weight 64\n"

static void listing_check(const char *config, const char *expected)
{
    struct dk_model_config c;
    struct dk_err err;

    cr_assert_eq(config_parse(config, &c, &err), 0, "%s", err.text);
    listing[0] = 0;
    cr_expect_eq(dk_model_tensors(&c, list, NULL), 0);
    cr_expect_str_eq(listing, expected);
}

Test(model_tensors, llama_mistral_and_qwen2)
{
    listing_check("{\"model_type\":\"llama\"," SMALL "}", ATTENTION("") "- lm_head.weight 100 64\n");
    listing_check("{\"model_type\":\"mistral\",\"sliding_window\":null," SMALL ",\"tie_word_embeddings\":true}",
                  ATTENTION(""));
    listing_check("{\"model_type\":\"qwen2\"," SMALL ",\"tie_word_embeddings\":true}",
                  ATTENTION("0 model.layers.0.self_attn.q_proj.bias 64\n"
                            "0 model.layers.0.self_attn.k_proj.bias 32\n"
                            "0 model.layers.0.self_attn.v_proj.bias 32\n"));
}

/* Latent attention without a low rank of q (DeepSeek-V2-Lite has it so), and two shared experts in one. */
Test(model_tensors, deepseek_without_q_rank)
{
    listing_check(
        "{\"model_type\":\"deepseek_v3\",\"hidden_size\":64,\"num_hidden_layers\":1,\"num_attention_heads\":4,"
        "\"vocab_size\":100,\"max_position_embeddings\":128,\"rms_norm_eps\":1e-6,\"rope_theta\":10000,"
        "\"q_lora_rank\":null,\"kv_lora_rank\":48,\"qk_nope_head_dim\":32,\"qk_rope_head_dim\":16,"
        "\"v_head_dim\":64,\"first_k_dense_replace\":0,\"n_routed_experts\":2,\"num_experts_per_tok\":1,"
        "\"moe_intermediate_size\":40,\"n_shared_experts\":2,\"n_group\":1,\"topk_group\":1,"
        "\"routed_scaling_factor\":1.0,\"tie_word_embeddings\":true}",
        "- model.embed_tokens.weight 100 64\n"
        "0 model.layers.0.input_layernorm.weight 64\n"
        "0 model.layers.0.self_attn.q_proj.weight 192 64\n"
        "0 model.layers.0.self_attn.kv_a_proj_with_mqa.weight 64 64\n"
        "0 model.layers.0.self_attn.kv_a_layernorm.weight 48\n"
        "0 model.layers.0.self_attn.kv_b_proj.weight 384 48\n"
        "0 model.layers.0.self_attn.o_proj.weight 64 256\n"
        "0 model.layers.0.post_attention_layernorm.weight 64\n"
        "0 model.layers.0.mlp.gate.weight 2 64\n"
        "0 model.layers.0.mlp.gate.e_score_correction_bias 2\n"
        "0 model.layers.0.mlp.shared_experts.gate_proj.weight 80 64\n"
        "0 model.layers.0.mlp.shared_experts.up_proj.weight 80 64\n"
        "0 model.layers.0.mlp.shared_experts.down_proj.weight 64 80\n"
        "0 model.layers.0.mlp.experts.0.gate_proj.weight 40 64 ducks\n"
        "0 model.layers.0.mlp.experts.0.up_proj.weight 40 64 ducks\n"
        "0 model.layers.0.mlp.experts.0.down_proj.weight 64 40 ducks\n"
        "0 model.layers.0.mlp.experts.1.gate_proj.weight 40 64 ducks\n"
        "0 model.layers.0.mlp.experts.1.up_proj.weight 40 64 ducks\n"
        "0 model.layers.0.mlp.experts.1.down_proj.weight 64 40 ducks\n"
        "- model.norm.weight 64\n");
}

static int stop_at(void *ctx, const struct dk_tensor_want *t)
{
    unsigned *left = ctx;

    return (*left)-- == 0 ? 7 : 0;
}

Test(model_tensors, the_list_stops_when_it_is_told_to)
{
    struct dk_model_config c = config_released("DeepSeek-V3.2");

    for (unsigned n = 0; n < 2000; n += 13) {
        unsigned left = n;

        cr_expect_eq(dk_model_tensors(&c, stop_at, &left), 7);
        cr_expect_eq(left, UINT32_MAX, "not called again after that");
    }
}

Test(model_tensors, skipped_parts)
{
    static const struct {
        const char *release, *name, *part;
    } cases[] = {
        {"Qwen3.5-27B", "model.visual.blocks.0.norm1.weight", "vision"},
        {"Qwen3.5-27B", "visual.pos_embed.weight", "vision"},
        {"Qwen3.5-27B", "vision_tower.patch_embed.proj.weight", "vision"},
        {"Qwen3.5-27B", "mtp.layers.0.self_attn.q_proj.weight", "multi-token prediction"},
        {"Qwen3.5-27B", "mtp.fc.weight", "multi-token prediction"},
        {"Qwen3.5-27B", "model.language_model.layers.0.input_layernorm.weight", NULL},
        {"Qwen3.5-27B", "model.language_model.norm.weight", NULL},
        {"Qwen3.5-27B", "lm_head.weight", NULL},
        {"Qwen3.5-27B", "mtp_norm.weight", NULL},
        {"DeepSeek-V3", "model.layers.61.eh_proj.weight", "multi-token prediction"},
        {"DeepSeek-V3", "model.layers.61.mlp.experts.255.down_proj.weight_scale_inv", "multi-token prediction"},
        {"DeepSeek-V3", "model.layers.60.input_layernorm.weight", NULL},
        {"DeepSeek-V3", "model.layers.62.input_layernorm.weight", NULL},
        {"DeepSeek-V3", "model.layers.61", NULL},
        {"DeepSeek-V3", "model.layers.", NULL},
        {"DeepSeek-V3", "model.layers.6.input_layernorm.weight", NULL},
        {"DeepSeek-V3", "model.layers.99999999999999999999999.norm.weight", NULL},
        {"Qwen3-8B", "model.layers.36.input_layernorm.weight", NULL},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dk_model_config c = config_released(cases[i].release);
        const char *part = dk_model_tensor_skipped(&c, cases[i].name);

        cr_expect_eq(part == NULL, cases[i].part == NULL, "%s", cases[i].name);
        if (part && cases[i].part)
            cr_expect_str_eq(part, cases[i].part, "%s", cases[i].name);
    }
}
