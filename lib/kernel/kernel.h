/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_KERNEL_H
#define DK_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#include "base/cpu.h"
#include "base/dtype.h"
#include "base/error.h"
#include "kernel/exec.h"

/* CPU math. fp32 activations and accumulation; FP8 E4M3, bf16 or fp32 weights.
 *
 * One order of summation, the same in every variant: an output of a matrix product is, for each run of columns, a chain
 * of fused multiply-adds over the run's columns in rising order from 0; runs are then chained as
 * sum = fma(run, scale, sum) in rising order from 0. A run ends where the whole tensor's column number is a multiple of
 * 128, with or without scales. So ref, AVX2 and AVX-512 give the same bits, and a row's result does not depend on the
 * rows beside it or on the number of threads. Sums over vectors (dk_dot, dk_rmsnorm, dk_softmax) go to 32 partial sums,
 * element i to sum i mod 32 in rising order, which are added as a tree: i and i + 16, i and i + 8, ... A NaN is a NaN
 * in every variant, but its sign and payload are not defined. */

#define DK_PANEL_ROWS 32u

/* A packed weight matrix W [rows][cols], or a slice of one. Panels of 32 output rows, two panels side by side, column
 * after column; rows beyond the last are zero. Inside a column the rows are ordered for widening (docs in pack.c). */
struct dk_matrix {
    enum dk_dtype type; /* DK_F8_E4M3, DK_BF16 or DK_F32 */
    uint32_t rows, cols;
    uint32_t run_first; /* columns of the first run; later ones have 128, the last one the rest */
    uint32_t runs;
    uint8_t *data; /* [panels / 2, rounded up][cols][2][32] elements, 64-byte aligned, with some slack behind */
    float *scales; /* [panels, rounded up to even][runs]; without scales all 1. FP8: times the kernels' own 2^8 */
};

static inline uint32_t dk_matrix_panels(uint32_t rows)
{
    return (rows + DK_PANEL_ROWS - 1) / DK_PANEL_ROWS;
}

/* Where the weights come from: rows [rows][row_stride] of `type` (also DK_F16, packed as DK_F32), as in a checkpoint or
 * on the wire. scale block (r, c) of the whole tensor covers rows 128r.. and columns 128c..; the slice starts at
 * (row_origin, col_origin) of the whole tensor, and row_origin is a multiple of 32. scales points at the block that
 * holds the slice's first element; NULL: none. */
struct dk_matrix_source {
    const void *data; /* need not be aligned */
    enum dk_dtype type;
    size_t row_stride; /* elements */
    uint32_t row_origin, col_origin;
    const void *scales;       /* need not be aligned */
    enum dk_dtype scale_type; /* DK_F32 or DK_BF16 */
    size_t scale_stride;      /* elements */
};

/* Sizes of the two buffers of a matrix (data without the slack). */
size_t dk_matrix_data_bytes(enum dk_dtype packed_type, uint32_t rows, uint32_t cols);
size_t dk_matrix_scale_count(uint32_t rows, uint32_t cols, uint32_t col_origin);
enum dk_dtype dk_matrix_packed_type(enum dk_dtype source_type);

/* Allocates *m for a matrix of that shape, zeroed; huge pages if it is big. Any thread. -ENOMEM. */
int dk_matrix_alloc(struct dk_matrix *m, enum dk_dtype packed_type, uint32_t rows, uint32_t cols, uint32_t col_origin,
                    int scaled);
void dk_matrix_free(struct dk_matrix *m);
/* Packs rows [row_begin, row_end) x columns [col_begin, col_end) of *m from src, which describes just that part (its
 * origins are the part's own place in the whole tensor). row_begin and row_end are multiples of 32, or rows.
 * -EINVAL: NaN code in FP8 weights, or a scale that is NaN, negative or too large: err says at which row and column of
 * the whole tensor; or types or origins that do not fit. Parts of one matrix may be packed by several threads. */
int dk_matrix_pack(struct dk_matrix *m, uint32_t row_begin, uint32_t row_end, uint32_t col_begin, uint32_t col_end,
                   const struct dk_matrix_source *src, struct dk_err *err);

/* The feed-forward of one expert (or of a dense layer), slice [begin, end) of the intermediate dimension:
 * y = W_down (silu(W_gate x) * (W_up x)). */
struct dk_ffn {
    struct dk_matrix gate_up; /* panels alternate: 2p is gate's panel p, 2p + 1 up's; rows = 2 * 32 * panels(width) */
    struct dk_matrix down;    /* [hidden][end - begin] */
    uint32_t hidden, width;   /* width = end - begin */
};

