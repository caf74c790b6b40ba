/* SPDX-License-Identifier: Apache-2.0 */
/* Folders of weight files: the fixtures, and folders that are wrong in one way each. */
#include <criterion/criterion.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "model/checkpoint.h"
#include "model/model_tensors.h"
#include "model_folder.h"

#define TENSOR(name, type, shape, begin, end) \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"
#define INDEX(map) "{\"metadata\":{\"total_size\":8},\"weight_map\":{" map "}}"

static struct model_folder folder;
static struct dk_checkpoint *ck;
static struct dk_err err;

static void begin(void)
{
    folder_make(&folder);
}

static void end(void)
{
    dk_checkpoint_close(ck);
    folder_remove(&folder);
}

TestSuite(checkpoint, .init = begin, .fini = end);

static int reopen(const char *dir)
{
    dk_checkpoint_close(ck);
    memset(&err, 0, sizeof err);
    return dk_checkpoint_open(dir, &ck, &err);
}

static void refused(int rc, const char *words)
{
    int got = reopen(folder.path);

    cr_expect_eq(got, rc, "%d: %s", got, err.text);
    cr_expect_eq(err.rc, rc);
    cr_expect_null(ck);
    expect_words(err.text, words);
}

static void two_shards(const char *index)
{
    folder_safetensors(&folder, "one.safetensors", "{" TENSOR("a", "F32", "[1]", 0, 4) "}", 4);
    folder_safetensors(&folder, "two.safetensors", "{" TENSOR("b", "F32", "[1]", 0, 4) "}", 4);
    folder_text(&folder, "model.safetensors.index.json", index);
}

/* Fixtures: everything that the three families need is there, with its shape, and nothing is left over. */
static void layer_get(const struct dk_model_config *m, uint32_t layer, const char *part, uint64_t rows, uint64_t cols)
{
    const struct dk_tensor *w, *s;
    char name[160];

    snprintf(name, sizeof name, "model.layers.%u.%s.weight", layer, part);
    if (cols) {
        cr_expect_eq(dk_checkpoint_get_weight(ck, name, rows, cols, &w, &s, &err), 0, "%s", err.text);
        cr_expect_eq(s != NULL, m->scale_block != 0);
    } else {
        cr_expect_eq(dk_checkpoint_get(ck, name, rows, 0, 0, &w, &err), 0, "%s", err.text);
    }
}

static void ffn_get(const struct dk_model_config *m, uint32_t layer, const char *prefix, uint32_t width)
{
    char part[64];

    snprintf(part, sizeof part, "%s.gate_proj", prefix);
    layer_get(m, layer, part, width, m->hidden);
    snprintf(part, sizeof part, "%s.up_proj", prefix);
    layer_get(m, layer, part, width, m->hidden);
    snprintf(part, sizeof part, "%s.down_proj", prefix);
    layer_get(m, layer, part, m->hidden, width);
}

static void count_one(void *ctx, const struct dk_tensor *t)
{
    ++*(unsigned *)ctx;
}

