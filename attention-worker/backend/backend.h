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
struct dk_weight;  /* a matrix, table or vector in the back end's memory */
struct dk_kv;      /* paged keys and values of all layers and sequences */
struct dk_latents; /* paged MLA latents, and index keys if the model has an indexer */
struct dk_states;  /* convolution inputs and recurrent states of Gated DeltaNet layers, a slot per sequence */
struct dk_picks;   /* for each row of a step the positions that attention keeps */

#define DK_ROWS_SLOTS_MAX 48u

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
    uint32_t state;        /* the sequence's slot in struct dk_states */
};

/* Layers are counted among those of a kind: a store has only layers that use it. */
struct dk_kv_shape {
    uint32_t layers, kv_heads, head_dim;
    uint32_t page_tokens, pages;
};

struct dk_latents_shape {
    uint32_t layers, rank, rope_dim; /* a position: latent [rank], rotated key [rope_dim] */
    uint32_t index_dim;              /* index key [index_dim]; 0: none */
    uint32_t page_tokens, pages;
};

struct dk_states_shape {
    uint32_t layers, slots;
    uint32_t key_heads, value_heads, key_dim, value_dim; /* recurrent state [value_heads][key_dim][value_dim] */
    uint32_t taps; /* convolution state: the last taps - 1 inputs of 2 * key_heads * key_dim + value_heads * value_dim
                    * channels */
};

/* The stores that a model opens: those of 0 layers, or of a top_k of 0, are not opened. */
struct dk_stores_shape {
    struct dk_kv_shape kv;
    struct dk_latents_shape latents;
    struct dk_states_shape states;
    uint32_t top_k; /* of picks */
};

struct dk_stores_bytes {
    uint64_t page;  /* one page of all layers of kv and latents */
    uint64_t slot;  /* one slot of all layers of states */
    uint64_t fixed; /* the scratch of rows, and what the stores take whatever their pages and slots */
};

/* What a weight is used for decides how it is kept. */
enum dk_weight_use {
    DK_WEIGHT_VECTOR,   /* all elements in a row, widened to f32 */
    DK_WEIGHT_ONE_PLUS, /* the same, plus 1 */
    DK_WEIGHT_TAPS,     /* [channels][1][taps] of a depthwise convolution: [taps][channels] f32 */
    DK_WEIGHT_MATRIX,   /* [rows][cols] for linear: packed; FP8 stays FP8 with its scales */
    DK_WEIGHT_TABLE,    /* [rows][cols] for embed: rows as stored */
};

/* A part of a projection with one matrix for each head: head h has rows [h * head_rows + first, ... + rows) of the
 * weight, as y = W x or, transposed, y = W^T x. All counts are multiples of 32, cols is any. */
struct dk_heads_part {
    uint32_t heads, head_rows;
    uint32_t first, rows;
    bool transposed;
};

/* Which dimensions of each head are rotated together. */
enum dk_rope_pairs {
    DK_ROPE_HALVES,     /* (i, i + dims / 2) */
    DK_ROPE_NEIGHBOURS, /* (2i, 2i + 1) */
};

/* Inputs of Gated DeltaNet for one layer, besides the rows. */
struct dk_delta_weights {
    const struct dk_weight *conv;    /* TAPS; the last tap meets the newest input */
    const struct dk_weight *a_log;   /* [value_heads] decay: g = -exp(a_log) * softplus(a + dt_bias) */
    const struct dk_weight *dt_bias; /* [value_heads] */
};

struct dk_backend_ops {
    const char *name;
    /* -EINVAL, -ENOTSUP: the ISA; -ENOMEM. */
    int (*open)(const struct dk_backend_config *c, struct dk_backend **out, struct dk_err *err);
    void (*close)(struct dk_backend *b); /* after all weights and caches; NULL is fine */
    /* What a back end opened with c will take beside weights. Pages and slots of the shapes are not read. */
    void (*stores_bytes)(const struct dk_backend_config *c, const struct dk_stores_shape *s,
                         struct dk_stores_bytes *out);

    /* Copied: the checkpoint may be closed afterwards. scales: NULL unless the weight is an FP8 matrix. -ENOMEM;
     * -EINVAL: a NaN code or a bad scale; err names the tensor. */
    int (*weight_load)(struct dk_backend *b, enum dk_weight_use use, const struct dk_tensor *weight,
                       const struct dk_tensor *scales, struct dk_weight **out, struct dk_err *err);
    /* A part of [heads * head_rows][cols] for linear_heads. Errors as above. */
    int (*weight_load_heads)(struct dk_backend *b, const struct dk_heads_part *part, const struct dk_tensor *weight,
                             const struct dk_tensor *scales, struct dk_weight **out, struct dk_err *err);
    void (*weight_free)(struct dk_backend *b, struct dk_weight *w); /* NULL is fine */

