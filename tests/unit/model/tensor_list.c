/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor_list.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/checkpoint.h"

static struct tensor_item *item_new(struct tensor_list *l)
{
    l->items = realloc(l->items, (l->count + 1) * sizeof *l->items);
    cr_assert(l->items);
    memset(&l->items[l->count], 0, sizeof *l->items);
    return &l->items[l->count++];
}

void tensor_list_begin(struct tensor_list *l, const char *config)
{
    memset(l, 0, sizeof *l);
    l->config = strdup(config);
}

static char *text_read(const char *path)
{
    json_t *root = json_load_file(path, 0, NULL);
    char *text = json_dumps(root, 0);

    cr_assert(text, "%s", path);
    json_decref(root);
    return text;
}

void tensor_list_of(struct tensor_list *l, const char *fixture)
{
    struct dk_checkpoint *ck;
    struct dk_err err = {0};
    char path[512], *config;

    snprintf(path, sizeof path, FIXTURES "/%s/config.json", fixture);
    config = text_read(path);
    tensor_list_begin(l, config);
    free(config);
    snprintf(path, sizeof path, FIXTURES "/%s", fixture);
    cr_assert_eq(dk_checkpoint_open(path, &ck, &err), 0, "%s", err.text);
    for (uint32_t i = 0; i < dk_checkpoint_tensor_count(ck); i++) {
        const struct dk_tensor *t = dk_checkpoint_tensor(ck, i);
        struct tensor_item *item;

        if (t->type == DK_DTYPE_COUNT)
            continue;
        item = item_new(l);
        snprintf(item->name, sizeof item->name, "%s", t->name);
        snprintf(item->dtype, sizeof item->dtype, "%s", dk_dtype_name(t->type));
        item->rank = t->rank;
        memcpy(item->shape, t->shape, sizeof item->shape);
    }
    dk_checkpoint_close(ck);
}

void tensor_list_end(struct tensor_list *l)
{
    free(l->items);
    free(l->config);
    memset(l, 0, sizeof *l);
}

void tensor_list_add(struct tensor_list *l, const char *name, const char *dtype, uint64_t rows, uint64_t cols)
{
    struct tensor_item *item = item_new(l);

    snprintf(item->name, sizeof item->name, "%s", name);
    snprintf(item->dtype, sizeof item->dtype, "%s", dtype);
    item->rank = cols ? 2 : 1;
    item->shape[0] = rows;
    item->shape[1] = cols;
}

static struct tensor_item *item_find(struct tensor_list *l, const char *name)
{
    for (size_t i = 0; i < l->count; i++)
        if (!strcmp(l->items[i].name, name))
            return &l->items[i];
    return NULL;
}

struct tensor_item *tensor_list_get(struct tensor_list *l, const char *name)
{
    struct tensor_item *item = item_find(l, name);

    cr_assert(item, "there is no %s", name);
    return item;
}

void tensor_list_drop(struct tensor_list *l, const char *name)
{
    struct tensor_item *item = tensor_list_get(l, name);

    *item = l->items[--l->count];
}

void tensor_list_move(struct tensor_list *l, const char *from, const char *to)
{
    char name[sizeof l->items->name];

    for (size_t i = 0; i < l->count; i++)
        if (!strncmp(l->items[i].name, from, strlen(from))) {
            cr_assert_lt(snprintf(name, sizeof name, "%s%s", to, l->items[i].name + strlen(from)), (int)sizeof name);
            memcpy(l->items[i].name, name, sizeof name);
        }
}

void tensor_list_retype(struct tensor_list *l, const char *part, const char *dtype)
{
    for (size_t i = 0; i < l->count; i++)
        if (strstr(l->items[i].name, part) && strcmp(l->items[i].dtype, "F8_E4M3"))
            snprintf(l->items[i].dtype, sizeof l->items[i].dtype, "%s", dtype);
}

/* Takes away all tensors of the experts of a layer; the shape of one of them is returned. */
static struct tensor_item experts_take(struct tensor_list *l, const char *prefix, const char *part)
{
    struct tensor_item one = {0};
    size_t kept = 0;

