/* SPDX-License-Identifier: Apache-2.0 */
/* Gated DeltaNet, one token after another, in two phases.
 *
 * First the convolution, the norms of q and k and the gates: a thread takes whole heads of all rows, because a head's
 * convolution runs through a span in place. Then the recurrence: a thread takes a few columns of a value head's state
 * through all of a span. Columns do not influence each other, and a few of them stay in the first-level cache, so this
 * is as fast as the chunked form, which has no fewer multiply-adds there, and one token at a time is the same
 * arithmetic as many: the bits do not depend on how a sequence was cut. */
#include "attention-worker/backend/cpu/states_cpu.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* Channels that are convolved together. */
#define CHANNELS_MAX 128u
/* Tokens of one call of the recurrence. */
#define TOKENS_MAX 64u

struct delta_job {
    struct dk_backend *b;
    struct dk_states *s;
    uint32_t layer;
    const struct dk_span *spans;
    uint32_t span_count;
    const struct dk_delta_weights *w;
    struct dk_rows x, b_rows, a_rows, y;
    float query_scale; /* key_dim^-0.5 */
};

static float *row_of(struct dk_rows x, uint32_t row)
{
    return x.data + (size_t)row * x.width;
}

/* Work of all threads lies side by side, [0, total); a thread has that which begins in [begin, end). */
struct share {
    uint64_t begin, end;
    uint64_t at; /* where the next items lie */
};

static struct share share_of(uint64_t total, uint32_t part, uint32_t parts)
{
    return (struct share){.begin = total * part / parts, .end = total * (part + 1) / parts};
}

static uint32_t items_before(uint64_t at, uint64_t limit, uint32_t count, uint64_t weight)
{
    uint64_t before = limit <= at ? 0 : (limit - at + weight - 1) / weight;

    return before < count ? (uint32_t)before : count;
}

/* Of the next `count` items of one weight those that are this thread's. */
static void share_take(struct share *s, uint32_t count, uint64_t weight, uint32_t *first, uint32_t *last)
{
    *first = items_before(s->at, s->begin, count, weight);
    *last = items_before(s->at, s->end, count, weight);
    s->at += count * weight;
}

/* The convolution of a few channels: the inputs that it reaches go round in a ring. */
struct window {
    _Alignas(64) float inputs[STATES_TAPS_MAX][CHANNELS_MAX];
    float sums[CHANNELS_MAX];
};

static const float ones[CHANNELS_MAX] = {[0 ... CHANNELS_MAX - 1] = 1};

static uint32_t padded(uint32_t n)
{
    return (n + DELTA_LANES - 1) / DELTA_LANES * DELTA_LANES;
}

static void prefetch(const float *x, uint32_t n)
{
    for (uint32_t c = 0; c < n; c += 16)
        __builtin_prefetch(x + c);
}

/* Channels [first, first + n) of x, in place. Not inlined: where a compiler knows how little is copied, it copies by an
 * instruction that takes long to start. */
__attribute__((noinline)) static void convolve_span(const struct delta_job *j, const struct dk_span *span,
                                                    struct window *w, uint32_t first, uint32_t n)
{
    const struct dk_states *s = j->s;
    uint32_t taps = s->shape.taps;
    float *kept = states_inputs(s, span->state, j->layer) + first;

    for (uint32_t t = 0; t + 1 < taps; t++) {
        if (span->position == 0)
            memset(w->inputs[t], 0, n * sizeof(float));
        else
            memcpy(w->inputs[t], kept + (size_t)t * s->channels, n * sizeof(float));
    }
    for (uint32_t i = 0; i < span->count; i++) {
        float *x = row_of(j->x, span->row + i) + first;
        const float *reached[STATES_TAPS_MAX];

        if (i + 2 < span->count)
            prefetch(x + 2 * (size_t)j->x.width, n); /* rows are far apart, which hardware does not foresee */
        memcpy(w->inputs[(i + taps - 1) % taps], x, n * sizeof(float));
        for (uint32_t t = 0; t < taps; t++)
            reached[t] = w->inputs[(i + t) % taps];
        s->kernels->convolve(padded(n), taps, s->channels, j->w->conv->vector + first, reached, w->sums);
        dk_silu_mul(j->b->kernels, n, w->sums, ones, x);
    }
    for (uint32_t t = 0; t + 1 < taps; t++)
        memcpy(kept + (size_t)t * s->channels, w->inputs[(span->count + t) % taps], n * sizeof(float));
}

