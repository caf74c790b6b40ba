/* SPDX-License-Identifier: Apache-2.0 */
/* Which layers mix positions how, the sizes of grouped-query attention and Gated DeltaNet, sliding windows. */
#include <string.h>

#include "model/config/config_internal.h"

#define INTERVAL_DEFAULT 4u /* of Qwen3.5: every fourth layer has full attention */

/* DeepSeek-V3.2 has one type, because its indexer runs in every layer; how a layer mixes is known from the family. */
static void mixer_set(struct dk_json_reader *r, struct dk_model_config *c, uint32_t layer, const char *type)
{
    bool hybrid = dk_family_is_qwen3_5(c->family), indexed = c->family == DK_FAMILY_DEEPSEEK_V32;

    if (type && !strcmp(type, indexed ? "indexed_attention" : "full_attention"))
        c->mixer[layer] = DK_MIXER_ATTENTION;
    else if (type && hybrid && !strcmp(type, "linear_attention"))
        c->mixer[layer] = DK_MIXER_DELTA;
    else
        dk_json_refuse(r, -ENOTSUP, "layer_types",
                       hybrid    ? "\"full_attention\" and \"linear_attention\" are supported"
                       : indexed ? "only \"indexed_attention\" is supported: every layer of this family has an indexer"
                                 : "only \"full_attention\" is supported in every layer of this family");
}

/* Returns whether the field was there and good. */
static bool layer_types_read(struct dk_json_reader *r, struct dk_model_config *c)
{
    const json_t *types = dk_json_field(r, "layer_types");

    if (r->rc < 0 || !types)
        return false;
    if (json_array_size(types) != c->layers) { /* 0 when it is no list */
        dk_json_refuse(r, -EINVAL, "layer_types", "a list of num_hidden_layers texts is allowed");
        return false;
    }
    for (uint32_t i = 0; i < c->layers && r->rc == 0; i++)
        mixer_set(r, c, i, json_string_value(json_array_get(types, i)));
    return r->rc == 0;
}

static void interval_read(struct dk_json_reader *r, struct dk_model_config *c, bool types_known)
{
    uint32_t interval = INTERVAL_DEFAULT;
    bool given = dk_json_u32(r, "full_attention_interval", 1, DK_LAYERS_MAX, &interval);

    if (r->rc < 0 || (types_known && !given))
        return;
    for (uint32_t i = 0; i < c->layers; i++) {
        uint8_t mixer = (i + 1) % interval == 0 ? DK_MIXER_ATTENTION : DK_MIXER_DELTA;

        if (types_known && c->mixer[i] != mixer) {
            dk_json_refuse(r, -EINVAL, "full_attention_interval", "layer_types says something else");
            return;
        }
        c->mixer[i] = mixer;
    }
}

static void delta_read(struct dk_json_reader *r, struct dk_model_config *c)
{
    static const char *const needed[] = {"linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
                                         "linear_value_head_dim", "linear_conv_kernel_dim"};
    struct dk_delta_config *d = &c->delta;

    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        dk_json_need(r, needed[i]);
    dk_json_u32(r, "linear_num_key_heads", 1, DK_HEADS_MAX, &d->key_heads);
    dk_json_u32(r, "linear_num_value_heads", 1, DK_HEADS_MAX, &d->value_heads);
    dk_json_u32(r, "linear_key_head_dim", 1, DK_HEAD_DIM_MAX, &d->key_dim);
    dk_json_u32(r, "linear_value_head_dim", 1, DK_HEAD_DIM_MAX, &d->value_dim);
    dk_json_u32(r, "linear_conv_kernel_dim", 2, DK_TAPS_MAX, &d->conv_taps);
    if (r->rc == 0 && d->value_heads % d->key_heads)
        dk_json_refuse(r, -EINVAL, "linear_num_key_heads", "it must divide linear_num_value_heads");
    dk_config_text_check(r, "output_gate_type", "silu", "swish",
                         "only \"silu\" and \"swish\" (the same) are supported");
}

