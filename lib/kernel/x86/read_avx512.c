/* SPDX-License-Identifier: Apache-2.0 */
/* The yardstick of this level. */
#include <immintrin.h>
#include <string.h>

#include "kernel/x86/x86.h"

uint64_t dk_read_avx512(const void *data, size_t bytes)
{
    const uint8_t *p = data, *end = p + bytes;
    __m512i s[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
    uint64_t words[8], sum = 0;

    for (; end - p >= 256; p += 256)
        for (int j = 0; j < 4; j++) {
            _mm_prefetch((const char *)p + DK_PREFETCH_BYTES + 64 * j, _MM_HINT_T0);
            s[j] = _mm512_xor_si512(s[j], _mm512_loadu_si512(p + 64 * j));
        }
    s[0] = _mm512_xor_si512(_mm512_xor_si512(s[0], s[1]), _mm512_xor_si512(s[2], s[3]));
    _mm512_storeu_si512(words, s[0]);
    for (; end - p >= 8; p += 8) {
        uint64_t word;

        memcpy(&word, p, 8);
        sum ^= word;
    }
    for (; p < end; p++)
        sum ^= *p;
    for (int j = 0; j < 8; j++)
        sum ^= words[j];
    return sum;
}