static void convolve(const struct delta_job *j, uint32_t first, uint32_t n)
{
    uint32_t taps = j->s->shape.taps;
    struct window w;

    for (uint32_t end = first + n; first < end; first += CHANNELS_MAX) {
        n = end - first < CHANNELS_MAX ? end - first : CHANNELS_MAX;
        for (uint32_t t = 0; t < taps; t++)
            memset(w.inputs[t] + n, 0, (padded(n) - n) * sizeof(float));
        for (uint32_t i = 0; i < j->span_count; i++) {
            if (j->spans[i].count > 0)
                convolve_span(j, &j->spans[i], &w, first, n);
        }
    }
}

static void key_row(const struct delta_job *j, uint32_t head, uint32_t row)
{
    const struct dk_states_shape *h = &j->s->shape;
    const struct dk_kernels *kernels = j->b->kernels;
    const float *q = row_of(j->x, row) + head * h->key_dim, *k = q + h->key_heads * h->key_dim;

    j->s->norms[(size_t)row * h->key_heads + head] = (struct delta_norms){
        .q = j->query_scale / sqrtf(dk_dot(kernels, h->key_dim, q, q) + 1e-6f),
        .k = 1 / sqrtf(dk_dot(kernels, h->key_dim, k, k) + 1e-6f),
        .qk = dk_dot(kernels, h->key_dim, q, k),
    };
}

/* log(1 + exp(x)), which above 20 is x for f32. */
static float softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

static void value_row(const struct delta_job *j, uint32_t head, uint32_t row)
{
    float rate = expf(j->w->a_log->vector[head]), bias = j->w->dt_bias->vector[head];

    j->s->scalars[(size_t)row * j->s->shape.value_heads + head] = (struct delta_scalars){
        .decay = expf(-rate * softplus(row_of(j->a_rows, row)[head] + bias)),
        .beta = 1 / (1 + expf(-row_of(j->b_rows, row)[head])),
    };
}

static void each_row(const struct delta_job *j, uint32_t head,
                     void (*row)(const struct delta_job *j, uint32_t head, uint32_t row))
{
    for (uint32_t s = 0; s < j->span_count; s++) {
        for (uint32_t i = 0; i < j->spans[s].count; i++)
            row(j, head, j->spans[s].row + i);
    }
}

static void convolve_part(const struct delta_job *j, uint32_t part, uint32_t parts)
{
    const struct dk_states_shape *h = &j->s->shape;
    uint32_t keys = h->key_heads * h->key_dim, first, last;
    struct share share = share_of(j->s->channels, part, parts);

    share_take(&share, h->key_heads, 2 * h->key_dim, &first, &last);
    for (uint32_t head = first; head < last; head++) {
        convolve(j, head * h->key_dim, h->key_dim);
        convolve(j, keys + head * h->key_dim, h->key_dim);
        each_row(j, head, key_row);
    }
    share_take(&share, h->value_heads, h->value_dim, &first, &last);
    for (uint32_t head = first; head < last; head++) {
        convolve(j, 2 * keys + head * h->value_dim, h->value_dim);
        each_row(j, head, value_row);
    }
}

/* Items of the recurrence: value heads times groups of DELTA_COLUMNS_MAX columns. */
static uint32_t column_groups(const struct dk_states *s)
{
    return (s->shape.value_dim + DELTA_COLUMNS_MAX - 1) / DELTA_COLUMNS_MAX;
}

static void gates_of(const struct dk_states *s, uint32_t head, uint32_t row, uint32_t n, struct delta_gate *gates)
{
    const struct dk_states_shape *h = &s->shape;
    uint32_t key_head = head / (h->value_heads / h->key_heads);

    for (uint32_t i = 0; i < n; i++) {
        const struct delta_norms *norms = &s->norms[(size_t)(row + i) * h->key_heads + key_head];
        const struct delta_scalars *scalars = &s->scalars[(size_t)(row + i) * h->value_heads + head];

        gates[i] = (struct delta_gate){
            .decay = scalars->decay,
            .recall = scalars->decay * norms->k,
            .write = scalars->beta * norms->k,
            .carry = scalars->decay * norms->q,
            .add = norms->qk * norms->q,
        };
    }
}

