/* SPDX-License-Identifier: Apache-2.0 */
/* The yardstick: how fast this level's loads can read memory. */
#include <immintrin.h>
#include <string.h>

#include "kernel/x86/x86.h"

uint64_t dk_read_avx2(const void *data, size_t bytes)
{
    const uint8_t *p = data, *end = p + bytes;
    __m256i s[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
    uint64_t words[4], sum = 0;

    for (; end - p >= 256; p += 256) {
        for (int line = 0; line < 256; line += 64)
            _mm_prefetch((const char *)p + DK_PREFETCH_BYTES + line, _MM_HINT_T0);
        for (int j = 0; j < 8; j++)
            s[j % 4] = _mm256_xor_si256(s[j % 4], _mm256_loadu_si256((const __m256i *)(p + 32 * j)));
    }
    s[0] = _mm256_xor_si256(_mm256_xor_si256(s[0], s[1]), _mm256_xor_si256(s[2], s[3]));
    _mm256_storeu_si256((__m256i *)words, s[0]);
    for (; end - p >= 8; p += 8) {
        uint64_t word;

        memcpy(&word, p, 8);
        sum ^= word;
    }
    for (; p < end; p++)
        sum ^= *p;
    return sum ^ words[0] ^ words[1] ^ words[2] ^ words[3];
}
