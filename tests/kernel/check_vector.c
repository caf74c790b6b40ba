/* SPDX-License-Identifier: Apache-2.0 */
/* The vector functions: bit for bit against the reference level, and the reference level against the C library. */
#include "kernel_cases.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernel/kernel_internal.h"
#include "kernel/ref/ref.h"

static const uint32_t sizes[] = {1,  2,  3,  4,  7,  8,  9,  15, 16,  17,  23,  24,  31,  32,  33,
                                 40, 47, 48, 63, 64, 65, 95, 96, 100, 127, 128, 129, 192, 255, 1000};

static void check_size(const struct dk_kernels *k, struct dk_rng *rng, uint32_t n, enum style s)
{
    const struct dk_kernels *ref = dk_kernels_get(DK_ISA_REF);
    unsigned off = (unsigned)(dk_rng_next(rng) % 16) * 4;
    struct buffer a = buffer_make(n, off), b = buffer_make(n, 60 - off), got = buffer_make(n, off);
    struct buffer want = buffer_make(n, 0), start = buffer_make(n, 0);
    float r[2];
    char what[120];
    int at = snprintf(what, sizeof what, "%s n=%u style=%s ", dk_isa_name(dk_kernels_isa(k)), n, style_name(s));
    size_t bytes = n * sizeof(float);

#define SAME(name)                                           \
    do {                                                     \
        snprintf(what + at, sizeof what - (size_t)at, name); \
        same_bits(got.data, want.data, n, what);             \
    } while (0)

    fill_floats(rng, a.data, n, s);
    fill_floats(rng, b.data, n, s);
    fill_floats(rng, start.data, n, s);
    r[0] = dk_dot(k, n, a.data, b.data);
    r[1] = dk_dot(ref, n, a.data, b.data);
    snprintf(what + at, sizeof what - (size_t)at, "dot");
    same_bits(&r[0], &r[1], 1, what);

    memcpy(got.data, start.data, bytes);
    memcpy(want.data, start.data, bytes);
    dk_axpy(k, n, 0.37f, a.data, got.data);
    dk_axpy(ref, n, 0.37f, a.data, want.data);
    SAME("axpy");

    dk_rmsnorm(k, n, a.data, b.data, 1e-6f, got.data);
    dk_rmsnorm(ref, n, a.data, b.data, 1e-6f, want.data);
    SAME("rmsnorm");
    memcpy(got.data, a.data, bytes);
    dk_rmsnorm(k, n, got.data, b.data, 1e-6f, got.data);
    SAME("rmsnorm in place");

    dk_silu_mul(k, n, a.data, b.data, got.data);
    dk_silu_mul(ref, n, a.data, b.data, want.data);
    SAME("silu_mul");
    memcpy(got.data, a.data, bytes);
    dk_silu_mul(k, n, got.data, b.data, got.data);
    SAME("silu_mul over the gate");
    memcpy(got.data, b.data, bytes);
    dk_silu_mul(k, n, a.data, got.data, got.data);
    SAME("silu_mul over the factor");

    dk_sigmoid_mul(k, n, a.data, b.data, got.data);
    dk_sigmoid_mul(ref, n, a.data, b.data, want.data);
    SAME("sigmoid_mul");
    memcpy(got.data, b.data, bytes);
    dk_sigmoid_mul(k, n, a.data, got.data, got.data);
    SAME("sigmoid_mul over the factor");

    memcpy(got.data, start.data, bytes);
    memcpy(want.data, start.data, bytes);
    dk_softmax(k, n, got.data);
    dk_softmax(ref, n, want.data);
    SAME("softmax");

    memcpy(got.data, start.data, bytes);
    memcpy(want.data, start.data, bytes);
    dk_rope_halves(k, n / 2 * 2, got.data, a.data, b.data);
    dk_rope_halves(ref, n / 2 * 2, want.data, a.data, b.data);
    SAME("rope_halves");

    memcpy(got.data, start.data, bytes);
    memcpy(want.data, start.data, bytes);
    dk_rope_pairs(k, n / 2 * 2, got.data, a.data, b.data);
    dk_rope_pairs(ref, n / 2 * 2, want.data, a.data, b.data);
    SAME("rope_pairs");

    if (dk_read(k, a.data, bytes) == dk_read(k, start.data, bytes) && s == STYLE_RANDOM && n > 2)
        fail_case("%sread gives the same sum for different data", what);
    if (!buffer_guards_hold(&got) || !buffer_guards_hold(&a) || !buffer_guards_hold(&b))
        fail_case("%s: wrote outside its output", what);
    buffer_free(&a);
    buffer_free(&b);
    buffer_free(&got);
    buffer_free(&want);
    buffer_free(&start);
#undef SAME
}

/* Distance in units of the last place; both finite. */
static int64_t ulps(float a, float b)
{
    int32_t i, j;

    memcpy(&i, &a, 4);
    memcpy(&j, &b, 4);
    if ((i < 0) != (j < 0))
        return a == b ? 0 : INT64_MAX;
    return i > j ? (int64_t)i - j : (int64_t)j - i;
}

/* A prime step through all floats: about 2 million arguments of every size and sign. */
static void check_exp(void)
{
    int64_t worst = 0;
    float worst_at = 0;

    for (uint64_t u = 0; u < UINT64_C(1) << 32; u += 2039) {
        uint32_t bits = (uint32_t)u;
        float x, got, want;

        memcpy(&x, &bits, 4);
        got = dk_exp_ref(x);
        want = (float)exp((double)x);
        if (isnan(x) ? !isnan(got) : isinf(want) ? got != want : ulps(got, want) > 1)
            fail_case("exp(%a) is %a, not %a", (double)x, (double)got, (double)want);
        if (!isnan(x) && !isinf(want) && ulps(got, want) > worst) {
            worst = ulps(got, want);
            worst_at = x;
        }
    }
    cases_run++;
    printf("exp: largest error %lld ulp, at %a\n", (long long)worst, (double)worst_at);
}

