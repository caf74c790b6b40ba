/* SPDX-License-Identifier: Apache-2.0 */
/* Format: https://github.com/huggingface/safetensors, "Format": u64 little-endian length of the header, the header as a
 * JSON object, then the tensors' bytes without holes. Offsets count from the end of the header. */
#include "model/safetensors.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_BYTES_MAX 100000000u /* the limit of the format's own library */
#define NAME_BYTES_MAX   255u
#define METADATA         "__metadata__"

struct known_dtype {
    const char *name;
    unsigned bits;
    enum dk_dtype type; /* DK_DTYPE_COUNT: its size is known, but nothing here uses it */
};

static const struct known_dtype known_dtypes[] = {
    {"F32", 32, DK_F32},
    {"F16", 16, DK_F16},
    {"BF16", 16, DK_BF16},
    {"F8_E4M3", 8, DK_F8_E4M3},
    {"I32", 32, DK_I32},
    {"BOOL", 8, DK_DTYPE_COUNT},
    {"U8", 8, DK_DTYPE_COUNT},
    {"I8", 8, DK_DTYPE_COUNT},
    {"F8_E5M2", 8, DK_DTYPE_COUNT},
    {"F8_E8M0", 8, DK_DTYPE_COUNT},
    {"F4", 4, DK_DTYPE_COUNT},
    {"F6_E2M3", 6, DK_DTYPE_COUNT},
    {"F6_E3M2", 6, DK_DTYPE_COUNT},
    {"I16", 16, DK_DTYPE_COUNT},
    {"U16", 16, DK_DTYPE_COUNT},
    {"U32", 32, DK_DTYPE_COUNT},
    {"I64", 64, DK_DTYPE_COUNT},
    {"U64", 64, DK_DTYPE_COUNT},
    {"F64", 64, DK_DTYPE_COUNT},
    {"C64", 64, DK_DTYPE_COUNT},
};

static const struct known_dtype *dtype_find(const char *name)
{
    for (size_t i = 0; i < sizeof known_dtypes / sizeof *known_dtypes; i++)
        if (!strcmp(known_dtypes[i].name, name))
            return &known_dtypes[i];
    return NULL;
}

