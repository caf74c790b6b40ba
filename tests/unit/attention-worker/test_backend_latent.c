/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over latents: against its formula in double, and the same bits however it is computed. */
#include "backend_fixture.h"

#include <string.h>

#include "base/cpu.h"

enum { SEQUENCES = 3, CONTEXT = 64, TABLE = 10, LAYERS = 2, INDEX_HEADS = 3, INDEX_DIM = 8, STEPS = 6 };
#define SCALE 0.2f

struct model {
    uint32_t heads, rank, rope_dim, page_tokens;
};

static const struct model models[] = {
    {.heads = 4, .rank = 64, .rope_dim = 32, .page_tokens = 4},
    {.heads = 8, .rank = 512, .rope_dim = 64, .page_tokens = 16},
    {.heads = 37, .rank = 40, .rope_dim = 8, .page_tokens = 5}, /* the blocks of a row end unevenly; several waves */
    {.heads = 16, .rank = 72, .rope_dim = 2, .page_tokens = 40},
};
enum { MODELS = sizeof(models) / sizeof(models[0]) };

static const uint32_t lengths[SEQUENCES] = {37, 16, 1};

/* All rows of one sequence, and what attention gave for them. */
struct sequence {
    uint32_t pages[TABLE];
    float *q_latent, *q_pe, *latent, *k_pe, *index_q, *index_w, *index_k, *y;
    int32_t *picks; /* [rows][top_k] */
};

struct rig {
    struct model m;
    struct dk_backend *b;
    struct dk_latents *l;
    struct dk_picks *p; /* NULL: no indexer */
    uint32_t top_k;
    struct dk_rows q_latent, q_pe, latent, k_pe, index_q, index_w, index_k, y;
    struct sequence sequences[SEQUENCES];
};

static float *random_rows(uint32_t width, uint32_t seed)
{
    return random_floats((size_t)CONTEXT * width, 1, seed);
}

static void sequence_open(const struct rig *r, struct sequence *s, uint32_t number)
{
    const struct model *m = &r->m;
    uint32_t seed = 100 * number;

    /* Pages in an order that is neither rising nor dense; no two sequences share one. */
    for (uint32_t i = 0; i < TABLE; i++)
        s->pages[i] = (i * 7 + 3) % TABLE * SEQUENCES + number;
    s->q_latent = random_rows(m->heads * m->rank, seed + 1);
    s->q_pe = random_rows(m->heads * m->rope_dim, seed + 2);
    s->latent = random_rows(m->rank, seed + 3);
    s->k_pe = random_rows(m->rope_dim, seed + 4);
    s->index_q = random_rows(INDEX_HEADS * INDEX_DIM, seed + 5);
    s->index_w = random_rows(INDEX_HEADS, seed + 6);
    s->index_k = random_rows(INDEX_DIM, seed + 7);
    s->y = calloc((size_t)CONTEXT * m->heads * m->rank, sizeof(float));
    s->picks = calloc((size_t)CONTEXT * (r->top_k ? r->top_k : 1), sizeof(int32_t));
}

static void rig_open(struct rig *r, const struct model *m, const char *isa, uint32_t threads, uint32_t top_k)
{
    const struct dk_latents_shape shape = {.layers = LAYERS,
                                           .rank = m->rank,
                                           .rope_dim = m->rope_dim,
                                           .index_dim = top_k ? INDEX_DIM : 0,
                                           .page_tokens = m->page_tokens,
                                           .pages = TABLE * SEQUENCES};
    struct dk_err err = {0};

    *r = (struct rig){.m = *m, .top_k = top_k};
    r->b = open_backend_isa(isa, threads, CONTEXT, CONTEXT, (m->heads + 1) * (2 * m->rank + m->rope_dim) + 64);
    cr_assert_eq(ops->latents_open(r->b, &shape, &r->l, &err), 0, "%s", err.text);
    if (top_k)
        cr_assert_eq(ops->picks_open(r->b, top_k, &r->p, &err), 0, "%s", err.text);
    r->q_latent = take(r->b, m->heads * m->rank);
    r->q_pe = take(r->b, m->heads * m->rope_dim);
    r->latent = take(r->b, m->rank);
    r->k_pe = take(r->b, m->rope_dim);
    r->index_q = take(r->b, INDEX_HEADS * INDEX_DIM);
    r->index_w = take(r->b, INDEX_HEADS);
    r->index_k = take(r->b, INDEX_DIM);
    r->y = take(r->b, m->heads * m->rank);
    for (uint32_t s = 0; s < SEQUENCES; s++)
        sequence_open(r, &r->sequences[s], s);
}

