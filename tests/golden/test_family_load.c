/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint that lacks a tensor is refused with that tensor's name, whoever needs it; of a whole one every tensor is
 * used. */
#include "golden_file.h"
#include "local_model.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void count_unused(void *ctx, const struct dk_tensor *t)
{
    ++*(uint32_t *)ctx;
    printf("not used: %s\n", t->name);
}

static struct dk_backend *open_backend(const struct dk_model_config *c)
{
    const struct dk_backend_config config = {
        .isa = "auto", .threads = 1, .rows_max = 4, .context = 16, .scratch_floats_per_row = dk_family_scratch(c)};
    struct dk_err err = {0};
    struct dk_backend *b;

    cr_assert_eq(dk_backend_cpu.open(&config, &b, &err), 0);
    return b;
}

Test(family_load, every_family_is_there)
{
    for (int f = 0; f < DK_FAMILY_COUNT; f++) {
        const struct dk_family_ops *ops = dk_family_find((enum dk_family)f);

        cr_assert_not_null(ops);
        cr_expect_eq(ops->family, (enum dk_family)f);
    }
    cr_expect_null(dk_family_find(DK_FAMILY_COUNT));
}

Test(family_load, whole_checkpoints_have_nothing_left)
{
    static const char *const models[] = {"qwen3-tiny", "qwen3-fp8-tiny", "qwen3-moe-fp8-tiny"};

    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        struct dk_model_config config;
        struct dk_family_model *m;
        struct dk_checkpoint *ck;
        struct dk_backend *b;
        struct dk_err err = {0};
        uint32_t unused = 0;
        char path[512];

        snprintf(path, sizeof(path), FIXTURES "/%s", models[i]);
        cr_assert_eq(dk_model_config_load(path, &config, &err), 0, "%s", err.text);
        cr_assert_eq(dk_checkpoint_open(path, &ck, &err), 0, "%s", err.text);
        b = open_backend(&config);
        cr_assert_eq(dk_family_find(config.family)->load(&dk_backend_cpu, b, &config, ck, 4, 4, &m, &err), 0, "%s",
                     err.text);
        dk_checkpoint_unused(ck, count_unused, &unused);
        cr_expect_eq(unused, 0, "%s", models[i]);
        dk_family_find(config.family)->close(m);
        dk_backend_cpu.close(b);
        dk_checkpoint_close(ck);
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
static uint8_t *whole_model(const char *model, uint32_t files, size_t *bytes)
{
    json_t *header = json_object();
    uint8_t *data = NULL, *out;
    size_t data_bytes = 0;
    uint64_t header_bytes;
    char path[512], *text;

    for (uint32_t i = 0; i < files; i++) {
        if (files == 1)
            snprintf(path, sizeof(path), FIXTURES "/%s/model.safetensors", model);
        else
            snprintf(path, sizeof(path), FIXTURES "/%s/model-%05u-of-%05u.safetensors", model, i + 1, files);
        append_file(path, header, &data, &data_bytes);
    }
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

/* Loads the model with each tensor renamed in turn. */
static void rename_each(const char *model, uint32_t files)
{
    struct dk_model_config config;
    struct dk_checkpoint *all;
    struct dk_backend *b;
    struct dk_err err = {0};
    uint32_t count, refused = 0;
    size_t bytes;
    uint8_t *data;
    char path[512];

    snprintf(path, sizeof(path), FIXTURES "/%s", model);
    cr_assert_eq(dk_model_config_load(path, &config, &err), 0, "%s", err.text);
    b = open_backend(&config);
    data = whole_model(model, files, &bytes);
    cr_assert_eq(dk_checkpoint_from_memory(data, bytes, path, &all, &err), 0, "%s", err.text);
    count = dk_checkpoint_tensor_count(all);
    for (uint32_t i = 0; i < count; i++) {
        char quoted[160];
        const char *name = dk_checkpoint_tensor(all, i)->name;
        struct dk_family_model *m;
        struct dk_checkpoint *ck;
        uint8_t first;
        uint8_t *at;
        int rc;

        snprintf(quoted, sizeof(quoted), "\"%s\"", name);
        at = memmem(data, bytes, quoted, strlen(quoted));
        cr_assert_not_null(at);
        first = at[1];
        at[1] = 'x';
        cr_assert_eq(dk_checkpoint_from_memory(data, bytes, path, &ck, &err), 0, "%s", err.text);
        rc = dk_family_find(config.family)->load(&dk_backend_cpu, b, &config, ck, 4, 4, &m, &err);
        cr_expect_eq(rc, -ENOENT, "%s: without %s: %d", model, name, rc);
        cr_expect_null(m);
        cr_expect_not_null(strstr(err.text, name), "without %s: %s", name, err.text);
        refused += rc == -ENOENT;
        dk_checkpoint_close(ck);
        at[1] = first;
    }
    printf("%s: each of %u tensors was missed by name (%u)\n", model, count, refused);
    dk_checkpoint_close(all);
    dk_backend_cpu.close(b);
    free(data);
}

Test(family_load, a_missing_tensor_is_named)
{
    rename_each("qwen3-tiny", 1);
    rename_each("qwen3-fp8-tiny", 2);
    rename_each("qwen3-moe-fp8-tiny", 2);
}

Test(family_load, a_small_scratch_is_refused)
{
    const struct dk_backend_config small = {
        .isa = "auto", .threads = 1, .rows_max = 64, .context = 16, .scratch_floats_per_row = 200};
    struct dk_model_config config;
    struct dk_family_model *m;
    struct dk_checkpoint *ck;
    struct dk_backend *b;
    struct dk_err err = {0};

    cr_assert_eq(dk_model_config_load(FIXTURES "/qwen3-tiny", &config, &err), 0);
    cr_assert_eq(dk_checkpoint_open(FIXTURES "/qwen3-tiny", &ck, &err), 0);
    cr_assert_eq(dk_backend_cpu.open(&small, &b, &err), 0);
    cr_expect_eq(dk_family_find(config.family)->load(&dk_backend_cpu, b, &config, ck, 4, 4, &m, &err), -ENOSPC);
    cr_expect_null(m);
    dk_backend_cpu.close(b);
    dk_checkpoint_close(ck);
}
