/* SPDX-License-Identifier: Apache-2.0 */
#include "duckctl/inspect_model.h"

static json_t *number(uint64_t n)
{
    return json_integer((json_int_t)n);
}

static json_t *layer_kinds(const struct dk_model_config *c)
{
    json_t *list = json_array();

    for (int moe = 0; moe < 2; moe++)
        for (uint32_t mixer = DK_MIXER_ATTENTION; mixer <= DK_MIXER_MLA; mixer++) {
            int count = 0;

            for (uint32_t i = 0; i < c->layers; i++)
                count += c->mixer[i] == mixer && c->layer_is_moe[i] == (moe != 0);
            if (count)
                json_array_append_new(list, json_pack("{s:s,s:s,s:i}", "mixer", inspect_mixer_name(mixer), "ffn",
                                                      moe ? "moe" : "dense", "count", count));
        }
    return list;
}

static json_t *delta_json(const struct dk_delta_config *d)
{
    return d->conv_taps ? json_pack("{s:I,s:I,s:I,s:I,s:I}", "key_heads", (json_int_t)d->key_heads, "value_heads",
                                    (json_int_t)d->value_heads, "key_dim", (json_int_t)d->key_dim, "value_dim",
                                    (json_int_t)d->value_dim, "conv_taps", (json_int_t)d->conv_taps)
                        : json_null();
}

static json_t *mla_json(const struct dk_mla_config *a)
{
    return a->kv_rank ? json_pack("{s:I,s:I,s:I,s:I,s:I}", "q_rank", (json_int_t)a->q_rank, "kv_rank",
                                  (json_int_t)a->kv_rank, "nope_dim", (json_int_t)a->nope_dim, "rope_dim",
                                  (json_int_t)a->rope_dim, "value_dim", (json_int_t)a->value_dim)
                      : json_null();
}

static json_t *index_json(const struct dk_index_config *x)
{
    return x->heads ? json_pack("{s:I,s:I,s:I}", "heads", (json_int_t)x->heads, "dim", (json_int_t)x->dim, "top_k",
                                (json_int_t)x->top_k)
                    : json_null();
}

static json_t *moe_json(const struct dk_model_config *c)
{
    return c->experts ? json_pack("{s:I,s:I,s:I,s:I,s:b,s:s,s:I,s:I}", "experts", (json_int_t)c->experts, "per_token",
                                  (json_int_t)c->top_k, "intermediate", (json_int_t)c->moe_intermediate,
                                  "shared_intermediate", (json_int_t)c->shared_intermediate, "shared_gate",
                                  c->shared_gate, "router", c->router == DK_ROUTER_GROUPS ? "groups" : "softmax",
                                  "groups", (json_int_t)c->router_groups, "groups_kept", (json_int_t)c->groups_kept)
                      : json_null();
}

static void config_json(const struct dk_model_config *c, json_t *o)
{
    const struct dk_rope_config *r = &c->rope;

    json_object_set_new(o, "family", json_string(dk_family_name(c->family)));
    json_object_set_new(o, "model_type", json_string(c->model_type));
    json_object_set_new(o, "layers", number(c->layers));
    json_object_set_new(o, "layer_kinds", layer_kinds(c));
    json_object_set_new(o, "hidden", number(c->hidden));
    json_object_set_new(o, "vocab", number(c->vocab));
    json_object_set_new(o, "context", number(c->context_max));
    json_object_set_new(o, "tied", json_boolean(c->tied));
    json_object_set_new(o, "attention",
                        json_pack("{s:I,s:I,s:I,s:b,s:b,s:b}", "heads", (json_int_t)c->heads, "kv_heads",
                                  (json_int_t)c->kv_heads, "head_dim", (json_int_t)c->head_dim, "qk_norm", c->qk_norm,
                                  "qkv_bias", c->qkv_bias, "output_gate", c->output_gate));
    json_object_set_new(o, "delta", delta_json(&c->delta));
    json_object_set_new(o, "mla", mla_json(&c->mla));
    json_object_set_new(o, "indexer", index_json(&c->index));
    json_object_set_new(o, "intermediate", number(c->intermediate));
    json_object_set_new(o, "moe", moe_json(c));
    json_object_set_new(o, "rope",
                        json_pack("{s:I,s:f,s:s,s:f,s:I}", "dims", (json_int_t)r->dims, "theta", r->theta, "scaling",
                                  inspect_rope_name(r->scaling), "factor",
                                  r->scaling == DK_ROPE_PLAIN ? 1.0 : r->factor, "original_context",
                                  (json_int_t)r->original_context));
}

