/* SPDX-License-Identifier: Apache-2.0 */
#include "model/checkpoint.h"

#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "model/file_read.h"
#include "model/safetensors.h"

#define INDEX_NAME       "model.safetensors.index.json"
#define SINGLE_NAME      "model.safetensors"
#define INDEX_BYTES_MAX  (256u << 20)
#define CONFIG_BYTES_MAX (16u << 20)
#define SCALE_BLOCK      128u

struct shard {
    char *path;
    void *map; /* NULL: the bytes belong to somebody else */
    size_t bytes;
    struct dk_st_file st;
};

struct dk_checkpoint {
    struct shard *shards; /* by name, rising */
    uint32_t shard_count;
    struct dk_st_entry **entries; /* by name, rising */
    uint32_t count;
    uint64_t id;
};

static int shard_map(struct shard *s, struct dk_err *err)
{
    struct stat st;
    int rc = 0, fd = open(s->path, O_RDONLY | O_CLOEXEC);

    if (fd < 0) {
        rc = -errno;
        if (rc == -ENOENT)
            return dk_err_set(err, rc, "%s: this weight file is missing; download it", s->path);
        return dk_err_set(err, rc, "%s: %s", s->path, strerror(-rc));
    }
    if (fstat(fd, &st) < 0) {
        rc = dk_err_set(err, -errno, "%s: %s", s->path, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        rc = dk_err_set(err, -EINVAL, "%s: not a file", s->path);
    } else if (st.st_size > 0) {
        s->bytes = (size_t)st.st_size;
        s->map = mmap(NULL, s->bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (s->map == MAP_FAILED) {
            s->map = NULL;
            rc = dk_err_set(err, -errno, "%s: cannot be mapped: %s", s->path, strerror(errno));
        }
    }
    close(fd); /* the mapping stays */
    return rc;
}

static int by_name(const void *a, const void *b)
{
    const struct dk_st_entry *x = *(struct dk_st_entry *const *)a, *y = *(struct dk_st_entry *const *)b;

    return strcmp(x->tensor.name, y->tensor.name);
}

/* Makes the one sorted list of all shards' tensors. */
static int entries_merge(struct dk_checkpoint *c, struct dk_err *err)
{
    uint64_t total = 0;

    for (uint32_t i = 0; i < c->shard_count; i++)
        total += c->shards[i].st.count;
    if (total > UINT32_MAX - 1)
        return dk_err_set(err, -EINVAL, "too many tensors");
    c->entries = calloc((size_t)total + 1, sizeof(struct dk_st_entry *));
    if (!c->entries)
        return dk_err_set(err, -ENOMEM, "no memory for the names of %" PRIu64 " tensors", total);
    for (uint32_t i = 0; i < c->shard_count; i++)
        for (uint32_t k = 0; k < c->shards[i].st.count; k++)
            c->entries[c->count++] = &c->shards[i].st.entries[k];
    qsort(c->entries, c->count, sizeof(struct dk_st_entry *), by_name);
    for (uint32_t i = 1; i < c->count; i++) {
        const struct dk_tensor *a = &c->entries[i - 1]->tensor, *b = &c->entries[i]->tensor;

        if (!strcmp(a->name, b->name))
            return dk_err_set(err, -EINVAL, "tensor '%s' is in two files: %s and %s", a->name, a->file, b->file);
    }
    return 0;
}

static void hash_u64(XXH3_state_t *h, uint64_t v)
{
    uint8_t bytes[8];

    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(v >> 8 * i);
    XXH3_64bits_update(h, bytes, sizeof bytes);
}

static int id_compute(struct dk_checkpoint *c, const char *config, size_t config_bytes, const uint8_t *memory)
{
    XXH3_state_t *h = XXH3_createState();

    if (!h)
        return -ENOMEM;
    XXH3_64bits_reset(h);
    hash_u64(h, config_bytes);
    XXH3_64bits_update(h, config, config_bytes);
    for (uint32_t i = 0; i < c->shard_count; i++) {
        const struct shard *s = &c->shards[i];

        hash_u64(h, s->bytes);
        XXH3_64bits_update(h, s->map ? s->map : memory, s->st.header_bytes);
    }
    c->id = XXH3_64bits_digest(h);
    if (c->id == 0)
        c->id = 1; /* 0 means "no model" in messages */
    XXH3_freeState(h);
    return 0;
}

/* Names in the index come from outside: they must stay in the folder. */
static bool file_name_fits(const char *name)
{
    size_t n = strlen(name);

    if (n == 0 || n > 255 || name[0] == '.' || strchr(name, '/') || strstr(name, ".."))
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
            return false;
    return true;
}

static int text_order(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int shards_alloc(struct dk_checkpoint *c, const char *dir, const char *const *names, uint32_t count,
                        struct dk_err *err)
{
    c->shards = calloc(count + 1u, sizeof *c->shards);
    if (!c->shards)
        return dk_err_set(err, -ENOMEM, "%s: no memory for %u files", dir, count);
    for (uint32_t i = 0; i < count; i++) {
        if (asprintf(&c->shards[i].path, "%s/%s", dir, names[i]) < 0) {
            c->shards[i].path = NULL;
            return dk_err_set(err, -ENOMEM, "%s: no memory for %u files", dir, count);
        }
        c->shard_count++;
    }
    return 0;
}

/* The distinct files of the weight_map, in rising order. */
static int shards_from_map(struct dk_checkpoint *c, const char *dir, json_t *map, struct dk_err *err)
{
    const char **names = calloc(json_object_size(map) + 1, sizeof *names);
    uint32_t n = 0, distinct = 0;
    const char *tensor;
    json_t *value;
    int rc = 0;

    if (!names)
        return dk_err_set(err, -ENOMEM, "%s/%s: no memory", dir, INDEX_NAME);
    json_object_foreach(map, tensor, value)
    {
        names[n] = json_string_value(value);
        if (!names[n] || !file_name_fits(names[n])) {
            rc = dk_err_set(err, -EINVAL, "%s/%s: the entry of '%.120s' is not the name of a file in this folder", dir,
                            INDEX_NAME, tensor);
            goto fail;
        }
        n++;
    }
    qsort(names, n, sizeof *names, text_order);
    for (uint32_t i = 0; i < n; i++)
        if (i == 0 || strcmp(names[i], names[i - 1]))
            names[distinct++] = names[i];
    rc = shards_alloc(c, dir, names, distinct, err);
fail:
    free(names);
    return rc;
}

/* Every tensor of the index must be in the file that the index says. */
static int map_check(struct dk_checkpoint *c, const char *dir, json_t *map, struct dk_err *err)
{
    const char *name;
    json_t *value;

    json_object_foreach(map, name, value)
    {
        struct dk_st_entry key = {.tensor.name = name}, *key_at = &key, **found;
        const char *file = json_string_value(value), *in;

        found = bsearch(&key_at, c->entries, c->count, sizeof(struct dk_st_entry *), by_name);
        in = found ? strrchr((*found)->tensor.file, '/') + 1 : NULL;
        if (!in)
            return dk_err_set(err, -EINVAL, "%s/%s: tensor '%s' should be in %s, but it is not", dir, INDEX_NAME, name,
                              file);
        if (strcmp(in, file))
            return dk_err_set(err, -EINVAL, "%s/%s: tensor '%s' should be in %s, but it is in %s", dir, INDEX_NAME,
                              name, file, in);
    }
    return 0;
}

/* There may be no index: then *root and *map are NULL. *map is borrowed from *root. */
static int index_read(const char *dir, json_t **root, json_t **map, struct dk_err *err)
{
    struct dk_err unread = {0};
    json_error_t e;
    size_t bytes;
    char *text;
    int rc;

    *root = *map = NULL;
    rc = dk_file_read(dir, INDEX_NAME, INDEX_BYTES_MAX, &text, &bytes, &unread);
    if (rc == -ENOENT)
        return 0;
    if (rc < 0)
        return dk_err_set(err, rc, "%s", unread.text);
    *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &e);
    free(text);
    if (!*root)
        return dk_err_set(err, -EINVAL, "%s/%s: damaged: %s at line %d", dir, INDEX_NAME, e.text, e.line);
    *map = json_object_get(*root, "weight_map");
    if (!json_is_object(*map) || json_object_size(*map) == 0)
        return dk_err_set(err, -EINVAL, "%s/%s: there is no weight_map in it", dir, INDEX_NAME);
    return 0;
}

static int shards_find(struct dk_checkpoint *c, const char *dir, json_t **root, json_t **map, struct dk_err *err)
{
    static const char *const single[] = {SINGLE_NAME};
    char path[4096];
    int rc = index_read(dir, root, map, err);

    if (rc < 0)
        return rc;
    if (*map)
        return shards_from_map(c, dir, *map, err);
    if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, SINGLE_NAME) >= sizeof path)
        return dk_err_set(err, -ENAMETOOLONG, "%s: the path is too long", dir);
    if (access(path, F_OK) < 0)
        return dk_err_set(err, -ENOENT,
                          "%s: no weights: there is neither %s nor %s (weights in other formats are not read)", dir,
                          INDEX_NAME, SINGLE_NAME);
    return shards_alloc(c, dir, single, 1, err);
}

