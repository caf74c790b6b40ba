/* SPDX-License-Identifier: Apache-2.0 */
/* Field names and their defaults: the configuration classes of transformers for the three families, and the config.json
 * files of the releases. Files written by transformers 5 nest the rope fields in "rope_parameters". */
#include "model/config.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/file_read.h"
#include "model/json_field.h"

#define CONFIG_BYTES_MAX (16u << 20)
#define LAYERS_MAX       512u
#define WIDTH_MAX        (1u << 20) /* hidden and intermediate sizes: far above every release, far below overflow */
#define HEADS_MAX        1024u
#define HEAD_DIM_MAX     1024u
#define EXPERTS_MAX      4096u
#define VOCAB_MAX        (1u << 22)
#define CONTEXT_MAX      (1u << 28)

_Static_assert(sizeof((struct dk_model_config *)0)->layer_is_moe == LAYERS_MAX, "one flag for each layer");

static const struct {
    const char *model_type;
    enum dk_family family;
} families[] = {
    {"llama", DK_FAMILY_LLAMA},
    {"qwen3", DK_FAMILY_QWEN3},
    {"qwen3_moe", DK_FAMILY_QWEN3_MOE},
};

static void family_read(struct dk_json_reader *r, struct dk_model_config *c)
{
    const char *type = NULL;

    dk_json_need(r, "model_type");
    if (!dk_json_text(r, "model_type", &type))
        return;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (!strcmp(families[i].model_type, type)) {
            c->family = families[i].family;
            memcpy(c->model_type, type, strlen(type) + 1);
            return;
        }
    dk_json_refuse(r, -ENOTSUP, "model_type", "llama, qwen3 and qwen3_moe are supported");
}

/* A checkpoint with another head (a classifier, a reward model) has the same model_type. */
static void architectures_check(struct dk_json_reader *r)
{
    static const char end[] = "ForCausalLM";
    const json_t *list = dk_json_field(r, "architectures");

    if (r->rc < 0 || !list)
        return;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        size_t n = name ? strlen(name) : 0;

        if (n >= sizeof end - 1 && !strcmp(name + n - (sizeof end - 1), end))
            return;
    }
    if (!json_is_array(list) || json_array_size(list) > 0)
        dk_json_refuse(r, -ENOTSUP, "architectures", "only language models (...ForCausalLM) are supported");
}

static void flag_refuse(struct dk_json_reader *r, const char *name, const char *allowed)
{
    bool on = false;

    if (dk_json_bool(r, name, &on) && on)
        dk_json_refuse(r, -ENOTSUP, name, allowed);
}

static void attention_check(struct dk_json_reader *r)
{
    const json_t *types = dk_json_field(r, "layer_types"), *v;
    const char *act = "silu";
    bool window = false;
    size_t i;

    flag_refuse(r, "attention_bias", "only false is supported");
    flag_refuse(r, "mlp_bias", "only false is supported");
    if (dk_json_text(r, "hidden_act", &act) && strcmp(act, "silu"))
        dk_json_refuse(r, -ENOTSUP, "hidden_act", "only \"silu\" is supported");
    if (dk_json_bool(r, "use_sliding_window", &window) && window && dk_json_field(r, "sliding_window"))
        dk_json_refuse(r, -ENOTSUP, "use_sliding_window",
                       "sliding windows are not supported, only full attention in all layers");
    if (types && !json_is_array(types))
        dk_json_refuse(r, -EINVAL, "layer_types", "a list of texts is allowed");
    json_array_foreach((json_t *)types, i, v)
    {
        if (!json_is_string(v) || strcmp(json_string_value(v), "full_attention")) {
            dk_json_refuse(r, -ENOTSUP, "layer_types", "only \"full_attention\" is supported in every layer");
            return;
        }
    }
}

/* rope_scaling (old) or rope_parameters (new): only "no scaling" is implemented. */
static void rope_object_check(struct dk_json_reader *r, const char *name, double *theta, bool *theta_found)
{
    const json_t *object = dk_json_field(r, name);
    struct dk_json_reader in = {.object = object, .err = r->err};
    static const char *const spellings[] = {"rope_type", "type"};
    const char *type = NULL;
    double partial = 1;
    char where[512];

    if (r->rc < 0 || !object)
        return;
    if (!json_is_object(object)) {
        dk_json_refuse(r, -EINVAL, name, "an object or null is allowed");
        return;
    }
    snprintf(where, sizeof where, "%s: %s", r->where, name);
    in.where = where;
    for (size_t i = 0; i < 2; i++)
        if (dk_json_text(&in, spellings[i], &type) && strcmp(type, "default"))
            dk_json_refuse(&in, -ENOTSUP, spellings[i], "rope scaling is not supported, only \"default\"");
    if (dk_json_double(&in, "partial_rotary_factor", 0, 1e9, &partial) && partial != 1)
        dk_json_refuse(&in, -ENOTSUP, "partial_rotary_factor", "only 1 is supported");
    if (dk_json_double(&in, "rope_theta", 1, 1e15, theta))
        *theta_found = true;
    if (in.rc == 0 && !type && !*theta_found)
        dk_json_refuse(r, -ENOTSUP, name, "only null or the type \"default\" is supported");
    if (in.rc < 0)
        r->rc = in.rc;
}

