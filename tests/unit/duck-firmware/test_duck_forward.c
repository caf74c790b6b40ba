/* SPDX-License-Identifier: Apache-2.0 */
/* What a duck computes: slices, pieces and types against float64, and the same bits whatever way the weights came. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "duck_rig.h"

enum { ROWS = 5, TOP_K = 3, EXPERTS = 6, HIDDEN = 192, WIDTH = 352 };

struct rows {
    float x[ROWS * HIDDEN], weights[ROWS * TOP_K];
    int32_t ids[ROWS * TOP_K];
};

static void make_rows(struct rows *r)
{
    struct dk_rng rng = {17};

    for (int i = 0; i < ROWS * HIDDEN; i++)
        r->x[i] = (float)(4 * dk_rng_unit(&rng) - 2);
    for (int i = 0; i < ROWS * TOP_K; i++) {
        r->ids[i] = (i / TOP_K * 2 + i % TOP_K * (1 + i / TOP_K % 2)) % EXPERTS;
        r->weights[i] = (float)(0.1 + dk_rng_unit(&rng));
    }
}

/* Asks for some of the rows; the duck's sums, valid until the next request. */
static const float *forward(struct duck_rig *r, const struct ffn_source *s, bool moe, uint64_t epoch, uint32_t layer,
                            const struct rows *in, uint32_t first, uint32_t count)
{
    size_t x_bytes = (size_t)count * HIDDEN * 4, routing = moe ? (size_t)count * TOP_K * 4 : 0;
    uint8_t *payload = malloc(x_bytes + 2 * routing);
    const Dk__DataReply *reply;
    struct request q;

    memcpy(payload, in->x + (size_t)first * HIDDEN, x_bytes);
    if (moe) {
        memcpy(payload + x_bytes, in->ids + first * TOP_K, routing);
        memcpy(payload + x_bytes + routing, in->weights + first * TOP_K, routing);
    }
    request_forward(&q, s, moe, epoch, layer, count, TOP_K);
    reply = duck_rig_ask(r, &q.data.base, payload, x_bytes + 2 * routing);
    free(payload);
    cr_assert_eq(reply->result_case, DK__DATA_REPLY__RESULT_FORWARD, "%s",
                 reply->result_case == DK__DATA_REPLY__RESULT_ERROR ? reply->error->text : "");
    cr_assert_eq(reply->plan_epoch, epoch);
    cr_assert_eq(reply->forward->layer, layer);
    cr_assert_eq(reply->forward->rows, count);
    cr_assert_eq(reply->forward->hidden_size, HIDDEN);
    cr_assert_eq(reply->forward->compute_us, 7);
    cr_assert_gt(reply->forward->weight_bytes, 0);
    cr_assert_eq(r->answer.payload_bytes, x_bytes);
    return r->answer.payload;
}

static void check_against_float64(struct duck_rig *r, const struct ffn_source *s, bool moe, uint64_t epoch,
                                  uint32_t layer, uint32_t begin, uint32_t end, const struct rows *in)
{
    size_t n = ROWS * HIDDEN;
    double *want = malloc(n * sizeof *want), *bound = malloc(n * sizeof *bound), largest = 0;
    const float *got = forward(r, s, moe, epoch, layer, in, 0, ROWS);

    ffn_source_forward(s, begin, end, ROWS, TOP_K, in->x, moe ? in->ids : NULL, moe ? in->weights : NULL, want, bound);
    for (size_t i = 0; i < n; i++) {
        cr_assert(fabs(got[i] - want[i]) <= bound[i], "%s [%u, %u) row %zu column %zu: %g, float64 %g, bound %g",
                  dk_dtype_name(s->type), begin, end, i / HIDDEN, i % HIDDEN, (double)got[i], want[i], bound[i]);
        largest = fabs(want[i]) > largest ? fabs(want[i]) : largest;
        /* The bound says something: it is far below the values. */
        cr_assert_lt(bound[i], 0.01, "%g", bound[i]);
    }
    cr_assert_gt(largest, 0.1);
    free(want);
    free(bound);
}

static const struct {
    uint32_t begin, end;
} slices[] = {{0, WIDTH}, {32, 160}, {96, WIDTH}, {160, 192}, {320, WIDTH}, {0, 96}};

