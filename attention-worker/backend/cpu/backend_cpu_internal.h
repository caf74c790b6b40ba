/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_BACKEND_CPU_INTERNAL_H
#define DK_BACKEND_CPU_INTERNAL_H

#include "attention-worker/backend/cpu/attend_kernels.h"
#include "attention-worker/backend/cpu/backend_cpu.h"

struct dk_backend {
    struct dk_exec *exec;
    const struct dk_kernels *kernels;
    const struct attend_kernels *attend;
    uint32_t threads, rows_max, context;
    float *scratch; /* 64-byte aligned */
    size_t scratch_floats, scratch_used;
    uint32_t slots_used;
    float *scores; /* [threads][ATTEND_QUERIES_MAX][context] */
};

struct dk_weight {
    enum dk_weight_use use;
    enum dk_dtype type;  /* of table's elements */
    uint32_t rows, cols; /* vector: rows 1 */
    struct dk_matrix matrix;
    float *vector;
    uint8_t *table; /* [rows][cols] as stored */
};

/* One block per layer, page and kv head, so that a head's part of a page is one sequential stream: keys
 * [head_dim][key_stride], positions side by side; values [page_tokens][value_stride]. f32; the layouts that
 * attend_kernels.h asks for. */
struct dk_kv {
    struct dk_kv_shape shape;
    uint32_t key_stride, value_stride; /* page_tokens and head_dim, padded */
    float *keys, *values;
};

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
