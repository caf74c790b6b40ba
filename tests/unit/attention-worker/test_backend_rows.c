/* SPDX-License-Identifier: Apache-2.0 */
/* Row operations: against their formulas in double, with the same bits for any number of threads, any instruction set,
 * and any rows beside. */
#include "backend_fixture.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Odd widths, and enough elements that the threads are used. */
enum { ROWS = 200, GROUPS = 13, GROUP = 31, WIDTH = GROUPS * GROUP, PART = 8, FIRST = 5, DIMS = 24 };
#define EPS    1e-5f
#define FACTOR 0.7310586f

struct setup {
    struct dk_backend *b;
    struct dk_rows x, z, y;
    struct dk_weight *weight, *bias; /* [WIDTH] */
};

struct host {
    float *x, *z, *y; /* [ROWS][width] */
    float weight[WIDTH], bias[WIDTH];
};

/* An operation that reads x and z and the old y, and writes y. */
struct op {
    const char *name;
    uint32_t x, z, y; /* widths */
    void (*run)(const struct setup *s, uint32_t n);
    /* Column c of the new y, given the old rows. */
    double (*formula)(const struct host *h, const float *x, const float *z, const float *y, uint32_t c);
    double ulps; /* of the exact value */
};

static void setup_open(struct setup *s, const struct op *op, const struct host *h, const char *isa, uint32_t threads)
{
    s->b = open_backend_isa(isa, threads, ROWS + 1, 1, op->x + op->z + op->y);
    s->x = take(s->b, op->x);
    s->z = take(s->b, op->z);
    s->y = take(s->b, op->y);
    s->weight = load(s->b, DK_WEIGHT_VECTOR, h->weight, WIDTH, 0);
    s->bias = load(s->b, DK_WEIGHT_VECTOR, h->bias, WIDTH, 0);
}

static void setup_close(struct setup *s)
{
    ops->weight_free(s->b, s->weight);
    ops->weight_free(s->b, s->bias);
    ops->close(s->b);
}

/* Rows [first, first + n) of the host's go through the operation into out; the row behind them must stay. */
static void run_op(const struct setup *s, const struct op *op, const struct host *h, uint32_t first, uint32_t n,
                   float *out)
{
    float *guard = malloc(op->y * sizeof(float)), *after = malloc(op->y * sizeof(float));

    fill(guard, op->y, 99);
    ops->upload(s->b, s->x, 0, n, h->x + (size_t)first * op->x);
    ops->upload(s->b, s->z, 0, n, h->z + (size_t)first * op->z);
    ops->upload(s->b, s->y, 0, n, h->y + (size_t)first * op->y);
    ops->upload(s->b, s->y, n, 1, guard);
    op->run(s, n);
    ops->download(s->b, s->y, 0, n, out);
    ops->download(s->b, s->y, n, 1, after);
    cr_assert_arr_eq(after, guard, op->y * sizeof(float), "%s wrote behind row %u", op->name, n);
    free(guard);
    free(after);
}

static void check_formula(const struct op *op, const struct host *h, const float *out)
{
    for (uint32_t r = 0; r < ROWS; r++) {
        for (uint32_t c = 0; c < op->y; c++) {
            double want = op->formula(h, h->x + (size_t)r * op->x, h->z + (size_t)r * op->z, h->y + (size_t)r * op->y,
                                      c);
            double got = (double)out[(size_t)r * op->y + c];

            cr_assert(fabs(got - want) <= op->ulps * (double)FLT_EPSILON * fabs(want),
                      "%s: row %u, column %u: %g, not %g", op->name, r, c, got, want);
        }
    }
}

static void host_open(struct host *h, const struct op *op)
{
    h->x = malloc(ROWS * op->x * sizeof(float));
    h->z = malloc(ROWS * op->z * sizeof(float));
    h->y = malloc(ROWS * op->y * sizeof(float));
    fill(h->x, ROWS * op->x, 1);
    fill(h->z, ROWS * op->z, 2);
    fill(h->y, ROWS * op->y, 3);
    fill(h->weight, WIDTH, 4);
    fill(h->bias, WIDTH, 5);
    for (uint32_t i = 0; i < ROWS * op->x; i++) /* gates of every size; some rows far from zero */
        h->x[i] = h->x[i] * (i % 7 ? 4.0f : 60.0f) + (i / op->x % 3 == 2 ? 1000.0f : 0.0f);
}

