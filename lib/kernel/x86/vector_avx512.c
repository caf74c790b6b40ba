/* SPDX-License-Identifier: Apache-2.0 */
/* The vector functions by AVX-512, and the table of this level. Tails are masked. */
#include <immintrin.h>

#include "kernel/ref/exp_constants.h"
#include "kernel/x86/x86.h"

#define INLINE static inline __attribute__((always_inline))

/* A mask of the elements of a vector at i that exist. */
INLINE __mmask16 mask_at(uint32_t i, uint32_t n)
{
    return i >= n ? 0 : n - i >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << (n - i)) - 1);
}

INLINE __m512 exp16(__m512 x)
{
    __m512 shifted, n, r, q, e;
    __m512i whole, half, bias = _mm512_set1_epi32(127);

    x = _mm512_max_ps(_mm512_set1_ps(-DK_EXP_LIMIT), x); /* operand order: NaN in x stays */
    x = _mm512_min_ps(_mm512_set1_ps(DK_EXP_LIMIT), x);
    shifted = _mm512_fmadd_ps(x, _mm512_set1_ps(DK_EXP_LOG2E), _mm512_set1_ps(DK_EXP_ROUND));
    n = _mm512_sub_ps(shifted, _mm512_set1_ps(DK_EXP_ROUND));
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(-DK_EXP_LN2_HI), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(-DK_EXP_LN2_LO), r);
    q = _mm512_fmadd_ps(_mm512_set1_ps(DK_EXP_Q4), r, _mm512_set1_ps(DK_EXP_Q3));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(DK_EXP_Q2));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(DK_EXP_Q1));
    q = _mm512_fmadd_ps(q, r, _mm512_set1_ps(DK_EXP_Q0));
    e = _mm512_add_ps(_mm512_fmadd_ps(_mm512_mul_ps(r, r), q, r), _mm512_set1_ps(1.0f));
    whole = _mm512_sub_epi32(_mm512_castps_si512(shifted), _mm512_castps_si512(_mm512_set1_ps(DK_EXP_ROUND)));
    half = _mm512_srai_epi32(whole, 1);
    e = _mm512_mul_ps(e, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(half, bias), 23)));
    half = _mm512_sub_epi32(whole, half);
    return _mm512_mul_ps(e, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(half, bias), 23)));
}

INLINE float sum_lanes(__m512 a, __m512 b)
{
    __m512 v = _mm512_add_ps(a, b);
    __m256 w = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(w), _mm256_extractf128_ps(w, 1));

    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

static float dot_avx512(uint32_t n, const float *a, const float *b)
{
    __m512 s0 = _mm512_setzero_ps(), s1 = s0;
    uint32_t i = 0;

    for (; i + 32 <= n; i += 32) {
        s0 = _mm512_fmadd_ps(_mm512_loadu_ps(a + i), _mm512_loadu_ps(b + i), s0);
        s1 = _mm512_fmadd_ps(_mm512_loadu_ps(a + i + 16), _mm512_loadu_ps(b + i + 16), s1);
    }
    if (i < n) {
        __mmask16 m0 = mask_at(i, n), m1 = mask_at(i + 16, n);

        s0 = _mm512_mask3_fmadd_ps(_mm512_maskz_loadu_ps(m0, a + i), _mm512_maskz_loadu_ps(m0, b + i), s0, m0);
        s1 = _mm512_mask3_fmadd_ps(_mm512_maskz_loadu_ps(m1, a + i + 16), _mm512_maskz_loadu_ps(m1, b + i + 16), s1,
                                   m1);
    }
    return sum_lanes(s0, s1);
}

static void axpy_avx512(uint32_t n, float a, const float *x, float *y)
{
    __m512 va = _mm512_set1_ps(a);

    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = mask_at(i, n);

        _mm512_mask_storeu_ps(y + i, m,
                              _mm512_fmadd_ps(va, _mm512_maskz_loadu_ps(m, x + i), _mm512_maskz_loadu_ps(m, y + i)));
    }
}

static void scale_mul_avx512(uint32_t n, const float *x, float r, const float *w, float *y)
{
    __m512 vr = _mm512_set1_ps(r);

    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = mask_at(i, n);

        _mm512_mask_storeu_ps(
            y + i, m,
            _mm512_mul_ps(_mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), vr), _mm512_maskz_loadu_ps(m, w + i)));
    }
}

/* The largest of x, as a chain of x > max ? x : max has it: NaN is passed over. */
static float maximum(uint32_t n, const float *x)
{
    __m512 v = _mm512_set1_ps(-__builtin_inff());
    float lanes[16], max = -__builtin_inff();

    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = mask_at(i, n);

        v = _mm512_mask_max_ps(v, m, _mm512_maskz_loadu_ps(m, x + i), v);
    }
    _mm512_storeu_ps(lanes, v);
    for (int j = 0; j < 16; j++)
        max = lanes[j] > max ? lanes[j] : max;
    return max;
}