static json_t *tokenizer_json(const struct inspect *m)
{
    return m->tokenizer
               ? json_pack("{s:s,s:I}", "kind", "byte-level BPE", "size", (json_int_t)dk_tokenizer_size(m->tokenizer))
               : json_null();
}

static json_t *end_tokens(const struct inspect *m)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < m->generation.eos_count; i++)
        json_array_append_new(list, number(m->generation.eos[i]));
    return list;
}

static json_t *part_json(enum inspect_part_kind kind, const struct inspect_part *p)
{
    json_t *types = json_object();

    for (int t = 0; t <= DK_DTYPE_COUNT; t++)
        if (p->type_bytes[t])
            json_object_set_new(types, t < DK_DTYPE_COUNT ? dk_dtype_name((enum dk_dtype)t) : "other",
                                number(p->type_bytes[t]));
    return json_pack("{s:s,s:b,s:I,s:I,s:I,s:o}", "part", inspect_part_name(kind), "run", kind <= PART_DUCKS, "tensors",
                     (json_int_t)p->tensors, "parameters", (json_int_t)p->parameters, "bytes", (json_int_t)p->bytes,
                     "bytes_by_type", types);
}

static json_t *flocks_json(const struct inspect *m)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < m->flock_count; i++)
        json_array_append_new(list, json_pack("{s:I,s:I,s:I}", "ducks", (json_int_t)m->flocks[i].ducks, "busy",
                                              (json_int_t)m->flocks[i].busy, "largest_bytes",
                                              (json_int_t)m->flocks[i].largest_bytes));
    return list;
}

static json_t *problems_json(const struct inspect *m)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < m->problem_count && i < INSPECT_PROBLEMS_MAX; i++) {
        json_t *text = json_string(m->problems[i]);

        /* File names and tensor names may be any bytes; a long text is cut, maybe inside a character. */
        json_array_append_new(list, text ? text : json_string("a problem whose text is not UTF-8"));
    }
    return list;
}

json_t *inspect_json(const struct inspect *m)
{
    static const char *const weights[] = {"none", "damaged", "read"};
    json_t *o = json_object(), *parts = json_array();
    uint64_t cache = m->token_bytes * m->context + m->sequence_bytes;

    json_object_set_new(o, "dir", json_string(m->dir));
    config_json(&m->config, o);
    json_object_set_new(o, "tokenizer", tokenizer_json(m));
    json_object_set_new(o, "chat_format", json_string(dk_chat_format_name(m->chat)));
    json_object_set_new(o, "end_tokens", end_tokens(m));
    json_object_set_new(o, "dtype", json_string(dk_dtype_name(m->dtype)));
    json_object_set_new(o, "fp8", json_boolean(m->config.scale_block));
    json_object_set_new(o, "weights", json_string(weights[m->weights]));
    json_object_set_new(o, "parameters", number(m->parameters));
    json_object_set_new(o, "active_parameters", number(m->active));
    for (int i = 0; i < PART_COUNT; i++)
        if (i <= PART_DUCKS || m->parts[i].tensors)
            json_array_append_new(parts, part_json((enum inspect_part_kind)i, &m->parts[i]));
    json_object_set_new(o, "parts", parts);
    json_object_set_new(o, "multiple_of", number(m->multiple_of));
    json_object_set_new(o, "flocks", flocks_json(m));
    json_object_set_new(o, "worker",
                        json_pack("{s:I,s:I,s:I,s:I,s:I}", "weight_bytes", (json_int_t)m->parts[PART_WORKER].bytes,
                                  "cache_bytes_per_1000_tokens", (json_int_t)(1000 * m->token_bytes),
                                  "state_bytes_per_sequence", (json_int_t)m->sequence_bytes, "context",
                                  (json_int_t)m->context, "sequence_bytes", (json_int_t)cache));
    json_object_set_new(o, "problem_count", number(m->problem_count));
    json_object_set_new(o, "problems", problems_json(m));
    return o;
}
