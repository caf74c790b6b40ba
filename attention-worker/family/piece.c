/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/family/piece.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int dk_piece_take(struct dk_piece_context *c, const struct dk_piece_rows *rows, size_t count, struct dk_err *err)
{
    for (size_t i = 0; i < count; i++) {
        int rc = 0;

        c->scratch_floats += rows[i].width;
        if (c->backend)
            rc = c->ops->rows_take(c->backend, rows[i].width, rows[i].to);
        if (rc < 0)
            return dk_err_set(err, rc, "the back end's scratch is too small for this model");
    }
    return 0;
}

static int find(const struct dk_piece_context *c, uint32_t layer, const struct dk_piece_weight *w,
                const struct dk_tensor **weight, const struct dk_tensor **scales, struct dk_err *err)
{
    char name[128];
    uint32_t rank = 0;

    if (layer == DK_PIECE_NO_LAYER)
        snprintf(name, sizeof(name), "%s", w->name);
    else
        snprintf(name, sizeof(name), "model.layers.%u.%s", layer, w->name);
    if (w->use == DK_WEIGHT_MATRIX)
        return dk_checkpoint_get_weight(c->checkpoint, name, w->shape[0], w->shape[1], weight, scales, err);
    while (rank < 3 && w->shape[rank] > 0)
        rank++;
    *scales = NULL;
    return dk_checkpoint_get_shape(c->checkpoint, name, rank, w->shape, 0, weight, err);
}

/* Room in the list for one more, so that a loaded weight can always be kept. */
static int reserve(struct dk_piece_context *c, struct dk_err *err)
{
    uint32_t capacity = c->weight_capacity ? 2 * c->weight_capacity : 64;
    struct dk_weight **weights;

    if (c->weight_count < c->weight_capacity)
        return 0;
    weights = realloc(c->weights, capacity * sizeof(struct dk_weight *));
    if (!weights)
        return dk_err_set(err, -ENOMEM, "out of memory");
    c->weights = weights;
    c->weight_capacity = capacity;
    return 0;
}

/* part: NULL for a whole weight. */
static int load_one(struct dk_piece_context *c, uint32_t layer, const struct dk_piece_weight *w,
                    const struct dk_heads_part *part, struct dk_err *err)
{
    const struct dk_tensor *weight, *scales;
    int rc;

    rc = find(c, layer, w, &weight, &scales, err);
    if (rc == 0)
        rc = reserve(c, err);
    if (rc < 0)
        return rc;
    if (part)
        rc = c->ops->weight_load_heads(c->backend, part, weight, scales, w->to, err);
    else
        rc = c->ops->weight_load(c->backend, w->use, weight, scales, w->to, err);
    if (rc == 0)
        c->weights[c->weight_count++] = *w->to;
    return rc;
}

int dk_piece_load(struct dk_piece_context *c, uint32_t layer, const struct dk_piece_weight *weights, size_t count,
                  struct dk_err *err)
{
    int rc = 0;

    for (size_t i = 0; i < count && rc == 0; i++)
        rc = load_one(c, layer, &weights[i], NULL, err);
    return rc;
}

int dk_piece_check(struct dk_piece_context *c, uint32_t layer, const struct dk_piece_weight *weights, size_t count,
                   struct dk_err *err)
{
    int rc = 0;

    for (size_t i = 0; i < count && rc == 0; i++) {
        const struct dk_tensor *weight, *scales;

        rc = find(c, layer, &weights[i], &weight, &scales, err);
    }
    return rc;
}

int dk_piece_load_heads(struct dk_piece_context *c, uint32_t layer, const struct dk_piece_weight *weight,
                        const struct dk_heads_part *part, struct dk_err *err)
{
    return load_one(c, layer, weight, part, err);
}

void dk_piece_close(struct dk_piece_context *c)
{
    for (uint32_t i = 0; i < c->weight_count; i++)
        c->ops->weight_free(c->backend, c->weights[i]);
    free(c->weights);
    c->weights = NULL;
    c->weight_count = c->weight_capacity = 0;
}

uint32_t dk_piece_layers(const struct dk_model_config *c, enum dk_mixer mixer)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < c->layers; i++)
        count += c->mixer[i] == mixer;
    return count;
}

void dk_piece_trace_put(const struct dk_piece_context *c, uint32_t layer, const char *name, enum dk_trace_type type,
                        uint32_t rank, const uint32_t *shape, const void *data)
{
    char full[64];

    if (layer == DK_PIECE_NO_LAYER)
        snprintf(full, sizeof(full), "%s", name);
    else
        snprintf(full, sizeof(full), "layer.%u.%s", layer, name);
    c->trace->put(c->trace->ctx, full, type, rank, shape, data);
}

void dk_piece_trace(const struct dk_piece_context *c, uint32_t layer, const char *name, uint32_t heads,
                    struct dk_rows x)
{
    uint32_t count = c->trace ? c->trace->count : 0, groups = heads ? heads : 1, width = x.width / groups;
    const uint32_t flat[] = {count, x.width}, by_head[] = {heads, count, width};
    float *rows, *out;

    if (count == 0)
        return;
    rows = malloc(2 * (size_t)count * x.width * sizeof(float));
    out = rows ? rows + (size_t)count * x.width : NULL;
    if (rows)
        c->ops->download(c->backend, x, c->trace->row, count, rows);
    for (uint32_t g = 0; rows && g < groups; g++) {
        for (uint32_t i = 0; i < count; i++)
            memcpy(out + ((size_t)g * count + i) * width, rows + (size_t)i * x.width + (size_t)g * width,
                   width * sizeof(float));
    }
    /* Without memory there is no data; the trace says so. */
    dk_piece_trace_put(c, layer, name, DK_TRACE_F32, heads ? 3 : 2, heads ? by_head : flat, out);
    free(rows);
}