static void rope_read(struct dk_json_reader *r, struct dk_model_config *c)
{
    double top = 0, nested = 0, partial = 1;
    bool has_top, has_nested = false;

    if (dk_json_double(r, "partial_rotary_factor", 0, 1e9, &partial) && partial != 1)
        dk_json_refuse(r, -ENOTSUP, "partial_rotary_factor", "only 1 is supported");
    rope_object_check(r, "rope_scaling", &nested, &has_nested);
    rope_object_check(r, "rope_parameters", &nested, &has_nested);
    has_top = dk_json_double(r, "rope_theta", 1, 1e15, &top);
    if (has_top && has_nested && top != nested)
        dk_json_refuse(r, -EINVAL, "rope_theta", "rope_parameters has another value");
    if (has_top || has_nested)
        c->rope_theta = has_top ? top : nested;
    else if (c->family == DK_FAMILY_LLAMA)
        c->rope_theta = 10000; /* the first Llama files do not have the field */
    else
        dk_json_need(r, "rope_theta");
}

static void sizes_read(struct dk_json_reader *r, struct dk_model_config *c)
{
    static const char *const needed[] = {"hidden_size", "num_hidden_layers",       "num_attention_heads",
                                         "vocab_size",  "max_position_embeddings", "rms_norm_eps"};
    double eps = 0;

    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        dk_json_need(r, needed[i]);
    dk_json_u32(r, "hidden_size", 1, WIDTH_MAX, &c->hidden);
    dk_json_u32(r, "num_hidden_layers", 1, LAYERS_MAX, &c->layers);
    dk_json_u32(r, "num_attention_heads", 1, HEADS_MAX, &c->heads);
    dk_json_u32(r, "vocab_size", 1, VOCAB_MAX, &c->vocab);
    dk_json_u32(r, "max_position_embeddings", 1, CONTEXT_MAX, &c->context_max);
    dk_json_double(r, "rms_norm_eps", 1e-12, 0.1, &eps);
    c->rms_eps = (float)eps;
    dk_json_bool(r, "tie_word_embeddings", &c->tied);

    c->kv_heads = c->heads;
    if (c->family != DK_FAMILY_LLAMA)
        dk_json_need(r, "num_key_value_heads");
    dk_json_u32(r, "num_key_value_heads", 1, HEADS_MAX, &c->kv_heads);
    if (r->rc == 0 && c->heads % c->kv_heads)
        dk_json_refuse(r, -EINVAL, "num_key_value_heads", "it must divide num_attention_heads");
    if (!dk_json_u32(r, "head_dim", 2, HEAD_DIM_MAX, &c->head_dim) && r->rc == 0) {
        if (c->hidden % c->heads || c->hidden / c->heads > HEAD_DIM_MAX)
            dk_json_refuse(r, -EINVAL, "hidden_size", "without head_dim, num_attention_heads must divide it");
        c->head_dim = c->hidden / c->heads;
    }
    if (r->rc == 0 && (c->head_dim == 0 || c->head_dim % 2))
        dk_json_refuse(r, -EINVAL, "head_dim", "it must be even");
}

static void layers_mark(struct dk_json_reader *r, struct dk_model_config *c)
{
    uint32_t step = 1, dense[LAYERS_MAX], dense_count = 0;

    dk_json_u32(r, "decoder_sparse_step", 1, LAYERS_MAX, &step);
    dk_json_u32_list(r, "mlp_only_layers", c->layers ? c->layers - 1 : 0, dense, LAYERS_MAX, &dense_count);
    if (r->rc < 0)
        return;
    for (uint32_t i = 0; i < c->layers; i++)
        c->layer_is_moe[i] = (i + 1) % step == 0;
    for (uint32_t i = 0; i < dense_count; i++)
        c->layer_is_moe[dense[i]] = false;
}

static uint32_t layers_moe(const struct dk_model_config *c)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < c->layers; i++)
        n += c->layer_is_moe[i];
    return n;
}

static void ffn_read(struct dk_json_reader *r, struct dk_model_config *c)
{
    static const char *const shared[] = {"shared_expert_intermediate_size", "n_shared_experts", "num_shared_experts"};
    uint32_t n = 0;

    if (c->family == DK_FAMILY_QWEN3_MOE)
        layers_mark(r, c);
    if (r->rc < 0)
        return;
    if (layers_moe(c) < c->layers) {
        dk_json_need(r, "intermediate_size");
        dk_json_u32(r, "intermediate_size", 1, WIDTH_MAX, &c->intermediate);
    }
    if (layers_moe(c) == 0)
        return;
    dk_json_need(r, "num_experts");
    dk_json_need(r, "num_experts_per_tok");
    dk_json_need(r, "moe_intermediate_size");
    dk_json_u32(r, "num_experts", 1, EXPERTS_MAX, &c->experts);
    dk_json_u32(r, "num_experts_per_tok", 1, EXPERTS_MAX, &c->top_k);
    dk_json_u32(r, "moe_intermediate_size", 1, WIDTH_MAX, &c->moe_intermediate);
    dk_json_bool(r, "norm_topk_prob", &c->norm_topk);
    if (r->rc == 0 && c->top_k > c->experts)
        dk_json_refuse(r, -EINVAL, "num_experts_per_tok", "it is more than num_experts");
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++)
        if (dk_json_u32(r, shared[i], 0, WIDTH_MAX, &n) && n > 0)
            dk_json_refuse(r, -ENOTSUP, shared[i], "shared experts are not supported");
}

