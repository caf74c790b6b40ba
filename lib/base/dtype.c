/* SPDX-License-Identifier: Apache-2.0 */
#include "base/dtype.h"

#include <assert.h>
#include <math.h>

size_t dk_dtype_bytes(enum dk_dtype t)
{
    static const size_t bytes[DK_DTYPE_COUNT] = {4, 2, 2, 1, 4};

    assert((unsigned)t < DK_DTYPE_COUNT);
    return bytes[t];
}

const char *dk_dtype_name(enum dk_dtype t)
{
    static const char *const names[DK_DTYPE_COUNT] = {"F32", "F16", "BF16", "F8_E4M3", "I32"};

    return (unsigned)t < DK_DTYPE_COUNT ? names[t] : "unknown";
}

float dk_f32_from_f16(uint16_t h)
{
    int sign = h >> 15, exponent = h >> 10 & 31, mantissa = h & 1023;
    float v;

    if (exponent == 31)
        v = mantissa ? NAN : INFINITY;
    else if (exponent == 0)
        v = ldexpf((float)mantissa, -24);
    else
        v = ldexpf((float)(mantissa + 1024), exponent - 25);
    return sign ? -v : v;
}

float dk_f32_from_e4m3(uint8_t code)
{
    int exponent = code >> 3 & 15, mantissa = code & 7;
    float v;

    if ((code & 0x7f) == 0x7f)
        v = NAN;
    else if (exponent == 0)
        v = ldexpf((float)mantissa, -9);
    else
        v = ldexpf((float)(mantissa + 8), exponent - 10);
    return code & 0x80 ? -v : v;
}

void dk_widen(float *to, const void *from, enum dk_dtype t, size_t count)
{
    const unsigned char *p = from;
    uint16_t h;

    assert(t != DK_I32);
    switch (t) {
    case DK_F32:
        memcpy(to, p, count * 4);
        break;
    case DK_F16:
        for (size_t i = 0; i < count; i++) {
            memcpy(&h, p + 2 * i, 2);
            to[i] = dk_f32_from_f16(h);
        }
        break;
    case DK_BF16:
        for (size_t i = 0; i < count; i++) {
            memcpy(&h, p + 2 * i, 2);
            to[i] = dk_f32_from_bf16(h);
        }
        break;
    default:
        for (size_t i = 0; i < count; i++)
            to[i] = dk_f32_from_e4m3(p[i]);
    }
}