static void rig_close(struct rig *r)
{
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        struct sequence *q = &r->sequences[s];

        free(q->q_latent);
        free(q->q_pe);
        free(q->latent);
        free(q->k_pe);
        free(q->index_q);
        free(q->index_w);
        free(q->index_k);
        free(q->y);
        free(q->picks);
    }
    ops->picks_close(r->b, r->p);
    ops->latents_close(r->b, r->l);
    ops->close(r->b);
}

static void upload(const struct rig *r, struct dk_rows x, uint32_t row, uint32_t n, const float *all, uint32_t position)
{
    ops->upload(r->b, x, row, n, all + (size_t)position * x.width);
}

static void upload_sequence(const struct rig *r, const struct sequence *s, uint32_t row, uint32_t n, uint32_t position)
{
    upload(r, r->q_latent, row, n, s->q_latent, position);
    upload(r, r->q_pe, row, n, s->q_pe, position);
    upload(r, r->latent, row, n, s->latent, position);
    upload(r, r->k_pe, row, n, s->k_pe, position);
    upload(r, r->index_q, row, n, s->index_q, position);
    upload(r, r->index_w, row, n, s->index_w, position);
    upload(r, r->index_k, row, n, s->index_k, position);
}

/* One step of a layer: sequence s gives counts[s] rows from done[s] on. */
static void step(struct rig *r, uint32_t layer, uint32_t *done, const uint32_t *counts)
{
    struct dk_span spans[SEQUENCES];
    uint32_t rows = 0, n = 0;

    for (uint32_t s = 0; s < SEQUENCES; s++) {
        if (counts[s] == 0)
            continue;
        upload_sequence(r, &r->sequences[s], rows, counts[s], done[s]);
        spans[n++] = (struct dk_span){
            .row = rows, .count = counts[s], .position = done[s], .pages = r->sequences[s].pages};
        rows += counts[s];
    }
    if (r->p)
        ops->index_select(r->b, r->l, layer, spans, n, INDEX_HEADS, r->index_q, r->index_w, r->index_k, r->p);
    ops->attend_latent(r->b, r->l, layer, spans, n, r->m.heads, SCALE, r->q_latent, r->q_pe, r->latent, r->k_pe, r->p,
                       r->y);
    rows = 0;
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        struct sequence *q = &r->sequences[s];

        ops->download(r->b, r->y, rows, counts[s], q->y + (size_t)done[s] * r->y.width);
        if (r->p)
            ops->picks_download(r->b, r->p, rows, counts[s], q->picks + (size_t)done[s] * r->top_k);
        rows += counts[s];
        done[s] += counts[s];
    }
}

static void run_whole(struct rig *r)
{
    uint32_t done[SEQUENCES] = {0};

    step(r, 1, done, lengths);
}

/* The positions that row t attends to; returns their number. */
static uint32_t attended(const struct rig *r, const struct sequence *s, uint32_t t, uint32_t *positions)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < (r->p ? r->top_k : t + 1); i++) {
        int32_t p = r->p ? s->picks[(size_t)t * r->top_k + i] : (int32_t)i;

        if (p >= 0)
            positions[n++] = (uint32_t)p;
    }
    return n;
}

/* The largest difference between y of head h of row t and its formula. */
static double formula_difference(const struct rig *r, const struct sequence *s, uint32_t t, uint32_t h)
{
    uint32_t rank = r->m.rank, rope_dim = r->m.rope_dim, positions[CONTEXT], n = attended(r, s, t, positions);
    const float *q = s->q_latent + ((size_t)t * r->m.heads + h) * rank;
    const float *q_pe = s->q_pe + ((size_t)t * r->m.heads + h) * rope_dim;
    const float *y = s->y + ((size_t)t * r->m.heads + h) * rank;
    double weights[CONTEXT], total = 0, largest = 0;

    for (uint32_t i = 0; i < n; i++) {
        double dot = 0;

        for (uint32_t d = 0; d < rank; d++)
            dot += (double)q[d] * s->latent[positions[i] * rank + d];
        for (uint32_t d = 0; d < rope_dim; d++)
            dot += (double)q_pe[d] * s->k_pe[positions[i] * rope_dim + d];
        weights[i] = exp(dot * (double)SCALE);
        total += weights[i];
    }
    for (uint32_t d = 0; d < rank; d++) {
        double sum = 0;

        for (uint32_t i = 0; i < n; i++)
            sum += weights[i] / total * s->latent[positions[i] * rank + d];
        largest = fmax(largest, difference_of(sum, (double)y[d]));
    }
    return largest;
}