Test(duck_forward, dense_slices_of_every_type)
{
    static const enum dk_dtype types[] = {DK_F8_E4M3, DK_BF16, DK_F32};
    struct rows in;

    make_rows(&in);
    for (int t = 0; t < 3; t++)
        for (size_t i = 0; i < sizeof slices / sizeof *slices; i++) {
            struct ffn_source s;
            struct duck_rig r;

            duck_rig_open(&r, 0);
            ffn_source_make(&s, types[t], HIDDEN, WIDTH, 1, 3 + i);
            duck_rig_feed(&r, &s, false, 2, 4, slices[i].begin, slices[i].end);
            check_against_float64(&r, &s, false, 2, 4, slices[i].begin, slices[i].end, &in);
            ffn_source_free(&s);
            duck_rig_close(&r);
        }
}

Test(duck_forward, moe_slices_of_every_type)
{
    static const enum dk_dtype types[] = {DK_F8_E4M3, DK_BF16, DK_F32};
    struct rows in;

    make_rows(&in);
    for (int t = 0; t < 3; t++)
        for (size_t i = 0; i < sizeof slices / sizeof *slices; i++) {
            struct ffn_source s;
            struct duck_rig r;

            duck_rig_open(&r, 0);
            ffn_source_make(&s, types[t], HIDDEN, WIDTH, EXPERTS, 30 + i);
            duck_rig_feed(&r, &s, true, 2, 0, slices[i].begin, slices[i].end);
            check_against_float64(&r, &s, true, 2, 0, slices[i].begin, slices[i].end, &in);
            ffn_source_free(&s);
            duck_rig_close(&r);
        }
}

/* ---- pieces */

struct piece {
    uint32_t begin, end, expert_begin, expert_end;
};

/* The slice [32, 300) in pieces; its last unit is short. */
enum { SLICE_BEGIN = 32, SLICE_END = 300 };
static const struct piece pieces[] = {
    {0, 32, 0, EXPERTS}, {32, 128, 0, 2},  {32, 64, 2, EXPERTS}, {64, 128, 2, EXPERTS}, {128, 268, 3, 5},
    {128, 256, 0, 3},    {128, 256, 5, 6}, {256, 268, 5, 6},     {256, 268, 0, 3},
};
enum { PIECES = sizeof pieces / sizeof *pieces };

Test(duck_forward, pieces_in_any_order_and_repeated_give_the_same_bits)
{
    static const enum dk_dtype types[] = {DK_F8_E4M3, DK_BF16, DK_F32};
    float *whole = malloc(ROWS * HIDDEN * sizeof *whole);
    struct rows in;

    make_rows(&in);
    for (uint64_t seed = 0; seed < 12; seed++) {
        bool repeat = seed % 2, moe = seed % 4 < 2;
        struct dk_rng rng = {seed};
        uint32_t order[PIECES], units = moe ? EXPERTS * 9 : 9, held = 0;
        struct ffn_source s;
        struct duck_rig r;

        ffn_source_make(&s, types[seed % 3], HIDDEN, WIDTH, moe ? EXPERTS : 1, seed);
        duck_rig_open(&r, 0);
        duck_rig_feed(&r, &s, moe, 9, 1, SLICE_BEGIN, SLICE_END);
        memcpy(whole, forward(&r, &s, moe, 9, 1, &in, 0, ROWS), ROWS * HIDDEN * sizeof *whole);
        duck_rig_close(&r);

        duck_rig_open(&r, 0);
        for (uint32_t i = 0; i < PIECES; i++) {
            uint32_t at = (uint32_t)(dk_rng_next(&rng) % (i + 1));

            order[i] = order[at];
            order[at] = i;
        }
        for (uint32_t i = 0; i < PIECES; i++)
            for (int again = 0; again < (repeat ? 2 : 1); again++) {
                const struct piece *p = &pieces[order[repeat && again ? order[i] : i]];
                const Dk__DataReply *reply;
                struct request q;

                if (!moe && p->expert_begin > 0)
                    continue;
                request_init(&q, &s, moe, 9, 1, SLICE_BEGIN, SLICE_END, p->begin, p->end, p->expert_begin,
                             p->expert_end);
                reply = duck_rig_init(&r, &q, &s);
                cr_assert_eq(reply->result_case, DK__DATA_REPLY__RESULT_INIT, "seed %llu piece %u",
                             (unsigned long long)seed, order[i]);
                cr_assert_geq(reply->init->pieces_held, held, "units were lost");
                held = (uint32_t)reply->init->pieces_held;
                cr_assert_eq(reply->init->complete, held == units);
                cr_assert_eq(reply->init->layer, 1);
            }
        cr_assert_eq(held, units, "seed %llu: %u of %u", (unsigned long long)seed, held, units);
        cr_assert_eq(r.duck.shards.layers_complete, 1);
        cr_assert_eq(memcmp(whole, forward(&r, &s, moe, 9, 1, &in, 0, ROWS), ROWS * HIDDEN * sizeof *whole), 0);
        duck_rig_close(&r);
        ffn_source_free(&s);
    }
    free(whole);
}

