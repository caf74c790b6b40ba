/* SPDX-License-Identifier: Apache-2.0 */
/* The indexer's choice against a plain sort of scores that are exact in f32 whatever the order of summation, and, with
 * other numbers, the same choice however it is computed. */
#include "backend_fixture.h"

#include <string.h>

#include "base/cpu.h"

enum { BESIDE_MAX = 3 };

struct shape {
    uint32_t heads, dim, page_tokens, length, top_k;
};

struct rig {
    struct shape s;
    struct dk_backend *b;
    struct dk_latents *l;
    struct dk_picks *p;
    struct dk_rows q, w, k;
    uint32_t *pages;
    float *all_q, *all_w, *all_k; /* of one sequence */
    int32_t *picks;               /* [length][top_k] */
};

static uint32_t next(uint32_t *state) /* without the low bits, which soon repeat */
{
    return next_random(state) >> 8;
}

static void rig_open(struct rig *r, const struct shape *s, const char *isa, uint32_t threads)
{
    uint32_t pages = (s->length + s->page_tokens - 1) / s->page_tokens;
    const struct dk_latents_shape shape = {
        .layers = 2, .rank = 8, .rope_dim = 4, .index_dim = s->dim, .page_tokens = s->page_tokens, .pages = pages + 1};
    struct dk_err err = {0};

    *r = (struct rig){.s = *s};
    r->b = open_backend_isa(isa, threads, s->length + BESIDE_MAX, s->length, s->heads * (s->dim + 1) + s->dim);
    cr_assert_eq(ops->latents_open(r->b, &shape, &r->l, &err), 0, "%s", err.text);
    cr_assert_eq(ops->picks_open(r->b, s->top_k, &r->p, &err), 0, "%s", err.text);
    r->q = take(r->b, s->heads * s->dim);
    r->w = take(r->b, s->heads);
    r->k = take(r->b, s->dim);
    r->pages = malloc(pages * sizeof(uint32_t));
    for (uint32_t i = 0; i < pages; i++)
        r->pages[i] = pages - i;
    r->all_q = calloc((size_t)s->length * r->q.width, sizeof(float));
    r->all_w = calloc((size_t)s->length * r->w.width, sizeof(float));
    r->all_k = calloc((size_t)s->length * r->k.width, sizeof(float));
    r->picks = calloc((size_t)s->length * s->top_k, sizeof(int32_t));
}

static void rig_close(struct rig *r)
{
    free(r->pages);
    free(r->all_q);
    free(r->all_w);
    free(r->all_k);
    free(r->picks);
    ops->picks_close(r->b, r->p);
    ops->latents_close(r->b, r->l);
    ops->close(r->b);
}

static void upload(const struct rig *r, uint32_t row, uint32_t position, uint32_t count)
{
    ops->upload(r->b, r->q, row, count, r->all_q + (size_t)position * r->q.width);
    ops->upload(r->b, r->w, row, count, r->all_w + (size_t)position * r->w.width);
    ops->upload(r->b, r->k, row, count, r->all_k + (size_t)position * r->k.width);
}

/* A step of positions [position, position + count), behind `beside` rows with which another sequence begins. */
static void select_rows(struct rig *r, uint32_t position, uint32_t count, uint32_t beside)
{
    const uint32_t other_page = 0;
    const struct dk_span spans[] = {
        {.row = beside, .count = count, .position = position, .pages = r->pages},
        {.row = 0, .count = beside, .position = 0, .pages = &other_page},
    };

    upload(r, 0, 1, beside);
    upload(r, beside, position, count);
    ops->index_select(r->b, r->l, 1, spans, beside ? 2 : 1, r->s.heads, r->q, r->w, r->k, r->p);
    ops->picks_download(r->b, r->p, beside, count, r->picks + (size_t)position * r->s.top_k);
}

static void fill_integers(float *x, size_t n, int32_t least, uint32_t values, uint32_t *state)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(least + (int32_t)(next(state) % values));
}

struct scored {
    double score;
    uint32_t position;
};