static void whole_model(const char *dir, uint32_t tensors)
{
    uint64_t elements = 0;
    uint32_t q, kv;
    unsigned unused = 0;
    const struct dk_tensor *t;
    struct dk_model_config m;
    char name[160];

    cr_assert_eq(reopen(dir), 0, "%s", err.text);
    cr_expect_eq(err.rc, 0);
    cr_assert_eq(dk_model_config_load(dir, &m, &err), 0, "%s", err.text);
    cr_expect_eq(dk_checkpoint_tensor_count(ck), tensors);
    for (uint32_t i = 1; i < tensors; i++)
        cr_expect(strcmp(dk_checkpoint_tensor(ck, i - 1)->name, dk_checkpoint_tensor(ck, i)->name) < 0);
    for (uint32_t i = 0; i < tensors; i++) {
        t = dk_checkpoint_tensor(ck, i);
        if (!strstr(t->name, "_scale_inv"))
            elements += t->bytes / dk_dtype_bytes(t->type);
    }
    cr_expect_eq(dk_model_parameters(&m), elements);
    dk_checkpoint_unused(ck, count_one, &unused);
    cr_expect_eq(unused, tensors);
    cr_expect_eq(dk_checkpoint_get(ck, "model.embed_tokens.weight", m.vocab, m.hidden, 0, &t, &err), 0, "%s", err.text);
    cr_expect_eq(dk_checkpoint_get(ck, "model.norm.weight", m.hidden, 0, 0, &t, &err), 0, "%s", err.text);
    cr_expect_eq(dk_checkpoint_find(ck, "lm_head.weight") != NULL, !m.tied);
    q = m.heads * m.head_dim;
    kv = m.kv_heads * m.head_dim;
    for (uint32_t i = 0; i < m.layers; i++) {
        layer_get(&m, i, "input_layernorm", m.hidden, 0);
        layer_get(&m, i, "post_attention_layernorm", m.hidden, 0);
        layer_get(&m, i, "self_attn.q_norm", m.head_dim, 0);
        layer_get(&m, i, "self_attn.k_norm", m.head_dim, 0);
        layer_get(&m, i, "self_attn.q_proj", q, m.hidden);
        layer_get(&m, i, "self_attn.k_proj", kv, m.hidden);
        layer_get(&m, i, "self_attn.v_proj", kv, m.hidden);
        layer_get(&m, i, "self_attn.o_proj", m.hidden, q);
        if (!m.layer_is_moe[i]) {
            ffn_get(&m, i, "mlp", m.intermediate);
            continue;
        }
        snprintf(name, sizeof name, "model.layers.%u.mlp.gate.weight", i);
        cr_expect_eq(dk_checkpoint_get(ck, name, m.experts, m.hidden, 0, &t, &err), 0, "%s", err.text);
        for (uint32_t e = 0; e < m.experts; e++) {
            snprintf(name, sizeof name, "mlp.experts.%u", e);
            ffn_get(&m, i, name, m.moe_intermediate);
        }
    }
    unused = 0;
    dk_checkpoint_unused(ck, count_one, &unused);
    cr_expect_eq(unused, 0, "%u tensors are left over", unused);
}

Test(checkpoint, fixture_one_file)
{
    whole_model(FIXTURES "/qwen3-tiny", 35);
}

Test(checkpoint, fixture_shards)
{
    whole_model(FIXTURES "/qwen3-fp8-tiny", 57);
}

Test(checkpoint, fixture_experts)
{
    whole_model(FIXTURES "/qwen3-moe-fp8-tiny", 330);
}

Test(checkpoint, no_folder)
{
    folder_text(&folder, "config.json", "{}");
    strcat(folder.path, "/config.json");
    refused(-ENOTDIR, "config.json|not a folder");
    *strrchr(folder.path, '/') = 0;
    strcat(folder.path, "/nothing");
    refused(-ENOENT, "/nothing|No such file");
    *strrchr(folder.path, '/') = 0;
}

Test(checkpoint, no_weights)
{
    refused(-ENOENT, "config.json|No such file");
    folder_text(&folder, "config.json", "{}");
    folder_text(&folder, "pytorch_model.bin", "x");
    refused(-ENOENT, "model.safetensors.index.json|model.safetensors |neither");
}

Test(checkpoint, weights_are_a_folder)
{
    char path[512];

    folder_text(&folder, "config.json", "{}");
    snprintf(path, sizeof path, "%s/model.safetensors", folder.path);
    cr_assert_eq(mkdir(path, 0700), 0);
    refused(-EINVAL, "model.safetensors|not a file");
}

Test(checkpoint, empty_file)
{
    folder_text(&folder, "config.json", "{}");
    folder_text(&folder, "model.safetensors", "");
    refused(-EINVAL, "model.safetensors|empty|download");
}

Test(checkpoint, index_is_followed)
{
    /* the index wins over a model.safetensors beside it */
    folder_safetensors(&folder, "model.safetensors", "{" TENSOR("a", "F32", "[2]", 0, 8) "}", 8);
    two_shards(INDEX("\"a\":\"one.safetensors\",\"b\":\"two.safetensors\""));
    cr_assert_eq(reopen(folder.path), 0, "%s", err.text);
    cr_expect_eq(dk_checkpoint_tensor_count(ck), 2);
    cr_expect_eq(dk_checkpoint_find(ck, "a")->bytes, 4);
    cr_expect(strstr(dk_checkpoint_find(ck, "b")->file, "two.safetensors"));
}