void dk_config_mixers_read(struct dk_json_reader *r, struct dk_model_config *c)
{
    bool types_known = layer_types_read(r, c), linear = false;

    if (dk_family_is_qwen3_5(c->family))
        interval_read(r, c, types_known);
    for (uint32_t i = 0; i < c->layers; i++) {
        if (dk_family_is_deepseek(c->family))
            c->mixer[i] = DK_MIXER_MLA;
        linear = linear || c->mixer[i] == DK_MIXER_DELTA;
    }
    if (linear && r->rc == 0)
        delta_read(r, c);
}

static void head_dim_read(struct dk_json_reader *r, struct dk_model_config *c)
{
    bool deduced = c->family == DK_FAMILY_LLAMA || c->family == DK_FAMILY_MISTRAL || c->family == DK_FAMILY_QWEN2;

    if (!deduced)
        dk_json_need(r, "head_dim");
    if (!dk_json_u32(r, "head_dim", 2, DK_HEAD_DIM_MAX, &c->head_dim) && r->rc == 0) {
        if (c->hidden % c->heads || c->hidden / c->heads > DK_HEAD_DIM_MAX)
            dk_json_refuse(r, -EINVAL, "hidden_size", "without head_dim, num_attention_heads must divide it");
        c->head_dim = c->hidden / c->heads;
    }
    if (r->rc == 0 && (c->head_dim == 0 || c->head_dim % 2))
        dk_json_refuse(r, -EINVAL, "head_dim", "it must be even");
}

void dk_config_attention_read(struct dk_json_reader *r, struct dk_model_config *c)
{
    c->qkv_bias = c->family == DK_FAMILY_QWEN2; /* whatever attention_bias says: the reference does not read it there */
    if (!c->qkv_bias)
        dk_config_flag_refuse(r, "attention_bias", "only false is supported");
    c->qk_norm = c->family == DK_FAMILY_QWEN3 || c->family == DK_FAMILY_QWEN3_MOE || dk_family_is_qwen3_5(c->family);
    c->output_gate = dk_family_is_qwen3_5(c->family);
    if (c->output_gate && dk_json_bool(r, "attn_output_gate", &c->output_gate) && !c->output_gate)
        dk_json_refuse(r, -ENOTSUP, "attn_output_gate", "only true is supported");
    c->kv_heads = c->heads;
    if (c->family != DK_FAMILY_LLAMA)
        dk_json_need(r, "num_key_value_heads");
    dk_json_u32(r, "num_key_value_heads", 1, DK_HEADS_MAX, &c->kv_heads);
    if (r->rc == 0 && c->heads % c->kv_heads)
        dk_json_refuse(r, -EINVAL, "num_key_value_heads", "it must divide num_attention_heads");
    head_dim_read(r, c);
}

/* Mistral's window is in use unless its size is null; the others' only where use_sliding_window says so, and there only
 * from layer max_window_layers on (MistralConfig, Qwen2Config and Qwen3Config of transformers; Qwen3MoeConfig has it in
 * all layers). A window as long as the context hides nothing. An absent size is not the same as null: the classes have
 * a default, 4096. */
void dk_config_window_check(struct dk_json_reader *r, const struct dk_model_config *c)
{
    const json_t *size = json_object_get(r->object, "sliding_window");
    uint32_t window = 0, first = 0;
    bool used = c->family == DK_FAMILY_MISTRAL, named = false;

    if (dk_json_bool(r, "use_sliding_window", &named))
        used = used || named;
    if (r->rc < 0 || !used || json_is_null(size))
        return;
    if (dk_json_u32(r, "sliding_window", 1, UINT32_MAX, &window) && window >= c->context_max)
        return;
    if ((c->family == DK_FAMILY_QWEN2 || c->family == DK_FAMILY_QWEN3) &&
        dk_json_u32(r, "max_window_layers", 0, UINT32_MAX, &first) && first >= c->layers)
        return;
    if (c->family != DK_FAMILY_MISTRAL)
        dk_json_refuse(r, -ENOTSUP, "use_sliding_window",
                       "sliding windows are not supported; only false is, full attention in all layers");
    else if (!size)
        dk_json_refuse(
            r, -ENOTSUP, "sliding_window",
            "absent means 4096 in this family, and sliding windows are not supported; if the model has none, "
            "write null");
    else
        dk_json_refuse(r, -ENOTSUP, "sliding_window",
                       "sliding windows are not supported; only null is, or a window as long as the context");
}
