/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint that lacks a tensor is refused with that tensor's name, whoever needs it; of a whole one every tensor is
 * used. */
#include "attention-worker/backend/cpu/backend_cpu.h"
#include "golden_file.h"
#include "golden_models.h"
#include "model/model_tensors.h"

#include <criterion/criterion.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A sanitizer's build is some ten times slower: there only every so manieth tensor is renamed. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STRIDE 17u
#else
#define STRIDE 1u
#endif

/* Tensors that nobody asked for, of which parts that are not run are none. */
struct unused {
    const struct dk_model_config *config;
    uint32_t count, skipped;
};

static void count_unused(void *ctx, const struct dk_tensor *t)
{
    struct unused *u = ctx;

    if (dk_model_tensor_skipped(u->config, t->name)) {
        u->skipped++;
    } else {
        u->count++;
        printf("not used: %s\n", t->name);
    }
}

static struct dk_family_needs needs_of(const struct dk_model_config *c, const struct dk_backend_config *b,
                                       uint32_t page_tokens, bool full_attention)
{
    const struct dk_family_load load = {
        .ops = &dk_backend_cpu, .config = c, .page_tokens = page_tokens, .full_attention = full_attention};
    struct dk_family_needs needs;

    dk_family_needs(&load, b, &needs);
    return needs;
}

static struct dk_backend *open_backend(const struct dk_model_config *c, bool full_attention)
{
    struct dk_backend_config config = {.isa = "auto", .threads = 1, .rows_max = 4, .context = 16};
    struct dk_err err = {0};
    struct dk_backend *b;

    config.scratch_floats_per_row = needs_of(c, &config, 4, full_attention).scratch_floats_per_row;
    cr_assert_eq(dk_backend_cpu.open(&config, &b, &err), 0);
    return b;
}

static int load(struct dk_backend *b, const struct dk_model_config *c, struct dk_checkpoint *ck, bool full_attention,
                struct dk_family_model **m, struct dk_err *err)
{
    return dk_family_find(c->family)->load(&(struct dk_family_load){.ops = &dk_backend_cpu,
                                                                    .backend = b,
                                                                    .config = c,
                                                                    .checkpoint = ck,
                                                                    .page_tokens = 4,
                                                                    .pages = 4,
                                                                    .state_slots = 2,
                                                                    .full_attention = full_attention},
                                           m, err);
}

Test(family_load, every_family_is_there)
{
    for (int f = 0; f < DK_FAMILY_COUNT; f++)
        cr_expect_not_null(dk_family_find((enum dk_family)f), "%s", dk_family_name((enum dk_family)f));
    cr_expect_null(dk_family_find(DK_FAMILY_COUNT));
}

static void nothing_left(const char *model, bool full_attention)
{
    struct dk_model_config config;
    struct unused unused = {.config = &config};
    struct dk_family_model *m;
    struct dk_checkpoint *ck;
    struct dk_backend *b;
    struct dk_err err = {0};
    char path[512];

    golden_path(path, sizeof(path), model, "");
    cr_assert_eq(dk_model_config_load(path, &config, &err), 0, "%s", err.text);
    cr_assert_eq(dk_checkpoint_open(path, &ck, &err), 0, "%s", err.text);
    b = open_backend(&config, full_attention);
    cr_assert_eq(load(b, &config, ck, full_attention, &m, &err), 0, "%s", err.text);
    dk_checkpoint_unused(ck, count_unused, &unused);
    cr_expect_eq(unused.count, 0, "%s", model);
    cr_expect_eq(unused.skipped > 0, config.mtp_layers > 0, "%s: %u tensors are skipped", model, unused.skipped);
    dk_family_find(config.family)->close(m);
    dk_backend_cpu.close(b);
    dk_checkpoint_close(ck);
}