Test(checkpoint, index_of_missing_shard)
{
    two_shards(INDEX("\"a\":\"one.safetensors\",\"b\":\"three.safetensors\""));
    refused(-ENOENT, "three.safetensors|missing|download");
}

Test(checkpoint, index_of_missing_tensor)
{
    two_shards(INDEX("\"a\":\"one.safetensors\",\"b\":\"two.safetensors\",\"c\":\"two.safetensors\""));
    refused(-EINVAL, "index.json|'c'|two.safetensors");
}

Test(checkpoint, index_of_tensor_elsewhere)
{
    two_shards(INDEX("\"a\":\"two.safetensors\",\"b\":\"one.safetensors\""));
    refused(-EINVAL, "index.json|'a'|one.safetensors|two.safetensors");
}

Test(checkpoint, tensor_in_two_files)
{
    two_shards(INDEX("\"a\":\"one.safetensors\",\"b\":\"two.safetensors\""));
    folder_safetensors(&folder, "two.safetensors",
                       "{" TENSOR("b", "F32", "[1]", 0, 4) "," TENSOR("a", "F32", "[1]", 4, 8) "}", 8);
    refused(-EINVAL, "'a'|two files|one.safetensors|two.safetensors");
}

Test(checkpoint, tensor_outside_the_index)
{
    /* allowed: it shows among the unused ones */
    two_shards(INDEX("\"a\":\"one.safetensors\",\"b\":\"two.safetensors\""));
    folder_safetensors(&folder, "two.safetensors",
                       "{" TENSOR("b", "F32", "[1]", 0, 4) "," TENSOR("c", "F32", "[1]", 4, 8) "}", 8);
    cr_assert_eq(reopen(folder.path), 0, "%s", err.text);
    cr_expect_eq(dk_checkpoint_tensor_count(ck), 3);
}

Test(checkpoint, damaged_shard_is_named)
{
    two_shards(INDEX("\"a\":\"one.safetensors\",\"b\":\"two.safetensors\""));
    folder_safetensors(&folder, "two.safetensors", "{" TENSOR("b", "F32", "[1]", 0, 4) "}", 3);
    refused(-EINVAL, "two.safetensors|cut short");
}

Test(checkpoint, damaged_index)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", "index.json|damaged"},
        {"{\"weight_map\":{\"a\":\"one.safetensors\"}", "index.json|damaged"},
        {"[]", "weight_map"},
        {"{}", "weight_map"},
        {"{\"weight_map\":[]}", "weight_map"},
        {"{\"weight_map\":{}}", "weight_map"},
        {INDEX("\"a\":1"), "'a'|not the name of a file"},
        {INDEX("\"a\":\"\""), "'a'|not the name of a file"},
        {INDEX("\"a\":\"/etc/passwd\""), "'a'|not the name of a file"},
        {INDEX("\"a\":\"../one.safetensors\""), "'a'|not the name of a file"},
        {INDEX("\"a\":\"sub/one.safetensors\""), "'a'|not the name of a file"},
        {INDEX("\"a\":\"..\""), "'a'|not the name of a file"},
        {INDEX("\"a\":\".hidden\""), "'a'|not the name of a file"},
        {INDEX("\"a\":\"one\\nsafetensors\""), "'a'|not the name of a file"},
        {INDEX("\"a\":\"one.safetensors\",\"a\":\"two.safetensors\""), "duplicate"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        two_shards(cases[i].text);
        refused(-EINVAL, cases[i].words);
    }
}

static void open_tensors(const char *header, size_t data_bytes)
{
    folder_safetensors(&folder, "model.safetensors", header, data_bytes);
    cr_assert_eq(reopen(folder.path), 0, "%s", err.text);
}

static void get_refused(const char *name, uint64_t rows, uint64_t cols, int f8_allowed, int rc, const char *words)
{
    const struct dk_tensor *t = (const void *)1;
    int got = dk_checkpoint_get(ck, name, rows, cols, f8_allowed, &t, &err);

    cr_expect_eq(got, rc, "%s: %d", name, got);
    cr_expect_null(t);
    expect_words(err.text, "model.safetensors");
    expect_words(err.text, words);
}

