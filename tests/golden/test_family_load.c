/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint that lacks a tensor is refused with that tensor's name, whoever needs it; a whole one has nothing
 * left. */
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

/* Loads the file with each tensor renamed in turn. */
static void rename_each(const char *model, const char *file)
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
    snprintf(path, sizeof(path), FIXTURES "/%s/%s", model, file);
    data = golden_bytes(path, &bytes);
    cr_assert_eq(dk_checkpoint_from_memory(data, bytes, path, &all, &err), 0, "%s", err.text);
    count = dk_checkpoint_tensor_count(all);
    for (uint32_t i = 0; i < count; i++) {
        char quoted[160];
        const char *name = dk_checkpoint_tensor(all, i)->name;
        struct dk_family_model *m;
        struct dk_checkpoint *ck;
        uint8_t *at;
        int rc;

        snprintf(quoted, sizeof(quoted), "\"%s\"", name);
        at = memmem(data, bytes, quoted, strlen(quoted));
        cr_assert_not_null(at);
        at[1] = 'x';
        cr_assert_eq(dk_checkpoint_from_memory(data, bytes, path, &ck, &err), 0, "%s", err.text);
        rc = dk_family_find(config.family)->load(&dk_backend_cpu, b, &config, ck, 4, 4, &m, &err);
        cr_expect_eq(rc, -ENOENT, "%s: without %s: %d", model, name, rc);
        cr_expect_null(m);
        cr_expect_not_null(strstr(err.text, name), "without %s: %s", name, err.text);
        refused += rc == -ENOENT;
        dk_checkpoint_close(ck);
        at[1] = 'm';
    }
    printf("%s: each of %u tensors was missed by name (%u)\n", model, count, refused);
    dk_checkpoint_close(all);
    dk_backend_cpu.close(b);
    free(data);
}

Test(family_load, a_missing_tensor_is_named)
{
    rename_each("qwen3-tiny", "model.safetensors");
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