    /* scratch: forget all rows taken; take [rows_max][width]. -ENOSPC: more slots or floats than open was told. */
    void (*rows_reset)(struct dk_backend *b);
    int (*rows_take)(struct dk_backend *b, uint32_t width, struct dk_rows *out);

    /* ---- rows */
    /* y[i] = table[ids[i]]; the caller has checked the ids. */
    void (*embed)(struct dk_backend *b, const struct dk_weight *table, uint32_t n, const uint32_t *ids,
                  struct dk_rows y);
    /* y[i] = x[rows[i]]; y is not x. */
    void (*gather)(struct dk_backend *b, struct dk_rows x, uint32_t n, const uint32_t *rows, struct dk_rows y);
    /* Columns of each group: y's group g is columns [first, first + y.width / groups) of x's group g, which has
     * x.width / groups columns. y is not x. */
    void (*slice)(struct dk_backend *b, uint32_t n, struct dk_rows x, uint32_t groups, uint32_t first,
                  struct dk_rows y);
    /* RMSNorm over groups of `group` columns: group = width for a layer norm, head_dim for q/k norm. y may be x. */
    void (*rmsnorm)(struct dk_backend *b, uint32_t n, struct dk_rows x, uint32_t group, const struct dk_weight *w,
                    float eps, struct dk_rows y);
    /* LayerNorm over the row, then * w + bias. y may be x. */
    void (*layernorm)(struct dk_backend *b, uint32_t n, struct dk_rows x, const struct dk_weight *w,
                      const struct dk_weight *bias, float eps, struct dk_rows y);
    void (*linear)(struct dk_backend *b, uint32_t n, struct dk_rows x, const struct dk_weight *w, struct dk_rows y);
    /* The same with y [n][rows of w] in host memory: for the head, whose rows are too wide for scratch. */
    void (*linear_host)(struct dk_backend *b, uint32_t n, struct dk_rows x, const struct dk_weight *w, float *y);
    /* Head by head: x [n][heads * in], y [n][heads * out]. */
    void (*linear_heads)(struct dk_backend *b, uint32_t n, struct dk_rows x, const struct dk_weight *w,
                         struct dk_rows y);
    void (*add)(struct dk_backend *b, uint32_t n, struct dk_rows x, struct dk_rows y);           /* y += x */
    void (*bias)(struct dk_backend *b, uint32_t n, const struct dk_weight *v, struct dk_rows y); /* y[i] += v */
    void (*scale)(struct dk_backend *b, uint32_t n, float factor, struct dk_rows y);             /* y *= factor */
    /* y = silu(gate) * up; y may be either of them. */
    void (*silu_mul)(struct dk_backend *b, uint32_t n, struct dk_rows gate, struct dk_rows up, struct dk_rows y);
    /* y *= sigmoid(gate); gate is as wide as y, or 1 wide: one number for the row. */
    void (*sigmoid_mul)(struct dk_backend *b, uint32_t n, struct dk_rows gate, struct dk_rows y);
    /* The rotation of each row's position: angles [rows][dims], dims / 2 cosines, then as many sines, both times
     * factor. Once per step. inverse_frequency [dims / 2] f32 on the host; the angle is their product in f32. */
    void (*rope_angles)(struct dk_backend *b, const struct dk_span *spans, uint32_t span_count,
                        const float *inverse_frequency, float factor, struct dk_rows angles);
    /* Rotates dimensions [first, first + dims) of each head, dims = angles.width; the others stay as they are. */
    void (*rope)(struct dk_backend *b, uint32_t n, struct dk_rows x, uint32_t head_dim, uint32_t first,
                 enum dk_rope_pairs pairs, struct dk_rows angles);

    /* ---- attention over keys and values */
    int (*kv_open)(struct dk_backend *b, const struct dk_kv_shape *shape, struct dk_kv **out, struct dk_err *err);
    void (*kv_close)(struct dk_backend *b, struct dk_kv *kv); /* NULL is fine */
    void (*kv_copy)(struct dk_backend *b, struct dk_kv *kv, uint32_t from_page, uint32_t to_page);
    /* Writes k and v rows [kv_heads * head_dim] into the pages, then causal attention of q over them.
     * Score of query head h uses kv head h / (heads / kv_heads); softmax(q k * scale). */
    void (*attend)(struct dk_backend *b, struct dk_kv *kv, uint32_t layer, const struct dk_span *spans,
                   uint32_t span_count, uint32_t heads, float scale, struct dk_rows q, struct dk_rows k,
                   struct dk_rows v, struct dk_rows y);

