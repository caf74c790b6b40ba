/* SPDX-License-Identifier: Apache-2.0 */
/* Gated DeltaNet of the CPU back end: against the formulas of backend.h in double, against the states of a golden
 * trace, and bit for bit against itself in other cuts, threads, instruction sets and company. Every slot holds NaN
 * before its first use. */
#include "attention-worker/backend/cpu/states_cpu.h"

#include <stdio.h>
#include <string.h>

#include "backend_fixture.h"

enum { SEQUENCES = 3, LAYERS = 2, LAYER = 1, SLOTS = 4, ROWS_MAX = 160, STEPS_MAX = 8 };
/* A sequence's slot. */
static const uint32_t slots[SEQUENCES] = {2, 0, 3};

/* ---- what goes in, and what comes out */

/* Sequences of some lengths in one shape. */
struct input {
    uint32_t key_heads, value_heads, key_dim, value_dim, taps;
    uint32_t lengths[SEQUENCES];
    uint32_t channels, width; /* of x and y */
    float *conv, *a_log, *dt_bias;
    float *x[SEQUENCES], *b[SEQUENCES], *a[SEQUENCES];
};

struct output {
    float *y[SEQUENCES], *x[SEQUENCES]; /* x: the convolution's output */
    float *inputs[SEQUENCES], *recurrent[SEQUENCES];
};

static size_t inputs_floats(const struct input *in)
{
    return (size_t)in->channels * (in->taps - 1);
}

static size_t recurrent_floats(const struct input *in)
{
    return (size_t)in->value_heads * in->key_dim * in->value_dim;
}

/* Fills in all but the shape and the lengths. */
static void input_init(struct input *in, uint32_t seed)
{
    in->channels = 2 * in->key_heads * in->key_dim + in->value_heads * in->value_dim;
    in->width = in->value_heads * in->value_dim;
    in->conv = random_floats((size_t)in->channels * in->taps, 1, seed++);
    in->a_log = random_floats(in->value_heads, 1, seed++);
    in->dt_bias = random_floats(in->value_heads, 1, seed++);
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        uint32_t rows = in->lengths[s];

        in->x[s] = random_floats((size_t)rows * in->channels, 2, seed++);
        in->b[s] = random_floats((size_t)rows * in->value_heads, 6, seed++);
        in->a[s] = random_floats((size_t)rows * in->value_heads, 4, seed++);
        for (uint32_t i = 5; i < rows * in->value_heads; i += 37) /* beyond softplus' threshold */
            in->a[s][i] = i % 2 ? 30 : -30;
        for (uint32_t t = 2; t < 10 && t < rows; t++) /* token 9 has keys of zero with up to 8 taps */
            memset(in->x[s] + t * in->channels + in->key_heads * in->key_dim, 0,
                   in->key_heads * in->key_dim * sizeof(float));
    }
}

static void input_free(struct input *in)
{
    free(in->conv);
    free(in->a_log);
    free(in->dt_bias);
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        free(in->x[s]);
        free(in->b[s]);
        free(in->a[s]);
    }
}

static void output_init(struct output *o, const struct input *in)
{
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        o->y[s] = calloc((size_t)in->lengths[s] * in->width + 1, sizeof(float));
        o->x[s] = calloc((size_t)in->lengths[s] * in->channels + 1, sizeof(float));
        o->inputs[s] = calloc(inputs_floats(in), sizeof(float));
        o->recurrent[s] = calloc(recurrent_floats(in), sizeof(float));
    }
}

static void output_free(struct output *o)
{
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        free(o->y[s]);
        free(o->x[s]);
        free(o->inputs[s]);
        free(o->recurrent[s]);
    }
}

static void same_bits(const struct input *in, const struct output *a, const struct output *b, const char *what)
{
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        if (in->lengths[s] == 0)
            continue;
        cr_assert_arr_eq(a->y[s], b->y[s], (size_t)in->lengths[s] * in->width * sizeof(float), "%s: y of %u", what, s);
        cr_assert_arr_eq(a->x[s], b->x[s], (size_t)in->lengths[s] * in->channels * sizeof(float), "%s: x of %u", what,
                         s);
        cr_assert_arr_eq(a->inputs[s], b->inputs[s], inputs_floats(in) * sizeof(float), "%s: inputs of %u", what, s);
        cr_assert_arr_eq(a->recurrent[s], b->recurrent[s], recurrent_floats(in) * sizeof(float), "%s: state of %u",
                         what, s);
    }
}

