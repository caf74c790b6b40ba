/* SPDX-License-Identifier: Apache-2.0 */
/* bench_delta: Gated DeltaNet of a layer with 16 key and 32 value heads of 128 (30 such layers: Qwen3.5-35B-A3B).
 * First the recurrence of one head against multiply-adds on data in the first-level cache, at every level. It has a
 * multiplication besides each three multiply-adds, so 0.75 is the most there is. Then whole layers through the back
 * end, whose states of all layers do not fit the caches. bench_delta --count TOKENS runs only the recurrence of one
 * head by AVX2, for a tool that counts instructions. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention-worker/backend/backend.h"
#include "attention-worker/backend/cpu/delta_kernels.h"
#include "bench_yard.h"
#include "kernel/kernel.h"

enum { KEY_HEADS = 16, VALUE_HEADS = 32, DIM = 128, TAPS = 4, LAYERS = 30 };
enum { CHANNELS = (2 * KEY_HEADS + VALUE_HEADS) * DIM, TOKENS = 64, ROUNDS = 25, PREFILL = 512 };

static const struct dk_backend_ops *const ops = &dk_backend_cpu;

/* ---- one head's recurrence */
struct head {
    float *rows, *y, *state;
    struct delta_gate gates[TOKENS];
    size_t stride;
};

static void head_init(struct head *h)
{
    h->stride = CHANNELS;
    h->rows = bench_noise(TOKENS * h->stride);
    h->y = bench_noise((size_t)TOKENS * VALUE_HEADS * DIM);
    h->state = bench_noise(DIM * DIM);
    for (int t = 0; t < TOKENS; t++)
        h->gates[t] = (struct delta_gate){
            .decay = 0.9f, .recall = 0.14f, .write = 0.08f, .carry = 0.012f, .add = 0.01f};
}

static void head_free(struct head *h)
{
    free(h->rows);
    free(h->y);
    free(h->state);
}

static void head_run(const struct head *h, const struct delta_kernels *k)
{
    for (uint32_t first = 0; first < DIM; first += DELTA_COLUMNS_MAX) {
        const struct delta_run r = {.key_dim = DIM,
                                    .columns = DELTA_COLUMNS_MAX,
                                    .tokens = TOKENS,
                                    .gates = h->gates,
                                    .q = h->rows,
                                    .k = h->rows + KEY_HEADS * DIM,
                                    .v = h->rows + 2 * KEY_HEADS * DIM + first,
                                    .stride = h->stride,
                                    .y = h->y + first,
                                    .y_stride = VALUE_HEADS * DIM,
                                    .state = h->state + first * DIM};

        k->recur(&r);
    }
}

static void bench_head(enum dk_isa isa)
{
    double recurrence[ROUNDS], yard[ROUNDS], ratio[ROUNDS];
    struct head h;

    head_init(&h);
    head_run(&h, delta_kernels_get(isa));
    for (int i = 0; i < ROUNDS; i++) {
        double begin = bench_seconds();

        head_run(&h, delta_kernels_get(isa));
        recurrence[i] = 3.0 * DIM * DIM * TOKENS / (bench_seconds() - begin) * 1e-9;
        yard[i] = bench_yard(isa);
        ratio[i] = recurrence[i] / yard[i];
    }
    printf("%-7s %10.1f %10.1f %7.2f\n", dk_isa_name(isa), bench_median(recurrence, ROUNDS), bench_median(yard, ROUNDS),
           bench_median(ratio, ROUNDS));
    head_free(&h);
}

/* ---- whole layers */
struct layers {
    struct dk_backend *b;
    struct dk_states *states;
    struct dk_delta_weights w;
    struct dk_rows x, b_rows, a_rows, y;
    float *host;
};

static const struct dk_weight *weight(struct dk_backend *b, enum dk_weight_use use, uint32_t count, uint32_t taps)
{
    float *data = bench_noise((size_t)count * taps);
    const struct dk_tensor t = {.name = "w",
                                .type = DK_F32,
                                .rank = 2,
                                .shape = {count, taps},
                                .data = (uint8_t *)data,
                                .bytes = 4ull * count * taps,
                                .file = "none"};
    struct dk_weight *w = NULL;
    struct dk_err err;

    if (ops->weight_load(b, use, &t, NULL, &w, &err) < 0)
        abort();
    free(data);
    return w;
}