int dk_checkpoint_open(const char *dir, struct dk_checkpoint **out, struct dk_err *err)
{
    struct dk_checkpoint *c = calloc(1, sizeof *c);
    json_t *root = NULL, *map = NULL;
    size_t config_bytes = 0;
    char *config = NULL;
    struct stat st;
    int rc;

    *out = NULL;
    if (!c)
        return dk_err_set(err, -ENOMEM, "%s: no memory", dir);
    if (stat(dir, &st) < 0) {
        rc = dk_err_set(err, -errno, "%s: %s", dir, strerror(errno));
        goto fail;
    }
    if (!S_ISDIR(st.st_mode)) {
        rc = dk_err_set(err, -ENOTDIR, "%s: not a folder; the folder with config.json and the weights is wanted", dir);
        goto fail;
    }
    rc = dk_file_read(dir, "config.json", CONFIG_BYTES_MAX, &config, &config_bytes, err);
    if (rc < 0)
        goto fail;
    rc = shards_find(c, dir, &root, &map, err);
    for (uint32_t i = 0; rc == 0 && i < c->shard_count; i++) {
        struct shard *s = &c->shards[i];

        rc = shard_map(s, err);
        if (rc == 0)
            rc = dk_st_parse(s->map, s->bytes, s->path, &s->st, err);
    }
    if (rc == 0)
        rc = entries_merge(c, err);
    if (rc == 0 && map)
        rc = map_check(c, dir, map, err);
    if (rc == 0 && id_compute(c, config, config_bytes, NULL) < 0)
        rc = dk_err_set(err, -ENOMEM, "%s: no memory", dir);
fail:
    json_decref(root);
    free(config);
    if (rc < 0) {
        dk_checkpoint_close(c);
        return rc;
    }
    *out = c;
    return 0;
}

