/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_KERNEL_REF_H
#define DK_KERNEL_REF_H

#include "kernel/kernel_internal.h"

void dk_panels_f8_ref(const struct dk_panels *p, uint32_t n, const float *const *x, float (*out)[DK_PANEL_ROWS]);
void dk_panels_bf16_ref(const struct dk_panels *p, uint32_t n, const float *const *x, float (*out)[DK_PANEL_ROWS]);
void dk_panels_f32_ref(const struct dk_panels *p, uint32_t n, const float *const *x, float (*out)[DK_PANEL_ROWS]);
float dk_exp_ref(float x);

#endif
