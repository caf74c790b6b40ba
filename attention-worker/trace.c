/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/trace.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Puts the expert with the largest weight first; equal weights stay in rising id. */
static void sort_by_weight(uint32_t count, int32_t *ids, float *weights)
{
    for (uint32_t i = 1; i < count; i++) {
        int32_t id = ids[i];
        float weight = weights[i];
        uint32_t at = i;

        for (; at > 0 && weights[at - 1] < weight; at--) {
            ids[at] = ids[at - 1];
            weights[at] = weights[at - 1];
        }
        ids[at] = id;
        weights[at] = weight;
    }
}

void dk_trace_experts(const struct dk_trace *t, uint32_t layer, uint32_t top_k, const int32_t *ids,
                      const float *weights)
{
    const uint32_t shape[] = {t->count, top_k};
    size_t count = (size_t)t->count * top_k, first = (size_t)t->row * top_k;
    int32_t *sorted_ids;
    float *sorted;
    char name[64];
    bool memory;

    if (!dk_trace_wants(t, layer))
        return;
    sorted_ids = malloc((count + 1) * sizeof(int32_t));
    sorted = malloc((count + 1) * sizeof(float));
    memory = sorted_ids && sorted;
    if (memory && count > 0) {
        memcpy(sorted_ids, ids + first, count * sizeof(int32_t));
        memcpy(sorted, weights + first, count * sizeof(float));
    }
    for (uint32_t i = 0; memory && i < t->count; i++)
        sort_by_weight(top_k, sorted_ids + (size_t)i * top_k, sorted + (size_t)i * top_k);
    snprintf(name, sizeof(name), "layer.%u.moe.expert_ids", layer);
    t->put(t->ctx, name, DK_TRACE_I32, 2, shape, memory ? sorted_ids : NULL);
    snprintf(name, sizeof(name), "layer.%u.moe.expert_weights", layer);
    t->put(t->ctx, name, DK_TRACE_F32, 2, shape, memory ? sorted : NULL);
    free(sorted_ids);
    free(sorted);
}

static bool grow(struct dk_trace_list *l)
{
    size_t capacity = l->capacity ? 2 * l->capacity : 64;
    struct dk_trace_tensor *tensors;

    if (l->count < l->capacity)
        return true;
    tensors = realloc(l->tensors, capacity * sizeof(*tensors));
    if (!tensors)
        return false;
    l->tensors = tensors;
    l->capacity = capacity;
    return true;
}

void dk_trace_list_put(void *list, const char *name, enum dk_trace_type type, uint32_t rank, const uint32_t *shape,
                       const void *data)
{
    struct dk_trace_list *l = list;
    struct dk_trace_tensor t = {.type = type, .rank = rank, .bytes = 4};

    assert(rank <= 4 && strlen(name) < sizeof(t.name));
    for (uint32_t i = 0; i < rank; i++) {
        t.shape[i] = shape[i];
        t.bytes *= shape[i];
    }
    l->bytes += t.bytes;
    if (l->bytes_max && l->bytes > l->bytes_max) {
        l->too_large = true;
        return;
    }
    memcpy(t.name, name, strlen(name) + 1);
    t.data = data && grow(l) ? malloc(t.bytes + 1) : NULL;
    if (!t.data) {
        l->no_memory = true;
        return;
    }
    memcpy(t.data, data, t.bytes);
    l->tensors[l->count++] = t;
}

const struct dk_trace_tensor *dk_trace_list_find(const struct dk_trace_list *l, const char *name)
{
    for (size_t i = 0; i < l->count; i++) {
        if (strcmp(l->tensors[i].name, name) == 0)
            return &l->tensors[i];
    }
    return NULL;
}

void dk_trace_list_fini(struct dk_trace_list *l)
{
    for (size_t i = 0; i < l->count; i++)
        free(l->tensors[i].data);
    free(l->tensors);
    memset(l, 0, sizeof(*l));
}
