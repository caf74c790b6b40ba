/* SPDX-License-Identifier: Apache-2.0 */
/* The yardstick: how fast this level's loads can read memory. Two streams, because one is a little slower where it was
 * measured. */
#include <immintrin.h>
#include <string.h>

#include "kernel/x86/x86.h"

#define STEP 256

uint64_t dk_read_avx2(const void *data, size_t bytes)
{
    size_t half = bytes / 2 / STEP * STEP;
    const uint8_t *p = data, *q = p + half, *end = p + bytes;
    __m256i s[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
    uint64_t words[4], sum = 0;

    for (size_t at = 0; at < half; at += STEP) {
#pragma GCC unroll 4
        for (size_t line = at; line < at + STEP; line += 64) {
            _mm_prefetch((const char *)p + DK_PREFETCH_BYTES / 2 + line, _MM_HINT_T0);
            s[0] = _mm256_xor_si256(s[0], _mm256_loadu_si256((const __m256i *)(p + line)));
            s[1] = _mm256_xor_si256(s[1], _mm256_loadu_si256((const __m256i *)(p + line + 32)));
        }
#pragma GCC unroll 4
        for (size_t line = at; line < at + STEP; line += 64) {
            _mm_prefetch((const char *)q + DK_PREFETCH_BYTES / 2 + line, _MM_HINT_T0);
            s[2] = _mm256_xor_si256(s[2], _mm256_loadu_si256((const __m256i *)(q + line)));
            s[3] = _mm256_xor_si256(s[3], _mm256_loadu_si256((const __m256i *)(q + line + 32)));
        }
    }
    s[0] = _mm256_xor_si256(_mm256_xor_si256(s[0], s[1]), _mm256_xor_si256(s[2], s[3]));
    _mm256_storeu_si256((__m256i *)words, s[0]);
    for (q += half; end - q >= 8; q += 8) {
        uint64_t word;

        memcpy(&word, q, 8);
        sum ^= word;
    }
    for (; q < end; q++)
        sum ^= *q;
    return sum ^ words[0] ^ words[1] ^ words[2] ^ words[3];
}
