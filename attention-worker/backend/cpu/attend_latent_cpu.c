/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over latents.
 *
 * All heads of a row attend over the same rows of latents, so the lanes of a score are 16 heads, not positions: the
 * queries are turned once to [dimension][head], and a position's row is read as it lies in the cache, each element
 * broadcast. That is the kernel of attend_kernels.h with the two sides exchanged; keys need no second, turned copy.
 *
 * A block is 16 heads of one row. Blocks are taken in waves, as many as the scratch for queries and scores holds, and a
 * wave has three phases that threads share in ways of their own: scores by positions, softmax by heads, and weighted
 * sums by dimensions. So one row of a long sequence keeps all threads at work, and the cache is read about twice.
 * Whoever computes it, a score is one chain over rising dimensions (latent, then rotated key) and an output one chain
 * over rising positions: threads, neighbours and the cut into steps do not show in the bits. */
#include "attention-worker/backend/cpu/latents_cpu.h"

#include <string.h>

enum {
    HEADS = ATTEND_LANES, /* of a block */
    TURN_DIMS = 16,       /* dimensions turned at a time */
    SCORE_PIECE = 32,     /* positions of an item of the first phase */
    VALUE_DIMS = 64,      /* dimensions of an item of the last phase */
    VALUE_BLOCKS_MAX = 4, /* blocks of one, at most */
    VALUE_PIECE = 16,     /* positions gathered or asked for at a time */
};

struct latent_job {
    struct dk_backend *b;
    struct dk_latents *l;
    uint32_t layer;
    const struct dk_span *spans;
    uint32_t span_count;
    uint32_t heads;
    float scale;
    struct dk_rows q_latent, q_pe, latent, k_pe, y;
    const struct dk_picks *picks;
};

struct block {
    const struct dk_span *span;
    uint32_t row;          /* of the step */
    uint32_t head, heads;  /* first one; count */
    const uint32_t *picks; /* NULL: positions 0 .. length - 1 */
    uint32_t length;       /* positions that it attends to */
    float *query;          /* [rank + rope_dim][HEADS] */
    float *scores;         /* [heads][stride] */
    size_t stride;
};

struct wave {
    uint32_t span, row, head; /* where the next wave begins */
    uint32_t n;
    struct block blocks[LATENT_BLOCKS_MAX];
};

/* An odd number of cache lines: heads side by side then spread over all sets of a cache. */
static size_t score_stride(uint32_t length)
{
    return attend_padded(length) | ATTEND_LANES;
}

static void block_init(const struct latent_job *j, const struct wave *w, struct block *k)
{
    const struct dk_span *span = &j->spans[w->span];
    uint32_t left = j->heads - w->head, count;

    *k = (struct block){.span = span,
                        .row = span->row + w->row,
                        .head = w->head,
                        .heads = left < HEADS ? left : HEADS,
                        .length = span->position + w->row + 1,
                        .query = j->l->queries + (size_t)w->n * (j->l->shape.rank + j->l->shape.rope_dim) * HEADS};
    if (j->picks) {
        count = j->picks->counts[k->row];
        assert(count > 0 && count <= k->length);
        if (count < k->length)
            k->picks = j->picks->positions + (size_t)k->row * j->picks->stride;
        k->length = count;
    }
    k->stride = score_stride(k->length);
}

/* Fills the wave with the blocks that come next; false: none is left. Every thread comes to the same result. */
static bool wave_next(const struct latent_job *j, struct wave *w)
{
    size_t used = 0;

    w->n = 0;
    while (w->n < LATENT_BLOCKS_MAX && w->span < j->span_count) {
        struct block *k = &w->blocks[w->n];

        if (w->row == j->spans[w->span].count) {
            w->span++;
            w->row = 0;
            continue;
        }
        block_init(j, w, k);
        if (k->heads * k->stride > j->l->score_floats - used)
            break;
        k->scores = j->l->scores + used;
        used += k->heads * k->stride;
        w->n++;
        w->head += k->heads;
        if (w->head == j->heads) {
            w->head = 0;
            w->row++;
        }
    }
    return w->n > 0;
}

static void store_rows(const struct latent_job *j, uint32_t part, uint32_t parts)
{
    for (uint32_t s = 0; s < j->span_count; s++) {
        const struct dk_span *span = &j->spans[s];

        for (uint32_t i = 0; i < span->count; i++) {
            uint32_t row = span->row + i;
            float *to;

            if (row % parts != part)
                continue;
            to = latent_row(j->l, j->layer, span->pages, span->position + i);
            memcpy(to, j->latent.data + (size_t)row * j->latent.width, j->latent.width * sizeof(float));
            memcpy(to + j->latent.width, j->k_pe.data + (size_t)row * j->k_pe.width, j->k_pe.width * sizeof(float));
        }
    }
}

/* to [dims][HEADS] from [heads][dims]; lanes without a head are zero. In tiles, so that a line of either side is
 * touched once. */