static void check_formula(const struct rig *r)
{
    double largest = 0;

    for (uint32_t s = 0; s < SEQUENCES; s++) {
        for (uint32_t t = 0; t < lengths[s]; t++) {
            for (uint32_t h = 0; h < r->m.heads; h++)
                largest = fmax(largest, formula_difference(r, &r->sequences[s], t, h));
        }
    }
    cr_expect_lt(largest, 1e-5, "%u heads, rank %u, top_k %u: difference %g", r->m.heads, r->m.rank, r->top_k, largest);
}

Test(backend_latent, matches_its_formula)
{
    for (int m = 0; m < MODELS; m++) {
        struct rig r;

        rig_open(&r, &models[m], "auto", 2, 0);
        run_whole(&r);
        check_formula(&r);
        rig_close(&r);
    }
}

Test(backend_latent, picked_positions_match_the_formula)
{
    static const uint32_t top_ks[] = {1, 7, 20};

    for (int m = 0; m < MODELS; m++) {
        for (int k = 0; k < 3; k++) {
            struct rig r;

            rig_open(&r, &models[m], "auto", 2, top_ks[k]);
            run_whole(&r);
            check_formula(&r);
            rig_close(&r);
        }
    }
}

static void check_same_outputs(const struct rig *got, const struct rig *expected, const char *what)
{
    for (uint32_t s = 0; s < SEQUENCES; s++)
        cr_assert_arr_eq(got->sequences[s].y, expected->sequences[s].y,
                         (size_t)lengths[s] * expected->y.width * sizeof(float), "%s: %u heads, top_k %u, sequence %u",
                         what, expected->m.heads, expected->top_k, s);
}

/* In one piece, in chunks and token by token; alone and beside others. */
static void check_cuts(const struct rig *reference, const char *isa, uint32_t threads)
{
    static const uint32_t plans[][STEPS][SEQUENCES] = {
        {{37, 16, 1}},
        {{10, 0, 0}, {1, 16, 0}, {20, 0, 1}, {6, 0, 0}},
        {{36, 3, 0}, {0, 1, 0}, {1, 1, 1}, {0, 11, 0}},
    };
    static const uint32_t one[SEQUENCES] = {1, 0, 0}, other[SEQUENCES] = {0, 1, 0}, both[SEQUENCES] = {1, 1, 0},
                          last[SEQUENCES] = {0, 0, 1};

    for (size_t plan = 0; plan <= sizeof(plans) / sizeof(plans[0]); plan++) {
        uint32_t done[SEQUENCES] = {0};
        struct rig r;

        rig_open(&r, &reference->m, isa, threads, reference->top_k);
        for (size_t i = 0; i < STEPS && plan < sizeof(plans) / sizeof(plans[0]); i++)
            step(&r, 1, done, plans[plan][i]);
        while (done[0] < lengths[0] || done[1] < lengths[1])
            step(&r, 1, done, done[1] == lengths[1] ? one : done[0] == lengths[0] ? other : both);
        if (done[2] == 0)
            step(&r, 1, done, last);
        check_same_outputs(&r, reference, isa);
        rig_close(&r);
    }
}

Test(backend_latent, threads_cuts_neighbours_and_instruction_sets_give_the_same_bits)
{
    static const uint32_t top_ks[] = {0, 7};

    for (int m = 0; m < MODELS; m++) {
        for (int k = 0; k < 2; k++) {
            struct rig reference;

            rig_open(&reference, &models[m], "ref", 1, top_ks[k]);
            run_whole(&reference);
            for (int isa = 0; isa <= (int)dk_isa_best(); isa++) {
                for (uint32_t threads = 1; threads <= 3; threads++)
                    check_cuts(&reference, dk_isa_name((enum dk_isa)isa), threads);
            }
            rig_close(&reference);
        }
    }
}

Test(backend_latent, picking_all_is_not_picking)
{
    for (int m = 0; m < MODELS; m++) {
        struct rig full, picked;

        rig_open(&full, &models[m], "auto", 2, 0);
        rig_open(&picked, &models[m], "auto", 2, 37);
        run_whole(&full);
        run_whole(&picked);
        check_same_outputs(&picked, &full, "all picked");
        rig_close(&full);
        rig_close(&picked);
    }
}