#define NOTHING_LEFT(id, model, full)                           \
    Test(family_load, whole_checkpoints_have_nothing_left_##id) \
    {                                                           \
        nothing_left(model, full);                              \
    }
GOLDEN_MODES(NOTHING_LEFT)

/* Sizes by hand, from the dimensions of the folders' config.json, and how the CPU keeps them: rows_max 4, context 40
 * and 2 threads. */
Test(family_load, needs_are_those_of_the_dimensions)
{
    /* Scores of 8 queries for each thread; of 128 heads, with the transposed queries of 64 blocks of 16 heads; position
     * and count of picks. */
    enum { KV = 2 * 8 * 40, LATENTS = 64 * 16 * (64 + 32) + 128 * (48 + 16), PICKS = 4 * (1 + 24) };
    enum { STATES = 4 * (2 * 3 + 4 * 2) };
    static const struct {
        const char *model;
        bool full_attention;
        uint64_t position, state, fixed;
    } expected[] = {
        {"qwen3-tiny", false, 4 * 3 * 2 * 2 * 32, 0, 4 * KV},
        /* 2 layers of keys and values, 2 heads of 64; 6 with q | k | v = 64 + 64 + 128 channels and 4 heads of 32 x 32
         */
        {"qwen3_5-fp8-tiny", false, 4 * 2 * 2 * 2 * 64, 4 * 6 * (3 * 256 + 4 * 32 * 32), 4 * (KV + STATES)},
        {"deepseek_v3-fp8-tiny", false, 4 * 4 * (64 + 32), 0, 4 * LATENTS},
        {"deepseek_v32-fp8-tiny", false, 4 * 4 * (64 + 32 + 64), 0, 4 * (LATENTS + PICKS)},
        {"deepseek_v32-fp8-tiny", true, 4 * 4 * (64 + 32), 0, 4 * LATENTS},
    };
    const struct dk_backend_config backend = {.threads = 2, .rows_max = 4, .context = 40};

    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        struct dk_model_config config;
        struct dk_family_needs needs;
        struct dk_err err = {0};
        uint64_t scratch;
        char path[512];

        golden_path(path, sizeof(path), expected[i].model, "");
        cr_assert_eq(dk_model_config_load(path, &config, &err), 0, "%s", err.text);
        needs = needs_of(&config, &backend, 16, expected[i].full_attention);
        scratch = 4 * (4 * (uint64_t)needs.scratch_floats_per_row + 48 * 16);
        cr_expect_eq(needs.fixed_bytes, scratch + expected[i].fixed, "%s: %llu", expected[i].model,
                     (unsigned long long)(needs.fixed_bytes - scratch));
        cr_expect_eq(needs.page_bytes, 16 * expected[i].position, "%s: %llu", expected[i].model,
                     (unsigned long long)needs.page_bytes);
        cr_expect_eq(needs.state_bytes, expected[i].state, "%s: %llu", expected[i].model,
                     (unsigned long long)needs.state_bytes);
    }
}

/* Appends a checkpoint file to a growing one: its header's tensors with their places moved, and its data. */
static void append_file(const char *path, json_t *header, uint8_t **data, size_t *data_bytes)
{
    size_t bytes;
    uint8_t *file = golden_bytes(path, &bytes);
    json_t *own, *tensor;
    uint64_t header_bytes;
    const char *name;

    memcpy(&header_bytes, file, 8);
    cr_assert_lt(header_bytes, bytes);
    own = json_loadb((const char *)file + 8, header_bytes, 0, NULL);
    cr_assert_not_null(own);
    json_object_del(own, "__metadata__");
    json_object_foreach(own, name, tensor)
    {
        json_t *offsets = json_object_get(tensor, "data_offsets");

        for (size_t i = 0; i < 2; i++)
            json_array_set_new(offsets, i,
                               json_integer(json_integer_value(json_array_get(offsets, i)) + (json_int_t)*data_bytes));
        json_object_set(header, name, tensor);
    }
    json_decref(own);
    bytes -= 8 + header_bytes;
    *data = realloc(*data, *data_bytes + bytes);
    memcpy(*data + *data_bytes, file + 8 + header_bytes, bytes);
    *data_bytes += bytes;
    free(file);
}

/* All files of a model as the bytes of one. */
static uint8_t *whole_model(const char *model, size_t *bytes)
{
    json_t *header = json_object();
    uint8_t *data = NULL, *out;
    size_t data_bytes = 0;
    uint64_t header_bytes;
    char path[512], *text;
    glob_t files;

    golden_path(path, sizeof(path), model, "*.safetensors");
    cr_assert_eq(glob(path, 0, NULL, &files), 0, "%s", path);
    for (size_t i = 0; i < files.gl_pathc; i++)
        append_file(files.gl_pathv[i], header, &data, &data_bytes);
    globfree(&files);
    text = json_dumps(header, JSON_COMPACT);
    header_bytes = strlen(text);
    *bytes = 8 + header_bytes + data_bytes;
    out = malloc(*bytes);
    memcpy(out, &header_bytes, 8);
    memcpy(out + 8, text, header_bytes);
    memcpy(out + 8 + header_bytes, data, data_bytes);
    free(text);
    free(data);
    json_decref(header);
    return out;
}

/* The name that a plain language model's tensor would have. */
static const char *plain_part(const char *name)
{
    static const char prefix[] = "model.language_model.";

    return strncmp(name, prefix, strlen(prefix)) == 0 ? name + strlen(prefix) : name;
}

