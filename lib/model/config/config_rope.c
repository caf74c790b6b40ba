/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary position embedding. Files of transformers 4 have "rope_theta" and "rope_scaling", those of transformers 5 nest
 * both in "rope_parameters"; the kind of scaling is called "rope_type" or "type". */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "model/config/config_internal.h"

#define THETA_LEAST   2.0 /* YaRN divides by its logarithm */
#define THETA_MOST    1e15
#define FACTOR_MOST   1e4
#define SECTIONS_MAX  8u
#define PARTIAL_LEAST 1e-3
#define PARTIAL_OTHER 1.0  /* partial_rotary_factor where the file has none */
#define PARTIAL_3_5   0.25 /* the same of Qwen3.5 */

static const struct {
    const char *name;
    enum dk_rope_scaling scaling;
} kinds[] = {
    {"default", DK_ROPE_PLAIN},
    {"linear", DK_ROPE_LINEAR},
    {"llama3", DK_ROPE_LLAMA3},
    {"yarn", DK_ROPE_YARN},
};

/* What the object of either name may say beside the scaling. 0: absent. */
struct rope_values {
    double theta, partial;
    bool typed;
};

/* Qwen3.5 and DeepSeek have been checked against a reference with plain rotation and YaRN only. */
static bool kind_fits(enum dk_family family, enum dk_rope_scaling scaling)
{
    return scaling == DK_ROPE_PLAIN || scaling == DK_ROPE_YARN ||
           !(dk_family_is_qwen3_5(family) || dk_family_is_deepseek(family));
}

static void kind_read(struct dk_json_reader *in, struct dk_model_config *c, bool *typed)
{
    static const char *const spellings[] = {"rope_type", "type"};
    const char *name[2] = {NULL, NULL}, *type;
    size_t i = 0;

    for (size_t k = 0; k < 2; k++)
        dk_json_text(in, spellings[k], &name[k]);
    type = name[0] ? name[0] : name[1];
    *typed = type != NULL;
    if (in->rc < 0 || !type)
        return;
    if (name[0] && name[1] && strcmp(name[0], name[1])) {
        dk_json_refuse(in, -EINVAL, "type", "rope_type has another value");
        return;
    }
    while (i < sizeof kinds / sizeof *kinds && strcmp(kinds[i].name, type))
        i++;
    if (i == sizeof kinds / sizeof *kinds || !kind_fits(c->family, kinds[i].scaling))
        dk_json_refuse(in, -ENOTSUP, name[0] ? "rope_type" : "type",
                       kind_fits(c->family, DK_ROPE_LINEAR) ? "default, linear, llama3 and yarn are supported"
                                                            : "default and yarn are supported in this family");
    else
        c->rope.scaling = kinds[i].scaling;
}

static void llama3_read(struct dk_json_reader *in, struct dk_rope_config *p)
{
    dk_json_need(in, "original_max_position_embeddings");
    dk_json_need(in, "low_freq_factor");
    dk_json_need(in, "high_freq_factor");
    dk_json_double(in, "low_freq_factor", 1e-3, FACTOR_MOST, &p->low_freq_factor);
    dk_json_double(in, "high_freq_factor", 1e-3, FACTOR_MOST, &p->high_freq_factor);
    if (in->rc == 0 && p->high_freq_factor <= p->low_freq_factor)
        dk_json_refuse(in, -EINVAL, "high_freq_factor", "it must be above low_freq_factor");
}

static void yarn_read(struct dk_json_reader *in, struct dk_rope_config *p)
{
    p->beta_fast = 32;
    p->beta_slow = 1;
    p->truncate = true;
    dk_json_double(in, "beta_fast", 1e-3, 1e6, &p->beta_fast);
    dk_json_double(in, "beta_slow", 1e-3, 1e6, &p->beta_slow);
    dk_json_double(in, "mscale", 0, 100, &p->mscale);
    dk_json_double(in, "mscale_all_dim", 0, 100, &p->mscale_all_dim);
    dk_json_double(in, "attention_factor", 1e-3, FACTOR_MOST, &p->attention_factor);
    dk_json_bool(in, "truncate", &p->truncate);
    if (in->rc == 0 && p->beta_fast < p->beta_slow)
        dk_json_refuse(in, -EINVAL, "beta_fast", "it must not be below beta_slow");
}