int dk_checkpoint_from_memory(const uint8_t *data, size_t bytes, const char *where, struct dk_checkpoint **out,
                              struct dk_err *err)
{
    struct dk_checkpoint *c = calloc(1, sizeof *c);
    int rc = -ENOMEM;

    *out = NULL;
    if (!c || !(c->shards = calloc(1, sizeof *c->shards)) || !(c->shards[0].path = strdup(where))) {
        dk_err_set(err, rc, "%s: no memory", where);
        goto fail;
    }
    c->shard_count = 1;
    c->shards[0].bytes = bytes;
    rc = dk_st_parse(data, bytes, c->shards[0].path, &c->shards[0].st, err);
    if (rc == 0)
        rc = entries_merge(c, err);
    if (rc == 0 && (rc = id_compute(c, "", 0, data)) < 0)
        dk_err_set(err, rc, "%s: no memory", where);
    if (rc < 0)
        goto fail;
    *out = c;
    return 0;
fail:
    dk_checkpoint_close(c);
    return rc;
}

void dk_checkpoint_close(struct dk_checkpoint *c)
{
    if (!c)
        return;
    for (uint32_t i = 0; c->shards && i < c->shard_count; i++) {
        dk_st_fini(&c->shards[i].st);
        if (c->shards[i].map)
            munmap(c->shards[i].map, c->shards[i].bytes);
        free(c->shards[i].path);
    }
    free(c->shards);
    free(c->entries);
    free(c);
}

