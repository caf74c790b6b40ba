/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/dtype.h"

static uint32_t bits_of(float f)
{
    uint32_t u;

    memcpy(&u, &f, 4);
    return u;
}

static float float_of(uint32_t u)
{
    float f;

    memcpy(&f, &u, 4);
    return f;
}

/* OCP 8-bit floating point specification, E4M3: bias 7; every code is a number but 0x7f and 0xff. */
Test(dtype, all_e4m3_codes)
{
    static const struct {
        uint8_t code;
        float value;
    } known[] = {
        {0x00, 0}, {0x01, 0.001953125f}, {0x07, 0.013671875f}, {0x08, 0.015625f}, {0x38, 1},  {0x39, 1.125f}, {0x40, 2},
        {0x48, 4}, {0x77, 240},          {0x78, 256},          {0x7e, 448},       {0xb8, -1}, {0xfe, -448}};

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        cr_expect_eq(dk_f32_from_e4m3(known[i].code), known[i].value, "code %02x", known[i].code);
    cr_expect(isnan(dk_f32_from_e4m3(0x7f)) && isnan(dk_f32_from_e4m3(0xff)));
    cr_expect(signbit(dk_f32_from_e4m3(0x80)) && dk_f32_from_e4m3(0x80) == 0);
    for (unsigned c = 0; c < 256; c++) {
        unsigned exponent = c >> 3 & 15, mantissa = c & 7;
        uint32_t want; /* as bits of a float32: exponent rebiased by 120, mantissa moved up by 20 */

        if ((c & 0x7f) == 0x7f)
            continue;
        want = exponent ? (exponent + 120) << 23 | mantissa << 20 : bits_of((float)mantissa / 512);
        cr_expect_eq(bits_of(dk_f32_from_e4m3((uint8_t)c)), want | (c & 0x80) << 24, "code %02x", c);
    }
}

Test(dtype, all_bf16_codes)
{
    for (uint32_t h = 0; h < 65536; h++)
        cr_assert_eq(bits_of(dk_f32_from_bf16((uint16_t)h)), h << 16);
}

/* IEEE 754 binary16, rebuilt from its fields in a second way. */
Test(dtype, all_f16_codes)
{
    cr_expect_eq(dk_f32_from_f16(0x3c00), 1);
    cr_expect_eq(dk_f32_from_f16(0x7bff), 65504);
    cr_expect_eq(dk_f32_from_f16(0xc000), -2);
    cr_expect_eq(dk_f32_from_f16(0x0001), 5.9604644775390625e-08f);
    for (uint32_t h = 0; h < 65536; h++) {
        uint32_t exponent = h >> 10 & 31, mantissa = h & 1023, sign = h >> 15 << 31;
        float v = dk_f32_from_f16((uint16_t)h);

        if (exponent == 31 && mantissa)
            cr_assert(isnan(v), "code %04x", h);
        else if (exponent == 31)
            cr_assert_eq(bits_of(v), sign | 0x7f800000, "code %04x", h);
        else if (exponent)
            cr_assert_eq(bits_of(v), sign | (exponent + 112) << 23 | mantissa << 13, "code %04x", h);
        else
            cr_assert_eq(bits_of(v), sign | bits_of((float)mantissa * 0x1p-24f), "code %04x", h);
    }
}

Test(dtype, widen_from_odd_addresses)
{
    unsigned char bytes[4 * 9 + 1];
    float out[10];

    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i * 11 + 5);
    for (enum dk_dtype t = DK_F32; t <= DK_F8_E4M3; t++)
        for (size_t at = 0; at < 2; at++)
            for (size_t n = 0; n <= 9; n++) {
                out[n] = 12345;
                dk_widen(out, bytes + at, t, n);
                cr_expect_eq(out[n], 12345, "writes beyond its end");
                for (size_t i = 0; i < n; i++) {
                    const unsigned char *p = bytes + at + i * dk_dtype_bytes(t);
                    uint16_t half = (uint16_t)(p[0] | p[1] << 8);
                    float want = t == DK_F32    ? float_of((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
                                                           (uint32_t)p[3] << 24)
                                 : t == DK_F16  ? dk_f32_from_f16(half)
                                 : t == DK_BF16 ? dk_f32_from_bf16(half)
                                                : dk_f32_from_e4m3(p[0]);

                    cr_expect_eq(bits_of(out[i]), bits_of(want), "type %s, element %zu", dk_dtype_name(t), i);
                }
            }
}

Test(dtype, sizes_and_names)
{
    static const struct {
        enum dk_dtype type;
        size_t bytes;
        const char *name;
    } all[] = {
        {DK_F32, 4, "F32"}, {DK_F16, 2, "F16"}, {DK_BF16, 2, "BF16"}, {DK_F8_E4M3, 1, "F8_E4M3"}, {DK_I32, 4, "I32"}};

    cr_assert_eq(sizeof all / sizeof *all, DK_DTYPE_COUNT);
    for (size_t i = 0; i < DK_DTYPE_COUNT; i++) {
        cr_expect_eq(dk_dtype_bytes(all[i].type), all[i].bytes);
        cr_expect_str_eq(dk_dtype_name(all[i].type), all[i].name);
    }
    cr_expect_str_eq(dk_dtype_name(DK_DTYPE_COUNT), "unknown");
}