static void layers_open(struct layers *l, enum dk_isa isa, uint32_t threads)
{
    const struct dk_backend_config c = {.isa = dk_isa_name(isa),
                                        .threads = threads,
                                        .pin = true,
                                        .rows_max = PREFILL,
                                        .context = 1,
                                        .scratch_floats_per_row = CHANNELS + (2 + DIM) * VALUE_HEADS};
    const struct dk_states_shape s = {.layers = LAYERS,
                                      .slots = 1,
                                      .key_heads = KEY_HEADS,
                                      .value_heads = VALUE_HEADS,
                                      .key_dim = DIM,
                                      .value_dim = DIM,
                                      .taps = TAPS};
    struct dk_err err;

    if (ops->open(&c, &l->b, &err) < 0 || ops->states_open(l->b, &s, &l->states, &err) < 0 ||
        ops->rows_take(l->b, CHANNELS, &l->x) < 0 || ops->rows_take(l->b, VALUE_HEADS, &l->b_rows) < 0 ||
        ops->rows_take(l->b, VALUE_HEADS, &l->a_rows) < 0 || ops->rows_take(l->b, VALUE_HEADS * DIM, &l->y) < 0)
        abort();
    l->w = (struct dk_delta_weights){.conv = weight(l->b, DK_WEIGHT_TAPS, CHANNELS, TAPS),
                                     .a_log = weight(l->b, DK_WEIGHT_VECTOR, VALUE_HEADS, 1),
                                     .dt_bias = weight(l->b, DK_WEIGHT_VECTOR, VALUE_HEADS, 1)};
    l->host = bench_noise((size_t)PREFILL * CHANNELS);
    ops->upload(l->b, l->b_rows, 0, PREFILL, l->host);
    ops->upload(l->b, l->a_rows, 0, PREFILL, l->host);
    ops->upload(l->b, l->x, 0, PREFILL, l->host);
}

static void layers_close(struct layers *l)
{
    ops->states_close(l->b, l->states);
    ops->weight_free(l->b, (struct dk_weight *)l->w.conv);
    ops->weight_free(l->b, (struct dk_weight *)l->w.a_log);
    ops->weight_free(l->b, (struct dk_weight *)l->w.dt_bias);
    ops->close(l->b);
    free(l->host);
}

/* Seconds for all layers; the input is the same for each. */
static double layers_run(struct layers *l, uint32_t position, uint32_t tokens)
{
    const struct dk_span span = {.count = tokens, .position = position};
    double spent = 0;

    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        double begin;

        ops->upload(l->b, l->x, 0, tokens, l->host);
        begin = bench_seconds();
        ops->delta(l->b, l->states, layer, &span, 1, &l->w, l->x, l->b_rows, l->a_rows, l->y);
        spent += bench_seconds() - begin;
    }
    return spent;
}

static void bench_layers(enum dk_isa isa, uint32_t threads)
{
    double decode[ROUNDS], prefill[3], state_bytes = 2.0 * LAYERS * VALUE_HEADS * DIM * DIM * sizeof(float);
    struct layers l;

    layers_open(&l, isa, threads);
    layers_run(&l, 0, 1);
    for (uint32_t i = 0; i < ROUNDS; i++)
        decode[i] = layers_run(&l, 1 + i, 1);
    for (int i = 0; i < 3; i++)
        prefill[i] = layers_run(&l, 0, PREFILL) / PREFILL;
    printf("%-7s %7u %10.2f %8.1f %10.3f %12.0f\n", dk_isa_name(isa), threads, 1e3 * bench_median(decode, ROUNDS),
           state_bytes / bench_median(decode, ROUNDS) * 1e-9, 1e3 * bench_median(prefill, 3),
           1 / bench_median(prefill, 3));
    fflush(stdout);
    layers_close(&l);
}

static int count_instructions(uint32_t tokens)
{
    struct head h;

    if (dk_isa_best() < DK_ISA_AVX2)
        return 1;
    head_init(&h);
    for (uint32_t t = 0; t < tokens; t += TOKENS)
        head_run(&h, &delta_kernels_avx2);
    head_free(&h);
    return 0;
}

int main(int argc, char **argv)
{
    uint32_t cpus = dk_cpu_count();

    if (argc == 3 && !strcmp(argv[1], "--count"))
        return count_instructions((uint32_t)strtoul(argv[2], NULL, 10));
    printf("one head: 10^9 multiply-adds per second\nlevel   recurrence  yardstick   ratio\n");
    for (enum dk_isa isa = DK_ISA_REF; isa <= dk_isa_best(); isa++)
        bench_head(isa);
    printf("%d layers\nlevel   threads  decode ms state GB/s prefill ms/token tokens/s\n", LAYERS);
    for (enum dk_isa isa = DK_ISA_AVX2; isa <= dk_isa_best(); isa++) {
        for (uint32_t threads = 1; threads <= cpus; threads = threads < cpus ? cpus : cpus + 1)
            bench_layers(isa, threads);
    }
    return 0;
}