    /* ---- multi-head latent attention, absorbed: every head attends over the same latents (arXiv 2405.04434) */
    int (*latents_open)(struct dk_backend *b, const struct dk_latents_shape *shape, struct dk_latents **out,
                        struct dk_err *err);
    void (*latents_close)(struct dk_backend *b, struct dk_latents *l); /* NULL is fine */
    void (*latents_copy)(struct dk_backend *b, struct dk_latents *l, uint32_t from_page, uint32_t to_page);
    /* Writes latent rows [rank] and k_pe rows [rope_dim] into the pages, then causal attention:
     * score of head h = (q_latent[h] . latent + q_pe[h] . k_pe) * scale, softmax, y[h] = sum of weight * latent.
     * q_latent [heads * rank], q_pe [heads * rope_dim], y [heads * rank]. picks: only these positions of each row;
     * NULL: all. Picking every position gives the bits of NULL. */
    void (*attend_latent)(struct dk_backend *b, struct dk_latents *l, uint32_t layer, const struct dk_span *spans,
                          uint32_t span_count, uint32_t heads, float scale, struct dk_rows q_latent,
                          struct dk_rows q_pe, struct dk_rows latent, struct dk_rows k_pe, const struct dk_picks *picks,
                          struct dk_rows y);
    /* [rows_max][top_k] positions. */
    int (*picks_open)(struct dk_backend *b, uint32_t top_k, struct dk_picks **out, struct dk_err *err);
    void (*picks_close)(struct dk_backend *b, struct dk_picks *p); /* NULL is fine */
    /* Lightning indexer: writes index keys k [index_dim] into the pages; for each row t the top_k positions s <= t with
     * the largest score[s] = sum over heads h of w[h] * relu(q[h] . k[s]) (ties: the earlier position), all if there
     * are no more than top_k. q [heads * index_dim], w [heads]. A NaN score counts as the smallest. */
    void (*index_select)(struct dk_backend *b, struct dk_latents *l, uint32_t layer, const struct dk_span *spans,
                         uint32_t span_count, uint32_t heads, struct dk_rows q, struct dk_rows w, struct dk_rows k,
                         struct dk_picks *picks);
    /* To host memory: positions [n][top_k] of rows [first, first + n) in rising order, -1 behind the last. */
    void (*picks_download)(struct dk_backend *b, const struct dk_picks *p, uint32_t first, uint32_t n,
                           int32_t *positions);

    /* ---- Gated DeltaNet (arXiv 2412.06464) */
    int (*states_open)(struct dk_backend *b, const struct dk_states_shape *shape, struct dk_states **out,
                       struct dk_err *err);
    void (*states_close)(struct dk_backend *b, struct dk_states *s); /* NULL is fine */
    void (*states_copy)(struct dk_backend *b, struct dk_states *s, uint32_t from_slot, uint32_t to_slot);
    /* Causal depthwise convolution over x [channels] (the projection q | k | v), SiLU, then per value head h, whose key
     * head is h / (value_heads / key_heads), for each token in order:
     *   q = q * rsqrt(sum q^2 + 1e-6) * key_dim^-0.5,  k = k * rsqrt(sum k^2 + 1e-6),  beta = sigmoid(b[h])
     *   S = exp(g) S;  d = beta (v - S^T k);  S = S + k d^T;  y[h] = S^T q
     * A span at position 0 begins with zero inputs and a zero state, whatever the slot held. x is overwritten by the
     * convolution's output. b_rows and a_rows are the b and a of the formulas, as projected, [value_heads] each;
     * y [value_heads * value_dim]. Both states of the slot are updated. */
    void (*delta)(struct dk_backend *b, struct dk_states *s, uint32_t layer, const struct dk_span *spans,
                  uint32_t span_count, const struct dk_delta_weights *w, struct dk_rows x, struct dk_rows b_rows,
                  struct dk_rows a_rows, struct dk_rows y);
    /* To host memory: the convolution's last inputs [channels][taps - 1], oldest first, and the recurrent state
     * [value_heads][key_dim][value_dim]. */
    void (*states_download)(struct dk_backend *b, const struct dk_states *s, uint32_t layer, uint32_t slot, float *conv,
                            float *recurrent);

    /* To and from host memory: rows [first, first + n). */
    void (*download)(struct dk_backend *b, struct dk_rows x, uint32_t first, uint32_t n, float *host);
    void (*upload)(struct dk_backend *b, struct dk_rows x, uint32_t first, uint32_t n, const float *host);
};

extern const struct dk_backend_ops dk_backend_cpu;

#endif