Test(checkpoint, get)
{
    const struct dk_tensor *t;

    open_tensors("{" TENSOR("m", "BF16", "[2,3]", 0, 12) "," TENSOR("v", "F32", "[3]", 12, 24) "," TENSOR(
                     "h", "F16", "[2]", 24, 28) "," TENSOR("q", "F8_E4M3", "[2,2]", 28,
                                                           32) "," TENSOR("i", "I32", "[1]", 32,
                                                                          36) "," TENSOR("l", "I64", "[1]", 36, 44) "}",
                 44);
    cr_expect_eq(dk_checkpoint_get(ck, "m", 2, 3, 0, &t, &err), 0);
    cr_expect_str_eq(t->name, "m");
    cr_expect_eq(dk_checkpoint_get(ck, "v", 3, 0, 0, &t, &err), 0);
    cr_expect_eq(dk_checkpoint_get(ck, "h", 2, 0, 0, &t, &err), 0);
    cr_expect_eq(dk_checkpoint_get(ck, "q", 2, 2, 1, &t, &err), 0);
    get_refused("x", 1, 0, 0, -ENOENT, "'x'");
    get_refused("m", 3, 2, 0, -EINVAL, "'m'|[2, 3]|[3, 2]");
    get_refused("m", 2, 4, 0, -EINVAL, "'m'|[2, 3]|[2, 4]");
    get_refused("m", 6, 0, 0, -EINVAL, "'m'|[2, 3]|[6]");
    get_refused("m", 2, 0, 0, -EINVAL, "'m'|[2, 3]|[2]");
    get_refused("v", 3, 1, 0, -EINVAL, "'v'|[3]|[3, 1]");
    get_refused("v", 4, 0, 0, -EINVAL, "'v'|[3]|[4]");
    get_refused("q", 2, 2, 0, -EINVAL, "'q'|F8_E4M3|BF16");
    get_refused("i", 1, 0, 1, -EINVAL, "'i'|I32|BF16");
    get_refused("l", 1, 0, 1, -ENOTSUP, "'l'|I64|BF16");
}

/* [129][257] needs scales [2][3]. */
static int weight_get(const char *scale, size_t scale_bytes, const struct dk_tensor **w, const struct dk_tensor **s)
{
    char header[512];

    snprintf(header, sizeof header,
             "{\"a.weight\":{\"dtype\":\"F8_E4M3\",\"shape\":[129,257],\"data_offsets\":[0,33153]}%s%s}",
             *scale ? "," : "", scale);
    open_tensors(header, 33153 + scale_bytes);
    return dk_checkpoint_get_weight(ck, "a.weight", 129, 257, w, s, &err);
}

Test(checkpoint, weight_with_scales)
{
    const struct dk_tensor *w, *s;

    cr_expect_eq(weight_get(TENSOR("a.weight_scale_inv", "BF16", "[2,3]", 33153, 33165), 12, &w, &s), 0, "%s",
                 err.text);
    cr_expect_str_eq(s->name, "a.weight_scale_inv");
    cr_expect_eq(w->type, DK_F8_E4M3);
    cr_expect_eq(weight_get(TENSOR("a.weight_scale_inv", "F32", "[2,3]", 33153, 33177), 24, &w, &s), 0, "%s", err.text);
}

Test(checkpoint, weight_without_good_scales)
{
    const struct dk_tensor *w, *s;

    cr_expect_eq(weight_get("", 0, &w, &s), -ENOENT);
    expect_words(err.text, "scales|'a.weight'|'a.weight_scale_inv'");
    cr_expect_null(w);
    cr_expect_null(s);
    cr_expect_eq(weight_get(TENSOR("a.weight_scale_inv", "BF16", "[3,2]", 33153, 33165), 12, &w, &s), -EINVAL);
    expect_words(err.text, "'a.weight_scale_inv'|[3, 2]|[2, 3]");
    cr_expect_null(w);
    cr_expect_eq(weight_get(TENSOR("a.weight_scale_inv", "BF16", "[1]", 33153, 33155), 2, &w, &s), -EINVAL);
    expect_words(err.text, "[1]|[2, 3]");
    cr_expect_eq(weight_get(TENSOR("a.weight_scale_inv", "F16", "[2,3]", 33153, 33165), 12, &w, &s), -EINVAL);
    expect_words(err.text, "F16|F32 or BF16");
    cr_expect_eq(weight_get(TENSOR("a.weight_scale_inv", "F8_E8M0", "[2,3]", 33153, 33159), 6, &w, &s), -ENOTSUP);
    expect_words(err.text, "F8_E8M0|F32 or BF16");
}

