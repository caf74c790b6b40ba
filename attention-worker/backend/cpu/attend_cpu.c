/* SPDX-License-Identifier: Apache-2.0 */
/* Paged keys and values, and causal attention over them.
 *
 * A query is one head of one row. It is always summed by one thread in one order: the scores of all its positions,
 * their softmax, then the values in rising position. So the bits do not depend on threads, on the other rows of the
 * step or on how the sequence was cut into steps. Queries that share a kv head and a page table go through the pages in
 * blocks: a page is read from memory once for a block, not once for each query. */
#include "attention-worker/backend/cpu/backend_cpu_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Of one kv head's part of a page. */
static size_t key_block_floats(const struct dk_kv_shape *s)
{
    return (size_t)s->head_dim * attend_padded(s->page_tokens);
}

static size_t value_block_floats(const struct dk_kv_shape *s)
{
    return (size_t)s->page_tokens * attend_padded(s->head_dim);
}

static size_t score_floats(uint32_t threads, uint32_t context)
{
    return (size_t)threads * ATTEND_QUERIES_MAX * context;
}

void cpu_kv_bytes(const struct dk_backend_config *c, const struct dk_kv_shape *s, struct dk_stores_bytes *out)
{
    out->page += (uint64_t)s->layers * s->kv_heads * (key_block_floats(s) + value_block_floats(s)) * sizeof(float);
    out->fixed += score_floats(cpu_threads(c), c->context) * sizeof(float);
}

int cpu_kv_open(struct dk_backend *b, const struct dk_kv_shape *shape, struct dk_kv **out, struct dk_err *err)
{
    struct dk_kv *kv = calloc(1, sizeof(*kv));
    size_t blocks, keys, values;
    bool fits;

    *out = NULL;
    if (!kv)
        goto no_memory;
    kv->shape = *shape;
    kv->key_stride = attend_padded(shape->page_tokens);
    kv->value_stride = attend_padded(shape->head_dim);
    fits = !__builtin_mul_overflow((size_t)shape->layers * shape->kv_heads, (size_t)shape->pages, &blocks) &&
           !__builtin_mul_overflow(blocks, key_block_floats(shape), &keys) &&
           !__builtin_mul_overflow(blocks, value_block_floats(shape), &values);
    if (fits) {
        kv->keys = cpu_floats(keys);
        kv->values = cpu_floats(values);
        kv->scores = cpu_floats(score_floats(b->threads, b->context));
    }
    if (!kv->keys || !kv->values || !kv->scores)
        goto no_memory;
    *out = kv;
    return 0;
no_memory:
    cpu_kv_close(b, kv);
    return dk_err_set(err, -ENOMEM,
                      "no memory for a KV cache of %u pages of %u positions and scores of a context of %u: lower the "
                      "cache or the context",
                      shape->pages, shape->page_tokens, b->context);
}

void cpu_kv_close(struct dk_backend *b, struct dk_kv *kv)
{
    if (!kv)
        return;
    free(kv->keys);
    free(kv->values);
    free(kv->scores);
    free(kv);
}

struct attend_job {
    struct dk_backend *b;
    struct dk_kv *kv;
    uint32_t layer;
    const struct dk_span *spans;
    uint32_t span_count;
    uint32_t group; /* query heads of one kv head */
    uint32_t block; /* queries of a block, at most ATTEND_QUERIES_MAX */
    float scale;
    struct dk_rows q, k, v, y;
};

static size_t block_of(const struct dk_kv *kv, uint32_t layer, uint32_t page, uint32_t head)
{
    return ((size_t)layer * kv->shape.pages + page) * kv->shape.kv_heads + head;
}

static float *keys_of(const struct dk_kv *kv, uint32_t layer, uint32_t page, uint32_t head)
{
    return kv->keys + block_of(kv, layer, page, head) * key_block_floats(&kv->shape);
}

static float *values_of(const struct dk_kv *kv, uint32_t layer, uint32_t page, uint32_t head)
{
    return kv->values + block_of(kv, layer, page, head) * value_block_floats(&kv->shape);
}

