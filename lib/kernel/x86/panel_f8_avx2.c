/* SPDX-License-Identifier: Apache-2.0 */
/* FP8 E4M3 by AVX2. Two codes are one 16-bit lane. A code s eeee mmm in the lane's high byte, shifted right by one with
 * its sign, or a code in the low byte, taken as a signed byte and multiplied by 128 (vpmaddubsw with 128 for this byte
 * and 0 for the other), becomes s s eeee mmm ...; without bit 14 and what is below mmm that is the fp16 number code x
 * 2^-8, subnormals included, which F16C widens. The scale has the 2^8 in it. (Two ways for the two bytes because they
 * keep different execution units busy.)
 *
 * One row of x: widening 8 fp16 from a register takes two operations and the upper half of a register a third to get
 * at; from memory it takes one. So the fp16 columns go through a small ring in the first-level cache, a few columns
 * ahead of the multiply-adds, which is a third faster where memory is not the limit. */
#include <immintrin.h>
#include <stdint.h>

#define ELEMENT_BYTES 1
#define OWN_SINGLE

static inline __attribute__((always_inline)) void widen_quarter(const uint8_t *column, int q, __m256 *w)
{
    __m128i v = _mm_loadu_si128((const __m128i *)(column + 16 * q));

    w[0] = _mm256_cvtph_ps(_mm_and_si128(_mm_maddubs_epi16(_mm_set1_epi16(0x0080), v), _mm_set1_epi16((short)0xbfff)));
    w[1] = _mm256_cvtph_ps(_mm_and_si128(_mm_srai_epi16(v, 1), _mm_set1_epi16((short)0xbf80)));
}

/* 32 codes to fp16: even ones to low, odd ones to high. */
static inline __attribute__((always_inline)) void fp16_of(const uint8_t *codes, __m256i *low, __m256i *high)
{
    __m256i v = _mm256_loadu_si256((const __m256i *)codes);

    __asm__("" : "+x"(v)); /* one load, not one for each use */
    *low = _mm256_and_si256(_mm256_maddubs_epi16(_mm256_set1_epi16(0x0080), v), _mm256_set1_epi16((short)0xbfff));
    *high = _mm256_and_si256(_mm256_srai_epi16(v, 1), _mm256_set1_epi16((short)0xbf80));
}

static inline __attribute__((always_inline)) void widen_panel(const uint8_t *column, int panel, __m256 *w)
{
    __m256i low, high;

    fp16_of(column + 32 * panel, &low, &high);
    w[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(low));
    w[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(low, 1));
    w[2] = _mm256_cvtph_ps(_mm256_castsi256_si128(high));
    w[3] = _mm256_cvtph_ps(_mm256_extracti128_si256(high, 1));
}

#include "kernel/x86/panel_avx2.h"

#define LEAD 4u         /* columns that widening is ahead */
#define RING (2 * LEAD) /* columns of the ring */
_Static_assert(LEAD *COLUMN_BYTES <= DK_DATA_SLACK, "widening ahead stays in the block");

/* A pair's column to its place in the ring, as fp16. */
INLINE void fill(uint8_t *slot, const uint8_t *column)
{
    __m256i low, high;

    fp16_of(column, &low, &high);
    _mm256_store_si256((__m256i *)slot, low);
    _mm256_store_si256((__m256i *)slot + 1, high);
    fp16_of(column + 32, &low, &high);
    _mm256_store_si256((__m256i *)slot + 2, low);
    _mm256_store_si256((__m256i *)slot + 3, high);
}

INLINE void use(const uint8_t *slot, const float *x, __m256 *chain)
{
    __m256 b = _mm256_broadcast_ss(x);

#pragma GCC unroll 8
    for (int j = 0; j < 8; j++)
        chain[j] = _mm256_fmadd_ps(_mm256_cvtph_ps(_mm_load_si128((const __m128i *)slot + j)), b, chain[j]);
}

static void single(const struct dk_pairs *p, const float *x, float (*out)[DK_PAIR_ROWS])
{
    _Alignas(64) uint8_t memory[RING][2 * COLUMN_BYTES];
    uint8_t(*ring)[2 * COLUMN_BYTES] = memory;
    struct dk_ahead ahead = dk_ahead_begin(p, (size_t)p->count * p->cols * COLUMN_BYTES);
    const uint8_t *w = p->data;
    const float *scales = p->scales;
    uint32_t slot = 0; /* of the column to be used next */

    __asm__("" : "+r"(ring) : : "memory"); /* or the compiler keeps copies of the ring's slots elsewhere */
    for (uint32_t c = 0; c < LEAD; c++)
        fill(ring[c], w + c * COLUMN_BYTES);
    for (uint32_t pair = 0; pair < p->count; pair++) {
        uint32_t col = 0, end = p->run_first;

        for (uint32_t run = 0; run < p->runs; run++) {
            __m256 chain[8];

#pragma GCC unroll 8
            for (int j = 0; j < 8; j++)
                chain[j] = _mm256_setzero_ps();
            while (col < end) {
                if (slot || end - col < RING) {
                    dk_ahead_check(&ahead);
                    prefetch_column(ahead.at);
                    fill(ring[(slot + LEAD) % RING], w + LEAD * COLUMN_BYTES);
                    use(ring[slot], x + col, chain);
                    slot = (slot + 1) % RING;
                    w += COLUMN_BYTES;
                    ahead.at += COLUMN_BYTES;
                    col++;
                    continue;
                }
                dk_ahead_check(&ahead);
#pragma GCC unroll 8
                for (uint32_t c = 0; c < RING; c++) {
                    prefetch_column(ahead.at + c * COLUMN_BYTES);
                    fill(ring[(c + LEAD) % RING], w + (c + LEAD) * COLUMN_BYTES);
                    use(ring[c], x + col + c, chain);
                }
                w += RING * COLUMN_BYTES;
                ahead.at += RING * COLUMN_BYTES;
                col += RING;
            }
#pragma GCC unroll 8
            for (int j = 0; j < 8; j++)
                end_chain(out[pair] + 8 * j, chain[j], scales[j / 4 * p->runs], run == 0);
            scales++;
            end = p->cols - col < DK_RUN_COLS ? p->cols : col + DK_RUN_COLS;
        }
        scales += p->runs;
    }
}

void dk_pairs_f8_avx2(const struct dk_pairs *p, uint32_t n, const float *const *x, float (*out)[DK_PAIR_ROWS])
{
    pairs(p, n, x, out);
}