/* Falling score, a NaN last; then rising position. */
static int by_score(const void *left, const void *right)
{
    const struct scored *a = left, *b = right;
    bool a_nan = isnan(a->score), b_nan = isnan(b->score);

    if (a_nan != b_nan)
        return a_nan ? 1 : -1;
    if (!a_nan && a->score != b->score)
        return a->score > b->score ? -1 : 1;
    return a->position < b->position ? -1 : 1;
}

static int by_position(const void *left, const void *right)
{
    const struct scored *a = left, *b = right;

    return a->position < b->position ? -1 : 1;
}

static double score_of(const struct rig *r, uint32_t t, uint32_t p)
{
    double score = 0;

    for (uint32_t h = 0; h < r->s.heads; h++) {
        double dot = 0;

        for (uint32_t d = 0; d < r->s.dim; d++)
            dot += (double)r->all_q[(size_t)t * r->q.width + h * r->s.dim + d] * r->all_k[(size_t)p * r->s.dim + d];
        score += (double)r->all_w[(size_t)t * r->s.heads + h] * (isnan(dot) ? dot : fmax(dot, 0));
    }
    return score;
}

/* Rows [first, length) against the sort. */
static void check_rows(const struct rig *r, uint32_t first, const char *what)
{
    struct scored *all = malloc(r->s.length * sizeof(*all));

    for (uint32_t t = first; t < r->s.length; t++) {
        const int32_t *got = r->picks + (size_t)t * r->s.top_k;
        uint32_t n = t + 1 < r->s.top_k ? t + 1 : r->s.top_k;

        for (uint32_t p = 0; p <= t; p++)
            all[p] = (struct scored){.score = score_of(r, t, p), .position = p};
        qsort(all, t + 1, sizeof(*all), by_score);
        qsort(all, n, sizeof(*all), by_position);
        for (uint32_t i = 0; i < r->s.top_k; i++)
            cr_assert_eq(got[i], i < n ? (int32_t)all[i].position : -1,
                         "%s: heads %u, dim %u, page %u, top_k %u, row %u, pick %u: %d, not %d", what, r->s.heads,
                         r->s.dim, r->s.page_tokens, r->s.top_k, t, i, got[i], i < n ? (int32_t)all[i].position : -1);
    }
    free(all);
}