static uint64_t u64_read(const uint8_t *p)
{
    uint64_t v = 0;

    for (int i = 7; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

/* Names go into messages and to terminals: no control characters. */
static bool name_fits(const char *name)
{
    size_t n = strlen(name);

    if (n == 0 || n > NAME_BYTES_MAX)
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
            return false;
    return true;
}

/* Shape: number of elements, and the first four dimensions into the entry. */
static int shape_read(const json_t *shape, struct dk_st_entry *e, uint64_t *elements, const char *where,
                      struct dk_err *err)
{
    size_t i;
    json_t *v;

    if (!json_is_array(shape))
        return dk_err_set(err, -EINVAL, "%s: tensor '%s': its shape is not a list", where, e->tensor.name);
    *elements = 1;
    e->rank = (uint32_t)json_array_size(shape);
    e->tensor.rank = e->rank < 4 ? e->rank : 4;
    json_array_foreach(shape, i, v)
    {
        if (!json_is_integer(v) || json_integer_value(v) < 0)
            return dk_err_set(err, -EINVAL, "%s: tensor '%s': dimension %zu is not a whole number from 0 up", where,
                              e->tensor.name, i);
        if (i < 4)
            e->tensor.shape[i] = (uint64_t)json_integer_value(v);
        if (__builtin_mul_overflow(*elements, (uint64_t)json_integer_value(v), elements))
            return dk_err_set(err, -EINVAL, "%s: tensor '%s': its shape has too many elements", where, e->tensor.name);
    }
    return 0;
}

static int offsets_read(const json_t *offsets, const struct dk_st_entry *e, uint64_t *begin, uint64_t *end,
                        const char *where, struct dk_err *err)
{
    const json_t *b = json_array_get(offsets, 0), *n = json_array_get(offsets, 1);

    if (json_array_size(offsets) != 2 || !json_is_integer(b) || !json_is_integer(n) || json_integer_value(b) < 0 ||
        json_integer_value(n) < json_integer_value(b))
        return dk_err_set(err, -EINVAL, "%s: tensor '%s': data_offsets are not two rising numbers", where,
                          e->tensor.name);
    *begin = (uint64_t)json_integer_value(b);
    *end = (uint64_t)json_integer_value(n);
    return 0;
}

/* One tensor's description. tensor.data is set later, once the whole layout is known to be inside the file; until then
 * *begin is kept by the caller. */
static int entry_read(const json_t *value, struct dk_st_entry *e, uint64_t *begin, const char *where,
                      struct dk_err *err)
{
    const char *dtype = json_string_value(json_object_get(value, "dtype"));
    const struct known_dtype *known;
    uint64_t elements = 0, bits, end = 0;
    int rc;

    if (!json_is_object(value) || !dtype)
        return dk_err_set(err, -EINVAL, "%s: tensor '%s' has no dtype", where, e->tensor.name);
    if (!name_fits(dtype) || strlen(dtype) >= sizeof e->dtype)
        return dk_err_set(err, -EINVAL, "%s: tensor '%s': its dtype is damaged", where, e->tensor.name);
    memcpy(e->dtype, dtype, strlen(dtype) + 1);
    rc = shape_read(json_object_get(value, "shape"), e, &elements, where, err);
    if (rc < 0)
        return rc;
    rc = offsets_read(json_object_get(value, "data_offsets"), e, begin, &end, where, err);
    if (rc < 0)
        return rc;
    e->tensor.bytes = end - *begin;
    e->tensor.file = where;
    known = dtype_find(dtype);
    e->tensor.type = known && e->rank <= 4 ? known->type : DK_DTYPE_COUNT;
    if (!known)
        return 0; /* a type from the future: its length cannot be checked, and it cannot be asked for */
    if (__builtin_mul_overflow(elements, (uint64_t)known->bits, &bits) || bits % 8 || bits / 8 != e->tensor.bytes)
        return dk_err_set(err, -EINVAL,
                          "%s: tensor '%s': its shape has %" PRIu64 " elements of type %s, but its data is %" PRIu64
                          " bytes long",
                          where, e->tensor.name, elements, dtype, e->tensor.bytes);
    return 0;
}

struct place {
    uint64_t begin;
    struct dk_st_entry entry;
};

static int by_place(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    uint64_t xe = x->begin + x->entry.tensor.bytes, ye = y->begin + y->entry.tensor.bytes;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return xe < ye ? -1 : xe > ye;
}

/* The tensors must fill the bytes behind the header exactly: each starts where the one before it ends. */
static int layout_check(const struct place *places, uint32_t count, uint64_t header_bytes, uint64_t bytes,
                        const char *where, struct dk_err *err)
{
    uint64_t at = 0;

    for (uint32_t i = 0; i < count; i++) {
        const struct dk_tensor *t = &places[i].entry.tensor;

        if (places[i].begin < at)
            return dk_err_set(err, -EINVAL, "%s: tensors '%s' and '%s' overlap", where, places[i - 1].entry.tensor.name,
                              t->name);
        if (places[i].begin > at)
            return dk_err_set(err, -EINVAL, "%s: %" PRIu64 " bytes before tensor '%s' belong to no tensor", where,
                              places[i].begin - at, t->name);
        at = places[i].begin + t->bytes;
    }
    if (at > bytes - header_bytes)
        return dk_err_set(err, -EINVAL,
                          "%s: the file is cut short: it has %" PRIu64 " bytes and should have %" PRIu64
                          "; download it again",
                          where, bytes, header_bytes + at);
    if (at < bytes - header_bytes)
        return dk_err_set(err, -EINVAL,
                          "%s: the file is longer than its tensors: it has %" PRIu64 " bytes and should have %" PRIu64
                          "; download it again",
                          where, bytes, header_bytes + at);
    return 0;
}

/* Counts the tensors and the bytes of their names, and checks the names. */
static int names_measure(json_t *root, uint32_t *count, size_t *name_bytes, const char *where, struct dk_err *err)
{
    const char *name;
    json_t *value;

    *count = 0;
    *name_bytes = 0;
    json_object_foreach(root, name, value)
    {
        if (!strcmp(name, METADATA)) {
            if (!json_is_object(value))
                return dk_err_set(err, -EINVAL, "%s: damaged header: %s is not an object", where, METADATA);
            continue;
        }
        if (!name_fits(name))
            return dk_err_set(err, -EINVAL,
                              "%s: damaged header: the name of tensor %u is empty, too long or has control characters",
                              where, *count);
        *name_bytes += strlen(name) + 1;
        ++*count;
    }
    return 0;
}

static int entries_read(json_t *root, const uint8_t *data, size_t bytes, const char *where, struct dk_st_file *f,
                        struct dk_err *err)
{
    struct place *places = NULL;
    size_t name_bytes, used = 0;
    const char *name;
    uint32_t n = 0;
    json_t *value;
    int rc;

    rc = names_measure(root, &f->count, &name_bytes, where, err);
    if (rc < 0)
        return rc;
    places = calloc(f->count + 1u, sizeof *places);
    f->entries = calloc(f->count + 1u, sizeof *f->entries);
    f->names = malloc(name_bytes + 1);
    if (!places || !f->entries || !f->names) {
        rc = dk_err_set(err, -ENOMEM, "%s: no memory for %u tensors", where, f->count);
        goto fail;
    }
    json_object_foreach(root, name, value)
    {
        size_t n_bytes = strlen(name) + 1;

        if (!strcmp(name, METADATA))
            continue;
        memcpy(f->names + used, name, n_bytes);
        places[n].entry.tensor.name = f->names + used;
        used += n_bytes;
        rc = entry_read(value, &places[n].entry, &places[n].begin, where, err);
        if (rc < 0)
            goto fail;
        n++;
    }
    qsort(places, f->count, sizeof *places, by_place);
    rc = layout_check(places, f->count, f->header_bytes, bytes, where, err);
    if (rc < 0)
        goto fail;
    for (uint32_t i = 0; i < f->count; i++) {
        f->entries[i] = places[i].entry;
        f->entries[i].tensor.data = data + f->header_bytes + places[i].begin;
    }
    rc = 0;
fail:
    free(places);
    return rc;
}

static bool is_lfs_pointer(const uint8_t *data, size_t bytes)
{
    static const char start[] = "version https://git-lfs.github.com/spec/";

    return bytes >= sizeof start - 1 && !memcmp(data, start, sizeof start - 1);
}

int dk_st_parse(const uint8_t *data, size_t bytes, const char *where, struct dk_st_file *out, struct dk_err *err)
{
    uint64_t json_bytes;
    json_t *root = NULL;
    json_error_t e;
    int rc;

    memset(out, 0, sizeof *out);
    if (bytes == 0)
        return dk_err_set(err, -EINVAL, "%s: the file is empty; download it again", where);
    if (is_lfs_pointer(data, bytes))
        return dk_err_set(err, -EINVAL,
                          "%s: this is a Git LFS pointer and not the weights; run 'git lfs pull' in its folder or "
                          "download the file itself",
                          where);
    json_bytes = bytes >= 8 ? u64_read(data) : 0;
    if (bytes < 8 || json_bytes > HEADER_BYTES_MAX || (bytes > 8 && data[8] != '{'))
        return dk_err_set(err, -EINVAL, "%s: not a safetensors file, or damaged at its start; download it again",
                          where);
    if (json_bytes > bytes - 8)
        return dk_err_set(err, -EINVAL,
                          "%s: the file is cut short: it has %zu bytes and its header alone takes %" PRIu64
                          "; download it again",
                          where, bytes, json_bytes + 8);
    out->header_bytes = 8 + (size_t)json_bytes;
    root = json_loadb((const char *)data + 8, (size_t)json_bytes, JSON_REJECT_DUPLICATES, &e);
    if (!root)
        rc = dk_err_set(err, -EINVAL, "%s: damaged header: %s at byte %d of its JSON text", where, e.text, e.position);
    else
        rc = entries_read(root, data, bytes, where, out, err);
    json_decref(root);
    if (rc < 0)
        dk_st_fini(out);
    return rc;
}

void dk_st_fini(struct dk_st_file *f)
{
    free(f->entries);
    free(f->names);
    memset(f, 0, sizeof *f);
}