/* The blocks of a page's kv heads follow each other. */
void cpu_kv_copy(struct dk_backend *b, struct dk_kv *kv, uint32_t from_page, uint32_t to_page)
{
    size_t key_floats = kv->shape.kv_heads * key_block_floats(&kv->shape);
    size_t value_floats = kv->shape.kv_heads * value_block_floats(&kv->shape);

    assert(from_page < kv->shape.pages && to_page < kv->shape.pages && from_page != to_page);
    for (uint32_t layer = 0; layer < kv->shape.layers; layer++) {
        memcpy(keys_of(kv, layer, to_page, 0), keys_of(kv, layer, from_page, 0), key_floats * sizeof(float));
        memcpy(values_of(kv, layer, to_page, 0), values_of(kv, layer, from_page, 0), value_floats * sizeof(float));
    }
}

static void store_row(const struct attend_job *j, const struct dk_span *span, uint32_t i)
{
    const struct dk_kv *kv = j->kv;
    uint32_t head_dim = kv->shape.head_dim, position = span->position + i;
    uint32_t page = span->pages[position / kv->shape.page_tokens], place = position % kv->shape.page_tokens;
    const float *k = j->k.data + (size_t)(span->row + i) * j->k.width;
    const float *v = j->v.data + (size_t)(span->row + i) * j->v.width;

    assert(page < kv->shape.pages);
    for (uint32_t h = 0; h < kv->shape.kv_heads; h++, k += head_dim, v += head_dim) {
        float *keys = keys_of(kv, j->layer, page, h);

        for (uint32_t d = 0; d < head_dim; d++)
            keys[(size_t)d * kv->key_stride + place] = k[d];
        memcpy(values_of(kv, j->layer, page, h) + (size_t)place * kv->value_stride, v, head_dim * sizeof(float));
    }
}

/* Some queries of one span and kv head, on their way through the pages. */
struct query_block {
    uint32_t n;
    const float *query[ATTEND_QUERIES_MAX];
    float *sum[ATTEND_QUERIES_MAX];
    float *scores[ATTEND_QUERIES_MAX];   /* [context] */
    uint32_t length[ATTEND_QUERIES_MAX]; /* positions that it sees; not falling */
};

static uint32_t seen(uint32_t length, uint32_t first, uint32_t page_tokens)
{
    return length <= first ? 0 : length - first < page_tokens ? length - first : page_tokens;
}

static void page_scores(const struct attend_job *j, const struct query_block *b, uint32_t first, const float *keys)
{
    const struct dk_kv *kv = j->kv;
    uint32_t count[ATTEND_QUERIES_MAX];
    float *scores[ATTEND_QUERIES_MAX];

    for (uint32_t i = 0; i < b->n; i++) {
        count[i] = seen(b->length[i], first, kv->shape.page_tokens);
        scores[i] = b->scores[i] + first;
    }
    j->b->attend->scores(b->n, kv->shape.head_dim, kv->key_stride, count, b->query, keys, j->scale, scores);
}

/* The positions that all queries see are taken together; the few that only later ones see, query by query. */
static void page_values(const struct attend_job *j, const struct query_block *b, uint32_t first, const float *values)
{
    const struct dk_kv *kv = j->kv;
    uint32_t head_dim = kv->shape.head_dim, common = seen(b->length[0], first, kv->shape.page_tokens);
    const float *weights[ATTEND_QUERIES_MAX];

    for (uint32_t i = 0; i < b->n; i++)
        weights[i] = b->scores[i] + first;
    j->b->attend->values(b->n, head_dim, kv->value_stride, common, weights, values, b->sum);
    for (uint32_t i = 1; i < b->n; i++) {
        uint32_t count = seen(b->length[i], first, kv->shape.page_tokens);
        const float *rest = weights[i] + common;

        if (count > common)
            j->b->attend->values(1, head_dim, kv->value_stride, count - common, &rest,
                                 values + (size_t)common * kv->value_stride, &b->sum[i]);
    }
}