/* ---- the back end */

struct rig {
    const struct input *in;
    struct dk_backend *b;
    struct dk_states *states;
    struct dk_weight *weights[3];
    struct dk_delta_weights w;
    struct dk_rows x, b_rows, a_rows, y;
};

static void fill_with_nan(struct dk_states *s)
{
    size_t places = (size_t)s->shape.slots * s->shape.layers;

    for (size_t i = 0; i < places * states_inputs_floats(s); i++)
        s->inputs[i] = NAN;
    for (size_t i = 0; i < places * s->shape.value_heads * states_head_floats(s); i++)
        s->recurrent[i] = NAN;
}

static void rig_open(struct rig *r, const struct input *in, const char *isa, uint32_t threads)
{
    const struct dk_states_shape shape = {.layers = LAYERS,
                                          .slots = SLOTS,
                                          .key_heads = in->key_heads,
                                          .value_heads = in->value_heads,
                                          .key_dim = in->key_dim,
                                          .value_dim = in->value_dim,
                                          .taps = in->taps};
    struct dk_err err = {0};

    *r = (struct rig){.in = in};
    r->b = open_backend_isa(isa, threads, ROWS_MAX, ROWS_MAX, in->channels + in->width + 2 * in->value_heads);
    cr_assert_eq(ops->states_open(r->b, &shape, &r->states, &err), 0, "%s", err.text);
    fill_with_nan(r->states);
    r->x = take(r->b, in->channels);
    r->b_rows = take(r->b, in->value_heads);
    r->a_rows = take(r->b, in->value_heads);
    r->y = take(r->b, in->width);
    r->weights[0] = load(r->b, DK_WEIGHT_TAPS, in->conv, in->channels, in->taps);
    r->weights[1] = load(r->b, DK_WEIGHT_VECTOR, in->a_log, in->value_heads, 0);
    r->weights[2] = load(r->b, DK_WEIGHT_VECTOR, in->dt_bias, in->value_heads, 0);
    r->w = (struct dk_delta_weights){.conv = r->weights[0], .a_log = r->weights[1], .dt_bias = r->weights[2]};
}

static void rig_close(struct rig *r)
{
    ops->states_close(r->b, r->states);
    for (int i = 0; i < 3; i++)
        ops->weight_free(r->b, r->weights[i]);
    ops->close(r->b);
}

/* Sequence s gives counts[s] rows from done[s] on. Rows lie in the order of the sequences, spans in the other one. */
static void rig_step(struct rig *r, const uint32_t *slot_of, uint32_t *done, const uint32_t *counts, struct output *o)
{
    const struct input *in = r->in;
    struct dk_span spans[SEQUENCES];
    uint32_t rows = 0, n = SEQUENCES;

    for (uint32_t s = 0; s < SEQUENCES; s++) {
        if (counts[s] == 0)
            continue;
        ops->upload(r->b, r->x, rows, counts[s], in->x[s] + (size_t)done[s] * in->channels);
        ops->upload(r->b, r->b_rows, rows, counts[s], in->b[s] + (size_t)done[s] * in->value_heads);
        ops->upload(r->b, r->a_rows, rows, counts[s], in->a[s] + (size_t)done[s] * in->value_heads);
        spans[--n] = (struct dk_span){.row = rows, .count = counts[s], .position = done[s], .state = slot_of[s]};
        rows += counts[s];
    }
    ops->delta(r->b, r->states, LAYER, spans + n, SEQUENCES - n, &r->w, r->x, r->b_rows, r->a_rows, r->y);
    rows = 0;
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        if (counts[s] == 0)
            continue;
        ops->download(r->b, r->y, rows, counts[s], o->y[s] + (size_t)done[s] * in->width);
        ops->download(r->b, r->x, rows, counts[s], o->x[s] + (size_t)done[s] * in->channels);
        rows += counts[s];
        done[s] += counts[s];
    }
}