/* Which tensors are quantised is not read from here (modules_to_not_convert): each tensor's own type says it. */
static void quantization_read(struct dk_json_reader *r, struct dk_model_config *c)
{
    const json_t *object = dk_json_field(r, "quantization_config");
    struct dk_json_reader in = {.object = object, .err = r->err};
    const char *method = NULL, *format = "e4m3", *scheme = "dynamic";
    uint32_t block[2] = {0, 0}, count = 0;
    char where[512];

    if (dk_json_field(r, "compression_config"))
        dk_json_refuse(r, -ENOTSUP, "compression_config", "only a quantization_config of FP8 blocks is supported");
    if (r->rc < 0 || !object)
        return;
    if (!json_is_object(object)) {
        dk_json_refuse(r, -EINVAL, "quantization_config", "an object or null is allowed");
        return;
    }
    snprintf(where, sizeof where, "%s: quantization_config", r->where);
    in.where = where;
    dk_json_need(&in, "quant_method");
    if (dk_json_text(&in, "quant_method", &method) && strcmp(method, "fp8"))
        dk_json_refuse(&in, -ENOTSUP, "quant_method", "only \"fp8\" is supported");
    if (dk_json_text(&in, "fmt", &format) && strcmp(format, "e4m3"))
        dk_json_refuse(&in, -ENOTSUP, "fmt", "only \"e4m3\" is supported");
    if (dk_json_text(&in, "activation_scheme", &scheme) && strcmp(scheme, "dynamic"))
        dk_json_refuse(&in, -ENOTSUP, "activation_scheme", "only \"dynamic\" is supported");
    dk_json_need(&in, "weight_block_size");
    if (dk_json_u32_list(&in, "weight_block_size", 1u << 20, block, 2, &count) && (block[0] != 128 || block[1] != 128))
        dk_json_refuse(&in, -ENOTSUP, "weight_block_size", "only [128,128] is supported");
    c->scale_block = 128;
    if (in.rc < 0)
        r->rc = in.rc;
}

static json_t *object_parse(const char *json, size_t bytes, const char *where, struct dk_err *err)
{
    json_error_t e;
    json_t *root = json_loadb(json, bytes, JSON_REJECT_DUPLICATES, &e);

    if (root && json_is_object(root))
        return root;
    if (root)
        dk_err_set(err, -EINVAL, "%s: not a JSON object", where);
    else
        dk_err_set(err, -EINVAL, "%s: not valid JSON: %s at line %d", where, e.text, e.line);
    json_decref(root);
    return NULL;
}

int dk_model_config_parse(const char *json, size_t bytes, const char *where, struct dk_model_config *out,
                          struct dk_err *err)
{
    struct dk_json_reader r = {.where = where, .err = err};
    json_t *root = object_parse(json, bytes, where, err);

    memset(out, 0, sizeof *out);
    if (!root)
        return -EINVAL;
    r.object = root;
    family_read(&r, out);
    architectures_check(&r);
    attention_check(&r);
    sizes_read(&r, out);
    rope_read(&r, out);
    ffn_read(&r, out);
    quantization_read(&r, out);
    json_decref(root);
    if (r.rc < 0)
        memset(out, 0, sizeof *out);
    return r.rc;
}

int dk_model_config_load(const char *dir, struct dk_model_config *out, struct dk_err *err)
{
    char where[400], *text;
    size_t bytes;
    int rc = dk_file_read(dir, "config.json", CONFIG_BYTES_MAX, &text, &bytes, err);

    if (rc < 0)
        return rc;
    snprintf(where, sizeof where, "%s/config.json", dir);
    rc = dk_model_config_parse(text, bytes, where, out, err);
    free(text);
    return rc;
}

uint64_t dk_model_parameters(const struct dk_model_config *c)
{
    uint64_t hidden = c->hidden, q = (uint64_t)c->heads * c->head_dim, kv = (uint64_t)c->kv_heads * c->head_dim;
    uint64_t total = (c->tied ? 1 : 2) * c->vocab * hidden + hidden; /* embedding, head, last norm */

    for (uint32_t i = 0; i < c->layers; i++) {
        total += hidden * (2 * q + 2 * kv) + 2 * hidden; /* q, o, k, v; the two norms */
        if (c->family != DK_FAMILY_LLAMA)
            total += 2 * c->head_dim; /* norms of q and k */
        if (c->layer_is_moe[i])
            total += c->experts * (hidden + 3 * hidden * c->moe_intermediate); /* router rows and experts */
        else
            total += 3 * hidden * c->intermediate;
    }
    return total;
}