/* More heads than are held at a time, more rows than a wave, pages shorter and longer than a piece. */
static const struct shape shapes[] = {
    {.heads = 16, .dim = 64, .page_tokens = 16, .length = 150, .top_k = 24},
    {.heads = 69, .dim = 5, .page_tokens = 5, .length = 90, .top_k = 7},
    {.heads = 3, .dim = 1, .page_tokens = 4, .length = 200, .top_k = 1},
    {.heads = 9, .dim = 17, .page_tokens = 100, .length = 230, .top_k = 229},
    {.heads = 1, .dim = 32, .page_tokens = 64, .length = 70, .top_k = 70},
    {.heads = 4, .dim = 8, .page_tokens = 16, .length = 40, .top_k = 41},
};
enum { SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

/* Small integers: exact scores, and many of them equal. */
Test(backend_index, takes_the_largest_and_the_earlier_of_equal_ones)
{
    uint32_t state = 1;

    for (int i = 0; i < SHAPES; i++) {
        struct rig r;

        rig_open(&r, &shapes[i], "auto", 2);
        fill_integers(r.all_q, (size_t)r.s.length * r.q.width, -2, 5, &state);
        fill_integers(r.all_w, (size_t)r.s.length * r.w.width, -2, 6, &state);
        fill_integers(r.all_k, (size_t)r.s.length * r.k.width, -2, 5, &state);
        select_rows(&r, 0, r.s.length, 0);
        check_rows(&r, 0, "integers");
        rig_close(&r);
    }
}

Test(backend_index, chooses_among_scores_that_are_not_positive)
{
    uint32_t state = 2;

    for (int i = 0; i < SHAPES; i++) {
        struct rig r;

        rig_open(&r, &shapes[i], "auto", 2);
        fill_integers(r.all_q, (size_t)r.s.length * r.q.width, -2, 5, &state);
        fill_integers(r.all_w, (size_t)r.s.length * r.w.width, -3, 4, &state);
        fill_integers(r.all_k, (size_t)r.s.length * r.k.width, -2, 5, &state);
        select_rows(&r, 0, r.s.length, 0);
        check_rows(&r, 0, "no positive weight");
        rig_close(&r);
    }
}

/* The last row of 301 gives position p the score all_k[p]: one head sees the positive and the other the negative keys.
 */
static void check_scores(const char *what, uint32_t top_k, float (*score)(uint32_t p, uint32_t *state))
{
    const struct shape s = {.heads = 2, .dim = 1, .page_tokens = 16, .length = 301, .top_k = top_k};
    uint32_t state = 3;
    struct rig r;

    rig_open(&r, &s, "auto", 1);
    for (uint32_t p = 0; p < s.length; p++) {
        r.all_k[p] = score(p, &state);
        r.all_q[p * 2] = 1;
        r.all_w[p * 2] = 1;
        r.all_q[p * 2 + 1] = -1;
        r.all_w[p * 2 + 1] = -1;
    }
    select_rows(&r, 0, s.length, 0);
    check_rows(&r, s.length - 1, what);
    rig_close(&r);
}

static float equal(uint32_t p, uint32_t *state)
{
    return 1.5f;
}

static float neighbours(uint32_t p, uint32_t *state)
{
    return 1 + (float)(next(state) % 64) * 0x1p-23f; /* only the last bits differ */
}

static float signs(uint32_t p, uint32_t *state)
{
    return (next(state) % 2 ? 1.0f : -1.0f) * (1 + (float)(next(state) % 4096) * 0x1p-12f);
}

static float all_sizes(uint32_t p, uint32_t *state)
{
    return ldexpf(next(state) % 2 ? 1.25f : -1.75f, (int)(next(state) % 270) - 145); /* subnormal to near infinity */
}

static float zeros(uint32_t p, uint32_t *state)
{
    return next(state) % 3 ? 0.0f : next(state) % 2 ? -0.0f : 0x1p-149f;
}

static float rising(uint32_t p, uint32_t *state)
{
    return (float)p;
}

static float falling(uint32_t p, uint32_t *state)
{
    return -(float)p;
}

Test(backend_index, chooses_right_whatever_the_scores)
{
    static const uint32_t top_ks[] = {1, 2, 37, 150, 299, 300, 301};

    for (size_t i = 0; i < sizeof(top_ks) / sizeof(top_ks[0]); i++) {
        check_scores("equal", top_ks[i], equal);
        check_scores("neighbours", top_ks[i], neighbours);
        check_scores("signs", top_ks[i], signs);
        check_scores("all sizes", top_ks[i], all_sizes);
        check_scores("zeros", top_ks[i], zeros);
        check_scores("rising", top_ks[i], rising);
        check_scores("falling", top_ks[i], falling);
    }
}

/* -2^-151 rounds to negative zero, which is no less than zero. */
Test(backend_index, zeros_are_equal)
{
    const struct shape s = {.heads = 1, .dim = 1, .page_tokens = 16, .length = 30, .top_k = 9};
    struct rig r;

    rig_open(&r, &s, "auto", 1);
    for (uint32_t p = 0; p < s.length; p++) {
        r.all_q[p] = 1;
        r.all_w[p] = -0x1p-149f;
        r.all_k[p] = p % 3 == 1 ? 0 : 0.25f;
    }
    select_rows(&r, 0, s.length, 0);
    for (uint32_t i = 0; i < s.top_k; i++)
        cr_expect_eq(r.picks[(s.length - 1) * s.top_k + i], (int32_t)i);
    rig_close(&r);
}

/* A NaN is taken only for want of others, and below negative infinity. */
Test(backend_index, a_nan_is_the_smallest)
{
    static const uint32_t top_ks[] = {2, 12, 30, 39};

    for (size_t i = 0; i < sizeof(top_ks) / sizeof(top_ks[0]); i++) {
        const struct shape s = {.heads = 3, .dim = 4, .page_tokens = 16, .length = 40, .top_k = top_ks[i]};
        uint32_t state = 4;
        struct rig r;

        rig_open(&r, &s, "auto", 2);
        fill_integers(r.all_q, (size_t)s.length * r.q.width, 1, 3, &state);
        fill_integers(r.all_w, (size_t)s.length * r.w.width, -3, 2, &state); /* an infinite product scores -inf */
        fill_integers(r.all_k, (size_t)s.length * r.k.width, -2, 6, &state);
        for (uint32_t p = 0; p < s.length; p += 3)
            r.all_k[p * s.dim + p % s.dim] = p % 2 ? NAN : -NAN;
        for (uint32_t p = 1; p < s.length; p += 5)
            r.all_k[p * s.dim] = INFINITY;
        for (uint32_t h = 0; h < s.heads; h++)
            r.all_q[(s.length - 2) * r.q.width + h * s.dim] = NAN; /* a row without one number */
        select_rows(&r, 0, s.length, 0);
        check_rows(&r, 0, "NaN");
        rig_close(&r);
    }
}

static void fill_all(struct rig *r, uint32_t seed)
{
    fill(r->all_q, (size_t)r->s.length * r->q.width, seed);
    fill(r->all_w, (size_t)r->s.length * r->w.width, seed + 1);
    fill(r->all_k, (size_t)r->s.length * r->k.width, seed + 2);
}

/* Scores that round: each picked one is as large as each dropped one, but for the rounding. */
Test(backend_index, random_scores_match_their_formula)
{
    for (int i = 0; i < SHAPES; i++) {
        struct rig r;

        rig_open(&r, &shapes[i], "auto", 2);
        fill_all(&r, 5);
        select_rows(&r, 0, r.s.length, 0);
        for (uint32_t t = 0; t < r.s.length; t++) {
            const int32_t *got = r.picks + (size_t)t * r.s.top_k;
            double least_picked = INFINITY, largest_dropped = -INFINITY;

            for (uint32_t p = 0, n = 0; p <= t; p++) {
                double score = score_of(&r, t, p);

                if (n < r.s.top_k && got[n] == (int32_t)p) {
                    least_picked = fmin(least_picked, score);
                    n++;
                } else {
                    largest_dropped = fmax(largest_dropped, score);
                }
                if (p == t)
                    cr_assert_eq(n, t + 1 < r.s.top_k ? t + 1 : r.s.top_k, "row %u: %u picks in rising order", t, n);
            }
            cr_assert_geq(least_picked, largest_dropped - 1e-5, "row %u: picked %g, dropped %g", t, least_picked,
                          largest_dropped);
        }
        rig_close(&r);
    }
}

Test(backend_index, threads_cuts_neighbours_and_instruction_sets_choose_the_same)
{
    for (int i = 0; i < SHAPES; i++) {
        struct rig whole;

        rig_open(&whole, &shapes[i], "ref", 1);
        fill_all(&whole, 6);
        select_rows(&whole, 0, whole.s.length, 0);
        for (int isa = 0; isa <= (int)dk_isa_best(); isa++) {
            for (uint32_t threads = 1; threads <= 3; threads++) {
                struct rig r;
                uint32_t cut = 1;

                rig_open(&r, &shapes[i], dk_isa_name((enum dk_isa)isa), threads);
                fill_all(&r, 6);
                for (uint32_t t = 0; t < r.s.length; t += cut) {
                    cut = t < 20 ? 1 : r.s.length - t < 31 ? r.s.length - t : 31;
                    select_rows(&r, t, cut, cut == 31 ? BESIDE_MAX : 0);
                }
                cr_assert_arr_eq(r.picks, whole.picks, (size_t)r.s.length * r.s.top_k * sizeof(int32_t),
                                 "%s, %u threads, shape %d", dk_isa_name((enum dk_isa)isa), threads, i);
                rig_close(&r);
            }
        }
        rig_close(&whole);
    }
}