/* Queries [begin, end) of a span and kv head: query i is head i % group of row i / group. */
static void attend_block(const struct attend_job *j, const struct dk_span *span, uint32_t kv_head, uint32_t begin,
                         uint32_t end, float *scores)
{
    const struct dk_kv *kv = j->kv;
    uint32_t page_tokens = kv->shape.page_tokens, head_dim = kv->shape.head_dim;
    struct query_block b = {.n = end - begin};
    uint32_t longest;

    for (uint32_t i = 0; i < b.n; i++) {
        uint32_t row = (begin + i) / j->group, head = kv_head * j->group + (begin + i) % j->group;

        b.query[i] = j->q.data + (size_t)(span->row + row) * j->q.width + (size_t)head * head_dim;
        b.sum[i] = j->y.data + (size_t)(span->row + row) * j->y.width + (size_t)head * head_dim;
        b.scores[i] = scores + (size_t)i * j->b->context;
        b.length[i] = span->position + row + 1;
        memset(b.sum[i], 0, head_dim * sizeof(float));
    }
    longest = b.length[b.n - 1];
    for (uint32_t first = 0; first < longest; first += page_tokens)
        page_scores(j, &b, first, keys_of(kv, j->layer, span->pages[first / page_tokens], kv_head));
    for (uint32_t i = 0; i < b.n; i++)
        dk_softmax(j->b->kernels, b.length[i], b.scores[i]);
    for (uint32_t first = 0; first < longest; first += page_tokens)
        page_values(j, &b, first, values_of(kv, j->layer, span->pages[first / page_tokens], kv_head));
}

static void attend_part(void *arg, uint32_t part, uint32_t parts)
{
    const struct attend_job *j = arg;
    float *scores = j->kv->scores + score_floats(part, j->b->context);
    uint32_t turn = 0;

    for (uint32_t i = 0; i < j->span_count; i++) {
        const struct dk_span *span = &j->spans[i];

        for (uint32_t row = 0; row < span->count; row++) {
            if ((span->row + row) % parts == part)
                store_row(j, span, row);
        }
    }
    dk_exec_barrier(j->b->exec, part);
    /* Later rows see more positions: dealing the blocks out in turn balances that. */
    for (uint32_t head = 0; head < j->kv->shape.kv_heads; head++) {
        for (uint32_t i = 0; i < j->span_count; i++) {
            uint32_t queries = j->spans[i].count * j->group;

            for (uint32_t begin = 0; begin < queries; begin += j->block, turn++) {
                if (turn % parts == part)
                    attend_block(j, &j->spans[i], head, begin, begin + j->block < queries ? begin + j->block : queries,
                                 scores);
            }
        }
    }
}

void cpu_attend(struct dk_backend *b, struct dk_kv *kv, uint32_t layer, const struct dk_span *spans,
                uint32_t span_count, uint32_t heads, float scale, struct dk_rows q, struct dk_rows k, struct dk_rows v,
                struct dk_rows y)
{
    const struct dk_kv_shape *s = &kv->shape;
    struct attend_job j = {.b = b,
                           .kv = kv,
                           .layer = layer,
                           .spans = spans,
                           .span_count = span_count,
                           .group = heads / s->kv_heads,
                           .scale = scale,
                           .q = q,
                           .k = k,
                           .v = v,
                           .y = y};
    uint64_t rows = 0, share;

    assert(layer < s->layers && heads % s->kv_heads == 0 && q.width == heads * s->head_dim && y.width == q.width);
    assert(k.width == s->kv_heads * s->head_dim && v.width == k.width);
    for (uint32_t i = 0; i < span_count; i++) {
        assert(spans[i].count <= b->context && spans[i].position <= b->context - spans[i].count);
        rows += spans[i].count;
    }
    if (rows == 0)
        return;
    /* Small enough blocks that every thread gets one. */
    share = rows * heads / b->threads;
    j.block = share < 1 ? 1 : share > ATTEND_QUERIES_MAX ? ATTEND_QUERIES_MAX : (uint32_t)share;
    dk_exec_run(b->exec, attend_part, &j);
}
