/* SPDX-License-Identifier: Apache-2.0 */
#include "duckctl/inspect_model.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "model/checkpoint.h"
#include "model/model_tensors.h"
#include "plan/plan.h"

#define CONTEXT_DEFAULT   4096u
#define CACHE_FLOAT_BYTES sizeof(float) /* of an element of the worker's caches and states */

const char *inspect_mixer_name(uint32_t mixer)
{
    return mixer == DK_MIXER_DELTA ? "delta" : mixer == DK_MIXER_MLA ? "mla" : "attention";
}

const char *inspect_part_name(enum inspect_part_kind part)
{
    static const char *const names[PART_COUNT] = {"worker", "ducks", "vision", "multi-token prediction", "unknown"};

    return names[part];
}

const char *inspect_rope_name(enum dk_rope_scaling scaling)
{
    static const char *const names[] = {
        [DK_ROPE_PLAIN] = "none", [DK_ROPE_LINEAR] = "linear", [DK_ROPE_LLAMA3] = "llama3", [DK_ROPE_YARN] = "yarn"};

    return names[scaling];
}

static void problem_add(struct inspect *m, const char *text)
{
    if (m->problem_count < INSPECT_PROBLEMS_MAX)
        snprintf(m->problems[m->problem_count], sizeof m->problems[0], "%s", text);
    m->problem_count++;
}

/* ---- sizes by config.json */

static uint64_t elements_of(uint32_t rank, const uint64_t *shape)
{
    uint64_t n = 1;

    for (uint32_t i = 0; i < rank; i++)
        n *= shape[i];
    return n;
}

static void part_add(struct inspect_part *p, enum dk_dtype type, uint64_t bytes)
{
    p->tensors++;
    p->bytes += bytes;
    p->type_bytes[type] += bytes;
}

/* Scales are F32 in DeepSeek's releases and BF16 in Qwen's. */
static enum dk_dtype scale_type(const struct dk_model_config *c)
{
    return c->mla.kv_rank ? DK_F32 : DK_BF16;
}

static int compute_one(void *ctx, const struct dk_tensor_want *t)
{
    struct inspect *m = ctx;
    struct inspect_part *p = &m->parts[t->place == DK_PLACE_DUCKS ? PART_DUCKS : PART_WORKER];
    uint64_t n = elements_of(t->rank, t->shape), block = m->config.scale_block;
    enum dk_dtype scales = scale_type(&m->config);

    p->parameters += n;
    if (!t->linear || !block) {
        part_add(p, m->dtype, n * dk_dtype_bytes(m->dtype));
        return 0;
    }
    part_add(p, DK_F8_E4M3, n);
    part_add(p, scales,
             (t->shape[0] + block - 1) / block * ((t->shape[1] + block - 1) / block) * dk_dtype_bytes(scales));
    return 0;
}

/* ---- sizes by the headers of the weight files */

struct stored {
    struct inspect *m;
    struct dk_checkpoint *ck;
};

static bool stored_add(struct stored *s, struct inspect_part *p, const char *name)
{
    const struct dk_tensor *t = dk_checkpoint_find(s->ck, name);

    if (t)
        part_add(p, t->type, t->bytes);
    return t != NULL;
}

/* Where an expert's tensor is if all experts of its layer are in two; NULL: it is none of an expert. Valid until the
 * next call. */
static const char *fused_name(const struct inspect *m, const struct dk_tensor_want *t)
{
    static char name[96];

    if (t->place != DK_PLACE_DUCKS || !m->config.layer_is_moe[t->layer])
        return NULL;
    snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%s", t->layer,
             strstr(t->name, ".down_proj.") ? "down_proj" : "gate_up_proj");
    return name;
}

static int store_one(void *ctx, const struct dk_tensor_want *t)
{
    struct stored *s = ctx;
    struct inspect_part *p = &s->m->parts[t->place == DK_PLACE_DUCKS ? PART_DUCKS : PART_WORKER];
    const char *fused = fused_name(s->m, t);
    char name[256];
    bool found;

    if (fused && dk_checkpoint_find(s->ck, fused)) {
        found = true;
        if (strstr(t->name, ".experts.0.gate_proj.") || strstr(t->name, ".experts.0.down_proj."))
            stored_add(s, p, fused);
    } else {
        found = stored_add(s, p, t->name);
        snprintf(name, sizeof name, "%s_scale_inv", t->name);
        if (found && t->linear)
            stored_add(s, p, name);
    }
    if (found)
        p->parameters += elements_of(t->rank, t->shape);
    return 0;
}