static void rig_states(struct rig *r, const uint32_t *slot_of, struct output *o)
{
    for (uint32_t s = 0; s < SEQUENCES; s++)
        ops->states_download(r->b, r->states, LAYER, slot_of[s], o->inputs[s], o->recurrent[s]);
}

/* All sequences from their beginning to their end, by a plan of steps. */
static void run(const struct input *in, const char *isa, uint32_t threads, const uint32_t (*plan)[SEQUENCES],
                struct output *o)
{
    uint32_t done[SEQUENCES] = {0};
    struct rig r;

    output_init(o, in);
    rig_open(&r, in, isa, threads);
    for (uint32_t step = 0; step < STEPS_MAX; step++)
        rig_step(&r, slots, done, plan[step], o);
    rig_states(&r, slots, o);
    for (uint32_t s = 0; s < SEQUENCES; s++)
        cr_assert_eq(done[s], in->lengths[s]);
    rig_close(&r);
}

/* ---- the formulas of backend.h, in double */

static double silu(double x)
{
    return x / (1 + exp(-x));
}

/* x[t][c] after convolution and SiLU. */
static double convolved(const struct input *in, uint32_t s, uint32_t t, uint32_t c)
{
    double sum = 0;

    for (uint32_t j = 0; j < in->taps; j++) {
        int64_t from = (int64_t)t + j - (in->taps - 1);

        if (from >= 0)
            sum += (double)in->conv[c * in->taps + j] * in->x[s][(size_t)from * in->channels + c];
    }
    return silu(sum);
}

static double inverse_norm(const double *x, uint32_t n)
{
    double sum = 1e-6;

    for (uint32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return 1 / sqrt(sum);
}

/* One token of one value head; S [key_dim][value_dim]. */
static void token(const struct input *in, uint32_t s, uint32_t t, uint32_t h, double *S, float *y)
{
    uint32_t dk = in->key_dim, dv = in->value_dim, key_head = h / (in->value_heads / in->key_heads);
    double q[STATES_DIM_MAX], k[STATES_DIM_MAX], qn, kn, a = in->a[s][t * in->value_heads + h] + (double)in->dt_bias[h];
    double g = -exp(in->a_log[h]) * (a > 20 ? a : log1p(exp(a)));
    double beta = 1 / (1 + exp(-in->b[s][t * in->value_heads + h]));

    for (uint32_t i = 0; i < dk; i++) {
        q[i] = convolved(in, s, t, key_head * dk + i);
        k[i] = convolved(in, s, t, (in->key_heads + key_head) * dk + i);
    }
    qn = inverse_norm(q, dk) / sqrt(dk);
    kn = inverse_norm(k, dk);
    for (uint32_t c = 0; c < dv; c++) {
        double d = convolved(in, s, t, 2 * in->key_heads * dk + h * dv + c), out = 0;

        for (uint32_t i = 0; i < dk; i++) {
            S[i * dv + c] *= exp(g);
            d -= S[i * dv + c] * k[i] * kn;
        }
        d *= beta;
        for (uint32_t i = 0; i < dk; i++) {
            S[i * dv + c] += k[i] * kn * d;
            out += S[i * dv + c] * q[i] * qn;
        }
        y[c] = (float)out;
    }
}

static void formulas(const struct input *in, struct output *o)
{
    output_init(o, in);
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        for (uint32_t h = 0; h < in->value_heads; h++) {
            size_t state = (size_t)in->key_dim * in->value_dim;
            double *S = calloc(state, sizeof(double));

            for (uint32_t t = 0; t < in->lengths[s]; t++)
                token(in, s, t, h, S, o->y[s] + (size_t)t * in->width + h * in->value_dim);
            for (size_t i = 0; i < state; i++)
                o->recurrent[s][h * state + i] = (float)S[i];
            free(S);
        }
        for (uint32_t c = 0; c < in->channels; c++) {
            for (uint32_t t = 0; t < in->lengths[s]; t++)
                o->x[s][(size_t)t * in->channels + c] = (float)convolved(in, s, t, c);
            for (uint32_t j = 1; j < in->taps; j++) {
                if (in->lengths[s] >= j)
                    o->inputs[s][(c + 1) * (in->taps - 1) - j] = in->x[s][(in->lengths[s] - j) * in->channels + c];
            }
        }
    }
}

