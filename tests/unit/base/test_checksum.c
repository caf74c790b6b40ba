/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdint.h>
#include <string.h>

#include "base/clock.h"
#include "base/crc32c.h"

/* RFC 3720, appendix B.4, and the check value of the catalogue of CRC algorithms. */
Test(crc32c, published_values)
{
    static const uint8_t iscsi_read[48] = {0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,    0, 0, 0, 0,
                                           0x14, 0,    0, 0, 0, 0, 4, 0, 0, 0, 0, 0x14, 0, 0, 0, 0x18,
                                           0x28, 0,    0, 0, 0, 0, 0, 0, 2, 0, 0, 0,    0, 0, 0, 0};
    uint8_t b[32];

    cr_expect_eq(dk_crc32c(0, "123456789", 9), 0xe3069283u);
    memset(b, 0, sizeof b);
    cr_expect_eq(dk_crc32c(0, b, 32), 0x8a9136aau);
    memset(b, 0xff, sizeof b);
    cr_expect_eq(dk_crc32c(0, b, 32), 0x62a8ab43u);
    for (unsigned i = 0; i < 32; i++)
        b[i] = (uint8_t)i;
    cr_expect_eq(dk_crc32c(0, b, 32), 0x46dd794eu);
    for (unsigned i = 0; i < 32; i++)
        b[i] = (uint8_t)(31 - i);
    cr_expect_eq(dk_crc32c(0, b, 32), 0x113fdb5cu);
    cr_expect_eq(dk_crc32c(0, iscsi_read, 48), 0xd9963a56u);
    cr_expect_eq(dk_crc32c(0, "", 0), 0);
}

/* The definition, bit by bit. */
static uint32_t crc_slow(const uint8_t *p, size_t n)
{
    uint32_t crc = ~0u;

    for (size_t i = 0; i < 8 * n; i++) {
        uint32_t bit = (crc ^ (uint32_t)(p[i / 8] >> i % 8)) & 1;

        crc = crc >> 1 ^ (bit ? 0x82f63b78u : 0);
    }
    return ~crc;
}

Test(crc32c, lengths_starts_and_pieces)
{
    struct dk_rng rng = {3};
    uint8_t b[300];

    for (size_t i = 0; i < sizeof b; i++)
        b[i] = (uint8_t)dk_rng_next(&rng);
    for (size_t n = 0; n < 80; n++)
        for (size_t at = 0; at < 9; at++)
            cr_assert_eq(dk_crc32c(0, b + at, n), crc_slow(b + at, n), "%zu bytes from %zu", n, at);
    for (size_t cut = 0; cut <= sizeof b; cut++)
        cr_assert_eq(dk_crc32c(dk_crc32c(0, b, cut), b + cut, sizeof b - cut), crc_slow(b, sizeof b), "cut at %zu",
                     cut);
}

Test(crc32c, every_flipped_bit_shows)
{
    uint8_t b[64] = {1, 2, 3};
    uint32_t right = dk_crc32c(0, b, sizeof b);

    for (size_t i = 0; i < 8 * sizeof b; i++) {
        b[i / 8] ^= (uint8_t)(1u << i % 8);
        cr_assert_neq(dk_crc32c(0, b, sizeof b), right);
        b[i / 8] ^= (uint8_t)(1u << i % 8);
    }
}
