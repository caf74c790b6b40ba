/* SPDX-License-Identifier: Apache-2.0 */
/* The vector functions in plain C, and the table of this level. */
#include <math.h>
#include <string.h>

#include "kernel/ref/exp_constants.h"
#include "kernel/ref/ref.h"

static float power_of_two(int32_t n)
{
    uint32_t bits = (uint32_t)(n + 127) << 23;
    float v;

    memcpy(&v, &bits, 4);
    return v;
}

float dk_exp_ref(float x)
{
    float shifted, n, r, q, e;
    int32_t whole, half;
    uint32_t bits;

    x = -DK_EXP_LIMIT > x ? -DK_EXP_LIMIT : x;
    x = DK_EXP_LIMIT < x ? DK_EXP_LIMIT : x;
    shifted = fmaf(x, DK_EXP_LOG2E, DK_EXP_ROUND);
    n = shifted - DK_EXP_ROUND;
    r = fmaf(n, -DK_EXP_LN2_HI, x);
    r = fmaf(n, -DK_EXP_LN2_LO, r);
    q = fmaf(DK_EXP_Q4, r, DK_EXP_Q3);
    q = fmaf(q, r, DK_EXP_Q2);
    q = fmaf(q, r, DK_EXP_Q1);
    q = fmaf(q, r, DK_EXP_Q0);
    e = fmaf(r * r, q, r) + 1.0f;
    if (isnan(x))
        return x;
    memcpy(&bits, &shifted, 4);
    whole = (int32_t)(bits & 0x7fffff) - 0x400000; /* the integer that DK_EXP_ROUND pushed to the low bits */
    half = whole >> 1;
    return e * power_of_two(half) * power_of_two(whole - half);
}

/* The end of every sum: DK_SUM_LANES partial sums to one. */
static float sum_lanes(float *lanes)
{
    for (uint32_t width = DK_SUM_LANES / 2; width; width /= 2)
        for (uint32_t i = 0; i < width; i++)
            lanes[i] += lanes[i + width];
    return lanes[0];
}

static float dot_ref(uint32_t n, const float *a, const float *b)
{
    float lanes[DK_SUM_LANES] = {0};

    for (uint32_t i = 0; i < n; i++)
        lanes[i % DK_SUM_LANES] = fmaf(a[i], b[i], lanes[i % DK_SUM_LANES]);
    return sum_lanes(lanes);
}

static void axpy_ref(uint32_t n, float a, const float *x, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = fmaf(a, x[i], y[i]);
}

static void scale_mul_ref(uint32_t n, const float *x, float r, const float *w, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] * r * w[i];
}

static void softmax_ref(uint32_t n, float *x)
{
    float lanes[DK_SUM_LANES] = {0}, max = -INFINITY, sum;

    for (uint32_t i = 0; i < n; i++)
        max = x[i] > max ? x[i] : max;
    for (uint32_t i = 0; i < n; i++) {
        x[i] = dk_exp_ref(x[i] - max);
        lanes[i % DK_SUM_LANES] += x[i];
    }
    sum = sum_lanes(lanes);
    for (uint32_t i = 0; i < n; i++)
        x[i] /= sum;
}

/* 1 / (1 + e^-g), with the exponential of -|g| only, so that it stays exact to a few ulp where e^-g overflows. */
static float sigmoid(float g)
{
    float e = dk_exp_ref(-fabsf(g));

    return (signbit(g) ? e : 1.0f) / (1.0f + e);
}

static void silu_mul_ref(uint32_t n, const float *g, const float *u, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = g[i] * sigmoid(g[i]) * u[i];
}

static void sigmoid_mul_ref(uint32_t n, const float *g, const float *u, float *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = sigmoid(g[i]) * u[i];
}

static void rope_halves_ref(uint32_t n, float *x, const float *cosine, const float *sine)
{
    uint32_t half = n / 2;

    for (uint32_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];

        x[i] = fmaf(a, cosine[i], -(b * sine[i]));
        x[i + half] = fmaf(b, cosine[i], a * sine[i]);
    }
}

static void rope_pairs_ref(uint32_t n, float *x, const float *cosine, const float *sine)
{
    for (uint32_t i = 0; i < n / 2; i++) {
        float a = x[2 * i], b = x[2 * i + 1];

        x[2 * i] = fmaf(a, cosine[i], -(b * sine[i]));
        x[2 * i + 1] = fmaf(b, cosine[i], a * sine[i]);
    }
}

static uint64_t read_ref(const void *data, size_t bytes)
{
    const uint8_t *p = data;
    uint64_t sum = 0, word;

    for (; bytes >= 8; bytes -= 8, p += 8) {
        memcpy(&word, p, 8);
        sum ^= word;
    }
    for (; bytes; bytes--)
        sum ^= *p++;
    return sum;
}

void dk_kernels_fill_ref(struct dk_kernels *k)
{
    k->pairs[DK_F8_E4M3] = dk_pairs_f8_ref;
    k->pairs[DK_BF16] = dk_pairs_bf16_ref;
    k->pairs[DK_F32] = dk_pairs_f32_ref;
    k->dot = dot_ref;
    k->axpy = axpy_ref;
    k->scale_mul = scale_mul_ref;
    k->softmax = softmax_ref;
    k->silu_mul = silu_mul_ref;
    k->sigmoid_mul = sigmoid_mul_ref;
    k->rope_halves = rope_halves_ref;
    k->rope_pairs = rope_pairs_ref;
    k->read = read_ref;
}