static void near(const float *got, const float *expected, size_t n, const char *what)
{
    double largest = 1;

    for (size_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(expected[i]));
    for (size_t i = 0; i < n; i++)
        cr_assert(fabs((double)got[i] - expected[i]) <= 1e-5 * largest, "%s, %zu: %.9g, not %.9g", what, i,
                  (double)got[i], (double)expected[i]);
}

static void check_formulas(struct input *in, uint32_t seed)
{
    const uint32_t plan[STEPS_MAX][SEQUENCES] = {{in->lengths[0], in->lengths[1], in->lengths[2]}};
    struct output got, expected;

    input_init(in, seed);
    formulas(in, &expected);
    run(in, "auto", 2, plan, &got);
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        if (in->lengths[s] == 0)
            continue;
        near(got.x[s], expected.x[s], (size_t)in->lengths[s] * in->channels, "x");
        near(got.y[s], expected.y[s], (size_t)in->lengths[s] * in->width, "y");
        near(got.recurrent[s], expected.recurrent[s], recurrent_floats(in), "state");
        near(got.inputs[s], expected.inputs[s], inputs_floats(in), "inputs");
    }
    output_free(&got);
    output_free(&expected);
    input_free(in);
}

Test(backend_delta, small_heads_follow_the_formulas)
{
    struct input in = {
        .key_heads = 2, .value_heads = 4, .key_dim = 32, .value_dim = 32, .taps = 4, .lengths = {131, 2, 1}};

    check_formulas(&in, 1);
}

Test(backend_delta, large_heads_follow_the_formulas)
{
    struct input in = {
        .key_heads = 4, .value_heads = 8, .key_dim = 128, .value_dim = 128, .taps = 4, .lengths = {20, 67, 3}};

    check_formulas(&in, 2);
}

Test(backend_delta, odd_sizes_follow_the_formulas)
{
    static const uint32_t shapes[][5] = {/* key heads, value heads, key_dim, value_dim, taps */
                                         {1, 1, 1, 1, 2},    {1, 3, 5, 7, 3},      {3, 3, 17, 65, 5},
                                         {2, 6, 33, 100, 8}, {1, 2, 256, 256, 4},  {1, 5, 130, 31, 7},
                                         {5, 5, 8, 129, 6},  {1, 1, 1024, 33, 16}, {1, 2, 9, 1024, 9}};

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        const uint32_t *n = shapes[i];
        struct input in = {.key_heads = n[0],
                           .value_heads = n[1],
                           .key_dim = n[2],
                           .value_dim = n[3],
                           .taps = n[4],
                           .lengths = {13, 1, 70}};

        check_formulas(&in, 3 + (uint32_t)i);
    }
}

/* ---- the same bits */

static const struct input same_shape = {
    .key_heads = 2, .value_heads = 6, .key_dim = 40, .value_dim = 72, .taps = 4, .lengths = {139, 12, 2}};

Test(backend_delta, cuts_company_and_threads_do_not_show)
{
    static const uint32_t plans[][STEPS_MAX][SEQUENCES] = {
        {{139, 12, 2}},
        {{139, 0, 0}, {0, 12, 0}, {0, 0, 2}},
        {{1, 12, 0}, {1, 0, 1}, {1, 0, 1}, {1, 0, 0}, {134, 0, 0}, {1, 0, 0}},
        {{64, 2, 2}, {1, 1, 0}, {64, 3, 0}, {10, 6, 0}},
        {{2, 3, 1}, {100, 4, 0}, {37, 5, 1}},
    };
    struct input in = same_shape;
    struct output expected, got;

    input_init(&in, 20);
    run(&in, "auto", 1, plans[0], &expected);
    for (uint32_t threads = 1; threads <= 3; threads++) {
        for (size_t plan = 0; plan < sizeof(plans) / sizeof(plans[0]); plan++) {
            char what[64];

            snprintf(what, sizeof(what), "%u threads, plan %zu", threads, plan);
            run(&in, "auto", threads, plans[plan], &got);
            same_bits(&in, &got, &expected, what);
            output_free(&got);
        }
    }
    output_free(&expected);
    input_free(&in);
}

