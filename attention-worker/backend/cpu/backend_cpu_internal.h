/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_BACKEND_CPU_INTERNAL_H
#define DK_BACKEND_CPU_INTERNAL_H

#include "attention-worker/backend/cpu/backend_cpu.h"

/* Queries that walk through the pages together, so that a page is read from memory once for all of them. */
#define CPU_QUERY_BLOCK 8u

struct dk_backend {
    struct dk_exec *exec;
    const struct dk_kernels *kernels;
    uint32_t threads, rows_max, context;
    float *scratch; /* 64-byte aligned */
    size_t scratch_floats, scratch_used;
    uint32_t slots_used;
    float *scores; /* [threads][CPU_QUERY_BLOCK][context] */
};

struct dk_weight {
    enum dk_weight_use use;
    enum dk_dtype type;     /* of table's elements */
    uint32_t rows, cols;    /* vector: rows 1 */
    struct dk_matrix matrix;
    float *vector;
    uint8_t *table;         /* [rows][cols] as stored */
};

/* keys and values: [layers][pages][kv_heads][page_tokens][head_dim] f32, so that one head's part of a page is one
 * sequential stream. */
struct dk_kv {
    struct dk_kv_shape shape;
    float *keys, *values;
};

static inline size_t kv_offset(const struct dk_kv_shape *s, uint32_t layer, uint32_t page, uint32_t head)
{
    return (((size_t)layer * s->pages + page) * s->kv_heads + head) * s->page_tokens * s->head_dim;
}

/* 64-byte aligned floats from the heap, not zeroed; NULL: none left, or the size overflows. */
float *cpu_floats(size_t count);

int cpu_weight_load(struct dk_backend *b, enum dk_weight_use use, const struct dk_tensor *weight,
                    const struct dk_tensor *scales, struct dk_weight **out, struct dk_err *err);
void cpu_weight_free(struct dk_backend *b, struct dk_weight *w);

int cpu_kv_open(struct dk_backend *b, const struct dk_kv_shape *shape, struct dk_kv **out, struct dk_err *err);
void cpu_kv_close(struct dk_backend *b, struct dk_kv *kv);
void cpu_attend(struct dk_backend *b, struct dk_kv *kv, uint32_t layer, const struct dk_span *spans,
                uint32_t span_count, uint32_t heads, float scale, struct dk_rows q, struct dk_rows k, struct dk_rows v,
                struct dk_rows y);

#endif
