/* SPDX-License-Identifier: Apache-2.0 */
/* Paged keys and values, and causal attention over them.
 *
 * A query is one head of one row. It is always summed by one thread in one order: the scores of all its positions,
 * their softmax, then the values in rising position. So the bits do not depend on threads, on the other rows of the step
 * or on how the sequence was cut into steps. Queries that share a kv head and a page table go through the pages in
 * blocks: a page is read from memory once for a block, not once for each query. */
#include "attention-worker/backend/cpu/backend_cpu_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int cpu_kv_open(struct dk_backend *b, const struct dk_kv_shape *shape, struct dk_kv **out, struct dk_err *err)
{
    size_t floats = 1;
    const uint32_t sides[] = {shape->layers, shape->pages, shape->kv_heads, shape->page_tokens, shape->head_dim};
    bool fits = true;
    struct dk_kv *kv = calloc(1, sizeof(*kv));

    *out = NULL;
    for (size_t i = 0; i < sizeof(sides) / sizeof(sides[0]); i++)
        fits = fits && !__builtin_mul_overflow(floats, (size_t)sides[i], &floats);
    if (kv && fits) {
        kv->shape = *shape;
        kv->keys = cpu_floats(floats);
        kv->values = cpu_floats(floats);
    }
    if (!kv || !fits || !kv->keys || !kv->values) {
        cpu_kv_close(b, kv);
        return dk_err_set(err, -ENOMEM, "no memory for a KV cache of %u pages of %u positions", shape->pages,
                          shape->page_tokens);
    }
    *out = kv;
    return 0;
}

void cpu_kv_close(struct dk_backend *b, struct dk_kv *kv)
{
    if (!kv)
        return;
    free(kv->keys);
    free(kv->values);
    free(kv);
}

struct attend_job {
    struct dk_backend *b;
    struct dk_kv *kv;
    uint32_t layer;
    const struct dk_span *spans;
    uint32_t span_count;
    uint32_t group; /* group: query heads of one kv head */
    uint32_t block;        /* queries of a block, at most CPU_QUERY_BLOCK */
    float scale;
    struct dk_rows q, k, v, y;
};

static void store_row(const struct attend_job *j, const struct dk_span *span, uint32_t i)
{
    const struct dk_kv_shape *s = &j->kv->shape;
    uint32_t position = span->position + i, page = span->pages[position / s->page_tokens];
    size_t from = (size_t)(span->row + i) * j->k.width;

    assert(page < s->pages);
    for (uint32_t h = 0; h < s->kv_heads; h++) {
        size_t to = kv_offset(s, j->layer, page, h) + (size_t)(position % s->page_tokens) * s->head_dim;

        memcpy(j->kv->keys + to, j->k.data + from + h * s->head_dim, s->head_dim * sizeof(float));
        memcpy(j->kv->values + to, j->v.data + from + h * s->head_dim, s->head_dim * sizeof(float));
    }
}

/* Queries [begin, end) of a span and kv head: query i is head i % group of row i / group. */
static void attend_block(const struct attend_job *j, const struct dk_span *span, uint32_t kv_head, uint32_t begin,
                         uint32_t end, float *scores)
{
    const struct dk_kv_shape *s = &j->kv->shape;
    const struct dk_kernels *kernels = j->b->kernels;
    const float *query[CPU_QUERY_BLOCK];
    float *sum[CPU_QUERY_BLOCK];
    uint32_t length[CPU_QUERY_BLOCK]; /* positions that it sees; rising */
    uint32_t n = end - begin;
    size_t context = j->b->context;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t row = (begin + i) / j->group, head = kv_head * j->group + (begin + i) % j->group;

        query[i] = j->q.data + (size_t)(span->row + row) * j->q.width + (size_t)head * s->head_dim;
        sum[i] = j->y.data + (size_t)(span->row + row) * j->y.width + (size_t)head * s->head_dim;
        length[i] = span->position + row + 1;
        memset(sum[i], 0, s->head_dim * sizeof(float));
    }
    for (uint32_t first = 0; first < length[n - 1]; first += s->page_tokens) {
        const float *keys = j->kv->keys + kv_offset(s, j->layer, span->pages[first / s->page_tokens], kv_head);

        for (uint32_t i = 0; i < n; i++) {
            for (uint32_t p = first; p < length[i] && p - first < s->page_tokens; p++)
                scores[i * context + p] =
                    j->scale * dk_dot(kernels, s->head_dim, query[i], keys + (size_t)(p - first) * s->head_dim);
        }
    }
    for (uint32_t i = 0; i < n; i++)
        dk_softmax(kernels, length[i], scores + i * context);
    for (uint32_t first = 0; first < length[n - 1]; first += s->page_tokens) {
        const float *values = j->kv->values + kv_offset(s, j->layer, span->pages[first / s->page_tokens], kv_head);

        for (uint32_t i = 0; i < n; i++) {
            for (uint32_t p = first; p < length[i] && p - first < s->page_tokens; p++)
                dk_axpy(kernels, s->head_dim, scores[i * context + p], values + (size_t)(p - first) * s->head_dim,
                        sum[i]);
        }
    }
}

static void attend_part(void *arg, uint32_t part, uint32_t parts)
{
    const struct attend_job *j = arg;
    float *scores = j->b->scores + (size_t)part * CPU_QUERY_BLOCK * j->b->context;
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
                    attend_block(j, &j->spans[i], head, begin,
                                 begin + j->block < queries ? begin + j->block : queries, scores);
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
    j.block = share < 1 ? 1 : share > CPU_QUERY_BLOCK ? CPU_QUERY_BLOCK : (uint32_t)share;
    dk_exec_run(b->exec, attend_part, &j);
}
