/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_KERNEL_REF_H
#define DK_KERNEL_REF_H

#include "kernel/kernel_internal.h"

void dk_pairs_f8_ref(const struct dk_pairs *p, uint32_t n, const float *const *x, float (*out)[DK_PAIR_ROWS]);
void dk_pairs_bf16_ref(const struct dk_pairs *p, uint32_t n, const float *const *x, float (*out)[DK_PAIR_ROWS]);
void dk_pairs_f32_ref(const struct dk_pairs *p, uint32_t n, const float *const *x, float (*out)[DK_PAIR_ROWS]);
float dk_exp_ref(float x);

#endif