static void host_close(struct host *h)
{
    free(h->x);
    free(h->z);
    free(h->y);
}

static void check_op(const struct op *op)
{
    static const char *const isas[] = {"ref", "auto"};
    float *want = malloc(ROWS * op->y * sizeof(float)), *got = malloc(ROWS * op->y * sizeof(float));
    struct setup s;
    struct host h;

    host_open(&h, op);
    setup_open(&s, op, &h, "auto", 1);
    run_op(&s, op, &h, 0, ROWS, want);
    check_formula(op, &h, want);
    for (uint32_t r = 0; r < ROWS; r++) {
        run_op(&s, op, &h, r, 1, got);
        cr_assert_arr_eq(got, want + (size_t)r * op->y, op->y * sizeof(float), "%s: row %u alone", op->name, r);
    }
    setup_close(&s);
    for (uint32_t threads = 1; threads <= 3; threads++) {
        for (size_t i = 0; i < 2; i++) {
            setup_open(&s, op, &h, isas[i], threads);
            run_op(&s, op, &h, 0, ROWS, got);
            cr_assert_arr_eq(got, want, ROWS * op->y * sizeof(float), "%s: %u threads, %s", op->name, threads, isas[i]);
            setup_close(&s);
        }
    }
    host_close(&h);
    free(want);
    free(got);
}

static void run_slice(const struct setup *s, uint32_t n)
{
    ops->slice(s->b, n, s->x, GROUPS, FIRST, s->y);
}

static double slice_of(const struct host *h, const float *x, const float *z, const float *y, uint32_t c)
{
    return (double)x[c / PART * GROUP + FIRST + c % PART];
}

Test(backend_rows, slice_takes_columns_of_each_group)
{
    check_op(&(struct op){"slice", WIDTH, 1, GROUPS * PART, run_slice, slice_of, 0});
}

static double layernorm_of(const struct host *h, const float *x, const float *z, const float *y, uint32_t c)
{
    double mean = 0, variance = 0;

    for (int i = 0; i < WIDTH; i++)
        mean += (double)x[i] / WIDTH;
    for (int i = 0; i < WIDTH; i++)
        variance += pow((double)x[i] - mean, 2) / WIDTH;
    return ((double)x[c] - mean) / sqrt(variance + (double)EPS) * (double)h->weight[c] + (double)h->bias[c];
}

static void run_layernorm(const struct setup *s, uint32_t n)
{
    ops->layernorm(s->b, n, s->x, s->weight, s->bias, EPS, s->y);
}

static void run_layernorm_in_place(const struct setup *s, uint32_t n)
{
    ops->layernorm(s->b, n, s->y, s->weight, s->bias, EPS, s->y);
}

static double layernorm_of_y(const struct host *h, const float *x, const float *z, const float *y, uint32_t c)
{
    return layernorm_of(h, y, z, y, c);
}

Test(backend_rows, layernorm_normalizes_the_row)
{
    check_op(&(struct op){"layernorm", WIDTH, 1, WIDTH, run_layernorm, layernorm_of, 2});
    check_op(&(struct op){"layernorm in place", 1, 1, WIDTH, run_layernorm_in_place, layernorm_of_y, 2});
}

static void run_bias(const struct setup *s, uint32_t n)
{
    ops->bias(s->b, n, s->bias, s->y);
}

static double bias_of(const struct host *h, const float *x, const float *z, const float *y, uint32_t c)
{
    return (double)(y[c] + h->bias[c]);
}

static void run_scale(const struct setup *s, uint32_t n)
{
    ops->scale(s->b, n, FACTOR, s->y);
}

static double scale_of(const struct host *h, const float *x, const float *z, const float *y, uint32_t c)
{
    return (double)(y[c] * FACTOR);
}