static void recur_item(const struct delta_job *j, const struct dk_span *span, uint32_t head, uint32_t first)
{
    const struct dk_states_shape *h = &j->s->shape;
    uint32_t rest = h->value_dim - first, keys = h->key_heads * h->key_dim;
    const float *x = row_of(j->x, span->row);
    struct delta_gate gates[TOKENS_MAX];
    struct delta_run r = {
        .key_dim = h->key_dim,
        .columns = rest < DELTA_COLUMNS_MAX ? rest : DELTA_COLUMNS_MAX,
        .gates = gates,
        .q = x + head / (h->value_heads / h->key_heads) * h->key_dim,
        .v = x + 2 * keys + head * h->value_dim + first,
        .stride = j->x.width,
        .y = row_of(j->y, span->row) + head * h->value_dim + first,
        .y_stride = j->y.width,
        .state = states_head(j->s, span->state, j->layer, head) + (size_t)first * h->key_dim,
    };
    uint32_t blocks = (r.columns + DELTA_COLUMNS - 1) / DELTA_COLUMNS;

    r.k = r.q + keys;
    if (span->position == 0)
        memset(r.state, 0, (size_t)blocks * h->key_dim * DELTA_COLUMNS * sizeof(float));
    for (uint32_t done = 0; done < span->count; done += r.tokens) {
        r.tokens = span->count - done < TOKENS_MAX ? span->count - done : TOKENS_MAX;
        gates_of(j->s, head, span->row + done, r.tokens, gates);
        j->s->kernels->recur(&r);
        r.q += r.tokens * r.stride;
        r.k += r.tokens * r.stride;
        r.v += r.tokens * r.stride;
        r.y += r.tokens * r.y_stride;
    }
}

/* To fetch the state costs about as much as a token. */
static uint64_t item_weight(const struct dk_span *span)
{
    return span->count ? 1 + (uint64_t)span->count : 0;
}

static void recur_part(const struct delta_job *j, uint32_t part, uint32_t parts)
{
    uint32_t groups = column_groups(j->s), items = groups * j->s->shape.value_heads, first, last;
    struct share share;
    uint64_t total = 0;

    for (uint32_t i = 0; i < j->span_count; i++)
        total += items * item_weight(&j->spans[i]);
    share = share_of(total, part, parts);
    for (uint32_t i = 0; i < j->span_count; i++) {
        if (j->spans[i].count == 0)
            continue;
        share_take(&share, items, item_weight(&j->spans[i]), &first, &last);
        for (uint32_t item = first; item < last; item++)
            recur_item(j, &j->spans[i], item / groups, item % groups * DELTA_COLUMNS_MAX);
    }
}

static void delta_part(void *arg, uint32_t part, uint32_t parts)
{
    const struct delta_job *j = arg;

    convolve_part(j, part, parts);
    dk_exec_barrier(j->b->exec, part);
    recur_part(j, part, parts);
}

void cpu_delta(struct dk_backend *b, struct dk_states *s, uint32_t layer, const struct dk_span *spans,
               uint32_t span_count, const struct dk_delta_weights *w, struct dk_rows x, struct dk_rows b_rows,
               struct dk_rows a_rows, struct dk_rows y)
{
    const struct dk_states_shape *h = &s->shape;
    struct delta_job j = {.b = b,
                          .s = s,
                          .layer = layer,
                          .spans = spans,
                          .span_count = span_count,
                          .w = w,
                          .x = x,
                          .b_rows = b_rows,
                          .a_rows = a_rows,
                          .y = y,
                          .query_scale = (float)(1 / sqrt(h->key_dim))};

    assert(layer < h->layers && x.width == s->channels && y.width == h->value_heads * h->value_dim);
    assert(b_rows.width == h->value_heads && a_rows.width == h->value_heads && x.data != y.data);
    assert(w->conv->use == DK_WEIGHT_TAPS && w->conv->rows == h->taps && w->conv->cols == s->channels);
    assert(w->a_log->cols == h->value_heads && w->dt_bias->cols == h->value_heads);
    s->call++;
    for (uint32_t i = 0; i < span_count; i++) {
        assert(spans[i].count <= b->rows_max && spans[i].row <= b->rows_max - spans[i].count);
        assert(spans[i].state < h->slots && s->used[spans[i].state] != s->call);
        s->used[spans[i].state] = s->call;
    }
    dk_exec_run(b->exec, delta_part, &j);
}