Test(backend_delta, one_token_at_a_time_is_the_same)
{
    struct input in = same_shape;
    struct output expected, got;
    const uint32_t whole[STEPS_MAX][SEQUENCES] = {{139, 12, 2}};
    uint32_t done[SEQUENCES] = {0};
    struct rig r;

    input_init(&in, 21);
    run(&in, "auto", 1, whole, &expected);
    output_init(&got, &in);
    rig_open(&r, &in, "auto", 2);
    for (uint32_t t = 0; t < in.lengths[0]; t++) {
        const uint32_t counts[SEQUENCES] = {1, t < in.lengths[1], t < in.lengths[2]};

        rig_step(&r, slots, done, counts, &got);
    }
    rig_states(&r, slots, &got);
    same_bits(&in, &got, &expected, "token by token");
    rig_close(&r);
    output_free(&got);
    output_free(&expected);
    input_free(&in);
}

Test(backend_delta, instruction_sets_do_not_show)
{
    const uint32_t plan[STEPS_MAX][SEQUENCES] = {{100, 11, 2}, {39, 1, 0}};
    struct input in = same_shape;
    struct output expected, got;

    input_init(&in, 22);
    run(&in, "ref", 2, plan, &expected);
    for (int isa = DK_ISA_AVX2; isa < DK_ISA_COUNT; isa++) {
        const char *name = dk_isa_name((enum dk_isa)isa);

        if ((enum dk_isa)isa > dk_isa_best()) {
            printf("%s: not on this CPU, not compared\n", name);
            continue;
        }
        run(&in, name, 2, plan, &got);
        same_bits(&in, &got, &expected, name);
        output_free(&got);
    }
    output_free(&expected);
    input_free(&in);
}

/* ---- slots */

Test(backend_delta, a_copied_state_goes_on_like_its_original)
{
    static const uint32_t first[SEQUENCES] = {64, 0, 0}, second[SEQUENCES] = {30, 0, 0};
    static const uint32_t copies[SEQUENCES] = {1, 0, 0};
    struct input in = same_shape;
    struct output original, copy;
    uint32_t done[SEQUENCES] = {0}, again[SEQUENCES] = {64, 0, 0};
    struct rig r;

    in.lengths[0] = 94;
    in.lengths[1] = in.lengths[2] = 0;
    input_init(&in, 23);
    output_init(&original, &in);
    output_init(&copy, &in);
    rig_open(&r, &in, "auto", 2);
    rig_step(&r, slots, done, first, &original);
    ops->states_copy(r.b, r.states, slots[0], copies[0]);
    rig_step(&r, slots, done, second, &original);
    rig_states(&r, slots, &original);
    rig_step(&r, copies, again, second, &copy);
    rig_states(&r, copies, &copy);
    cr_assert_arr_eq(copy.y[0] + 64 * in.width, original.y[0] + 64 * in.width, 30 * in.width * sizeof(float));
    cr_assert_arr_eq(copy.inputs[0], original.inputs[0], inputs_floats(&in) * sizeof(float));
    cr_assert_arr_eq(copy.recurrent[0], original.recurrent[0], recurrent_floats(&in) * sizeof(float));
    rig_close(&r);
    output_free(&original);
    output_free(&copy);
    input_free(&in);
}

Test(backend_delta, a_slot_is_used_again_as_if_it_were_new)
{
    static const uint32_t some[SEQUENCES] = {70, 0, 0};
    const uint32_t whole[STEPS_MAX][SEQUENCES] = {{139, 12, 2}};
    struct input in = same_shape;
    struct output expected, got;
    uint32_t done[SEQUENCES] = {0};
    struct rig r;

    input_init(&in, 24);
    run(&in, "auto", 1, whole, &expected);
    output_init(&got, &in);
    rig_open(&r, &in, "auto", 1);
    rig_step(&r, slots, done, some, &got);
    done[0] = 0;
    rig_step(&r, slots, done, in.lengths, &got);
    rig_states(&r, slots, &got);
    same_bits(&in, &got, &expected, "the second time");
    rig_close(&r);
    output_free(&got);
    output_free(&expected);
    input_free(&in);
}