Test(duck_forward, a_row_has_the_same_bits_alone_and_in_a_batch)
{
    for (int moe = 0; moe < 2; moe++) {
        float *batch = malloc(ROWS * HIDDEN * sizeof *batch);
        struct ffn_source s;
        struct duck_rig r;
        struct rows in;

        make_rows(&in);
        duck_rig_open(&r, 0);
        ffn_source_make(&s, DK_F8_E4M3, HIDDEN, WIDTH, moe ? EXPERTS : 1, 5);
        duck_rig_feed(&r, &s, moe, 1, 0, 96, 352);
        memcpy(batch, forward(&r, &s, moe, 1, 0, &in, 0, ROWS), ROWS * HIDDEN * sizeof *batch);
        for (uint32_t first = 0; first < ROWS; first++)
            for (uint32_t count = 1; first + count <= ROWS; count++)
                cr_assert_eq(memcmp(batch + first * HIDDEN, forward(&r, &s, moe, 1, 0, &in, first, count),
                                    count * HIDDEN * sizeof *batch),
                             0, "rows %u to %u", first, first + count - 1);
        /* A row of nonsense stays where it is. */
        in.x[2 * HIDDEN + 7] = NAN;
        forward(&r, &s, moe, 1, 0, &in, 0, ROWS);
        for (uint32_t row = 0; row < ROWS; row++)
            cr_assert_eq(memcmp(batch + row * HIDDEN, (const float *)r.answer.payload + row * HIDDEN,
                                HIDDEN * sizeof *batch) == 0,
                         row != 2);
        ffn_source_free(&s);
        free(batch);
        duck_rig_close(&r);
    }
}

Test(duck_forward, counters)
{
    struct ffn_source dense, moe;
    struct duck_rig r;
    struct rows in;
    uint64_t bytes;

    make_rows(&in);
    duck_rig_open(&r, 0);
    ffn_source_make(&dense, DK_BF16, HIDDEN, WIDTH, 1, 1);
    ffn_source_make(&moe, DK_F8_E4M3, HIDDEN, WIDTH, EXPERTS, 2);
    duck_rig_feed(&r, &dense, false, 1, 0, 0, WIDTH);
    duck_rig_feed(&r, &moe, true, 1, 1, 0, WIDTH);
    cr_assert_eq(r.duck.counters.requests, 0);
    cr_assert_eq(r.duck.shards.layers_complete, 2);
    cr_assert_geq(r.duck.shards.bytes, 3u * HIDDEN * WIDTH * (2 + EXPERTS));
    forward(&r, &dense, false, 1, 0, &in, 0, ROWS);
    cr_assert_eq(r.duck.counters.requests, 1);
    cr_assert_eq(r.duck.counters.rows, ROWS);
    cr_assert_eq(r.duck.counters.expert_rows, ROWS);
    bytes = r.duck.counters.weight_bytes;
    cr_assert_geq(bytes, 3u * HIDDEN * WIDTH * 2);
    forward(&r, &moe, true, 1, 1, &in, 0, 2);
    cr_assert_eq(r.duck.counters.requests, 2);
    cr_assert_eq(r.duck.counters.rows, ROWS + 2);
    cr_assert_eq(r.duck.counters.expert_rows, ROWS + 2 * TOP_K);
    cr_assert_gt(r.duck.counters.weight_bytes, bytes);
    cr_assert_eq(r.duck.counters.compute_us, 14);
    cr_assert_eq(r.duck.counters.refused, 0);
    duck_rig_ask_bytes(&r, (const uint8_t *)"", 0);
    cr_assert_eq(r.duck.counters.refused, 1);
    cr_assert_eq(r.duck.counters.requests, 2);
    ffn_source_free(&dense);
    ffn_source_free(&moe);
    duck_rig_close(&r);
}
