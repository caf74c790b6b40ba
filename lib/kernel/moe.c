/* SPDX-License-Identifier: Apache-2.0 */
/* Mixture of experts on a slice of the intermediate dimension.
 *
 * The (row, expert) pairs are sorted by expert. First phase: h = silu(gate x) * (up x), for every pair; the work is cut
 * in units of one gate panel and its up panel of one expert, which all threads share as equally as rows and bytes
 * allow. Second phase: each thread owns rows of the down projection, the same ones of every expert, goes through the
 * experts in rising order and adds weight * (down h) to y. So an output is summed by one thread in the order of expert
 * ids, whatever the number of threads and rows; and each expert's weights are read once for all its rows. */
#include "kernel/kernel.h"

#include <assert.h>
#include <string.h>

#include "kernel/kernel_internal.h"

struct group { /* the rows of one expert that somebody wants */
    uint32_t expert;
    uint32_t begin, end; /* pairs */
    uint32_t cost_end;   /* of all units up to this group's end */
};

struct moe {
    const struct dk_kernels *k;
    struct dk_exec *e;
    const struct dk_ffn *experts;
    uint32_t n, hidden;
    uint32_t panels; /* of the slice */
    size_t h_stride; /* floats of one pair's h: whole panels */
    const float *x;
    float *y;
    uint32_t groups;
    struct group *group;
    uint32_t *pair_row;
    float *pair_weight;
    float *h; /* [pairs][h_stride] */
};