Test(backend_rows, bias_and_scale_round_once)
{
    check_op(&(struct op){"bias", 1, 1, WIDTH, run_bias, bias_of, 0});
    check_op(&(struct op){"scale", 1, 1, WIDTH, run_scale, scale_of, 0});
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static void run_silu_mul(const struct setup *s, uint32_t n)
{
    ops->silu_mul(s->b, n, s->x, s->z, s->y);
}

static double silu_mul_of(const struct host *h, const float *x, const float *z, const float *y, uint32_t c)
{
    return (double)x[c] * sigmoid((double)x[c]) * (double)z[c];
}

static void run_silu_mul_over_gate(const struct setup *s, uint32_t n)
{
    ops->silu_mul(s->b, n, s->y, s->z, s->y);
}

static double silu_mul_of_y(const struct host *h, const float *x, const float *z, const float *y, uint32_t c)
{
    return (double)y[c] * sigmoid((double)y[c]) * (double)z[c];
}

static void run_silu_mul_over_up(const struct setup *s, uint32_t n)
{
    ops->silu_mul(s->b, n, s->x, s->y, s->y);
}

static double silu_mul_with_y(const struct host *h, const float *x, const float *z, const float *y, uint32_t c)
{
    return (double)x[c] * sigmoid((double)x[c]) * (double)y[c];
}

Test(backend_rows, silu_mul_may_write_over_its_inputs)
{
    check_op(&(struct op){"silu_mul", WIDTH, WIDTH, WIDTH, run_silu_mul, silu_mul_of, 5});
    check_op(&(struct op){"silu_mul over gate", 1, WIDTH, WIDTH, run_silu_mul_over_gate, silu_mul_of_y, 5});
    check_op(&(struct op){"silu_mul over up", WIDTH, 1, WIDTH, run_silu_mul_over_up, silu_mul_with_y, 5});
}

static void run_sigmoid_mul(const struct setup *s, uint32_t n)
{
    ops->sigmoid_mul(s->b, n, s->x, s->y);
}

static double sigmoid_mul_of(const struct host *h, const float *x, const float *z, const float *y, uint32_t c)
{
    return sigmoid((double)x[c]) * (double)y[c];
}

static double sigmoid_mul_by_one(const struct host *h, const float *x, const float *z, const float *y, uint32_t c)
{
    return sigmoid((double)x[0]) * (double)y[c];
}

Test(backend_rows, sigmoid_gates_columns_or_whole_rows)
{
    check_op(&(struct op){"sigmoid_mul", WIDTH, 1, WIDTH, run_sigmoid_mul, sigmoid_mul_of, 5});
    check_op(&(struct op){"sigmoid_mul by one", 1, 1, WIDTH, run_sigmoid_mul, sigmoid_mul_by_one, 5});
}

static void run_rope_halves(const struct setup *s, uint32_t n)
{
    ops->rope(s->b, n, s->y, GROUP, FIRST, DK_ROPE_HALVES, s->z);
}

static void run_rope_neighbours(const struct setup *s, uint32_t n)
{
    ops->rope(s->b, n, s->y, GROUP, FIRST, DK_ROPE_NEIGHBOURS, s->z);
}

/* Dimension c of a head with its partner at `other`: the first of a pair loses what the second gains. */
static double turned(const float *y, const float *z, uint32_t c, uint32_t other, uint32_t pair, bool second)
{
    float product = y[other] * z[DIMS / 2 + pair];

    return (double)fmaf(y[c], z[pair], second ? product : -product);
}

static double rope_halves_of(const struct host *h, const float *x, const float *z, const float *y, uint32_t c)
{
    uint32_t at = c % GROUP - FIRST, half = DIMS / 2;

    if (c % GROUP < FIRST || at >= DIMS)
        return (double)y[c];
    return at < half ? turned(y, z, c, c + half, at, false) : turned(y, z, c, c - half, at - half, true);
}

static double rope_neighbours_of(const struct host *h, const float *x, const float *z, const float *y, uint32_t c)
{
    uint32_t at = c % GROUP - FIRST;

    if (c % GROUP < FIRST || at >= DIMS)
        return (double)y[c];
    return at % 2 == 0 ? turned(y, z, c, c + 1, at / 2, false) : turned(y, z, c, c - 1, at / 2, true);
}

/* The exact bits: a fused product and sum over a rounded product. */
Test(backend_rows, rope_turns_some_dimensions_of_each_head)
{
    check_op(&(struct op){"rope of halves", 1, DIMS, WIDTH, run_rope_halves, rope_halves_of, 0});
    check_op(&(struct op){"rope of neighbours", 1, DIMS, WIDTH, run_rope_neighbours, rope_neighbours_of, 0});
}

Test(backend_rows, angles_follow_positions_and_carry_the_factor)
{
    enum { HALF = 3, COUNT = 6 };
    struct dk_backend *b = open_backend(1, COUNT, 1, 2 * HALF);
    struct dk_rows angles = take(b, 2 * HALF);
    const struct dk_span spans[] = {{.row = 4, .count = 2, .position = 163000}, {.row = 0, .count = 4, .position = 7}};
    const uint32_t positions[COUNT] = {7, 8, 9, 10, 163000, 163001};
    const float inverse[HALF] = {1, 0.03f, 1e-5f}, factor = 1.3688879f;
    float host[COUNT * 2 * HALF];

    ops->rope_angles(b, spans, 2, inverse, factor, angles);
    ops->download(b, angles, 0, COUNT, host);
    for (int r = 0; r < COUNT; r++) {
        for (int d = 0; d < HALF; d++) {
            float angle = (float)positions[r] * inverse[d];

            cr_expect_float_eq(host[r * 2 * HALF + d], cos((double)angle) * (double)factor, 3e-7);
            cr_expect_float_eq(host[r * 2 * HALF + HALF + d], sin((double)angle) * (double)factor, 3e-7);
        }
    }
    ops->close(b);
}

/* Adds the vector to rows of zeros. */
static void vector_of(struct dk_backend *b, struct dk_rows y, const struct dk_weight *w, float *host)
{
    for (uint32_t i = 0; i < y.width; i++)
        host[i] = 0;
    ops->upload(b, y, 0, 1, host);
    ops->bias(b, 1, w, y);
    ops->download(b, y, 0, 1, host);
}

Test(backend_rows, vectors_have_any_rank_and_may_have_one_added)
{
    enum { CHANNELS = 5, TAPS = 4, N = CHANNELS * TAPS };
    struct dk_backend *b = open_backend(1, 1, 1, 2 * N);
    struct dk_rows y = take(b, N), x = take(b, N);
    uint16_t halves[N];
    float host[N], in[N], square = 0;
    const struct dk_tensor t = {.name = "conv1d.weight",
                                .type = DK_BF16,
                                .rank = 3,
                                .shape = {CHANNELS, 1, TAPS},
                                .data = (const uint8_t *)halves,
                                .bytes = sizeof(halves),
                                .file = "shard"};
    struct dk_err err = {0};
    struct dk_weight *w;
    float values[N];

    fill(values, N, 6);
    for (int i = 0; i < N; i++) {
        uint32_t bits;

        memcpy(&bits, &values[i], 4);
        halves[i] = (uint16_t)(bits >> 16);
        bits &= 0xffff0000u;
        memcpy(&values[i], &bits, 4);
    }
    cr_assert_eq(ops->weight_load(b, DK_WEIGHT_VECTOR, &t, NULL, &w, &err), 0, "%s", err.text);
    vector_of(b, y, w, host);
    cr_expect_arr_eq(host, values, sizeof(host));
    ops->weight_free(b, w);

    cr_assert_eq(ops->weight_load(b, DK_WEIGHT_ONE_PLUS, &t, NULL, &w, &err), 0, "%s", err.text);
    vector_of(b, y, w, host);
    for (int i = 0; i < N; i++)
        cr_expect_eq(host[i], 1.0f + values[i]);
    fill(in, N, 7);
    ops->upload(b, x, 0, 1, in);
    ops->rmsnorm(b, 1, x, N, w, 1e-6f, y);
    ops->download(b, y, 0, 1, host);
    for (int i = 0; i < N; i++)
        square += in[i] * in[i];
    for (int i = 0; i < N; i++)
        cr_expect_float_eq(host[i], in[i] / sqrtf(square / N + 1e-6f) * (1.0f + values[i]), 1e-6);
    ops->weight_free(b, w);
    ops->close(b);
}
