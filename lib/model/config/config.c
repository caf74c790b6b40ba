/* SPDX-License-Identifier: Apache-2.0 */
/* The file as a whole: its family, where the language model's fields are, and what all families share. The parts are in
 * config_*.c. */
#include "model/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/config/config_internal.h"
#include "model/file_read.h"

#define CONFIG_BYTES_MAX (16u << 20)
#define MTP_LAYERS_MAX   64u

static const struct family {
    const char *model_type;
    enum dk_family family;
    const char
        *text_type; /* model_type inside "text_config", where such a file has all its fields; NULL: a flat file */
} families[] = {
    {"llama", DK_FAMILY_LLAMA, NULL},
    {"mistral", DK_FAMILY_MISTRAL, NULL},
    {"qwen2", DK_FAMILY_QWEN2, NULL},
    {"qwen3", DK_FAMILY_QWEN3, NULL},
    {"qwen3_moe", DK_FAMILY_QWEN3_MOE, NULL},
    {"qwen3_5", DK_FAMILY_QWEN3_5, "qwen3_5_text"},
    {"qwen3_5_text", DK_FAMILY_QWEN3_5, NULL},
    {"qwen3_5_moe", DK_FAMILY_QWEN3_5_MOE, "qwen3_5_moe_text"},
    {"qwen3_5_moe_text", DK_FAMILY_QWEN3_5_MOE, NULL},
    {"deepseek_v3", DK_FAMILY_DEEPSEEK_V3, NULL},
    {"deepseek_v32", DK_FAMILY_DEEPSEEK_V32, NULL},
};

const char *dk_family_name(enum dk_family family)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (families[i].family == family)
            return families[i].model_type;
    return "unknown";
}

void dk_config_flag_refuse(struct dk_json_reader *r, const char *name, const char *allowed)
{
    bool on = false;

    if (dk_json_bool(r, name, &on) && on)
        dk_json_refuse(r, -ENOTSUP, name, allowed);
}

void dk_config_text_check(struct dk_json_reader *r, const char *name, const char *a, const char *b, const char *allowed)
{
    const char *text = NULL;

    if (dk_json_text(r, name, &text) && strcmp(text, a) && strcmp(text, b))
        dk_json_refuse(r, -ENOTSUP, name, allowed);
}

/* NULL, and the reason in r, when it is none of them. */
static const struct family *family_read(struct dk_json_reader *r)
{
    const char *type = NULL;

    dk_json_need(r, "model_type");
    if (!dk_json_text(r, "model_type", &type))
        return NULL;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (!strcmp(families[i].model_type, type))
            return &families[i];
    dk_json_refuse(r, -ENOTSUP, "model_type",
                   "llama, mistral, qwen2, qwen3, qwen3_moe, qwen3_5, qwen3_5_text, qwen3_5_moe, qwen3_5_moe_text, "
                   "deepseek_v3 and deepseek_v32 are supported");
    return NULL;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);

    return n >= m && !strcmp(text + n - m, end);
}

/* A checkpoint with another head (a classifier, a reward model) has the same model_type. */
static void architectures_check(struct dk_json_reader *r, bool multimodal)
{
    const json_t *list = dk_json_field(r, "architectures");

    if (r->rc < 0 || !list)
        return;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));

        if (name && (ends_with(name, "ForCausalLM") || (multimodal && ends_with(name, "ForConditionalGeneration"))))
            return;
    }
    if (json_is_array(list) && json_array_size(list) == 0)
        return;
    dk_json_refuse(r, -ENOTSUP, "architectures",
                   multimodal ? "only ...ForCausalLM and ...ForConditionalGeneration are supported"
                              : "only language models (...ForCausalLM) are supported");
}