/* The tensors that are missing or wrong, by name. */
static int check_one(void *ctx, const struct dk_tensor_want *t)
{
    struct stored *s = ctx;
    const struct dk_tensor *weight, *scales;
    const char *fused = fused_name(s->m, t);
    struct dk_err err = {0};
    int rc;

    if (fused && dk_checkpoint_find(s->ck, fused))
        return 0;
    if (t->linear)
        rc = dk_checkpoint_get_weight(s->ck, t->name, t->shape[0], t->shape[1], &weight, &scales, &err);
    else
        rc = dk_checkpoint_get_shape(s->ck, t->name, t->rank, t->shape, 0, &weight, &err);
    if (rc < 0)
        problem_add(s->m, err.text);
    return 0;
}

static void check_stored(struct stored *s)
{
    uint32_t before = s->m->problem_count;
    struct dk_err err = {0};

    if (dk_model_tensors_check(&s->m->config, s->ck, &err) == 0)
        return;
    dk_model_tensors(&s->m->config, check_one, s);
    if (s->m->problem_count == before) /* it is in what is not listed one by one: fused experts */
        problem_add(s->m, err.text);
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), k = strlen(end);

    return n >= k && !strcmp(text + n - k, end);
}

/* A checkpoint keeps four dimensions of a tensor, and no type of one that has more: such a one counts as of
 * config.json's type. */
static uint64_t other_elements(const struct inspect *m, const struct dk_tensor *t)
{
    if (t->type == DK_DTYPE_COUNT && t->rank == 4)
        return t->bytes / dk_dtype_bytes(m->dtype);
    return elements_of(t->rank, t->shape);
}

/* A tensor that the language part does not ask for. */
static void store_other(void *ctx, const struct dk_tensor *t)
{
    struct inspect *m = ctx;
    const char *skipped = dk_model_tensor_skipped(&m->config, t->name);
    enum inspect_part_kind part = !skipped ? PART_UNKNOWN : !strcmp(skipped, "vision") ? PART_VISION : PART_MTP;
    char text[400];

    part_add(&m->parts[part], t->type, t->bytes);
    if (!ends_with(t->name, "_scale_inv"))
        m->parts[part].parameters += other_elements(m, t);
    if (part != PART_UNKNOWN)
        return;
    snprintf(text, sizeof text, "%.100s: tensor %.200s is not one of this model's", t->file, t->name);
    problem_add(m, text);
}

/* ---- files */

static bool has_weight_files(const char *dir)
{
    DIR *d = opendir(dir);
    const struct dirent *e;
    bool found = false;

    while (d && !found && (e = readdir(d)) != NULL)
        found = ends_with(e->d_name, ".safetensors") || ends_with(e->d_name, ".safetensors.index.json");
    if (d)
        closedir(d);
    return found;
}

static void look_at_weights(struct inspect *m)
{
    struct stored s = {.m = m};
    struct dk_err err = {0};

    if (!has_weight_files(m->dir)) {
        m->weights = WEIGHTS_NONE;
    } else if (dk_checkpoint_open(m->dir, &s.ck, &err) < 0) {
        m->weights = WEIGHTS_DAMAGED;
        problem_add(m, err.text);
    } else {
        m->weights = WEIGHTS_READ;
        check_stored(&s);
        dk_model_tensors(&m->config, store_one, &s);
        dk_checkpoint_unused(s.ck, store_other, m);
        dk_checkpoint_close(s.ck);
        return;
    }
    dk_model_tensors(&m->config, compute_one, m);
}

/* torch_dtype, or dtype as transformers 5 writes it; the language part's own first. */
static enum dk_dtype config_dtype(const char *dir)
{
    char path[4096];
    enum dk_dtype type = DK_BF16;
    json_t *root, *parts[2];

    snprintf(path, sizeof path, "%s/config.json", dir);
    root = json_load_file(path, JSON_DECODE_INT_AS_REAL, NULL); /* it has been read without an error before */
    parts[0] = json_object_get(root, "text_config");
    parts[1] = root;
    for (int i = 1; i >= 0; i--) {
        const char *name = json_string_value(json_object_get(parts[i], "torch_dtype"));

        name = name ? name : json_string_value(json_object_get(parts[i], "dtype"));
        if (name)
            type = !strcmp(name, "float32") ? DK_F32 : !strcmp(name, "float16") ? DK_F16 : DK_BF16;
    }
    json_decref(root);
    return type;
}

