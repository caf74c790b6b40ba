/* SPDX-License-Identifier: Apache-2.0 */
/* The alphabet of byte-level BPE (GPT-2, github.com/openai/gpt-2, src/encoder.py): printable Latin-1 bytes stand for
 * themselves, the other 68 for U+0100 and up, in order. */
#include "model/tokenizer/tokenizer_internal.h"

static bool is_itself(uint32_t c)
{
    return (c >= 0x21 && c <= 0x7E) || (c >= 0xA1 && c <= 0xAC) || (c >= 0xAE && c <= 0xFF);
}

uint32_t dk_byte_char(uint8_t byte)
{
    if (is_itself(byte))
        return byte;
    if (byte <= 0x20)
        return 0x100u + byte;
    if (byte <= 0xA0) /* 7F..A0 */
        return 0x121u + byte - 0x7F;
    return 0x143; /* AD */
}

int dk_char_byte(uint32_t c)
{
    if (c < 0x100)
        return is_itself(c) ? (int)c : -1;
    if (c <= 0x120)
        return (int)(c - 0x100);
    if (c <= 0x142)
        return (int)(c - 0x121 + 0x7F);
    return c == 0x143 ? 0xAD : -1;
}
