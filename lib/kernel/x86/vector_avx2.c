/* SPDX-License-Identifier: Apache-2.0 */
/* The vector functions by AVX2, and the table of this level. Tails: sums finish in the array of partial sums, element
 * by element; everything else runs once more on a padded copy. */
#include <immintrin.h>
#include <string.h>

#include "kernel/ref/exp_constants.h"
#include "kernel/x86/x86.h"

#define INLINE static inline __attribute__((always_inline))

INLINE __m256 exp8(__m256 x)
{
    __m256 shifted, n, r, q, e;
    __m256i whole, half, bias = _mm256_set1_epi32(127);

    x = _mm256_max_ps(_mm256_set1_ps(-DK_EXP_LIMIT), x); /* operand order: NaN in x stays */
    x = _mm256_min_ps(_mm256_set1_ps(DK_EXP_LIMIT), x);
    shifted = _mm256_fmadd_ps(x, _mm256_set1_ps(DK_EXP_LOG2E), _mm256_set1_ps(DK_EXP_ROUND));
    n = _mm256_sub_ps(shifted, _mm256_set1_ps(DK_EXP_ROUND));
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-DK_EXP_LN2_HI), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-DK_EXP_LN2_LO), r);
    q = _mm256_fmadd_ps(_mm256_set1_ps(DK_EXP_Q4), r, _mm256_set1_ps(DK_EXP_Q3));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(DK_EXP_Q2));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(DK_EXP_Q1));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(DK_EXP_Q0));
    e = _mm256_add_ps(_mm256_fmadd_ps(_mm256_mul_ps(r, r), q, r), _mm256_set1_ps(1.0f));
    whole = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_castps_si256(_mm256_set1_ps(DK_EXP_ROUND)));
    half = _mm256_srai_epi32(whole, 1);
    e = _mm256_mul_ps(e, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
    half = _mm256_sub_epi32(whole, half);
    return _mm256_mul_ps(e, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
}

INLINE float sum_lanes(const __m256 *s)
{
    __m256 v = _mm256_add_ps(_mm256_add_ps(s[0], s[2]), _mm256_add_ps(s[1], s[3]));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));

    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

INLINE void load_lanes(__m256 *s, const float *lanes)
{
    for (int j = 0; j < 4; j++)
        s[j] = _mm256_load_ps(lanes + 8 * j);
}

INLINE void store_lanes(float *lanes, const __m256 *s)
{
    for (int j = 0; j < 4; j++)
        _mm256_store_ps(lanes + 8 * j, s[j]);
}

static float dot_avx2(uint32_t n, const float *a, const float *b)
{
    _Alignas(32) float lanes[DK_SUM_LANES];
    __m256 s[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    uint32_t i = 0;

    for (; i + 32 <= n; i += 32)
        for (int j = 0; j < 4; j++)
            s[j] = _mm256_fmadd_ps(_mm256_loadu_ps(a + i + 8 * j), _mm256_loadu_ps(b + i + 8 * j), s[j]);
    if (i < n) {
        store_lanes(lanes, s);
        for (uint32_t j = 0; i < n; i++, j++)
            lanes[j] = __builtin_fmaf(a[i], b[i], lanes[j]);
        load_lanes(s, lanes);
    }
    return sum_lanes(s);
}

static void axpy_avx2(uint32_t n, float a, const float *x, float *y)
{
    __m256 va = _mm256_set1_ps(a);
    uint32_t i = 0;

    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_fmadd_ps(va, _mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
    for (; i < n; i++)
        y[i] = __builtin_fmaf(a, x[i], y[i]);
}

static void scale_mul_avx2(uint32_t n, const float *x, float r, const float *w, float *y)
{
    __m256 vr = _mm256_set1_ps(r);
    uint32_t i = 0;

    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), vr), _mm256_loadu_ps(w + i)));
    for (; i < n; i++)
        y[i] = x[i] * r * w[i];
}