/* The same steps through all floats, where the result is a normal number. */
static void check_sigmoid(void)
{
    const struct dk_kernels *ref = dk_kernels_get(DK_ISA_REF);
    int64_t worst = 0;

    for (uint64_t u = 0; u < UINT64_C(1) << 32; u += 2039) {
        uint32_t bits = (uint32_t)u;
        const float one = 1.0f;
        float x, got;
        double want;

        memcpy(&x, &bits, 4);
        dk_sigmoid_mul(ref, 1, &x, &one, &got);
        want = 1 / (1 + exp(-(double)x));
        if (isnan(x)                 ? !isnan(got)
            : want < (double)FLT_MIN ? !(got >= 0 && got <= FLT_MIN)
                                     : ulps(got, (float)want) > 3)
            fail_case("sigmoid(%a) is %a, not %a", (double)x, (double)got, want);
        if (want >= (double)FLT_MIN && ulps(got, (float)want) > worst)
            worst = ulps(got, (float)want);
    }
    cases_run++;
    printf("sigmoid: largest error %lld ulp\n", (long long)worst);
}

static void check_rope_pairs(const float *x, const float *w)
{
    float y[300];

    memcpy(y, x, sizeof y);
    dk_rope_pairs(dk_kernels_get(DK_ISA_REF), 300, y, w, w + 150);
    for (int i = 0; i < 150; i++) {
        double a = (double)x[2 * i], b = (double)x[2 * i + 1], cosine = (double)w[i], sine = (double)w[150 + i];

        if (!(fabs(a * cosine - b * sine - (double)y[2 * i]) <= 1e-5 &&
              fabs(b * cosine + a * sine - (double)y[2 * i + 1]) <= 1e-5))
            fail_case("rope of neighbours: pair %d", i);
    }
    cases_run++;
}

static void check_reference(struct dk_rng *rng)
{
    const struct dk_kernels *ref = dk_kernels_get(DK_ISA_REF);
    static const float silu_at[] = {0.0f, 1.0f, -1.0f, 20.0f, -20.0f, -87.0f, -90.0f, -100.0f, 88.0f, 3e38f};
    float x[300], y[300], w[300];
    double sum = 0, max = -INFINITY;

    for (size_t i = 0; i < sizeof silu_at / sizeof *silu_at; i++) {
        double want = (double)silu_at[i] / (1 + exp(-(double)silu_at[i])) * 3;
        float u = 3.0f, got;

        dk_silu_mul(ref, 1, &silu_at[i], &u, &got);
        if (!(fabs((double)got - want) <= fabs(want) * 4e-7 + 5e-43) && !isinf(want) && fabs(want) < (double)FLT_MAX)
            fail_case("silu(%g) * 3 is %g, not %g", (double)silu_at[i], (double)got, want);
    }
    fill_floats(rng, x, 300, STYLE_RANDOM);
    fill_floats(rng, w, 300, STYLE_RANDOM);
    for (int i = 0; i < 300; i++)
        sum += (double)x[i] * (double)x[i];
    dk_rmsnorm(ref, 300, x, w, 1e-6f, y);
    for (int i = 0; i < 300; i++)
        if (!(fabs((double)y[i] - (double)x[i] / sqrt(sum / 300 + 1e-6) * (double)w[i]) <= 2e-6))
            fail_case("rmsnorm: element %d is %g", i, (double)y[i]);
    for (int i = 0, half = 150; i < half; i++) {
        y[i] = x[i];
        y[i + half] = x[i + half];
    }
    dk_rope_halves(ref, 300, y, w, w + 150);
    for (int i = 0; i < 150; i++)
        if (!(fabs((double)x[i] * (double)w[i] - (double)x[i + 150] * (double)w[i + 150] - (double)y[i]) <= 1e-5 &&
              fabs((double)x[i + 150] * (double)w[i] + (double)x[i] * (double)w[i + 150] - (double)y[i + 150]) <= 1e-5))
            fail_case("rope: pair %d", i);
    check_rope_pairs(x, w);
    for (int i = 0; i < 300; i++) {
        y[i] = x[i] * 10;
        max = fmax(max, (double)y[i]);
    }
    sum = 0;
    for (int i = 0; i < 300; i++)
        sum += exp((double)(x[i] * 10) - max);
    dk_softmax(ref, 300, y);
    for (int i = 0; i < 300; i++)
        if (!(fabs((double)y[i] - exp((double)(x[i] * 10) - max) / sum) <= 1e-6))
            fail_case("softmax: element %d is %g", i, (double)y[i]);
    y[0] = -INFINITY;
    y[1] = 2.0f;
    dk_softmax(ref, 2, y);
    if (y[0] != 0.0f || y[1] != 1.0f)
        fail_case("softmax of -infinity and a number is %g, %g", (double)y[0], (double)y[1]);
    cases_run += 5;
}

void check_vectors(const struct dk_kernels *k)
{
    struct dk_rng rng = {cases_seed ^ 0x55};

    if (dk_kernels_isa(k) == DK_ISA_REF) {
        check_exp();
        check_sigmoid();
        check_reference(&rng);
    }
    for (int s = 0; s < STYLE_COUNT; s++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            check_size(k, &rng, sizes[i], (enum style)s);
}
