/* SPDX-License-Identifier: Apache-2.0 */
/* The lightning indexer of DeepSeek Sparse Attention (DeepSeek-V3.2-Exp, technical report): which positions each row
 * attends to.
 *
 * Rows that must choose are taken in waves, as many as the scratch holds. In each the threads share the scores by
 * positions, then each thread chooses for whole rows. A score is one chain over rising heads of dot products that are
 * chains over rising dimensions, so its bits, and with them the choice, do not depend on threads, neighbours or the cut
 * into steps. Scores are kept as integers in the same order, and the k-th largest is found digit by digit: three
 * passes, whatever the values. */
#include "attention-worker/backend/cpu/latents_cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROWS_MAX = 64,   /* of a wave */
    PIECE = 64,      /* positions scored at a time */
    TILE_HEADS = 64, /* heads whose dot products are held at a time */
    DIGIT_BITS = 11,
    DIGITS = 1 << DIGIT_BITS,
};

/* Positions kept for a row. */
static uint32_t picks_stride(uint32_t top_k, uint32_t context)
{
    return top_k < context ? top_k : context;
}

void cpu_picks_bytes(const struct dk_backend_config *c, uint32_t top_k, struct dk_stores_bytes *out)
{
    out->fixed += (uint64_t)c->rows_max * (1 + picks_stride(top_k, c->context)) * sizeof(uint32_t);
}

int cpu_picks_open(struct dk_backend *b, uint32_t top_k, struct dk_picks **out, struct dk_err *err)
{
    struct dk_picks *p = calloc(1, sizeof(*p));
    size_t count;

    assert(top_k > 0);
    *out = NULL;
    if (!p)
        goto no_memory;
    p->top_k = top_k;
    p->stride = picks_stride(top_k, b->context);
    if (__builtin_mul_overflow((size_t)b->rows_max, (size_t)p->stride, &count))
        goto no_memory;
    p->counts = calloc(b->rows_max, sizeof(*p->counts));
    p->positions = calloc(count, sizeof(*p->positions));
    if (!p->counts || !p->positions)
        goto no_memory;
    *out = p;
    return 0;
no_memory:
    cpu_picks_close(b, p);
    return dk_err_set(err, -ENOMEM, "no memory for %u picked positions of %u rows", top_k, b->rows_max);
}

void cpu_picks_close(struct dk_backend *b, struct dk_picks *p)
{
    if (!p)
        return;
    free(p->counts);
    free(p->positions);
    free(p);
}

void cpu_picks_download(struct dk_backend *b, const struct dk_picks *p, uint32_t first, uint32_t n, int32_t *positions)
{
    assert(first <= b->rows_max && n <= b->rows_max - first);
    for (uint32_t i = 0; i < n; i++, positions += p->top_k) {
        const uint32_t *picked = p->positions + (size_t)(first + i) * p->stride;

        for (uint32_t k = 0; k < p->top_k; k++)
            positions[k] = k < p->counts[first + i] ? (int32_t)picked[k] : -1;
    }
}

struct index_job {
    struct dk_backend *b;
    struct dk_latents *l;
    uint32_t layer;
    const struct dk_span *spans;
    uint32_t span_count;
    uint32_t heads;
    uint32_t piece; /* positions of an item: whole pages */
    struct dk_rows q, w, k;
    struct dk_picks *picks;
};

struct index_row {
    const struct dk_span *span;
    uint32_t row;    /* of the step */
    uint32_t length; /* positions that it sees */
    uint32_t *order; /* [length] scores, as order_of() */
};

struct index_wave {
    uint32_t span, row; /* where the next wave begins */
    uint32_t n;
    struct index_row rows[ROWS_MAX];
};