Test(checkpoint, weight_that_is_not_quantised)
{
    const struct dk_tensor *w, *s = (const void *)1;

    open_tensors("{" TENSOR("a.weight", "BF16", "[2,3]", 0, 12) "}", 12);
    cr_expect_eq(dk_checkpoint_get_weight(ck, "a.weight", 2, 3, &w, &s, &err), 0, "%s", err.text);
    cr_expect_null(s);
    cr_expect_eq(dk_checkpoint_get_weight(ck, "b.weight", 2, 3, &w, &s, &err), -ENOENT);
    expect_words(err.text, "'b.weight'");
}

static void name_append(void *ctx, const struct dk_tensor *t)
{
    strcat(ctx, t->name);
}

Test(checkpoint, unused)
{
    const struct dk_tensor *t;
    char names[16] = "";

    open_tensors("{" TENSOR("d", "F32", "[1]", 0, 4) "," TENSOR("b", "F32", "[1]", 4, 8) "," TENSOR(
                     "a", "F32", "[1]", 8, 12) "," TENSOR("c", "I64", "[1]", 12, 20) "}",
                 20);
    dk_checkpoint_find(ck, "b");
    dk_checkpoint_unused(ck, name_append, names);
    cr_expect_str_eq(names, "acd");
    names[0] = 0;
    cr_expect_eq(dk_checkpoint_get(ck, "d", 1, 0, 0, &t, &err), 0);
    dk_checkpoint_unused(ck, name_append, names);
    cr_expect_str_eq(names, "ac");
}

static uint64_t id_now(void)
{
    cr_assert_eq(reopen(folder.path), 0, "%s", err.text);
    cr_assert_neq(dk_checkpoint_id(ck), 0);
    return dk_checkpoint_id(ck);
}

Test(checkpoint, id)
{
    uint64_t first;

    two_shards(INDEX("\"a\":\"one.safetensors\",\"b\":\"two.safetensors\""));
    first = id_now();
    cr_expect_eq(id_now(), first);
    folder_text(&folder, "config.json", "{ }");
    cr_expect_neq(id_now(), first, "a longer config.json");
    folder_text(&folder, "config.json", "[]");
    cr_expect_neq(id_now(), first, "another config.json of the same length");
    folder_text(&folder, "config.json", "{}");
    cr_expect_eq(id_now(), first);
    folder_text(&folder, "generation_config.json", "{}");
    cr_expect_eq(id_now(), first, "generation_config.json does not name a model");
    folder_safetensors(&folder, "two.safetensors", "{" TENSOR("b", "I32", "[1]", 0, 4) "}", 4);
    cr_expect_neq(id_now(), first, "another type");
    folder_safetensors(&folder, "two.safetensors", "{" TENSOR("b", "F32", "[2]", 0, 8) "}", 8);
    cr_expect_neq(id_now(), first, "another shape");
}

Test(checkpoint, sixty_thousand_tensors)
{
    const uint32_t count = 60000;
    size_t room = count * 96, n = 0;
    char *header = malloc(room), name[64];

    n += (size_t)snprintf(header + n, room - n, "{");
    for (uint32_t i = 0; i < count; i++)
        n += (size_t)snprintf(header + n, room - n,
                              "%s\"layers.%u.weight\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[%u,%u]}",
                              i ? "," : "", i, 4 * i, 4 * i + 4);
    snprintf(header + n, room - n, "}");
    open_tensors(header, (size_t)count * 4);
    free(header);
    cr_assert_eq(dk_checkpoint_tensor_count(ck), count);
    for (uint32_t i = 0; i < count; i++) {
        const struct dk_tensor *t;

        snprintf(name, sizeof name, "layers.%u.weight", i);
        t = dk_checkpoint_find(ck, name);
        cr_assert(t && !strcmp(t->name, name), "%s", name);
        cr_assert_eq(t->data[0], (uint8_t)(4 * i * 7 + 3), "%s", name);
    }
}
