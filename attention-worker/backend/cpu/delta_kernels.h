/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_DELTA_KERNELS_H
#define DK_DELTA_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "base/cpu.h"

/* The inner loops of Gated DeltaNet (arXiv 2412.06464). Lanes are channels, or columns of the state: they never have to
 * be added up. Sums go over rising taps and rising key dimensions, each one chain of fused multiply-adds from 0, so all
 * variants give the same bits. Any thread.
 *
 * The norms of q and k are numbers of a token, so they are taken out of the sums, and the output is read from the old
 * state: with k and q as the convolution left them, 1 / |k| = rsqrt(sum k^2 + 1e-6) and 1 / |q| alike,
 *   d = write (v - recall (S^T k)),  y = carry (S^T q) + add d,  S = decay S + k d^T
 * is the rule of backend.h. Then one pass over the state serves a token's update and the next one's two sums. */

/* Columns of a block of the state: its rows, key dimensions, follow each other, so that it is one stream from memory
 * and stays in the first-level cache while a sequence's tokens go over it. */
#define DELTA_COLUMNS 32u
/* Columns of one call at most: two blocks, which the wider registers need to hide the latency of their sums. */
#define DELTA_COLUMNS_MAX (2 * DELTA_COLUMNS)
/* The convolution's channels are padded to this. */
#define DELTA_LANES 16u

/* One token of one value head. */
struct delta_gate {
    float decay;  /* exp(g) */
    float recall; /* exp(g) / |k| */
    float write;  /* beta / |k| */
    float carry;  /* exp(g) key_dim^-0.5 / |q| */
    float add;    /* (q . k) key_dim^-0.5 / |q| */
};

struct delta_run {
    uint32_t key_dim, columns, tokens; /* columns 1 .. DELTA_COLUMNS_MAX, tokens at least 1 */
    const struct delta_gate *gates;    /* [tokens] */
    const float *q, *k, *v;            /* of the first token: [key_dim], [key_dim], [columns]; any alignment */
    size_t stride;                     /* floats from one token's to the next one's */
    float *y;                          /* [columns] of the first token; any alignment */
    size_t y_stride;
    /* [blocks][key_dim][DELTA_COLUMNS], 64-byte aligned; the columns beyond the last are zero before and after. */
    float *state;
};

struct delta_kernels {
    /* y[c] = sum over taps j of weights[j][c] * inputs[j][c], c < n. n is a multiple of DELTA_LANES; y and the inputs
     * are 64-byte aligned. weights [taps][stride], any alignment. */
    void (*convolve)(uint32_t n, uint32_t taps, uint32_t stride, const float *weights, const float *const *inputs,
                     float *y);
    /* The tokens in order. */
    void (*recur)(const struct delta_run *r);
};

const struct delta_kernels *delta_kernels_get(enum dk_isa isa);

extern const struct delta_kernels delta_kernels_ref, delta_kernels_avx2, delta_kernels_avx512;

#endif