/* The largest of x, as a chain of x > max ? x : max has it: NaN is passed over. */
static float maximum(uint32_t n, const float *x)
{
    __m256 v = _mm256_set1_ps(-__builtin_inff());
    float lanes[8], max = -__builtin_inff();
    uint32_t i = 0;

    for (; i + 8 <= n; i += 8)
        v = _mm256_max_ps(_mm256_loadu_ps(x + i), v);
    _mm256_storeu_ps(lanes, v);
    for (int j = 0; j < 8; j++)
        max = lanes[j] > max ? lanes[j] : max;
    for (; i < n; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

static void softmax_avx2(uint32_t n, float *x)
{
    _Alignas(32) float lanes[DK_SUM_LANES], tail[DK_SUM_LANES] = {0};
    __m256 s[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    __m256 max = _mm256_set1_ps(maximum(n, x)), sum;
    uint32_t i = 0, rest = n % DK_SUM_LANES;

    for (; i + 32 <= n; i += 32)
        for (int j = 0; j < 4; j++) {
            __m256 e = exp8(_mm256_sub_ps(_mm256_loadu_ps(x + i + 8 * j), max));

            _mm256_storeu_ps(x + i + 8 * j, e);
            s[j] = _mm256_add_ps(s[j], e);
        }
    if (rest) {
        memcpy(tail, x + i, rest * sizeof *x);
        store_lanes(lanes, s);
        for (int j = 0; j < 4; j++)
            _mm256_store_ps(tail + 8 * j, exp8(_mm256_sub_ps(_mm256_load_ps(tail + 8 * j), max)));
        for (uint32_t j = 0; j < rest; j++)
            lanes[j] += tail[j];
        memcpy(x + i, tail, rest * sizeof *x);
        load_lanes(s, lanes);
    }
    sum = _mm256_set1_ps(sum_lanes(s));
    for (i = 0; i + 8 <= n; i += 8)
        _mm256_storeu_ps(x + i, _mm256_div_ps(_mm256_loadu_ps(x + i), sum));
    for (; i < n; i++)
        x[i] /= _mm256_cvtss_f32(sum);
}

INLINE __m256 sigmoid8(__m256 g)
{
    __m256 one = _mm256_set1_ps(1.0f), e = exp8(_mm256_or_ps(g, _mm256_set1_ps(-0.0f)));
    __m256 top = _mm256_blendv_ps(one, e, g); /* by the sign bit */

    return _mm256_div_ps(top, _mm256_add_ps(one, e));
}

INLINE __m256 silu_mul8(__m256 g, __m256 u)
{
    return _mm256_mul_ps(_mm256_mul_ps(g, sigmoid8(g)), u);
}

INLINE __m256 sigmoid_mul8(__m256 g, __m256 u)
{
    return _mm256_mul_ps(sigmoid8(g), u);
}

/* y = f(g, u) */
INLINE void map8(uint32_t n, const float *g, const float *u, float *y, __m256 (*f)(__m256 g, __m256 u))
{
    float tail_g[8] = {0}, tail_u[8] = {0};
    uint32_t i = 0;

    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, f(_mm256_loadu_ps(g + i), _mm256_loadu_ps(u + i)));
    if (i < n) {
        memcpy(tail_g, g + i, (n - i) * sizeof *g);
        memcpy(tail_u, u + i, (n - i) * sizeof *u);
        _mm256_storeu_ps(tail_g, f(_mm256_loadu_ps(tail_g), _mm256_loadu_ps(tail_u)));
        memcpy(y + i, tail_g, (n - i) * sizeof *y);
    }
}

static void silu_mul_avx2(uint32_t n, const float *g, const float *u, float *y)
{
    map8(n, g, u, y, silu_mul8);
}

static void sigmoid_mul_avx2(uint32_t n, const float *g, const float *u, float *y)
{
    map8(n, g, u, y, sigmoid_mul8);
}

static void rope_halves_avx2(uint32_t n, float *x, const float *cosine, const float *sine)
{
    float *b = x + n / 2;
    uint32_t i = 0;

    for (; i + 8 <= n / 2; i += 8) {
        __m256 va = _mm256_loadu_ps(x + i), vb = _mm256_loadu_ps(b + i);
        __m256 c = _mm256_loadu_ps(cosine + i), s = _mm256_loadu_ps(sine + i);

        _mm256_storeu_ps(x + i, _mm256_fmsub_ps(va, c, _mm256_mul_ps(vb, s)));
        _mm256_storeu_ps(b + i, _mm256_fmadd_ps(vb, c, _mm256_mul_ps(va, s)));
    }
    for (; i < n / 2; i++) {
        float old = x[i];

        x[i] = __builtin_fmaf(old, cosine[i], -(b[i] * sine[i]));
        b[i] = __builtin_fmaf(b[i], cosine[i], old * sine[i]);
    }
}

/* Each cosine and sine goes to both neighbours, whose places are then swapped for the sine's product: even elements
 * a c - (b s), odd ones b c + (a s). */
static void rope_pairs_avx2(uint32_t n, float *x, const float *cosine, const float *sine)
{
    const __m256i both = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    uint32_t i = 0;

    for (; i + 4 <= n / 2; i += 4) {
        __m256 v = _mm256_loadu_ps(x + 2 * i), swapped = _mm256_permute_ps(v, 0xb1);
        __m256 c = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(cosine + i)), both);
        __m256 s = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(sine + i)), both);

        _mm256_storeu_ps(x + 2 * i, _mm256_fmaddsub_ps(v, c, _mm256_mul_ps(swapped, s)));
    }
    for (; i < n / 2; i++) {
        float a = x[2 * i], b = x[2 * i + 1];

        x[2 * i] = __builtin_fmaf(a, cosine[i], -(b * sine[i]));
        x[2 * i + 1] = __builtin_fmaf(b, cosine[i], a * sine[i]);
    }
}

void dk_kernels_fill_avx2(struct dk_kernels *k)
{
    k->pairs[DK_F8_E4M3] = dk_pairs_f8_avx2;
    k->pairs[DK_BF16] = dk_pairs_bf16_avx2;
    k->pairs[DK_F32] = dk_pairs_f32_avx2;
    k->dot = dot_avx2;
    k->axpy = axpy_avx2;
    k->scale_mul = scale_mul_avx2;
    k->softmax = softmax_avx2;
    k->silu_mul = silu_mul_avx2;
    k->sigmoid_mul = sigmoid_mul_avx2;
    k->rope_halves = rope_halves_avx2;
    k->rope_pairs = rope_pairs_avx2;
    k->read = dk_read_avx2;
}