static void sizes_read(struct dk_json_reader *r, struct dk_model_config *c)
{
    static const char *const needed[] = {"hidden_size", "num_hidden_layers",       "num_attention_heads",
                                         "vocab_size",  "max_position_embeddings", "rms_norm_eps"};
    double eps = 0;

    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        dk_json_need(r, needed[i]);
    dk_json_u32(r, "hidden_size", 1, DK_WIDTH_MAX, &c->hidden);
    dk_json_u32(r, "num_hidden_layers", 1, DK_LAYERS_MAX, &c->layers);
    dk_json_u32(r, "num_attention_heads", 1, DK_HEADS_MAX, &c->heads);
    dk_json_u32(r, "vocab_size", 1, DK_VOCAB_MAX, &c->vocab);
    dk_json_u32(r, "max_position_embeddings", 1, DK_CONTEXT_MAX, &c->context_max);
    dk_json_double(r, "rms_norm_eps", 1e-12, 0.1, &eps);
    c->rms_eps = (float)eps;
    dk_json_u32(r, dk_family_is_deepseek(c->family) ? "num_nextn_predict_layers" : "mtp_num_hidden_layers", 0,
                MTP_LAYERS_MAX, &c->mtp_layers);
    dk_config_flag_refuse(r, "mlp_bias", "only false is supported");
    dk_config_text_check(r, "hidden_act", "silu", "silu", "only \"silu\" is supported");
    c->norm_one_plus = dk_family_is_qwen3_5(c->family);
}

/* Qwen3.5 has the field at the top alone, Qwen3.6 in both places. transformers 5 writes its default, false, into
 * text_config and reads the one at the top. */
static void tied_read(struct dk_json_reader *r, const struct dk_json_reader *top, struct dk_model_config *c)
{
    struct dk_json_reader outer = *top;

    dk_json_bool(r, "tie_word_embeddings", &c->tied);
    outer.rc = r->rc;
    dk_json_bool(&outer, "tie_word_embeddings", &c->tied);
    dk_json_leave(r, &outer);
}

static void text_read(struct dk_json_reader *r, const struct dk_json_reader *top, struct dk_model_config *c)
{
    sizes_read(r, c);
    tied_read(r, top, c);
    dk_config_mixers_read(r, c);
    if (dk_family_is_deepseek(c->family))
        dk_config_mla_read(r, c);
    else
        dk_config_attention_read(r, c);
    dk_config_rope_read(r, c);
    if (!dk_family_is_deepseek(c->family))
        dk_config_window_check(r, c);
    dk_config_ffn_read(r, c);
    dk_config_quantization_read(r, top, c);
}

static void file_read(struct dk_json_reader *top, struct dk_model_config *c)
{
    const struct family *f = family_read(top);
    struct dk_json_reader in;
    char where[512];

    if (!f)
        return;
    c->family = f->family;
    memcpy(c->model_type, f->model_type, strlen(f->model_type) + 1);
    architectures_check(top, f->text_type != NULL);
    if (!f->text_type) {
        if (dk_json_field(top, "text_config"))
            dk_json_refuse(top, -ENOTSUP, "text_config", "only qwen3_5 and qwen3_5_moe may have one");
        in = *top;
        text_read(&in, top, c);
        dk_json_leave(top, &in);
        return;
    }
    dk_json_need(top, "text_config");
    if (!dk_json_enter(top, "text_config", &in, where, sizeof where))
        return;
    dk_config_text_check(&in, "model_type", f->text_type, f->text_type,
                         "it does not belong to the model_type outside text_config");
    text_read(&in, top, c);
    dk_json_leave(top, &in);
}

int dk_model_config_parse(const char *json, size_t bytes, const char *where, struct dk_model_config *out,
                          struct dk_err *err)
{
    struct dk_json_reader top = {.where = where, .err = err};
    json_t *root;
    int rc = dk_json_object_parse(json, bytes, JSON_REJECT_DUPLICATES, where, &root, err);

    memset(out, 0, sizeof *out);
    if (rc < 0)
        return rc;
    top.object = root;
    file_read(&top, out);
    json_decref(root);
    if (top.rc < 0)
        memset(out, 0, sizeof *out);
    return top.rc;
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