static void scaling_read(struct dk_json_reader *in, struct dk_model_config *c)
{
    struct dk_rope_config *p = &c->rope;

    if (p->scaling == DK_ROPE_PLAIN)
        return;
    dk_json_need(in, "factor");
    dk_json_double(in, "factor", 1, FACTOR_MOST, &p->factor);
    if (p->scaling == DK_ROPE_LINEAR)
        return;
    p->original_context = c->context_max;
    dk_json_u32(in, "original_max_position_embeddings", 1, DK_CONTEXT_MAX, &p->original_context);
    if (p->scaling == DK_ROPE_LLAMA3)
        llama3_read(in, p);
    else
        yarn_read(in, p);
}

/* Which fields of the object are read for which kinds, a bit for each. */
#define OF(scaling) (1u << (scaling))
#define OF_ALL      (OF(DK_ROPE_PLAIN) | OF(DK_ROPE_LINEAR) | OF(DK_ROPE_LLAMA3) | OF(DK_ROPE_YARN))
static const struct {
    const char *name;
    unsigned kinds;
} fields[] = {
    {"rope_type", OF_ALL},
    {"type", OF_ALL},
    {"rope_theta", OF_ALL},
    {"partial_rotary_factor", OF_ALL},
    {"mrope_section", OF_ALL},
    {"mrope_interleaved", OF_ALL},
    {"factor", OF(DK_ROPE_LINEAR) | OF(DK_ROPE_LLAMA3) | OF(DK_ROPE_YARN)},
    {"original_max_position_embeddings", OF(DK_ROPE_LLAMA3) | OF(DK_ROPE_YARN)},
    {"low_freq_factor", OF(DK_ROPE_LLAMA3)},
    {"high_freq_factor", OF(DK_ROPE_LLAMA3)},
    {"beta_fast", OF(DK_ROPE_YARN)},
    {"beta_slow", OF(DK_ROPE_YARN)},
    {"mscale", OF(DK_ROPE_YARN)},
    {"mscale_all_dim", OF(DK_ROPE_YARN)},
    {"attention_factor", OF(DK_ROPE_YARN)},
    {"truncate", OF(DK_ROPE_YARN)},
};

/* Fields with which other programs compute something else: Ministral 3 scales queries by position, LongRoPE has a
 * factor for each frequency, attn_factor and extrapolation_factor are further parameters of YaRN, alpha is one of NTK.
 */
static const char *const other_math[] = {
    "llama_4_scaling_beta", "long_factor", "short_factor",         "long_mscale",
    "short_mscale",         "attn_factor", "extrapolation_factor", "alpha",
};

/* Whether the field is read, or has been refused. */
static bool field_known(struct dk_json_reader *in, enum dk_rope_scaling scaling, const char *name)
{
    for (size_t i = 0; i < sizeof other_math / sizeof *other_math; i++) {
        if (!strcmp(other_math[i], name)) {
            dk_json_refuse(in, -ENOTSUP, name, "it changes the rotation and is not supported; only absent is");
            return true;
        }
    }
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!strcmp(fields[i].name, name) && (fields[i].kinds & OF(scaling)))
            return true;
    return false;
}

static void fields_check(struct dk_json_reader *in, enum dk_rope_scaling scaling)
{
    const char *name;
    json_t *v;

    json_object_foreach((json_t *)in->object, name, v)
    {
        if (!json_is_null(v) && !field_known(in, scaling, name))
            dk_log(DK_LOG_WARN, "model.config", "field=\"%.80s\" ignored=1 in=\"%s\"", name, in->where);
    }
}

