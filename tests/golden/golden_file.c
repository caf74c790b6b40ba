/* SPDX-License-Identifier: Apache-2.0 */
#include "golden_file.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint8_t *golden_bytes(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data;
    long size;

    cr_assert_not_null(f, "cannot open %s", path);
    fseek(f, 0, SEEK_END);
    size = ftell(f);
    rewind(f);
    data = malloc((size_t)size + 1);
    cr_assert_eq(fread(data, 1, (size_t)size, f), (size_t)size, "cannot read %s", path);
    fclose(f);
    *bytes = (size_t)size;
    return data;
}

json_t *golden_json(const char *path)
{
    json_error_t error;
    json_t *j = json_load_file(path, 0, &error);

    cr_assert_not_null(j, "%s: %s", path, error.text);
    return j;
}

uint32_t *golden_ids(const json_t *object, const char *key, uint32_t *count)
{
    const json_t *array = json_object_get(object, key);
    uint32_t *ids;

    cr_assert(json_is_array(array), "no array \"%s\"", key);
    *count = (uint32_t)json_array_size(array);
    ids = malloc((*count + 1) * sizeof(*ids));
    for (uint32_t i = 0; i < *count; i++)
        ids[i] = (uint32_t)json_integer_value(json_array_get(array, i));
    return ids;
}

double golden_number(const json_t *array, size_t i)
{
    const json_t *number = json_array_get(array, i);

    cr_assert(json_is_number(number), "no number %zu", i);
    return json_number_value(number);
}

void golden_tensors_open(struct golden_tensors *g, const char *path)
{
    struct dk_err err = {0};
    size_t bytes;

    g->bytes = golden_bytes(path, &bytes);
    cr_assert_eq(dk_checkpoint_from_memory(g->bytes, bytes, path, &g->file, &err), 0, "%s", err.text);
}

void golden_tensors_close(struct golden_tensors *g)
{
    dk_checkpoint_close(g->file);
    free(g->bytes);
}

void *golden_tensor(struct golden_tensors *g, size_t *count, const char *format, ...)
{
    const struct dk_tensor *t;
    char name[128];
    va_list args;
    void *copy;

    va_start(args, format);
    vsnprintf(name, sizeof(name), format, args);
    va_end(args);
    t = dk_checkpoint_find(g->file, name);
    cr_assert_not_null(t, "no tensor %s", name);
    cr_assert(t->type == DK_F32 || t->type == DK_I32);
    copy = malloc(t->bytes);
    memcpy(copy, t->data, t->bytes);
    if (count)
        *count = t->bytes / 4;
    return copy;
}

double golden_distance(double a, double b)
{
    return isnan(a - b) ? (double)INFINITY : fabs(a - b);
}

double golden_difference(const float *a, const float *b, size_t count)
{
    double largest = 0;

    for (size_t i = 0; i < count; i++)
        largest = fmax(largest, golden_distance((double)a[i], (double)b[i]));
    return largest;
}