/* Numbers in the order of their floats: a NaN is 0, below negative infinity; both zeros are the same. */
static uint32_t order_of(float x)
{
    uint32_t bits;

    if (isnan(x))
        return 0;
    x += 0.0f;
    memcpy(&bits, &x, sizeof(bits));
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static void store_key(const struct index_job *j, const struct dk_span *span, uint32_t i)
{
    uint32_t page_tokens = j->l->shape.page_tokens, position = span->position + i;
    float *keys = index_key_page(j->l, j->layer, span->pages[position / page_tokens]) + position % page_tokens;
    const float *k = j->k.data + (size_t)(span->row + i) * j->k.width;

    for (uint32_t d = 0; d < j->l->shape.index_dim; d++)
        keys[(size_t)d * j->l->key_stride] = k[d];
}

static void pick_all(struct dk_picks *p, uint32_t row, uint32_t length)
{
    p->counts[row] = length;
    for (uint32_t i = 0; i < length; i++)
        p->positions[(size_t)row * p->stride + i] = i;
}

/* What needs no scores: keys into the pages, and rows that see no more than they may pick. */
static void begin_rows(const struct index_job *j, uint32_t part, uint32_t parts)
{
    for (uint32_t s = 0; s < j->span_count; s++) {
        const struct dk_span *span = &j->spans[s];

        for (uint32_t i = 0; i < span->count; i++) {
            if ((span->row + i) % parts != part)
                continue;
            store_key(j, span, i);
            if (span->position + i + 1 <= j->picks->top_k)
                pick_all(j->picks, span->row + i, span->position + i + 1);
        }
    }
}

/* Fills the wave with the rows that come next and must choose; false: none is left. Every thread comes to the same
 * result. */
static bool index_wave_next(const struct index_job *j, struct index_wave *w)
{
    uint32_t *order = (uint32_t *)j->l->scores;
    size_t used = 0;

    w->n = 0;
    for (; w->span < j->span_count; w->span++, w->row = 0) {
        const struct dk_span *span = &j->spans[w->span];

        for (; w->row < span->count; w->row++) {
            uint32_t length = span->position + w->row + 1, room = attend_padded(length);

            if (length <= j->picks->top_k)
                continue;
            if (w->n == ROWS_MAX || room > j->l->score_floats - used)
                return true;
            w->rows[w->n++] = (struct index_row){
                .span = span, .row = span->row + w->row, .length = length, .order = order + used};
            used += room;
        }
    }
    return w->n > 0;
}

/* tile [heads][PIECE]: what is negative becomes 0, a NaN stays. lanes: a multiple of ATTEND_LANES. */
static void keep_positive(uint32_t heads, uint32_t lanes, float (*tile)[PIECE])
{
    for (uint32_t h = 0; h < heads; h++) {
        for (uint32_t first = 0; first < lanes; first += ATTEND_LANES) {
            float *x = tile[h] + first;

            for (uint32_t p = 0; p < ATTEND_LANES; p++)
                x[p] = x[p] < 0 ? 0 : x[p];
        }
    }
}

/* tile[h][p] = q[h] . key p, of n positions that lie side by side in one page. keys: aligned to ATTEND_LANES. */
static void dot_products(const struct index_job *j, const float *q, uint32_t heads, uint32_t n, const float *keys,
                         float (*tile)[PIECE], uint32_t column)
{
    const float *query[ATTEND_QUERIES_MAX];
    float *out[ATTEND_QUERIES_MAX];
    uint32_t dim = j->l->shape.index_dim, count[ATTEND_QUERIES_MAX], few;

    for (uint32_t h = 0; h < heads; h += few) {
        few = heads - h < ATTEND_QUERIES_MAX ? heads - h : ATTEND_QUERIES_MAX;
        for (uint32_t i = 0; i < few; i++) {
            query[i] = q + (size_t)(h + i) * dim;
            out[i] = tile[h + i] + column;
            count[i] = n;
        }
        j->b->attend->scores(few, dim, j->l->key_stride, count, query, keys, 1.0f, out);
    }
}

/* Keys of one dimension of a page are too short a stream for a CPU to run ahead of it: asks for the page behind `at`.
 */
static void prefetch_keys(const struct index_job *j, const struct index_row *r, uint32_t at)
{
    uint32_t next = at / j->l->shape.page_tokens + 1;
    const float *keys;

    if (next >= pieces_of(r->length, j->l->shape.page_tokens))
        return;
    keys = index_key_page(j->l, j->layer, r->span->pages[next]);
    for (size_t i = 0; i < (size_t)j->l->shape.index_dim * j->l->key_stride; i += ATTEND_LANES)
        __builtin_prefetch(keys + i);
}

/* The scores of positions [at, at + n), n at most PIECE: a part of one page that begins at a multiple of PIECE, or some
 * whole pages, the last of which may be cut. */
static void score_positions(const struct index_job *j, const struct index_row *r, uint32_t at, uint32_t n)
{
    _Alignas(64) float tile[TILE_HEADS][PIECE];
    float sums[PIECE] = {0}, *sum = sums;
    const float *q = j->q.data + (size_t)r->row * j->q.width, *w = j->w.data + (size_t)r->row * j->w.width;
    uint32_t page_tokens = j->l->shape.page_tokens, lanes = attend_padded(n), heads, part;

    for (uint32_t h = 0; h < TILE_HEADS && n < lanes; h++)
        memset(tile[h] + n, 0, (lanes - n) * sizeof(float));
    for (uint32_t first = 0; first < j->heads; first += heads) {
        const float *weights = w + first;

        heads = j->heads - first < TILE_HEADS ? j->heads - first : TILE_HEADS;
        for (uint32_t column = 0; column < n; column += part) {
            uint32_t page = r->span->pages[(at + column) / page_tokens], place = (at + column) % page_tokens;

            if (first == 0 && place == 0)
                prefetch_keys(j, r, at + column);
            part = page_tokens - place < n - column ? page_tokens - place : n - column;
            dot_products(j, q + (size_t)first * j->l->shape.index_dim, heads, part,
                         index_key_page(j->l, j->layer, page) + place, tile, column);
        }
        keep_positive(heads, lanes, tile);
        /* Heads are summed as attention sums positions. */
        j->b->attend->values(1, n, PIECE, heads, &weights, tile[0], &sum);
    }
    for (uint32_t i = 0; i < n; i++)
        r->order[at + i] = order_of(sums[i]);
}

static void index_piece(const struct index_job *j, const struct index_row *r, uint32_t piece)
{
    uint32_t at = piece * j->piece, end = r->length - at < j->piece ? r->length : at + j->piece;

    for (; at < end; at += PIECE)
        score_positions(j, r, at, end - at < PIECE ? end - at : PIECE);
}

/* Items are ordered by piece, then by row, and each thread takes a run of them: rows of one sequence then find the
 * piece's keys in the thread's cache. */
static void index_score_wave(const struct index_job *j, const struct index_wave *w, uint32_t part, uint32_t parts)
{
    uint32_t items = 0, longest = 0, begin, end, item = 0;

    for (uint32_t i = 0; i < w->n; i++) {
        uint32_t pieces = pieces_of(w->rows[i].length, j->piece);

        items += pieces;
        longest = pieces > longest ? pieces : longest;
    }
    dk_exec_range(items, part, parts, &begin, &end);
    for (uint32_t piece = 0; piece < longest && item < end; piece++) {
        for (uint32_t i = 0; i < w->n; i++) {
            if (piece >= pieces_of(w->rows[i].length, j->piece))
                continue;
            if (item >= begin && item < end)
                index_piece(j, &w->rows[i], piece);
            item++;
        }
    }
}

/* The k-th largest of n numbers, 1 <= k <= n; *equal: how many of those equal to it are among the k largest. Fixes its
 * digits from the highest on, each by counting the numbers that share the digits above. */
static uint32_t kth_largest(const uint32_t *order, uint32_t n, uint32_t k, uint32_t *equal)
{
    static const uint32_t shifts[] = {21, 10, 0};
    uint32_t counts[DIGITS], known = 0, mask = 0;

    for (size_t pass = 0; pass < sizeof(shifts) / sizeof(shifts[0]); pass++) {
        uint32_t shift = shifts[pass], digit = DIGITS - 1;

        memset(counts, 0, sizeof(counts));
        for (uint32_t i = 0; i < n; i++) {
            if ((order[i] & mask) == known)
                counts[order[i] >> shift & (DIGITS - 1)]++;
        }
        for (; counts[digit] < k; digit--)
            k -= counts[digit];
        known |= digit << shift;
        mask |= (uint32_t)(DIGITS - 1) << shift;
    }
    *equal = k;
    return known;
}

static void pick(struct dk_picks *p, const struct index_row *r)
{
    uint32_t *positions = p->positions + (size_t)r->row * p->stride, equal, n = 0;
    uint32_t least = kth_largest(r->order, r->length, p->top_k, &equal);

    for (uint32_t i = 0; i < r->length; i++) {
        if (r->order[i] < least || (r->order[i] == least && equal == 0))
            continue;
        equal -= r->order[i] == least;
        positions[n++] = i;
    }
    p->counts[r->row] = n;
}

static void index_part(void *arg, uint32_t part, uint32_t parts)
{
    const struct index_job *j = arg;
    struct index_wave w = {0};

    begin_rows(j, part, parts);
    dk_exec_barrier(j->b->exec, part);
    while (index_wave_next(j, &w)) {
        index_score_wave(j, &w, part, parts);
        dk_exec_barrier(j->b->exec, part);
        for (uint32_t i = part; i < w.n; i += parts)
            pick(j->picks, &w.rows[i]);
        dk_exec_barrier(j->b->exec, part); /* the next wave's scores lie where these do */
    }
}

void cpu_index_select(struct dk_backend *b, struct dk_latents *l, uint32_t layer, const struct dk_span *spans,
                      uint32_t span_count, uint32_t heads, struct dk_rows q, struct dk_rows w, struct dk_rows k,
                      struct dk_picks *picks)
{
    const struct dk_latents_shape *s = &l->shape;
    struct index_job j = {.b = b,
                          .l = l,
                          .layer = layer,
                          .spans = spans,
                          .span_count = span_count,
                          .heads = heads,
                          .piece = s->page_tokens < PIECE ? PIECE / s->page_tokens * s->page_tokens : s->page_tokens,
                          .q = q,
                          .w = w,
                          .k = k,
                          .picks = picks};

    assert(layer < s->layers && l->index_keys && heads > 0);
    assert(k.width == s->index_dim && q.width == heads * s->index_dim && w.width == heads);
    for (uint32_t i = 0; i < span_count; i++)
        assert(spans[i].count <= b->context && spans[i].position <= b->context - spans[i].count);
    dk_exec_run(b->exec, index_part, &j);
}
