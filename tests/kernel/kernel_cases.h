/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_CASES_H
#define KERNEL_CASES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"
#include "kernel/kernel.h"

/* What the kernel checks and the benchmark share: data of several styles, buffers with guards, comparison. */

enum style {
    STYLE_RANDOM,  /* every weight code but NaN; activations about 1 */
    STYLE_ZERO,    /* zeros of both signs */
    STYLE_EXTREME, /* largest, smallest and subnormal numbers of both signs */
    STYLE_CANCEL,  /* large numbers that nearly cancel */
    STYLE_SPECIAL, /* some activations are infinite or NaN */
    STYLE_COUNT
};
const char *style_name(enum style s);

/* Set once from the command line: the first number of every generator, printed by failures. */
extern uint64_t cases_seed;
extern unsigned cases_failed, cases_run;

/* count floats at an address that is `misalign` bytes (0 or 4..60) off a 64-byte boundary, with guard bytes before and
 * behind. */
struct buffer {
    float *data;
    size_t count;
    uint8_t *block;
};
struct buffer buffer_make(size_t count, unsigned misalign);
bool buffer_guards_hold(const struct buffer *b);
void buffer_free(struct buffer *b);

void fill_floats(struct dk_rng *rng, float *to, size_t count, enum style s);
void fill_weights(struct dk_rng *rng, void *to, enum dk_dtype type, size_t count, enum style s);

/* A weight matrix as a checkpoint has it, and packed. */
struct weights {
    enum dk_dtype type;
    uint32_t rows, cols, row_origin, col_origin;
    uint8_t *source; /* [rows][cols] */
    float *scales;   /* [row blocks][scale_stride] or NULL */
    uint32_t scale_stride;
    struct dk_matrix packed;
};
void weights_make(struct weights *w, struct dk_rng *rng, enum dk_dtype type, uint32_t rows, uint32_t cols,
                  uint32_t row_origin, uint32_t col_origin, enum style s);
void weights_source(const struct weights *w, struct dk_matrix_source *src);
double weights_at(const struct weights *w, uint32_t row, uint32_t col); /* value times scale */
void weights_free(struct weights *w);

/* Equal bit for bit; one NaN is like another. Counts a failure and prints `what` and the first bad index. */
bool same_bits(const float *got, const float *want, size_t count, const char *what);
void fail_case(const char *format, ...) __attribute__((format(printf, 1, 2)));

void check_matrices(const struct dk_kernels *k);
void check_experts(const struct dk_kernels *k);
void check_codes(const struct dk_kernels *k);
void check_vectors(const struct dk_kernels *k);
int bench_kernels(void);
int count_kernels(uint32_t width);

#endif
