/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_KERNEL_X86_H
#define DK_KERNEL_X86_H

#include <stddef.h>

#include "kernel/kernel_internal.h"

void dk_pairs_f8_avx2(const struct dk_pairs *p, uint32_t n, const float *const *x, float (*out)[DK_PAIR_ROWS]);
void dk_pairs_bf16_avx2(const struct dk_pairs *p, uint32_t n, const float *const *x, float (*out)[DK_PAIR_ROWS]);
void dk_pairs_f32_avx2(const struct dk_pairs *p, uint32_t n, const float *const *x, float (*out)[DK_PAIR_ROWS]);
uint64_t dk_read_avx2(const void *data, size_t bytes);

void dk_pairs_f8_avx512(const struct dk_pairs *p, uint32_t n, const float *const *x, float (*out)[DK_PAIR_ROWS]);
void dk_pairs_bf16_avx512(const struct dk_pairs *p, uint32_t n, const float *const *x, float (*out)[DK_PAIR_ROWS]);
void dk_pairs_f32_avx512(const struct dk_pairs *p, uint32_t n, const float *const *x, float (*out)[DK_PAIR_ROWS]);
uint64_t dk_read_avx512(const void *data, size_t bytes);

/* The prefetch pointer: DK_PREFETCH_BYTES ahead of what is being read, through the pairs and then on to p->next. */
struct dk_ahead {
    const char *at, *end;
    ptrdiff_t jump;
};

static inline struct dk_ahead dk_ahead_begin(const struct dk_pairs *p, size_t bytes)
{
    const char *end = (const char *)p->data + bytes;

    return (struct dk_ahead){(const char *)p->data + DK_PREFETCH_BYTES, end, (const char *)p->next - end};
}

/* Before the lines at a->at are asked for. */
static inline void dk_ahead_check(struct dk_ahead *a)
{
    if (a->at >= a->end) {
        a->at += a->jump;
        a->jump = 0;
    }
}

#endif