static struct dk_st_entry *entry_exact(const struct dk_checkpoint *c, const char *name)
{
    struct dk_st_entry key = {.tensor.name = name}, *key_at = &key, **found;

    found = bsearch(&key_at, c->entries, c->count, sizeof(struct dk_st_entry *), by_name);
    return found ? *found : NULL;
}

/* Where a multimodal release has what a language model alone calls `plain`. */
static const struct {
    const char *plain, *nested;
} places[] = {
    {"model.", "model.language_model."},
    {"model.", "language_model.model."},
    {"lm_head.", "language_model.lm_head."},
};

static struct dk_st_entry *entry_find(const struct dk_checkpoint *c, const char *name)
{
    struct dk_st_entry *e = entry_exact(c, name);

    for (size_t i = 0; !e && i < sizeof places / sizeof *places; i++) {
        size_t n = strlen(places[i].plain);
        char other[512];

        if (!strncmp(name, places[i].plain, n) &&
            (size_t)snprintf(other, sizeof other, "%s%s", places[i].nested, name + n) < sizeof other)
            e = entry_exact(c, other);
    }
    return e;
}

const struct dk_tensor *dk_checkpoint_find(struct dk_checkpoint *c, const char *name)
{
    struct dk_st_entry *e = entry_find(c, name);

    if (!e)
        return NULL;
    e->used = true;
    return &e->tensor;
}

/* "[rows, cols]"; more: there are further dimensions. */
static void shape_print(const uint64_t *shape, uint32_t rank, bool more, char *to, size_t bytes)
{
    size_t n = (size_t)snprintf(to, bytes, "[");

    for (uint32_t i = 0; i < rank && n < bytes; i++)
        n += (size_t)snprintf(to + n, bytes - n, "%s%" PRIu64, i ? ", " : "", shape[i]);
    if (n < bytes)
        snprintf(to + n, bytes - n, "%s]", more ? ", ..." : "");
}

static int shape_check(const struct dk_st_entry *e, uint32_t rank, const uint64_t *shape, struct dk_err *err)
{
    const struct dk_tensor *t = &e->tensor;
    bool same = e->rank == rank;
    char found[96], wanted[96];

    for (uint32_t i = 0; same && i < rank; i++)
        same = t->shape[i] == shape[i];
    if (same)
        return 0;
    shape_print(t->shape, t->rank, e->rank > t->rank, found, sizeof found);
    shape_print(shape, rank, false, wanted, sizeof wanted);
    return dk_err_set(err, -EINVAL, "%s: tensor '%s' has shape %s, and config.json asks for %s", t->file, t->name,
                      found, wanted);
}