static void look_at_tokens(struct inspect *m)
{
    struct dk_err err = {0};
    int rc = dk_tokenizer_open(m->dir, &m->tokenizer, &err);

    if (rc < 0)
        m->tokenizer = NULL;
    if (rc < 0 && rc != -ENOENT)
        problem_add(m, err.text);
    if (dk_chat_format_detect(m->dir, m->config.family, &m->chat, &err) < 0) {
        m->chat = DK_CHAT_NONE;
        problem_add(m, err.text);
    }
    if (dk_generation_config_load(m->dir, &m->generation, &err) < 0)
        problem_add(m, err.text);
    for (uint32_t i = 0; i < m->generation.eos_count; i++)
        if (m->generation.eos[i] >= m->config.vocab) {
            snprintf(err.text, sizeof err.text, "%.300s: eos_token_id %u is not in the vocabulary of %u tokens", m->dir,
                     m->generation.eos[i], m->config.vocab);
            problem_add(m, err.text);
        }
}

/* ---- what a cluster would need */

/* Bytes of an element of the ducks' packed weights: FP8 and BF16 stay what they are, the others become F32. */
static uint32_t packed_bytes(const struct inspect *m)
{
    const uint64_t *stored = m->parts[PART_DUCKS].type_bytes;

    if (stored[DK_F8_E4M3])
        return 1;
    return stored[DK_F32] || stored[DK_F16] ? 4 : 2;
}

static void flock_add(struct inspect *m, uint32_t ducks)
{
    struct inspect_flock f = {.ducks = ducks};

    for (uint32_t i = 0; i < ducks; i++) {
        uint64_t bytes = dk_plan_duck_bytes(&m->config, m->multiple_of, ducks, i, packed_bytes(m));

        f.busy += bytes > 0;
        if (bytes > f.largest_bytes)
            f.largest_bytes = bytes;
    }
    m->flocks[m->flock_count++] = f;
}

static void look_at_needs(struct inspect *m, uint32_t ducks)
{
    const struct dk_model_config *c = &m->config;
    const struct dk_delta_config *d = &c->delta;
    uint64_t channels = 2ull * d->key_heads * d->key_dim + (uint64_t)d->value_heads * d->value_dim;

    for (uint32_t n = 1; n <= 32; n *= 2) {
        if (ducks > n / 2 && ducks < n)
            flock_add(m, ducks);
        flock_add(m, n);
    }
    if (ducks > 32)
        flock_add(m, ducks);
    for (uint32_t i = 0; i < c->layers; i++) {
        if (c->mixer[i] == DK_MIXER_DELTA)
            m->sequence_bytes += (channels * (d->conv_taps - 1) +
                                  (uint64_t)d->value_heads * d->key_dim * d->value_dim) *
                                 CACHE_FLOAT_BYTES;
        else if (c->mixer[i] == DK_MIXER_MLA)
            m->token_bytes += (c->mla.kv_rank + (uint64_t)c->mla.rope_dim + (c->index.heads ? c->index.dim : 0)) *
                              CACHE_FLOAT_BYTES;
        else
            m->token_bytes += 2ull * c->kv_heads * c->head_dim * CACHE_FLOAT_BYTES;
    }
}

static uint64_t sleeping_parameters(const struct dk_model_config *c)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < c->layers; i++)
        if (c->layer_is_moe[i])
            n += 3ull * (c->experts - c->top_k) * c->moe_intermediate * c->hidden;
    return n;
}

int inspect_open(const char *dir, const struct inspect_wish *wish, struct inspect *out, struct dk_err *err)
{
    int rc;

    memset(out, 0, sizeof *out);
    out->dir = dir;
    rc = dk_model_config_load(dir, &out->config, err);
    if (rc < 0)
        return rc;
    if (wish->context > out->config.context_max)
        return dk_err_set(err, -EINVAL, "--context %u: the model can do %u", wish->context, out->config.context_max);
    out->multiple_of = wish->multiple_of;
    out->context = wish->context                               ? wish->context
                   : out->config.context_max < CONTEXT_DEFAULT ? out->config.context_max
                                                               : CONTEXT_DEFAULT;
    out->dtype = config_dtype(dir);
    out->parameters = dk_model_parameters(&out->config);
    out->active = out->parameters - sleeping_parameters(&out->config);
    look_at_tokens(out);
    look_at_weights(out);
    look_at_needs(out, wish->ducks);
    return 0;
}

void inspect_close(struct inspect *m)
{
    if (m->tokenizer)
        dk_tokenizer_close(m->tokenizer);
    m->tokenizer = NULL;
}