int dk_ffn_alloc(struct dk_ffn *f, enum dk_dtype packed_type, uint32_t hidden, uint32_t width, uint32_t begin,
                 int scaled);
void dk_ffn_free(struct dk_ffn *f);
/* Packs rows [begin, end) of the slice: multiples of 32, or width. gate, up [end - begin][hidden]; down
 * [hidden][end - begin]. */
int dk_ffn_pack(struct dk_ffn *f, uint32_t begin, uint32_t end, const struct dk_matrix_source *gate,
                const struct dk_matrix_source *up, const struct dk_matrix_source *down, struct dk_err *err);
uint64_t dk_ffn_bytes(const struct dk_ffn *f); /* weights and scales streamed by one use */

struct dk_kernels; /* the table of one ISA level */
/* isa: not above dk_isa_best(). The tables are constant; any thread may use them. */
const struct dk_kernels *dk_kernels_get(enum dk_isa isa);
enum dk_isa dk_kernels_isa(const struct dk_kernels *k);

/* y[n][ldy] = x[n][ldx] W^T. x and y need not be aligned; y is [n][rows]. Rows are split over the threads of e. */
void dk_matmul(const struct dk_kernels *k, struct dk_exec *e, const struct dk_matrix *w, uint32_t n, const float *x,
               size_t ldx, float *y, size_t ldy);

/* The same head by head: w [heads], all of one type and shape [out][in]; x [n][ldx] holds head h's input at columns
 * [h * in, ...), y [n][ldy] gets its output at columns [h * out, ...). One job of e for all heads: their rows together
 * are split over the threads. y is not x. */
void dk_matmul_heads(const struct dk_kernels *k, struct dk_exec *e, uint32_t heads, const struct dk_matrix *w,
                     uint32_t n, const float *x, size_t ldx, float *y, size_t ldy);

/* Mixture of experts on a slice: y[n][hidden] = sum over the row's activated experts, in ascending expert id, of
 * weight * ffn[id](x). ids [n][k] in [0, experts), distinct within a row; weights [n][k]. Each expert's weights
 * are streamed once for all its rows. scratch: dk_moe_scratch_bytes, of any alignment. Dense layer: experts 1, k 1, ids
 * NULL, weights NULL (all 1). Returns the weight bytes streamed. */
size_t dk_moe_scratch_bytes(uint32_t n_max, uint32_t k_max, uint32_t experts, uint32_t width);
uint64_t dk_moe(const struct dk_kernels *k, struct dk_exec *e, const struct dk_ffn *experts, uint32_t expert_count,
                uint32_t n, uint32_t top_k, const float *x, const int32_t *ids, const float *weights, float *y,
                void *scratch);

/* What attention needs; all [n] f32, single thread, same bits in every variant, any alignment. The exponential in
 * dk_softmax, dk_silu_mul and dk_sigmoid_mul is within 1 ulp of the exact value (3 ulp for silu and sigmoid where the
 * result is normal). */
/* y = x * rsqrt(mean(x^2) + eps) * w. y may be x. */
void dk_rmsnorm(const struct dk_kernels *k, uint32_t n, const float *x, const float *w, float eps, float *y);
float dk_dot(const struct dk_kernels *k, uint32_t n, const float *a, const float *b);
void dk_axpy(const struct dk_kernels *k, uint32_t n, float a, const float *x, float *y); /* y += a x */
void dk_softmax(const struct dk_kernels *k, uint32_t n, float *x);                       /* in place */
/* y = silu(g) u and y = sigmoid(g) u. y may be g or u. */
void dk_silu_mul(const struct dk_kernels *k, uint32_t n, const float *g, const float *u, float *y);
void dk_sigmoid_mul(const struct dk_kernels *k, uint32_t n, const float *g, const float *u, float *y);
/* Rotates pairs (i, i + n/2) or neighbours (2i, 2i + 1); n even; cos, sin [n/2]. In place. */
void dk_rope_halves(const struct dk_kernels *k, uint32_t n, float *x, const float *cosine, const float *sine);
void dk_rope_pairs(const struct dk_kernels *k, uint32_t n, float *x, const float *cosine, const float *sine);

/* Reads the bytes with wide loads and prefetch, as fast as this ISA can: the yardstick of benchmarks. Returns a sum
 * that must be used. */
uint64_t dk_read(const struct dk_kernels *k, const void *data, size_t bytes);

#endif