/* One loading with a tensor renamed: refused by its name, unless it is of a part that is not run. */
static bool is_missed(const char *model, struct dk_backend *b, const struct dk_model_config *config,
                      struct dk_checkpoint *ck, const char *name)
{
    struct dk_family_model *m;
    struct dk_err err = {0};
    int rc = load(b, config, ck, false, &m, &err);

    if (dk_model_tensor_skipped(config, name)) {
        cr_expect_eq(rc, 0, "%s: without %s: %s", model, name, err.text);
        dk_family_find(config->family)->close(m);
        return false;
    }
    cr_expect_eq(rc, -ENOENT, "%s: without %s: %d", model, name, rc);
    cr_expect_null(m);
    cr_expect_not_null(strstr(err.text, plain_part(name)), "without %s: %s", name, err.text);
    return true;
}

/* Loads the model with each tensor renamed in turn. */
static void rename_each(const char *model)
{
    struct dk_model_config config;
    struct dk_checkpoint *all;
    struct dk_backend *b;
    struct dk_err err = {0};
    uint32_t count, missed = 0;
    size_t bytes;
    uint8_t *data;
    char path[512];

    golden_path(path, sizeof(path), model, "");
    cr_assert_eq(dk_model_config_load(path, &config, &err), 0, "%s", err.text);
    b = open_backend(&config, false);
    data = whole_model(model, &bytes);
    cr_assert_eq(dk_checkpoint_from_memory(data, bytes, path, &all, &err), 0, "%s", err.text);
    count = dk_checkpoint_tensor_count(all);
    for (uint32_t i = 0; i < count; i += STRIDE) {
        const char *name = dk_checkpoint_tensor(all, i)->name;
        struct dk_checkpoint *ck;
        char quoted[160];
        uint8_t first, *at;

        snprintf(quoted, sizeof(quoted), "\"%s\"", name);
        at = memmem(data, bytes, quoted, strlen(quoted));
        cr_assert_not_null(at);
        first = at[1];
        at[1] = 'x';
        cr_assert_eq(dk_checkpoint_from_memory(data, bytes, path, &ck, &err), 0, "%s", err.text);
        missed += is_missed(model, b, &config, ck, name);
        dk_checkpoint_close(ck);
        at[1] = first;
    }
    printf("%s: of %u tensors, each of %u that are run was missed by name (stride %u)\n", model, count, missed, STRIDE);
    dk_checkpoint_close(all);
    dk_backend_cpu.close(b);
    free(data);
}

#define RENAME_EACH(id, model, full)                  \
    Test(family_load, a_missing_tensor_is_named_##id) \
    {                                                 \
        rename_each(model);                           \
    }
GOLDEN_MODELS(RENAME_EACH)

/* The indexer's query [heads * dim], key [dim] and weights [heads], which a switched off one does not compute. */
Test(family_load, full_attention_has_no_scratch_for_the_indexer)
{
    const struct dk_backend_config backend = {.threads = 1, .rows_max = 4, .context = 16};
    struct dk_model_config config;
    struct dk_err err = {0};
    char path[512];

    golden_path(path, sizeof(path), "deepseek_v32-fp8-tiny", "");
    cr_assert_eq(dk_model_config_load(path, &config, &err), 0, "%s", err.text);
    cr_assert(config.index.heads > 0 && config.index.dim == 64);
    cr_expect_eq(needs_of(&config, &backend, 16, false).scratch_floats_per_row,
                 needs_of(&config, &backend, 16, true).scratch_floats_per_row + config.index.heads * 65 + 64);
}

static void small_scratch(const char *model)
{
    struct dk_backend_config config = {.isa = "auto", .threads = 1, .rows_max = 64, .context = 16};
    struct dk_model_config c;
    struct dk_family_model *m;
    struct dk_checkpoint *ck;
    struct dk_backend *b;
    struct dk_err err = {0};
    char path[512];

    golden_path(path, sizeof(path), model, "");
    cr_assert_eq(dk_model_config_load(path, &c, &err), 0);
    cr_assert_eq(dk_checkpoint_open(path, &ck, &err), 0);
    config.scratch_floats_per_row = needs_of(&c, &config, 4, false).scratch_floats_per_row - 20;
    cr_assert_eq(dk_backend_cpu.open(&config, &b, &err), 0);
    cr_expect_eq(load(b, &c, ck, false, &m, &err), -ENOSPC, "%s", model);
    cr_expect_null(m);
    dk_backend_cpu.close(b);
    dk_checkpoint_close(ck);
}

#define SMALL_SCRATCH(id, model, full)                 \
    Test(family_load, a_small_scratch_is_refused_##id) \
    {                                                  \
        small_scratch(model);                          \
    }
GOLDEN_MODELS(SMALL_SCRATCH)