/* Attention over some positions of a sequence gives the bits of attention over a sequence that has no others. */
Test(backend_latent, picked_rows_give_the_bits_of_rows_side_by_side)
{
    enum { ROW = 36, TOP_K = 19 };

    for (int m = 0; m < MODELS; m++) {
        uint32_t done[SEQUENCES] = {0}, positions[CONTEXT];
        const uint32_t counts[SEQUENCES] = {0, TOP_K, 0};
        struct rig sparse, dense;
        struct sequence *from, *to;

        rig_open(&sparse, &models[m], "auto", 1, TOP_K);
        rig_open(&dense, &models[m], "auto", 1, 0);
        run_whole(&sparse);
        from = &sparse.sequences[0];
        to = &dense.sequences[1];
        cr_assert_eq(attended(&sparse, from, ROW, positions), TOP_K);
        for (uint32_t i = 0; i < TOP_K; i++) {
            memcpy(to->latent + i * models[m].rank, from->latent + positions[i] * models[m].rank, models[m].rank * 4);
            memcpy(to->k_pe + i * models[m].rope_dim, from->k_pe + positions[i] * models[m].rope_dim,
                   models[m].rope_dim * 4);
        }
        memcpy(to->q_latent + (TOP_K - 1) * dense.q_latent.width, from->q_latent + ROW * dense.q_latent.width,
               dense.q_latent.width * 4);
        memcpy(to->q_pe + (TOP_K - 1) * dense.q_pe.width, from->q_pe + ROW * dense.q_pe.width, dense.q_pe.width * 4);
        step(&dense, 0, done, counts);
        cr_expect_arr_eq(from->y + ROW * dense.y.width, to->y + (TOP_K - 1) * dense.y.width, dense.y.width * 4,
                         "%u heads", models[m].heads);
        rig_close(&sparse);
        rig_close(&dense);
    }
}

/* Sequence 1 begins as sequence 0 does, and reads its first pages; both go on in one step. */
Test(backend_latent, sequences_share_their_first_pages)
{
    enum { SHARED = 2 };
    const struct model *m = &models[0];
    const uint32_t begin = SHARED * m->page_tokens, first[] = {begin, 0, 0}, rest[] = {29, 8, 0};
    const uint32_t rest_alone[] = {0, 16, 0};

    for (uint32_t top_k = 0; top_k <= 5; top_k += 5) {
        uint32_t done[SEQUENCES] = {0}, done_alone[SEQUENCES] = {0};
        struct rig shared, alone;

        rig_open(&shared, m, "auto", 2, top_k);
        rig_open(&alone, m, "auto", 2, top_k);
        for (uint32_t i = 0; i < begin; i++) {
            memcpy(alone.sequences[1].latent + i * m->rank, alone.sequences[0].latent + i * m->rank, m->rank * 4);
            memcpy(alone.sequences[1].k_pe + i * m->rope_dim, alone.sequences[0].k_pe + i * m->rope_dim,
                   m->rope_dim * 4);
            memcpy(alone.sequences[1].index_k + i * INDEX_DIM, alone.sequences[0].index_k + i * INDEX_DIM,
                   INDEX_DIM * 4);
        }
        memcpy(shared.sequences[1].pages, shared.sequences[0].pages, SHARED * sizeof(uint32_t));
        step(&shared, 1, done, first);
        done[1] = begin;
        step(&shared, 1, done, rest);
        step(&alone, 1, done_alone, rest_alone);
        cr_expect_arr_eq(shared.sequences[1].y + begin * shared.y.width, alone.sequences[1].y + begin * shared.y.width,
                         8 * shared.y.width * sizeof(float), "top_k %u", top_k);
        memset(done_alone, 0, sizeof(done_alone));
        step(&alone, 1, done_alone, (const uint32_t[]){37, 0, 0});
        cr_expect_arr_eq(shared.sequences[0].y, alone.sequences[0].y, 37 * shared.y.width * sizeof(float));
        rig_close(&shared);
        rig_close(&alone);
    }
}

static void copy_rows(const struct rig *r, struct sequence *to, const struct sequence *from)
{
    memcpy(to->q_latent, from->q_latent, CONTEXT * r->q_latent.width * sizeof(float));
    memcpy(to->q_pe, from->q_pe, CONTEXT * r->q_pe.width * sizeof(float));
    memcpy(to->latent, from->latent, CONTEXT * r->latent.width * sizeof(float));
    memcpy(to->k_pe, from->k_pe, CONTEXT * r->k_pe.width * sizeof(float));
    memcpy(to->index_q, from->index_q, CONTEXT * r->index_q.width * sizeof(float));
    memcpy(to->index_w, from->index_w, CONTEXT * r->index_w.width * sizeof(float));
    memcpy(to->index_k, from->index_k, CONTEXT * r->index_k.width * sizeof(float));
}