static uint32_t minimum(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static size_t aligned(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

size_t dk_moe_scratch_bytes(uint32_t n_max, uint32_t k_max, uint32_t experts, uint32_t width)
{
    size_t pairs = (size_t)n_max * k_max;
    size_t groups = pairs < experts ? pairs : experts;

    return 64 + aligned(groups * sizeof(struct group)) + aligned(((size_t)experts + 1) * sizeof(uint32_t)) +
           aligned(pairs * sizeof(uint32_t)) + aligned(pairs * sizeof(float)) +
           pairs * dk_matrix_panels(width) * DK_PANEL_ROWS * sizeof(float);
}

/* What one unit costs, in rows: streaming its weights takes as long as multiplying a few rows. */
static uint32_t unit_cost(uint32_t rows)
{
    return rows + 3;
}

/* The unit (of all groups, in order) in whose middle the cost passes `cost`. */
static uint32_t unit_at_cost(const struct moe *m, uint64_t cost)
{
    uint32_t before = 0;

    for (uint32_t g = 0; g < m->groups; g++) {
        uint32_t one = unit_cost(m->group[g].end - m->group[g].begin);

        if (cost <= m->group[g].cost_end)
            return g * m->panels + (uint32_t)((cost - before + one / 2) / one);
        before = m->group[g].cost_end;
    }
    return m->groups * m->panels;
}

static void gate_up_phase(struct moe *m, uint32_t part, uint32_t parts, const uint8_t *after)
{
    uint64_t total = m->groups ? m->group[m->groups - 1].cost_end : 0;
    uint32_t begin = unit_at_cost(m, total * part / parts), end = unit_at_cost(m, total * (part + 1) / parts);

    while (begin < end) {
        const struct group *g = &m->group[begin / m->panels];
        const struct dk_matrix *w = &m->experts[g->expert].gate_up;
        uint32_t panel = begin % m->panels, rows = minimum(g->end - g->begin, DK_BATCH);
        uint32_t count = minimum(minimum(end - begin, m->panels - panel), DK_BATCH / rows);
        struct dk_pairs p = dk_matrix_take(w, panel, count);

        begin += count;
        if (begin == end)
            p.next = after;
        else if (begin % m->panels == 0)
            p.next = m->experts[g[1].expert].gate_up.data;
        for (uint32_t pair = g->begin; pair < g->end; pair += DK_BATCH) {
            _Alignas(64) float out[DK_BATCH][DK_PAIR_ROWS];
            const float *x[DK_BATCH];
            uint32_t n = minimum(g->end - pair, DK_BATCH);

            for (uint32_t i = 0; i < n; i++)
                x[i] = m->x + (size_t)m->pair_row[pair + i] * m->hidden;
            m->k->pairs[w->type](&p, n, x, out);
            for (uint32_t i = 0; i < count * n; i++)
                m->k->silu_mul(DK_PANEL_ROWS, out[i], out[i] + DK_PANEL_ROWS,
                               m->h + (pair + i % n) * m->h_stride + (panel + i / n) * DK_PANEL_ROWS);
        }
    }
}

/* Adds weight * (down h) of some pairs of panels for up to DK_BATCH rows that begin at `at`. */
static void down_batch(struct moe *m, const struct dk_pairs *p, enum dk_dtype type, uint32_t first, uint32_t at,
                       uint32_t n)
{
    _Alignas(64) float out[DK_BATCH][DK_PAIR_ROWS];
    const float *h[DK_BATCH];

    for (uint32_t i = 0; i < n; i++)
        h[i] = m->h + (at + i) * m->h_stride;
    m->k->pairs[type](p, n, h, out);
    for (uint32_t i = 0; i < p->count * n; i++) {
        uint32_t row = (first + i / n) * DK_PAIR_ROWS, j = at + i % n;

        m->k->axpy(minimum(m->hidden - row, DK_PAIR_ROWS), m->pair_weight[j], out[i],
                   m->y + (size_t)m->pair_row[j] * m->hidden + row);
    }
}

static void down_phase(struct moe *m, uint32_t begin, uint32_t end)
{
    uint32_t first = begin * DK_PAIR_ROWS, last = minimum(end * DK_PAIR_ROWS, m->hidden);

    for (uint32_t i = 0; i < m->n && first < last; i++)
        memset(m->y + (size_t)i * m->hidden + first, 0, (last - first) * sizeof(float));
    for (uint32_t i = 0; i < m->groups; i++) {
        const struct group *g = &m->group[i];
        const struct dk_matrix *w = &m->experts[g->expert].down;
        uint32_t rows = minimum(g->end - g->begin, DK_BATCH), count;

        for (uint32_t pair = begin; pair < end; pair += count) {
            struct dk_pairs p;

            count = minimum(end - pair, DK_BATCH / rows);
            p = dk_matrix_take(w, pair, count);
            if (pair + count == end && i + 1 < m->groups)
                p.next = dk_matrix_take(&m->experts[g[1].expert].down, begin, 1).data;
            for (uint32_t at = g->begin; at < g->end; at += DK_BATCH)
                down_batch(m, &p, w->type, pair, at, minimum(g->end - at, DK_BATCH));
        }
    }
}

static void moe_part(void *arg, uint32_t part, uint32_t parts)
{
    struct moe *m = arg;
    uint32_t begin, end;
    const uint8_t *after;

    dk_exec_range(dk_matrix_pairs(m->hidden), part, parts, &begin, &end);
    after = m->groups ? dk_matrix_take(&m->experts[m->group[0].expert].down, begin, 1).data : NULL;
    gate_up_phase(m, part, parts, after);
    dk_exec_barrier(m->e, part);
    down_phase(m, begin, end);
}

/* Sorts the pairs by expert, rows in order within one. */
static void sort_pairs(struct moe *m, uint32_t expert_count, uint32_t top_k, const int32_t *ids, const float *weights,
                       uint32_t *start)
{
    uint32_t pairs = m->n * top_k, cost = 0;

    memset(start, 0, (expert_count + 1) * sizeof *start);
    for (uint32_t i = 0; i < pairs; i++) {
        uint32_t id = ids ? (uint32_t)ids[i] : 0;

        assert(id < expert_count);
        start[id + 1]++;
    }
    for (uint32_t id = 0; id < expert_count; id++) {
        uint32_t count = start[id + 1];

        start[id + 1] += start[id];
        if (!count)
            continue;
        cost += m->panels * unit_cost(count);
        m->group[m->groups++] = (struct group){id, start[id], start[id + 1], cost};
    }
    for (uint32_t i = 0; i < pairs; i++) {
        uint32_t at = start[ids ? (uint32_t)ids[i] : 0]++;

        m->pair_row[at] = i / top_k;
        m->pair_weight[at] = weights ? weights[i] : 1.0f;
    }
}

uint64_t dk_moe(const struct dk_kernels *k, struct dk_exec *e, const struct dk_ffn *experts, uint32_t expert_count,
                uint32_t n, uint32_t top_k, const float *x, const int32_t *ids, const float *weights, float *y,
                void *scratch)
{
    size_t pairs = (size_t)n * top_k, groups = pairs < expert_count ? pairs : expert_count;
    uint8_t *at = (uint8_t *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);
    struct moe m = {.k = k, .e = e, .experts = experts, .n = n, .x = x, .y = y};
    uint64_t bytes = 0;
    uint32_t *start;

    assert(ids || (expert_count == 1 && top_k == 1));
    m.hidden = experts->hidden;
    m.panels = dk_matrix_panels(experts->width);
    m.h_stride = (size_t)m.panels * DK_PANEL_ROWS;
    m.group = (struct group *)at;
    at += aligned(groups * sizeof *m.group);
    start = (uint32_t *)at;
    at += aligned(((size_t)expert_count + 1) * sizeof *start);
    m.pair_row = (uint32_t *)at;
    at += aligned(pairs * sizeof *m.pair_row);
    m.pair_weight = (float *)at;
    at += aligned(pairs * sizeof *m.pair_weight);
    m.h = (float *)at;
    if (!experts->width) {
        memset(y, 0, (size_t)n * m.hidden * sizeof *y);
        return 0;
    }
    sort_pairs(&m, expert_count, top_k, ids, weights, start);
    dk_exec_run(e, moe_part, &m);
    for (uint32_t i = 0; i < m.groups; i++)
        bytes += dk_ffn_bytes(&experts[m.group[i].expert]);
    return bytes;
}
