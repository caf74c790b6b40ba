/* SPDX-License-Identifier: Apache-2.0 */
#include "duckctl/trace_file.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "duckctl/duckctl.h"
#include "model/config.h"

#define LAYERS_MAX sizeof((struct dk_model_config *)0)->mixer /* one byte each */

/* A number at *p, which goes behind it. LAYERS_MAX: none, or none so small. */
static uint32_t read_layer(const char **p)
{
    const char *start = *p;
    uint32_t v = 0;

    for (; **p >= '0' && **p <= '9' && v < LAYERS_MAX; (*p)++)
        v = v * 10 + (uint32_t)(**p - '0');
    return *p == start || v > LAYERS_MAX ? LAYERS_MAX : v;
}

/* Marks the layers; returns the place of the first part that is none, or NULL. */
static const char *mark_layers(const char *text, bool wanted[LAYERS_MAX])
{
    for (const char *p = text;; p++) {
        const char *start = p;
        uint32_t first = read_layer(&p), last = first;

        if (*p == '-' && first < LAYERS_MAX) {
            p++;
            last = read_layer(&p);
        }
        if (first >= LAYERS_MAX || last >= LAYERS_MAX || last < first || (*p && *p != ','))
            return start;
        for (uint32_t i = first; i <= last; i++)
            wanted[i] = true;
        if (!*p)
            return NULL;
    }
}

int trace_layers_parse(const char *text, uint32_t **layers, size_t *count, struct dk_err *err)
{
    bool wanted[LAYERS_MAX] = {false};
    const char *bad = mark_layers(text, wanted);

    *count = 0;
    *layers = NULL;
    if (bad)
        return dk_err_set(err, USAGE_ERROR,
                          "--trace-layers: no layer at '%.40s'; write numbers and ranges from 0 to %zu, as 0,3-5", bad,
                          LAYERS_MAX - 1);
    *layers = malloc(LAYERS_MAX * sizeof **layers);
    if (!*layers)
        return dk_err_set(err, -ENOMEM, "no memory for a list of layers");
    for (uint32_t i = 0; i < LAYERS_MAX; i++)
        if (wanted[i])
            (*layers)[(*count)++] = i;
    return 0;
}

static int out_of_memory(const struct trace_file *f, struct dk_err *err)
{
    return dk_err_set(err, -ENOMEM, "--trace-out %s: no memory for the tensors", f->out.path);
}

int trace_file_open(struct trace_file *f, const char *path, const uint32_t *ids, size_t count, struct dk_err *err)
{
    Dk__TraceTensor t = DK__TRACE_TENSOR__INIT;
    uint32_t shape = (uint32_t)count;
    int rc;

    memset(f, 0, sizeof *f);
    rc = output_file_open(&f->out, "--trace-out", path, err);
    if (rc < 0)
        return rc;
    t.name = (char *)"ids";
    t.type = DK__TRACE_TYPE__TRACE_I32; /* ids are below 2^31 */
    t.n_shape = 1;
    t.shape = &shape;
    t.data = (ProtobufCBinaryData){.data = (uint8_t *)(uintptr_t)ids, .len = count * sizeof *ids};
    return trace_file_add(f, &t, err);
}

static bool fills(const Dk__TraceTensor *t)
{
    uint64_t elements = 1;

    for (size_t i = 0; i < t->n_shape; i++) {
        if (t->shape[i] && elements > UINT32_MAX / t->shape[i])
            return false;
        elements *= t->shape[i];
    }
    return t->data.len == elements * 4; /* both types */
}

int trace_file_add(struct trace_file *f, const Dk__TraceTensor *t, struct dk_err *err)
{
    if (!fills(t))
        return dk_err_set(err, -EBADMSG, "--trace-out %s: %zu bytes do not fill the shape of '%s'", f->out.path,
                          t->data.len, t->name);
    for (size_t i = 0; i < f->count; i++)
        if (!strcmp(f->tensors[i]->name, t->name))
            return dk_err_set(err, -EBADMSG, "--trace-out %s: '%s' came twice", f->out.path, t->name);
    if (f->count == f->capacity) {
        size_t capacity = f->capacity ? 2 * f->capacity : 64;
        Dk__TraceTensor **grown = realloc(f->tensors, capacity * sizeof(Dk__TraceTensor *));

        if (!grown)
            return out_of_memory(f, err);
        f->tensors = grown;
        f->capacity = capacity;
    }
    f->tensors[f->count] = dk_message_clone(t);
    if (!f->tensors[f->count])
        return out_of_memory(f, err);
    f->count++;
    return 0;
}

/* Of the file, as text; NULL: no memory. https://github.com/huggingface/safetensors, "Format" */
static char *header_text(const struct trace_file *f)
{
    json_t *header = json_object();
    json_int_t begin = 0;
    char *text;

    for (size_t i = 0; i < f->count; i++) {
        const Dk__TraceTensor *t = f->tensors[i];
        json_int_t end = begin + (json_int_t)t->data.len;
        json_t *shape = json_array();

        for (size_t k = 0; k < t->n_shape; k++)
            json_array_append_new(shape, json_integer(t->shape[k]));
        json_object_set_new(header, t->name,
                            json_pack("{s:s,s:o,s:[I,I]}", "dtype",
                                      t->type == DK__TRACE_TYPE__TRACE_I32 ? "I32" : "F32", "shape", shape,
                                      "data_offsets", begin, end));
        begin = end;
    }
    text = json_object_size(header) == f->count ? json_dumps(header, JSON_COMPACT) : NULL;
    json_decref(header);
    return text;
}

static int write_all(const struct trace_file *f, struct dk_err *err)
{
    char *header = header_text(f);
    uint64_t bytes = header ? strlen(header) : 0, padded = (bytes + 7) / 8 * 8;
    bool written;

    if (!header)
        return out_of_memory(f, err);
    written = fwrite(&padded, sizeof padded, 1, f->out.file) == 1 && fwrite(header, bytes, 1, f->out.file) == 1;
    for (uint64_t i = bytes; written && i < padded; i++)
        written = putc(' ', f->out.file) != EOF;
    for (size_t i = 0; written && i < f->count; i++)
        written = fwrite(f->tensors[i]->data.data, 1, f->tensors[i]->data.len, f->out.file) == f->tensors[i]->data.len;
    free(header);
    return written ? 0 : output_file_error(&f->out, err);
}

int trace_file_finish(struct trace_file *f, bool complete, struct dk_err *err)
{
    int rc = 0, out_rc;

    if (!f->out.file)
        return 0;
    if (complete && f->count < 2)
        rc = dk_err_set(err, -EIO, "--trace-out %s: no tensor came; no file was made", f->out.path);
    else if (complete)
        rc = write_all(f, err);
    out_rc = output_file_finish(&f->out, complete && rc == 0, rc == 0 ? err : NULL);
    for (size_t i = 0; i < f->count; i++)
        dk_message_free(f->tensors[i]);
    free(f->tensors);
    memset(f, 0, sizeof *f);
    return rc ? rc : out_rc;
}