/* A sequence that goes on in a copy of its last page, in each layer, gives what it would have given; the page that was
 * copied keeps its own going on. */
Test(backend_latent, a_copied_page_goes_on_alone)
{
    const struct model *m = &models[1]; /* 16 positions in a page */
    const uint32_t first[] = {20, 0, 0}, rest[] = {17, 0, 0}, other_rest[] = {0, 17, 0};

    for (uint32_t top_k = 0; top_k <= 9; top_k += 9) {
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            uint32_t done[SEQUENCES] = {0}, done_straight[SEQUENCES] = {0};
            struct rig straight, forked;

            rig_open(&straight, m, "auto", 2, top_k);
            rig_open(&forked, m, "auto", 2, top_k);
            step(&straight, layer, done_straight, first);
            step(&straight, layer, done_straight, rest);
            step(&forked, layer, done, first);
            /* Sequence 1: the same rows, the first page shared, the second a copy; 0 goes on with other rows. */
            ops->latents_copy(forked.b, forked.l, forked.sequences[0].pages[1], forked.sequences[1].pages[1]);
            forked.sequences[1].pages[0] = forked.sequences[0].pages[0];
            for (uint32_t i = 20; i < 37; i++)
                forked.sequences[0].latent[i * m->rank] += 1;
            step(&forked, layer, done, rest);
            copy_rows(&forked, &forked.sequences[1], &straight.sequences[0]);
            done[1] = 20;
            step(&forked, layer, done, other_rest);
            cr_expect_arr_eq(forked.sequences[1].y + 20 * forked.y.width, straight.sequences[0].y + 20 * forked.y.width,
                             17 * forked.y.width * sizeof(float), "layer %u, top_k %u", layer, top_k);
            cr_expect(memcmp(forked.sequences[0].y + 20 * forked.y.width, straight.sequences[0].y + 20 * forked.y.width,
                             17 * forked.y.width * sizeof(float)) != 0);
            rig_close(&straight);
            rig_close(&forked);
        }
    }
}

/* What another layer holds at the same positions does not show. */
Test(backend_latent, layers_have_their_own_latents)
{
    uint32_t done[SEQUENCES] = {0};
    struct rig alone, beside;
    const uint32_t first[] = {20, 10, 0}, rest[] = {17, 6, 1};

    rig_open(&alone, &models[0], "auto", 2, 7);
    rig_open(&beside, &models[0], "auto", 2, 7);
    run_whole(&alone);
    step(&beside, 1, done, first);
    for (uint32_t i = 0; i < CONTEXT * models[0].rank; i++)
        beside.sequences[0].latent[i] += 1;
    memset(done, 0, sizeof(done));
    step(&beside, 0, done, lengths);
    for (uint32_t i = 0; i < CONTEXT * models[0].rank; i++)
        beside.sequences[0].latent[i] = alone.sequences[0].latent[i];
    memcpy(done, first, sizeof(done));
    step(&beside, 1, done, rest);
    cr_expect_arr_eq(beside.sequences[0].y + 20 * alone.y.width, alone.sequences[0].y + 20 * alone.y.width,
                     17 * alone.y.width * sizeof(float));
    rig_close(&alone);
    rig_close(&beside);
}

Test(backend_latent, says_what_does_not_fit)
{
    const struct dk_latents_shape shape = {.layers = UINT32_MAX,
                                           .rank = 512,
                                           .rope_dim = 64,
                                           .index_dim = 128,
                                           .page_tokens = 16,
                                           .pages = UINT32_MAX}; /* its size overflows */
    struct dk_latents *l;
    struct dk_picks *p;
    struct dk_backend *b = open_backend(1, 1, 8, 0);
    struct dk_err err = {0};

    cr_expect_eq(ops->latents_open(b, &shape, &l, &err), -ENOMEM);
    cr_expect_null(l);
    cr_expect_not_null(strstr(err.text, "4294967295 pages"), "%s", err.text);
    cr_expect_eq(ops->picks_open(b, UINT32_MAX, &p, &err), 0); /* no more than the context is kept */
    ops->picks_close(b, p);
    ops->latents_close(b, NULL);
    ops->picks_close(b, NULL);
    ops->close(b);
}
