/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_KERNEL_INTERNAL_H
#define DK_KERNEL_INTERNAL_H

#include "kernel/kernel.h"

/* The folder's own: the table of one ISA level, and what its functions are given. White-box tests use it too. */

/* Columns that one scale covers. */
#define DK_RUN_COLS 128u
/* Rows of x times pairs that one call of a matrix function takes at most: its sums stay in the first-level cache. */
#define DK_BATCH 32u
/* How far ahead of its use memory is asked for. */
#define DK_PREFETCH_BYTES 8192u
/* Bytes behind a matrix' last column that a kernel may read (and throw away). */
#define DK_DATA_SLACK 512u
/* FP8 codes are widened as fp16 bit patterns shifted by one: value x 2^-8. The scales of FP8 matrices make up for it.
 */
#define DK_F8_SCALE 256.0f
/* dk_dot and the sums of dk_rmsnorm and dk_softmax: element i goes to partial sum i mod 32, in rising order; the
 * partial sums are added as a tree: i and i + 16, i and i + 8, ... */
#define DK_SUM_LANES 32u

/* Pairs of panels that follow each other in memory. */
struct dk_pairs {
    const uint8_t *data; /* [count][cols][2][32] elements */
    const float *scales; /* [count][2][runs] */
    uint32_t count;
    uint32_t cols, runs;
    uint32_t run_first;  /* columns of the first run */
    const uint8_t *next; /* what will be read after these: for prefetching, never dereferenced */
};

#define DK_PAIR_ROWS (2 * DK_PANEL_ROWS)

struct dk_kernels {
    enum dk_isa isa;
    /* out[j n + i][lane] = row `lane` of pair j times x[i], i < n, count * n <= DK_BATCH. x[i] need not be aligned; out
     * is aligned to 64 and need not be set. By the matrix' type. */
    void (*pairs[DK_DTYPE_COUNT])(const struct dk_pairs *p, uint32_t n, const float *const *x,
                                  float (*out)[DK_PAIR_ROWS]);
    float (*dot)(uint32_t n, const float *a, const float *b);
    void (*axpy)(uint32_t n, float a, const float *x, float *y);
    void (*scale_mul)(uint32_t n, const float *x, float r, const float *w, float *y); /* y = x r w */
    void (*softmax)(uint32_t n, float *x);
    void (*silu_mul)(uint32_t n, const float *g, const float *u, float *y);
    void (*sigmoid_mul)(uint32_t n, const float *g, const float *u, float *y);
    void (*rope_halves)(uint32_t n, float *x, const float *cosine, const float *sine);
    void (*rope_pairs)(uint32_t n, float *x, const float *cosine, const float *sine);
    uint64_t (*read)(const void *data, size_t bytes);
};

/* Each fills in what its level has, over what is there. */
void dk_kernels_fill_ref(struct dk_kernels *k);
void dk_kernels_fill_avx2(struct dk_kernels *k);
void dk_kernels_fill_avx512(struct dk_kernels *k);

static inline uint32_t dk_matrix_pairs(uint32_t rows)
{
    return (rows + DK_PAIR_ROWS - 1) / DK_PAIR_ROWS;
}

static inline size_t dk_pair_bytes(const struct dk_matrix *m)
{
    return (size_t)m->cols * DK_PAIR_ROWS * dk_dtype_bytes(m->type);
}

static inline struct dk_pairs dk_matrix_take(const struct dk_matrix *m, uint32_t pair, uint32_t count)
{
    const uint8_t *data = m->data + pair * dk_pair_bytes(m);

    return (struct dk_pairs){
        .data = data,
        .scales = m->scales + (size_t)pair * 2 * m->runs,
        .count = count,
        .cols = m->cols,
        .runs = m->runs,
        .run_first = m->run_first,
        .next = data + count * dk_pair_bytes(m),
    };
}

#endif