static void turn(uint32_t dims, uint32_t heads, const float *from, float *to)
{
    memset(to, 0, heads < HEADS ? (size_t)dims * HEADS * sizeof(float) : 0);
    for (uint32_t first = 0; first < dims; first += TURN_DIMS) {
        uint32_t end = dims - first < TURN_DIMS ? dims : first + TURN_DIMS;

        for (uint32_t h = 0; h < heads; h++) {
            for (uint32_t d = first; d < end; d++)
                to[(size_t)d * HEADS + h] = from[(size_t)h * dims + d];
        }
    }
}

static void turn_queries(const struct latent_job *j, const struct wave *w, uint32_t part, uint32_t parts)
{
    uint32_t rank = j->l->shape.rank, rope_dim = j->l->shape.rope_dim;

    for (uint32_t i = part; i < w->n; i += parts) {
        const struct block *k = &w->blocks[i];

        turn(rank, k->heads, j->q_latent.data + (size_t)k->row * j->q_latent.width + (size_t)k->head * rank, k->query);
        turn(rope_dim, k->heads, j->q_pe.data + (size_t)k->row * j->q_pe.width + (size_t)k->head * rope_dim,
             k->query + (size_t)rank * HEADS);
    }
}

static const float *attended_row(const struct latent_job *j, const struct block *k, uint32_t i)
{
    return latent_row(j->l, j->layer, k->span->pages, k->picks ? k->picks[i] : i);
}

/* Scores of attended positions [first, first + n), n at most ATTEND_QUERIES_MAX: here they are the queries. */
static void score_few(const struct latent_job *j, const struct block *k, uint32_t first, uint32_t n)
{
    float tile[ATTEND_QUERIES_MAX][HEADS], *out[ATTEND_QUERIES_MAX];
    const float *rows[ATTEND_QUERIES_MAX];
    uint32_t count[ATTEND_QUERIES_MAX];

    for (uint32_t i = 0; i < n; i++) {
        rows[i] = attended_row(j, k, first + i);
        count[i] = k->heads;
        out[i] = tile[i];
    }
    j->b->attend->scores(n, j->l->shape.rank + j->l->shape.rope_dim, HEADS, count, rows, k->query, j->scale, out);
    for (uint32_t h = 0; h < k->heads; h++) {
        for (uint32_t i = 0; i < n; i++)
            k->scores[h * k->stride + first + i] = tile[i][h];
    }
}

static void score_piece(const struct latent_job *j, const struct block *k, uint32_t piece)
{
    uint32_t first = piece * SCORE_PIECE, end = first + SCORE_PIECE < k->length ? first + SCORE_PIECE : k->length;

    for (; first < end; first += ATTEND_QUERIES_MAX)
        score_few(j, k, first, end - first < ATTEND_QUERIES_MAX ? end - first : ATTEND_QUERIES_MAX);
}

/* Items are ordered by piece, then by block, and each thread takes a run of them: blocks of one sequence then find the
 * piece's rows in the thread's cache. */
static void score_wave(const struct latent_job *j, const struct wave *w, uint32_t part, uint32_t parts)
{
    uint32_t items = 0, longest = 0, begin, end, item = 0;

    for (uint32_t i = 0; i < w->n; i++) {
        uint32_t pieces = pieces_of(w->blocks[i].length, SCORE_PIECE);

        items += pieces;
        longest = pieces > longest ? pieces : longest;
    }
    dk_exec_range(items, part, parts, &begin, &end);
    for (uint32_t piece = 0; piece < longest && item < end; piece++) {
        for (uint32_t i = 0; i < w->n; i++) {
            if (piece * SCORE_PIECE >= w->blocks[i].length)
                continue;
            if (item >= begin && item < end)
                score_piece(j, &w->blocks[i], piece);
            item++;
        }
    }
}

static void softmax_wave(const struct latent_job *j, const struct wave *w, uint32_t part, uint32_t parts)
{
    uint32_t item = 0;

    for (uint32_t i = 0; i < w->n; i++) {
        const struct block *k = &w->blocks[i];

        for (uint32_t h = 0; h < k->heads; h++, item++) {
            if (item % parts == part)
                dk_softmax(j->b->kernels, k->length, k->scores + h * k->stride);
        }
    }
}

/* Values from attended position `first` on, dimensions [at, at + dims): rows of a page as they lie, or picked ones
 * gathered in tile [VALUE_PIECE][VALUE_DIMS]. Returns how many. */
static uint32_t values_from(const struct latent_job *j, const struct block *k, uint32_t first, uint32_t at,
                            uint32_t dims, float *tile, const float **values, uint32_t *stride)
{
    uint32_t page_tokens = j->l->shape.page_tokens, left = k->length - first, n;

    if (!k->picks) {
        *values = attended_row(j, k, first) + at;
        *stride = j->l->width;
        n = page_tokens - first % page_tokens;
        return n < left ? n : left;
    }
    n = VALUE_PIECE < left ? VALUE_PIECE : left;
    for (uint32_t i = 0; i < n; i++)
        memcpy(tile + (size_t)i * VALUE_DIMS, attended_row(j, k, first + i) + at, attend_padded(dims) * sizeof(float));
    *values = tile;
    *stride = VALUE_DIMS;
    return n;
}