/* types: what is allowed, as bits 1 << enum dk_dtype; wanted: the same in words. */
static int entry_get(struct dk_checkpoint *c, const char *name, uint32_t rank, const uint64_t *shape, unsigned types,
                     const char *wanted, const struct dk_tensor **out, struct dk_err *err)
{
    struct dk_st_entry *e = entry_find(c, name);

    *out = NULL;
    if (!e && c->shard_count == 1)
        return dk_err_set(err, -ENOENT, "%s: there is no tensor '%s'", c->shards[0].path, name);
    if (!e)
        return dk_err_set(err, -ENOENT, "%s and %u more files: there is no tensor '%s'", c->shards[0].path,
                          c->shard_count - 1, name);
    e->used = true;
    name = e->tensor.name; /* as the file spells it */
    if (e->tensor.type == DK_DTYPE_COUNT)
        return dk_err_set(err, -ENOTSUP, "%s: tensor '%s' is of type %s and rank %u, which is not supported; %s is",
                          e->tensor.file, name, e->dtype, e->rank, wanted);
    if (!(types >> e->tensor.type & 1))
        return dk_err_set(err, -EINVAL, "%s: tensor '%s' is of type %s; %s is wanted", e->tensor.file, name, e->dtype,
                          wanted);
    if (shape_check(e, rank, shape, err) < 0)
        return -EINVAL;
    *out = &e->tensor;
    return 0;
}

int dk_checkpoint_get_shape(struct dk_checkpoint *c, const char *name, uint32_t rank, const uint64_t *shape,
                            int f8_allowed, const struct dk_tensor **out, struct dk_err *err)
{
    unsigned types = 1u << DK_F32 | 1u << DK_F16 | 1u << DK_BF16;

    if (!f8_allowed)
        return entry_get(c, name, rank, shape, types, "BF16, F16 or F32", out, err);
    return entry_get(c, name, rank, shape, types | 1u << DK_F8_E4M3, "F8_E4M3, BF16, F16 or F32", out, err);
}

int dk_checkpoint_get(struct dk_checkpoint *c, const char *name, uint64_t rows, uint64_t cols, int f8_allowed,
                      const struct dk_tensor **out, struct dk_err *err)
{
    const uint64_t shape[2] = {rows, cols};

    return dk_checkpoint_get_shape(c, name, cols ? 2 : 1, shape, f8_allowed, out, err);
}

int dk_checkpoint_get_weight(struct dk_checkpoint *c, const char *name, uint64_t rows, uint64_t cols,
                             const struct dk_tensor **weight, const struct dk_tensor **scales, struct dk_err *err)
{
    const uint64_t shape[2] = {(rows + SCALE_BLOCK - 1) / SCALE_BLOCK, (cols + SCALE_BLOCK - 1) / SCALE_BLOCK};
    char scale_name[512];
    int rc;

    *scales = NULL;
    rc = dk_checkpoint_get(c, name, rows, cols, 1, weight, err);
    if (rc < 0 || (*weight)->type != DK_F8_E4M3)
        return rc;
    /* names are at most 255 bytes long */
    snprintf(scale_name, sizeof scale_name, "%s_scale_inv", (*weight)->name);
    rc = entry_get(c, scale_name, 2, shape, 1u << DK_F32 | 1u << DK_BF16, "F32 or BF16", scales, err);
    if (rc == -ENOENT)
        dk_err_prefix(err, "the scales of the F8_E4M3 weight '%s' are missing", (*weight)->name);
    if (rc < 0)
        *weight = NULL;
    return rc;
}

void dk_checkpoint_unused(const struct dk_checkpoint *c, void (*fn)(void *ctx, const struct dk_tensor *t), void *ctx)
{
    for (uint32_t i = 0; i < c->count; i++)
        if (!c->entries[i]->used)
            fn(ctx, &c->entries[i]->tensor);
}

uint32_t dk_checkpoint_tensor_count(const struct dk_checkpoint *c)
{
    return c->count;
}

const struct dk_tensor *dk_checkpoint_tensor(const struct dk_checkpoint *c, uint32_t i)
{
    return i < c->count ? &c->entries[i]->tensor : NULL;
}

uint64_t dk_checkpoint_id(const struct dk_checkpoint *c)
{
    return c->id;
}