/* Reads one of the two objects. Without a type it may only hold what is not scaling. */
static void object_read(struct dk_json_reader *r, const char *name, struct dk_model_config *c, struct rope_values *v)
{
    struct dk_json_reader in;
    char where[600];

    if (!dk_json_enter(r, name, &in, where, sizeof where))
        return;
    kind_read(&in, c, &v->typed);
    scaling_read(&in, c);
    dk_json_double(&in, "rope_theta", THETA_LEAST, THETA_MOST, &v->theta);
    dk_json_double(&in, "partial_rotary_factor", PARTIAL_LEAST, 1, &v->partial);
    fields_check(&in, c->rope.scaling);
    dk_json_leave(r, &in);
    if (!v->typed && (v->theta == 0 || dk_json_field(&in, "factor")))
        dk_json_refuse(r, -ENOTSUP, name, "without a type it must have rope_theta and no factor");
}

static bool same_rotation(const struct dk_rope_config *a, const struct dk_rope_config *b)
{
    return a->scaling == b->scaling && a->factor == b->factor && a->original_context == b->original_context &&
           a->low_freq_factor == b->low_freq_factor && a->high_freq_factor == b->high_freq_factor &&
           a->beta_fast == b->beta_fast && a->beta_slow == b->beta_slow && a->mscale == b->mscale &&
           a->mscale_all_dim == b->mscale_all_dim && a->attention_factor == b->attention_factor &&
           a->truncate == b->truncate;
}

/* A value that only one of the two objects has counts for both. */
static bool same_or_absent(double a, double b)
{
    return a == 0 || b == 0 || a == b;
}

/* rope_parameters, and rope_scaling if it is there as well: then both must mean the same, however they write it. */
static void nested_read(struct dk_json_reader *r, struct dk_model_config *c, struct rope_values *v)
{
    struct dk_model_config old = *c;
    struct rope_values w = {0};

    object_read(r, "rope_parameters", c, v);
    if (!dk_json_field(r, "rope_scaling"))
        return;
    object_read(r, "rope_scaling", &old, &w);
    if (!same_rotation(&c->rope, &old.rope) || !same_or_absent(v->theta, w.theta) ||
        !same_or_absent(v->partial, w.partial))
        dk_json_refuse(r, -EINVAL, "rope_scaling", "rope_parameters is there as well and says something else");
    v->theta = v->theta != 0 ? v->theta : w.theta;
    v->partial = v->partial != 0 ? v->partial : w.partial;
}

/* The value beside the object or in it; both must agree. 0: absent. */
static double either_read(struct dk_json_reader *r, const char *name, double least, double most, const char *object,
                          double nested)
{
    double top = 0;
    char allowed[64];

    if (!dk_json_double(r, name, least, most, &top))
        return nested;
    if (nested != 0 && nested != top) {
        snprintf(allowed, sizeof allowed, "%s has another value", object);
        dk_json_refuse(r, -EINVAL, name, allowed);
    }
    return top;
}

/* Sections of the dimensions turned by time, height and width. All three positions of a text token are the same, so
 * they only have to cover all pairs. */
static void sections_check(struct dk_json_reader *r, const char *object, const struct dk_model_config *c)
{
    uint32_t section[SECTIONS_MAX], count = 0, sum = 0;
    struct dk_json_reader in;
    bool interleaved = false;
    char where[600];

    if (!dk_json_enter(r, object, &in, where, sizeof where))
        return;
    dk_json_bool(&in, "mrope_interleaved", &interleaved);
    if (dk_json_u32_list(&in, "mrope_section", DK_HEAD_DIM_MAX, section, SECTIONS_MAX, &count)) {
        for (uint32_t i = 0; i < count; i++)
            sum += section[i];
        if (sum != c->rope.dims / 2)
            dk_json_refuse(&in, -EINVAL, "mrope_section", "it must add up to half the rotated dimensions of a head");
    }
    dk_json_leave(r, &in);
}