/* A slice of rows is too short for a CPU to see the pattern: asks for what is summed next. */
static void prefetch_values(const struct latent_job *j, const struct block *k, uint32_t first, uint32_t at,
                            uint32_t dims)
{
    uint32_t end = k->length - first < VALUE_PIECE ? k->length : first + VALUE_PIECE;

    for (uint32_t i = first; i < end; i++) {
        const float *row = attended_row(j, k, i) + at;

        for (uint32_t d = 0; d < dims; d += ATTEND_LANES)
            __builtin_prefetch(row + d);
    }
}

/* Dimensions [at, at + VALUE_DIMS) of the outputs of n neighbouring blocks of one row. Summed in a buffer, because
 * heads of a row of y lie in the same few sets of a cache. */
static void sum_values(const struct latent_job *j, const struct block *blocks, uint32_t n, uint32_t at)
{
    _Alignas(64) float tile[VALUE_PIECE * VALUE_DIMS], sums[VALUE_BLOCKS_MAX * HEADS][VALUE_DIMS];
    float *sum[VALUE_BLOCKS_MAX * HEADS];
    const float *weights[VALUE_BLOCKS_MAX * HEADS], *values;
    uint32_t rank = j->l->shape.rank, dims = rank - at < VALUE_DIMS ? rank - at : VALUE_DIMS, heads = 0, count, stride;
    float *y = j->y.data + (size_t)blocks->row * j->y.width + (size_t)blocks->head * rank + at;

    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t h = 0; h < blocks[i].heads; h++, heads++) {
            weights[heads] = blocks[i].scores + h * blocks[i].stride;
            sum[heads] = sums[heads];
            memset(sums[heads], 0, sizeof(sums[heads]));
        }
    }
    for (uint32_t first = 0; first < blocks->length; first += count) {
        count = values_from(j, blocks, first, at, dims, tile, &values, &stride);
        prefetch_values(j, blocks, first + count, at, dims);
        j->b->attend->values(heads, dims, stride, count, weights, values, sum);
        for (uint32_t h = 0; h < heads; h++)
            weights[h] += count;
    }
    for (uint32_t h = 0; h < heads; h++)
        memcpy(y + (size_t)h * rank, sums[h], dims * sizeof(float));
}

static void sum_wave(const struct latent_job *j, const struct wave *w, uint32_t part, uint32_t parts)
{
    uint32_t slices = pieces_of(j->l->shape.rank, VALUE_DIMS), share = w->n * slices / parts, item = 0, n;

    /* Many blocks share what is read, as long as every thread gets an item. */
    share = share < 1 ? 1 : share > VALUE_BLOCKS_MAX ? VALUE_BLOCKS_MAX : share;
    for (uint32_t i = 0; i < w->n; i += n) {
        for (n = 1; n < share && i + n < w->n && w->blocks[i + n].row == w->blocks[i].row;)
            n++;
        for (uint32_t slice = 0; slice < slices; slice++, item++) {
            if (item % parts == part)
                sum_values(j, &w->blocks[i], n, slice * VALUE_DIMS);
        }
    }
}

/* A thread may turn the next wave's queries while others still sum values: those read no queries, and their scores are
 * overwritten only behind the next barrier. */
static void attend_latent_part(void *arg, uint32_t part, uint32_t parts)
{
    const struct latent_job *j = arg;
    struct wave w = {0};

    store_rows(j, part, parts);
    while (wave_next(j, &w)) {
        turn_queries(j, &w, part, parts);
        dk_exec_barrier(j->b->exec, part);
        score_wave(j, &w, part, parts);
        dk_exec_barrier(j->b->exec, part);
        softmax_wave(j, &w, part, parts);
        dk_exec_barrier(j->b->exec, part);
        sum_wave(j, &w, part, parts);
    }
}

void cpu_attend_latent(struct dk_backend *b, struct dk_latents *l, uint32_t layer, const struct dk_span *spans,
                       uint32_t span_count, uint32_t heads, float scale, struct dk_rows q_latent, struct dk_rows q_pe,
                       struct dk_rows latent, struct dk_rows k_pe, const struct dk_picks *picks, struct dk_rows y)
{
    const struct dk_latents_shape *s = &l->shape;
    struct latent_job j = {.b = b,
                           .l = l,
                           .layer = layer,
                           .spans = spans,
                           .span_count = span_count,
                           .heads = heads,
                           .scale = scale,
                           .q_latent = q_latent,
                           .q_pe = q_pe,
                           .latent = latent,
                           .k_pe = k_pe,
                           .y = y,
                           .picks = picks};

    assert(layer < s->layers && heads > 0 && latent.width == s->rank && k_pe.width == s->rope_dim);
    assert(q_latent.width == heads * s->rank && q_pe.width == heads * s->rope_dim && y.width == q_latent.width);
    for (uint32_t i = 0; i < span_count; i++)
        assert(spans[i].count <= b->context && spans[i].position <= b->context - spans[i].count);
    dk_exec_run(b->exec, attend_latent_part, &j);
}
