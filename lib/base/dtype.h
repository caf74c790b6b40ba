/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_BASE_DTYPE_H
#define DK_BASE_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Element types of tensors in checkpoints and on the wire. */
enum dk_dtype {
    DK_F32,
    DK_F16,
    DK_BF16,
    DK_F8_E4M3, /* OCP FP8 E4M3 "fn": no infinities; 0x7f and 0xff are NaN */
    DK_I32,
    DK_DTYPE_COUNT
};

size_t dk_dtype_bytes(enum dk_dtype t);
const char *dk_dtype_name(enum dk_dtype t); /* as safetensors spells it: "F8_E4M3" */

static inline float dk_f32_from_bf16(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;

    memcpy(&f, &u, 4);
    return f;
}

float dk_f32_from_f16(uint16_t h);
/* All 256 codes; NaN for 0x7f and 0xff. Exact. */
float dk_f32_from_e4m3(uint8_t code);
/* Widens count elements of type t (not DK_I32) at `from`, which need not be aligned. */
void dk_widen(float *to, const void *from, enum dk_dtype t, size_t count);

#endif