Test(backend_delta, other_layers_and_slots_stay_as_they_are)
{
    static const uint32_t counts[SEQUENCES] = {20, 0, 0};
    struct input in = same_shape;
    uint32_t done[SEQUENCES] = {0}, changed = 0;
    struct output o;
    struct rig r;

    input_init(&in, 25);
    output_init(&o, &in);
    rig_open(&r, &in, "auto", 2);
    rig_step(&r, slots, done, counts, &o);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            bool untouched = true;

            ops->states_download(r.b, r.states, layer, slot, o.inputs[0], o.recurrent[0]);
            for (size_t i = 0; i < inputs_floats(&in); i++)
                untouched &= isnan(o.inputs[0][i]) != 0;
            for (size_t i = 0; i < recurrent_floats(&in); i++)
                untouched &= isnan(o.recurrent[0][i]) != 0;
            cr_expect_eq(untouched, slot != slots[0] || layer != LAYER, "slot %u, layer %u", slot, layer);
            changed += !untouched;
        }
    }
    cr_expect_eq(changed, 1);
    rig_close(&r);
    output_free(&o);
    input_free(&in);
}

Test(backend_delta, says_which_shapes_it_cannot_keep)
{
    const struct dk_states_shape good = {
        .layers = 1, .slots = 1, .key_heads = 2, .value_heads = 4, .key_dim = 8, .value_dim = 8, .taps = 4};
    struct dk_backend *b = open_backend(1, 1, 1, 0);
    struct dk_states_shape shapes[8];
    struct dk_err err = {0};
    struct dk_states *s;

    for (int i = 0; i < 8; i++)
        shapes[i] = good;
    shapes[0].layers = 0;
    shapes[1].slots = 0;
    shapes[2].value_heads = 3;
    shapes[3].key_heads = 0;
    shapes[4].key_dim = 1025;
    shapes[5].value_dim = 0;
    shapes[6].taps = 1;
    shapes[7].taps = 17;
    for (int i = 0; i < 8; i++) {
        err.text[0] = '\0';
        cr_expect_eq(ops->states_open(b, &shapes[i], &s, &err), -EINVAL, "shape %d", i);
        cr_expect_null(s);
        cr_expect_neq(err.text[0], '\0');
    }
    shapes[0] = good;
    shapes[0].layers = shapes[0].slots = UINT32_MAX;
    cr_expect_eq(ops->states_open(b, &shapes[0], &s, &err), -ENOMEM);
    cr_expect_null(s);
    ops->states_close(b, NULL);
    ops->close(b);
}

/* ---- a golden trace: the layer's input, and both states after it */

static uint8_t *read_file(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data;
    long end;

    cr_assert_not_null(f, "%s", path);
    fseek(f, 0, SEEK_END);
    end = ftell(f);
    rewind(f);
    data = malloc((size_t)end);
    cr_assert_eq(fread(data, 1, (size_t)end, f), (size_t)end);
    fclose(f);
    *bytes = (size_t)end;
    return data;
}

static float *tensor(struct dk_checkpoint *c, uint32_t layer, const char *name)
{
    const struct dk_tensor *t;
    uint64_t count = 1;
    char full[96];
    float *x;

    snprintf(full, sizeof(full), name, layer);
    t = dk_checkpoint_find(c, full);
    cr_assert_not_null(t, "%s", full);
    for (uint32_t i = 0; i < t->rank; i++)
        count *= t->shape[i];
    x = malloc(count * sizeof(float));
    dk_widen(x, t->data, t->type, count);
    return x;
}

enum { HIDDEN = 192, GOLDEN_ROWS = 19 };