static void softmax_avx512(uint32_t n, float *x)
{
    __m512 s[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    __m512 max = _mm512_set1_ps(maximum(n, x)), sum;

    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = mask_at(i, n);
        __m512 e = exp16(_mm512_sub_ps(_mm512_maskz_loadu_ps(m, x + i), max));
        __m512 *lane = &s[i / 16 % 2];

        _mm512_mask_storeu_ps(x + i, m, e);
        *lane = _mm512_mask_add_ps(*lane, m, *lane, e);
    }
    sum = _mm512_set1_ps(sum_lanes(s[0], s[1]));
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = mask_at(i, n);

        _mm512_mask_storeu_ps(x + i, m, _mm512_div_ps(_mm512_maskz_loadu_ps(m, x + i), sum));
    }
}

INLINE __m512 sigmoid16(__m512 g)
{
    __m512 one = _mm512_set1_ps(1.0f), e = exp16(_mm512_or_ps(g, _mm512_set1_ps(-0.0f)));
    __m512 top = _mm512_mask_mov_ps(one, _mm512_movepi32_mask(_mm512_castps_si512(g)), e); /* by the sign bit */

    return _mm512_div_ps(top, _mm512_add_ps(one, e));
}

static void silu_mul_avx512(uint32_t n, const float *g, const float *u, float *y)
{
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = mask_at(i, n);
        __m512 v = _mm512_maskz_loadu_ps(m, g + i);

        v = _mm512_mul_ps(v, sigmoid16(v));
        _mm512_mask_storeu_ps(y + i, m, _mm512_mul_ps(v, _mm512_maskz_loadu_ps(m, u + i)));
    }
}

static void sigmoid_mul_avx512(uint32_t n, const float *g, const float *u, float *y)
{
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = mask_at(i, n);
        __m512 v = sigmoid16(_mm512_maskz_loadu_ps(m, g + i));

        _mm512_mask_storeu_ps(y + i, m, _mm512_mul_ps(v, _mm512_maskz_loadu_ps(m, u + i)));
    }
}

static void rope_halves_avx512(uint32_t n, float *x, const float *cosine, const float *sine)
{
    float *b = x + n / 2;

    for (uint32_t i = 0; i < n / 2; i += 16) {
        __mmask16 m = mask_at(i, n / 2);
        __m512 va = _mm512_maskz_loadu_ps(m, x + i), vb = _mm512_maskz_loadu_ps(m, b + i);
        __m512 c = _mm512_maskz_loadu_ps(m, cosine + i), s = _mm512_maskz_loadu_ps(m, sine + i);

        _mm512_mask_storeu_ps(x + i, m, _mm512_fmsub_ps(va, c, _mm512_mul_ps(vb, s)));
        _mm512_mask_storeu_ps(b + i, m, _mm512_fmadd_ps(vb, c, _mm512_mul_ps(va, s)));
    }
}

/* Each cosine and sine goes to both neighbours, whose places are then swapped for the sine's product: even elements
 * a c - (b s), odd ones b c + (a s). */
static void rope_pairs_avx512(uint32_t n, float *x, const float *cosine, const float *sine)
{
    const __m512i both = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);

    for (uint32_t i = 0; i < n / 2; i += 8) {
        __mmask16 m = mask_at(2 * i, n / 2 * 2);
        __mmask8 half = (__mmask8)mask_at(i, n / 2);
        __m512 v = _mm512_maskz_loadu_ps(m, x + 2 * i), swapped = _mm512_permute_ps(v, 0xb1);
        __m512 c = _mm512_permutexvar_ps(both, _mm512_castps256_ps512(_mm256_maskz_loadu_ps(half, cosine + i)));
        __m512 s = _mm512_permutexvar_ps(both, _mm512_castps256_ps512(_mm256_maskz_loadu_ps(half, sine + i)));

        _mm512_mask_storeu_ps(x + 2 * i, m, _mm512_fmaddsub_ps(v, c, _mm512_mul_ps(swapped, s)));
    }
}

void dk_kernels_fill_avx512(struct dk_kernels *k)
{
    k->pairs[DK_F8_E4M3] = dk_pairs_f8_avx512;
    k->pairs[DK_BF16] = dk_pairs_bf16_avx512;
    k->pairs[DK_F32] = dk_pairs_f32_avx512;
    k->dot = dot_avx512;
    k->axpy = axpy_avx512;
    k->scale_mul = scale_mul_avx512;
    k->softmax = softmax_avx512;
    k->silu_mul = silu_mul_avx512;
    k->sigmoid_mul = sigmoid_mul_avx512;
    k->rope_halves = rope_halves_avx512;
    k->rope_pairs = rope_pairs_avx512;
    k->read = dk_read_avx512;
}
