/* SPDX-License-Identifier: Apache-2.0 */
/* bench_latent: multi-head latent attention and the indexer of one layer of DeepSeek-V3.2 (128 heads, rank 512, rope
 * 64; 64 index heads of 128), a decoded token at several lengths of its sequence, beside the same multiply-adds on data
 * in the first-level cache in the same run. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "attention-worker/backend/backend.h"
#include "bench_yard.h"
#include "kernel/kernel.h"

enum { HEADS = 128, RANK = 512, ROPE = 64, INDEX_HEADS = 64, INDEX_DIM = 128, TOP_K = 2048 };
enum { PAGE = 16, CONTEXT = 32768, ROUNDS = 9, FILL = 64 };

static const struct dk_backend_ops *const ops = &dk_backend_cpu;

struct layer {
    struct dk_backend *b;
    struct dk_latents *cache;
    struct dk_picks *picks;
    struct dk_rows q_latent, q_pe, latent, k_pe, y, index_q, index_w, index_k;
    uint32_t *pages;
};

static void take(struct layer *l, uint32_t width, struct dk_rows *rows)
{
    float *data = bench_noise((size_t)FILL * width);

    if (ops->rows_take(l->b, width, rows) < 0)
        abort();
    ops->upload(l->b, *rows, 0, FILL, data);
    free(data);
}

static void layer_open(struct layer *l, enum dk_isa isa, uint32_t threads)
{
    const uint32_t widths = HEADS * (2 * RANK + ROPE) + RANK + ROPE + INDEX_HEADS * (INDEX_DIM + 1) + INDEX_DIM;
    const struct dk_backend_config c = {.isa = dk_isa_name(isa),
                                        .threads = threads,
                                        .pin = true,
                                        .rows_max = FILL,
                                        .context = CONTEXT,
                                        .scratch_floats_per_row = widths};
    const struct dk_latents_shape s = {.layers = 1,
                                       .rank = RANK,
                                       .rope_dim = ROPE,
                                       .index_dim = INDEX_DIM,
                                       .page_tokens = PAGE,
                                       .pages = CONTEXT / PAGE};
    struct dk_err err;

    l->pages = calloc(s.pages, sizeof(*l->pages));
    if (!l->pages || ops->open(&c, &l->b, &err) < 0 || ops->latents_open(l->b, &s, &l->cache, &err) < 0 ||
        ops->picks_open(l->b, TOP_K, &l->picks, &err) < 0)
        abort();
    for (uint32_t i = 0; i < s.pages; i++)
        l->pages[i] = i;
    take(l, HEADS * RANK, &l->q_latent);
    take(l, HEADS * ROPE, &l->q_pe);
    take(l, RANK, &l->latent);
    take(l, ROPE, &l->k_pe);
    take(l, HEADS * RANK, &l->y);
    take(l, INDEX_HEADS * INDEX_DIM, &l->index_q);
    take(l, INDEX_HEADS, &l->index_w);
    take(l, INDEX_DIM, &l->index_k);
}

static void layer_close(struct layer *l)
{
    ops->picks_close(l->b, l->picks);
    ops->latents_close(l->b, l->cache);
    ops->close(l->b);
    free(l->pages);
}

/* Seconds of one row behind `position` others; select: the indexer, otherwise attention over the picks or over all. */
static double run(struct layer *l, uint32_t position, bool select, bool picked)
{
    const struct dk_span span = {.count = 1, .position = position, .pages = l->pages};
    double begin = bench_seconds();

    if (select)
        ops->index_select(l->b, l->cache, 0, &span, 1, INDEX_HEADS, l->index_q, l->index_w, l->index_k, l->picks);
    else
        ops->attend_latent(l->b, l->cache, 0, &span, 1, HEADS, 0.07f, l->q_latent, l->q_pe, l->latent, l->k_pe,
                           picked ? l->picks : NULL, l->y);
    return bench_seconds() - begin;
}

/* Latents and index keys of all positions: as if each few pages were the beginning of a sequence, which is quick. */
static void fill(struct layer *l)
{
    for (uint32_t at = 0; at < CONTEXT; at += FILL) {
        const struct dk_span span = {.count = FILL, .pages = l->pages + at / PAGE};

        ops->index_select(l->b, l->cache, 0, &span, 1, INDEX_HEADS, l->index_q, l->index_w, l->index_k, l->picks);
        ops->attend_latent(l->b, l->cache, 0, &span, 1, HEADS, 0.07f, l->q_latent, l->q_pe, l->latent, l->k_pe, NULL,
                           l->y);
    }
}

static void bench(struct layer *l, enum dk_isa isa, uint32_t threads, const char *what, uint32_t position, bool select,
                  bool picked, double multiply_adds)
{
    double spent[ROUNDS], ratio[ROUNDS];

    run(l, position, select, picked);
    for (int i = 0; i < ROUNDS; i++) {
        spent[i] = run(l, position, select, picked);
        ratio[i] = multiply_adds / spent[i] * 1e-9 / bench_yard(isa) / threads;
    }
    printf("%-7s %7u  %-9s %9u %10.2f %7.2f\n", dk_isa_name(isa), threads, what, position + 1,
           1e3 * bench_median(spent, ROUNDS), bench_median(ratio, ROUNDS));
    fflush(stdout);
}

int main(void)
{
    static const uint32_t lengths[] = {128, 1024, 4096, 32768};
    uint32_t cpus = dk_cpu_count();

    printf("level   threads  what      positions  median ms  ratio to multiply-adds in L1, each thread\n");
    for (enum dk_isa isa = DK_ISA_AVX2; isa <= dk_isa_best(); isa++) {
        for (uint32_t threads = 1; threads <= cpus; threads = threads < cpus ? cpus : cpus + 1) {
            struct layer l;

            layer_open(&l, isa, threads);
            fill(&l);
            for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
                uint32_t n = lengths[i], picked = n < TOP_K ? n : TOP_K;

                run(&l, n - 1, true, false); /* what "sparse" attends to */
                if (n > TOP_K)               /* otherwise nothing is scored */
                    bench(&l, isa, threads, "indexer", n - 1, true, false, (double)n * INDEX_HEADS * (INDEX_DIM + 1));
                bench(&l, isa, threads, "sparse", n - 1, false, true, (double)picked * HEADS * (2 * RANK + ROPE));
                if (n <= 4096)
                    bench(&l, isa, threads, "full", n - 1, false, false, (double)n * HEADS * (2 * RANK + ROPE));
            }
            layer_close(&l);
        }
    }
    return 0;
}