static void dims_set(struct dk_json_reader *r, struct dk_model_config *c, double partial)
{
    if (partial == 0)
        partial = dk_family_is_qwen3_5(c->family) ? PARTIAL_3_5 : PARTIAL_OTHER;
    if (partial != 1 && !dk_family_is_qwen3_5(c->family))
        dk_json_refuse(r, -ENOTSUP, "partial_rotary_factor", "only 1 is supported in this family");
    c->rope.dims = dk_family_is_deepseek(c->family) ? c->mla.rope_dim : (uint32_t)(c->head_dim * partial);
    if (r->rc == 0 && (c->rope.dims == 0 || c->rope.dims % 2))
        dk_json_refuse(r, -EINVAL, "partial_rotary_factor", "times head_dim it must be an even number from 2");
}

/* YaRN is how a model gets beyond the positions it was trained with, and not every file that asks for it also raises
 * max_position_embeddings (the card of Qwen3 does not). */
static void context_extend(struct dk_model_config *c)
{
    double extended = c->rope.factor * c->rope.original_context;

    if (c->rope.scaling != DK_ROPE_YARN || extended <= c->context_max)
        return;
    c->context_max = extended < DK_CONTEXT_MAX ? (uint32_t)extended : DK_CONTEXT_MAX;
}

/* Dual chunk attention (arXiv 2402.17463; Qwen2.5-1M and the long variants of Qwen3 have it) is plain attention as long
 * as a sequence fits into one chunk less its overlap with the next, and into the length of the original training.
 * Beyond that it is another one than is computed here, so the context ends there. */
static void dual_chunk_check(struct dk_json_reader *r, struct dk_model_config *c)
{
    static const char name[] = "dual_chunk_attention_config";
    uint32_t original = 0, chunk = 0, overlap = 0, plain;
    struct dk_json_reader in;
    char where[600];

    if (!dk_json_enter(r, name, &in, where, sizeof where))
        return;
    dk_json_need(&in, "original_max_position_embeddings");
    dk_json_need(&in, "chunk_size");
    dk_json_need(&in, "local_size");
    dk_json_u32(&in, "original_max_position_embeddings", 1, DK_CONTEXT_MAX, &original);
    dk_json_u32(&in, "chunk_size", 1, DK_CONTEXT_MAX, &chunk);
    dk_json_u32(&in, "local_size", 0, DK_CONTEXT_MAX, &overlap);
    if (in.rc == 0 && overlap >= chunk)
        dk_json_refuse(&in, -EINVAL, "local_size", "it must be below chunk_size");
    dk_json_leave(r, &in);
    if (r->rc < 0)
        return;
    plain = original < chunk - overlap ? original : chunk - overlap;
    if (plain < c->context_max)
        c->context_max = plain;
    dk_log(DK_LOG_WARN, "model.config", "field=%s ignored=1 context_max=%u in=\"%s\"", name, c->context_max, r->where);
}

void dk_config_rope_read(struct dk_json_reader *r, struct dk_model_config *c)
{
    bool nested = dk_json_field(r, "rope_parameters") != NULL;
    const char *object = nested ? "rope_parameters" : "rope_scaling";
    struct rope_values v = {0};
    double partial;

    if (nested)
        nested_read(r, c, &v);
    else
        object_read(r, object, c, &v);
    c->rope.theta = either_read(r, "rope_theta", THETA_LEAST, THETA_MOST, object, v.theta);
    if (c->rope.theta == 0 && c->family == DK_FAMILY_LLAMA)
        c->rope.theta = 10000; /* the first Llama files do not have the field */
    else if (c->rope.theta == 0)
        dk_json_need(r, "rope_theta");
    partial = either_read(r, "partial_rotary_factor", PARTIAL_LEAST, 1, object, v.partial);
    if (r->rc < 0)
        return;
    dims_set(r, c, partial);
    sections_check(r, "rope_parameters", c);
    sections_check(r, "rope_scaling", c);
    context_extend(c);
    dual_chunk_check(r, c);
}