/* y [GOLDEN_ROWS][rows] = x W^T; scales NULL: none. */
static float *project(const float *x, const float *w, const float *scales, uint32_t rows)
{
    float *y = malloc((size_t)GOLDEN_ROWS * rows * sizeof(float));

    for (uint32_t t = 0; t < GOLDEN_ROWS; t++) {
        for (uint32_t r = 0; r < rows; r++) {
            double sum = 0;

            for (uint32_t c = 0; c < HIDDEN; c++) {
                double scale = scales ? scales[r / 128 * ((HIDDEN + 127) / 128) + c / 128] : 1;

                sum += x[t * HIDDEN + c] * scale * w[r * HIDDEN + c];
            }
            y[t * rows + r] = (float)sum;
        }
    }
    return y;
}

static void normalise(float *x, const float *w)
{
    for (uint32_t t = 0; t < GOLDEN_ROWS; t++, x += HIDDEN) {
        double sum = 0;

        for (uint32_t i = 0; i < HIDDEN; i++)
            sum += (double)x[i] * x[i];
        for (uint32_t i = 0; i < HIDDEN; i++)
            x[i] = (float)(x[i] / sqrt(sum / HIDDEN + 1e-6) * (1 + (double)w[i]));
    }
}

static void golden_layer(struct dk_checkpoint *weights, struct dk_checkpoint *trace, uint32_t layer)
{
    static const uint32_t plan[STEPS_MAX][SEQUENCES] = {{7, 0, 0}, {1, 0, 0}, {11, 0, 0}};
    struct input in = {.key_heads = 2,
                       .value_heads = 4,
                       .key_dim = 32,
                       .value_dim = 32,
                       .taps = 4,
                       .lengths = {GOLDEN_ROWS, 0, 0},
                       .channels = 256,
                       .width = 128};
    float *x = layer ? tensor(trace, layer - 1, "layer.%u.out") : tensor(trace, 0, "embed");
    float *norm = tensor(weights, layer, "model.layers.%u.input_layernorm.weight");
    float *qkv = tensor(weights, layer, "model.layers.%u.linear_attn.in_proj_qkv.weight");
    float *scales = tensor(weights, layer, "model.layers.%u.linear_attn.in_proj_qkv.weight_scale_inv");
    float *a = tensor(weights, layer, "model.layers.%u.linear_attn.in_proj_a.weight");
    float *b = tensor(weights, layer, "model.layers.%u.linear_attn.in_proj_b.weight");
    float *inputs = tensor(trace, layer, "layer.%u.conv_state");
    float *recurrent = tensor(trace, layer, "layer.%u.recurrent_state");
    struct output got;

    normalise(x, norm);
    in.conv = tensor(weights, layer, "model.layers.%u.linear_attn.conv1d.weight");
    in.a_log = tensor(weights, layer, "model.layers.%u.linear_attn.A_log");
    in.dt_bias = tensor(weights, layer, "model.layers.%u.linear_attn.dt_bias");
    in.x[0] = project(x, qkv, scales, in.channels);
    in.a[0] = project(x, a, NULL, in.value_heads);
    in.b[0] = project(x, b, NULL, in.value_heads);
    run(&in, "auto", 2, plan, &got);
    near(got.inputs[0], inputs, inputs_floats(&in), "inputs");
    near(got.recurrent[0], recurrent, recurrent_floats(&in), "state");
    output_free(&got);
    input_free(&in);
    free(x);
    free(norm);
    free(qkv);
    free(scales);
    free(a);
    free(b);
    free(inputs);
    free(recurrent);
}

Test(backend_delta, the_states_of_a_golden_trace)
{
    static const uint32_t layers[] = {0, 1, 2, 4, 5, 6};
    struct dk_checkpoint *weights, *trace;
    struct dk_err err = {0};
    uint8_t *data;
    size_t bytes;

    cr_assert_eq(dk_checkpoint_open(FIXTURES "/qwen3_5-fp8-tiny", &weights, &err), 0, "%s", err.text);
    data = read_file(FIXTURES "/qwen3_5-fp8-tiny/golden/trace.safetensors", &bytes);
    cr_assert_eq(dk_checkpoint_from_memory(data, bytes, "trace", &trace, &err), 0, "%s", err.text);
    for (size_t i = 0; i < sizeof(layers) / sizeof(layers[0]); i++)
        golden_layer(weights, trace, layers[i]);
    dk_checkpoint_close(trace);
    dk_checkpoint_close(weights);
    free(data);
}
