/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_BACKEND_H
#define DK_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "model/checkpoint.h"

/* The math of attention, on weights and activations that stay where the back end keeps them. Family files are written
 * in these primitives; a back end exports one struct. One thread.
 *
 * Row tensors are f32 [rows][width], held in slots of a step's scratch: struct dk_rows. A row's result depends neither
 * on the rows beside it, nor on how a sequence was cut into steps, nor on the number of threads. */

struct dk_backend;
struct dk_weight; /* a matrix, table or vector in the back end's memory */
struct dk_kv;     /* paged keys and values of all layers and sequences */

#define DK_ROWS_SLOTS_MAX 32u

struct dk_rows {
    float *data;    /* the back end's address; host memory for cpu */
    uint32_t width; /* elements per row */
};

struct dk_backend_config {
    const char *isa; /* "auto", "avx2", ... (cpu) */
    uint32_t threads;
    bool pin;                        /* threads stay on their CPUs, the caller's too (cpu) */
    uint32_t rows_max;               /* most rows in a step */
    uint32_t context;                /* most positions of a sequence */
    uint32_t scratch_floats_per_row; /* sum of the widths of all dk_rows a family takes */
};

/* One run of consecutive rows of a step that belong to one sequence. */
struct dk_span {
    uint32_t row; /* first row in the step */
    uint32_t count;
    uint32_t position;     /* of the first row in its sequence */
    const uint32_t *pages; /* page table of the sequence, for positions 0 .. position + count - 1 */
};

struct dk_kv_shape {
    uint32_t layers, kv_heads, head_dim;
    uint32_t page_tokens, pages;
};

/* What a weight is used for decides how it is kept. */
enum dk_weight_use {
    DK_WEIGHT_VECTOR, /* [n], widened to f32 */
    DK_WEIGHT_MATRIX, /* [rows][cols] for linear: packed; FP8 stays FP8 with its scales */
    DK_WEIGHT_TABLE,  /* [rows][cols] for embed: rows as stored */
};

struct dk_backend_ops {
    const char *name;
    /* -EINVAL, -ENOTSUP: the ISA; -ENOMEM. */
    int (*open)(const struct dk_backend_config *c, struct dk_backend **out, struct dk_err *err);
    void (*close)(struct dk_backend *b); /* after all weights and caches; NULL is fine */

    /* Copied: the checkpoint may be closed afterwards. scales: NULL unless the weight is an FP8 matrix. -ENOMEM;
     * -EINVAL: a NaN code or a bad scale; err names the tensor. */
    int (*weight_load)(struct dk_backend *b, enum dk_weight_use use, const struct dk_tensor *weight,
                       const struct dk_tensor *scales, struct dk_weight **out, struct dk_err *err);
    void (*weight_free)(struct dk_backend *b, struct dk_weight *w); /* NULL is fine */

    int (*kv_open)(struct dk_backend *b, const struct dk_kv_shape *shape, struct dk_kv **out, struct dk_err *err);
    void (*kv_close)(struct dk_backend *b, struct dk_kv *kv); /* NULL is fine */

    /* scratch: forget all rows taken; take [rows_max][width]. -ENOSPC: more slots or floats than open was told. */
    void (*rows_reset)(struct dk_backend *b);
    int (*rows_take)(struct dk_backend *b, uint32_t width, struct dk_rows *out);

    /* y[i] = table[ids[i]]; the caller has checked the ids. */
    void (*embed)(struct dk_backend *b, const struct dk_weight *table, uint32_t n, const uint32_t *ids,
                  struct dk_rows y);
    /* y[i] = x[rows[i]]; y is not x. */
    void (*gather)(struct dk_backend *b, struct dk_rows x, uint32_t n, const uint32_t *rows, struct dk_rows y);
    /* RMSNorm over groups of `group` columns: group = width for a layer norm, head_dim for q/k norm. y may be x. */
    void (*rmsnorm)(struct dk_backend *b, uint32_t n, struct dk_rows x, uint32_t group, const struct dk_weight *w,
                    float eps, struct dk_rows y);
    void (*linear)(struct dk_backend *b, uint32_t n, struct dk_rows x, const struct dk_weight *w, struct dk_rows y);
    /* The same with y [n][rows of w] in host memory: for the head, whose rows are too wide for scratch. */
    void (*linear_host)(struct dk_backend *b, uint32_t n, struct dk_rows x, const struct dk_weight *w, float *y);
    void (*add)(struct dk_backend *b, uint32_t n, struct dk_rows x, struct dk_rows y); /* y += x */
    /* The rotation of each row's position: angles [rows][head_dim], head_dim / 2 cosines, then as many sines. Once per
     * step. inverse_frequency [head_dim / 2] f32 on the host; the angle is their product in f32. */
    void (*rope_angles)(struct dk_backend *b, const struct dk_span *spans, uint32_t span_count,
                        const float *inverse_frequency, struct dk_rows angles);
    /* Rotates the halves of each head: pairs (i, i + head_dim / 2), head_dim = angles.width. */
    void (*rope)(struct dk_backend *b, uint32_t n, struct dk_rows x, struct dk_rows angles);
    /* Writes k and v rows [kv_heads * head_dim] into the pages, then causal attention of q over them.
     * Score of query head h uses kv head h / (heads / kv_heads); softmax(q k * scale). */
    void (*attend)(struct dk_backend *b, struct dk_kv *kv, uint32_t layer, const struct dk_span *spans,
                   uint32_t span_count, uint32_t heads, float scale, struct dk_rows q, struct dk_rows k,
                   struct dk_rows v, struct dk_rows y);
    /* To and from host memory: rows [first, first + n). */
    void (*download)(struct dk_backend *b, struct dk_rows x, uint32_t first, uint32_t n, float *host);
    void (*upload)(struct dk_backend *b, struct dk_rows x, uint32_t first, uint32_t n, const float *host);
};

extern const struct dk_backend_ops dk_backend_cpu;

#endif