    for (size_t i = 0; i < l->count; i++) {
        if (strncmp(l->items[i].name, prefix, strlen(prefix)) || !strstr(l->items[i].name, part))
            l->items[kept++] = l->items[i];
        else if (!strstr(l->items[i].name, "_scale_inv"))
            one = l->items[i];
    }
    l->count = kept;
    cr_assert_eq(one.rank, 2, "%s: no %s", prefix, part);
    return one;
}

static void fused_add(struct tensor_list *l, const char *prefix, const char *part, uint64_t experts, uint64_t rows,
                      uint64_t cols)
{
    struct tensor_item *item;
    char name[256];

    snprintf(name, sizeof name, "%s%s", prefix, part);
    tensor_list_add(l, name, "BF16", experts, rows);
    item = tensor_list_get(l, name);
    item->rank = 3;
    item->shape[2] = cols;
}

void tensor_list_fuse(struct tensor_list *l, uint32_t layers, uint32_t experts)
{
    for (uint32_t i = 0; i < layers; i++) {
        struct tensor_item gate, down;
        char prefix[96];

        snprintf(prefix, sizeof prefix, "model.language_model.layers.%u.mlp.experts.", i);
        gate = experts_take(l, prefix, "gate_proj");
        experts_take(l, prefix, "up_proj");
        down = experts_take(l, prefix, "down_proj");
        fused_add(l, prefix, "gate_up_proj", experts, 2 * gate.shape[0], gate.shape[1]);
        fused_add(l, prefix, "down_proj", experts, down.shape[0], down.shape[1]);
    }
}

static uint64_t item_bytes(const struct tensor_item *item)
{
    uint64_t n = !strcmp(item->dtype, "F32") ? 4 : !strcmp(item->dtype, "F8_E4M3") ? 1 : 2;

    for (uint32_t i = 0; i < item->rank; i++)
        n *= item->shape[i];
    return n;
}

/* The header of one file. *data_bytes: what follows it. */
static char *header_make(const struct tensor_list *l, unsigned file, uint64_t *data_bytes)
{
    json_t *root = json_object();
    uint64_t at = 0;
    char *text;

    for (size_t i = 0; i < l->count; i++) {
        const struct tensor_item *item = &l->items[i];
        json_t *shape = json_array();

        for (uint32_t k = 0; k < item->rank; k++)
            json_array_append_new(shape, json_integer((json_int_t)item->shape[k]));
        if (item->file == file)
            json_object_set_new(root, item->name,
                                json_pack("{s:s,s:O,s:[I,I]}", "dtype", item->dtype, "shape", shape, "data_offsets",
                                          (json_int_t)at, (json_int_t)(at + item_bytes(item))));
        if (item->file == file)
            at += item_bytes(item);
        json_decref(shape);
    }
    text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    *data_bytes = at;
    return text;
}

static void file_write(const struct tensor_list *l, const struct model_folder *f, const char *name, unsigned file)
{
    uint64_t data_bytes;
    size_t bytes;
    char *header = header_make(l, file, &data_bytes), path[1024];
    uint8_t *start = safetensors_make(header, 0, &bytes);

    folder_write(f, name, start, bytes);
    snprintf(path, sizeof path, "%s/%s", f->path, name);
    cr_assert_eq(truncate(path, (off_t)(bytes + data_bytes)), 0);
    free(start);
    free(header);
}

void tensor_list_write(const struct tensor_list *l, const struct model_folder *f, const char *const *files,
                       unsigned file_count, int index)
{
    json_t *map = json_object(), *root;
    char *text;

    for (size_t i = 0; i < l->count; i++)
        json_object_set_new(map, l->items[i].name, json_string(files[l->items[i].file]));
    for (unsigned i = 0; i < file_count; i++)
        file_write(l, f, files[i], i);
    root = json_pack("{s:{s:i},s:o}", "metadata", "total_size", 0, "weight_map", map);
    text = json_dumps(root, 0);
    if (index)
        folder_text(f, "model.safetensors.index.json", text);
    folder_text(f, "config.json", l->config);
    free(text);
    json_decref(root);
}
