/* SPDX-License-Identifier: Apache-2.0 */
/* The yardstick of this level: as read_avx2.c. */
#include <immintrin.h>
#include <string.h>

#include "kernel/x86/x86.h"

#define STEP 256

uint64_t dk_read_avx512(const void *data, size_t bytes)
{
    size_t half = bytes / 2 / STEP * STEP;
    const uint8_t *p = data, *q = p + half, *end = p + bytes;
    __m512i s[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    uint64_t words[8], sum = 0;

    for (size_t at = 0; at < half; at += STEP) {
#pragma GCC unroll 4
        for (size_t line = at; line < at + STEP; line += 64) {
            _mm_prefetch((const char *)p + DK_PREFETCH_BYTES / 2 + line, _MM_HINT_T0);
            s[0] = _mm512_xor_si512(s[0], _mm512_loadu_si512(p + line));
        }
#pragma GCC unroll 4
        for (size_t line = at; line < at + STEP; line += 64) {
            _mm_prefetch((const char *)q + DK_PREFETCH_BYTES / 2 + line, _MM_HINT_T0);
            s[1] = _mm512_xor_si512(s[1], _mm512_loadu_si512(q + line));
        }
    }
    _mm512_storeu_si512(words, _mm512_xor_si512(s[0], s[1]));
    for (q += half; end - q >= 8; q += 8) {
        uint64_t word;

        memcpy(&word, q, 8);
        sum ^= word;
    }
    for (; q < end; q++)
        sum ^= *q;
    for (int j = 0; j < 8; j++)
        sum ^= words[j];
    return sum;
}
