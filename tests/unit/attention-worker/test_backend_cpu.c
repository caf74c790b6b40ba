/* SPDX-License-Identifier: Apache-2.0 */
#include "backend_fixture.h"

#include <malloc.h>
#include <string.h>

#include "attention-worker/backend/cpu/latents_cpu.h"
#include "attention-worker/backend/cpu/states_cpu.h"

Test(backend_cpu, says_what_it_cannot_open)
{
    struct dk_backend_config c = {.isa = "sse9", .threads = 1, .rows_max = 1, .context = 1};
    struct dk_err err = {0};
    struct dk_backend *b;

    cr_expect_eq(ops->open(&c, &b, &err), -EINVAL);
    cr_expect_null(b);
    cr_expect_not_null(strstr(err.text, "sse9"));
    ops->close(NULL);
    ops->weight_free(NULL, NULL);
    ops->kv_close(NULL, NULL);
}

enum { COUNTED_ROWS = 6, COUNTED_CONTEXT = 50, COUNTED_THREADS = 3, COUNTED_SCRATCH = 100 };
static const struct dk_backend_config counted = {.isa = "auto",
                                                 .threads = COUNTED_THREADS,
                                                 .rows_max = COUNTED_ROWS,
                                                 .context = COUNTED_CONTEXT,
                                                 .scratch_floats_per_row = COUNTED_SCRATCH};
static const struct dk_kv_shape odd_kv = {.layers = 3, .kv_heads = 2, .head_dim = 24, .page_tokens = 5, .pages = 300};
static const struct dk_latents_shape odd_latents = {
    .layers = 2, .rank = 40, .rope_dim = 10, .index_dim = 7, .page_tokens = 5, .pages = 300};
static const struct dk_states_shape odd_states = {
    .layers = 2, .slots = 50, .key_heads = 2, .value_heads = 4, .key_dim = 5, .value_dim = 33, .taps = 4};
static struct dk_stores_shape odd_stores(void)
{
    return (struct dk_stores_shape){.kv = odd_kv, .latents = odd_latents, .states = odd_states, .top_k = 20};
}

/* By hand: rows are padded to 16 floats, positions of keys too, columns of a state to 32. */
Test(backend_cpu, counts_what_stores_take)
{
    const uint64_t scratch = 4 * (6 * 100 + 48 * 16);
    const uint64_t kv_page = 4 * 3 * 2 * (24 * 16 + 5 * 32), latents_page = 4 * 2 * (5 * 64 + 7 * 16);
    const uint64_t kv_fixed = 4 * 3 * 8 * 50, latents_fixed = 4 * (64 * 50 * 16 + 128 * (64 + 16));
    const uint64_t slot = 4 * 2 * (3 * (2 * 2 * 5 + 4 * 33) + 4 * 5 * 64);
    struct dk_stores_shape some = {.top_k = 0};
    struct dk_stores_bytes got;

    ops->stores_bytes(&counted, &some, &got);
    cr_expect(got.page == 0 && got.slot == 0 && got.fixed == scratch);
    some.kv = odd_kv;
    ops->stores_bytes(&counted, &some, &got);
    cr_expect(got.page == kv_page && got.slot == 0 && got.fixed == scratch + kv_fixed);
    some = odd_stores();
    ops->stores_bytes(&counted, &some, &got);
    cr_expect_eq(got.page, kv_page + latents_page);
    cr_expect_eq(got.slot, slot);
    cr_expect_eq(got.fixed, scratch + kv_fixed + latents_fixed + 4 * 6 * (1 + 20) + 4 * 6 * (3 * 2 + 2 * 4));
}

/* The heap gives a block some bytes more than it was asked for, at most a page of memory. */
static void expect_bytes(uint64_t counted_bytes, void *const *blocks, size_t block_count, const char *what)
{
    uint64_t taken = 0;

    for (size_t i = 0; i < block_count; i++)
        taken += blocks[i] ? malloc_usable_size(blocks[i]) : 0;
    cr_expect(taken >= counted_bytes && taken <= counted_bytes + 4160 * block_count, "%s: %llu bytes, counted %llu",
              what, (unsigned long long)taken, (unsigned long long)counted_bytes);
}

Test(backend_cpu, stores_take_what_was_counted)
{
    const struct dk_stores_shape shape = odd_stores();
    struct dk_stores_bytes bytes;
    struct dk_latents *l;
    struct dk_states *s;
    struct dk_picks *p;
    struct dk_kv *kv;
    struct dk_backend *b;
    struct dk_err err = {0};

    ops->stores_bytes(&counted, &shape, &bytes);
    cr_assert_eq(ops->open(&counted, &b, &err), 0, "%s", err.text);
    cr_assert_eq(ops->kv_open(b, &odd_kv, &kv, &err), 0, "%s", err.text);
    cr_assert_eq(ops->latents_open(b, &odd_latents, &l, &err), 0, "%s", err.text);
    cr_assert_eq(ops->picks_open(b, shape.top_k, &p, &err), 0, "%s", err.text);
    cr_assert_eq(ops->states_open(b, &odd_states, &s, &err), 0, "%s", err.text);
    expect_bytes(bytes.page * 300, (void *[]){kv->keys, kv->values, l->rows, l->index_keys}, 4, "pages");
    expect_bytes(bytes.slot * 50, (void *[]){s->inputs, s->recurrent}, 2, "slots");
    expect_bytes(
        bytes.fixed,
        (void *[]){b->scratch, kv->scores, l->queries, l->scores, p->counts, p->positions, s->norms, s->scalars}, 8,
        "fixed");
    ops->states_close(b, s);
    ops->picks_close(b, p);
    ops->latents_close(b, l);
    ops->kv_close(b, kv);
    ops->close(b);
}

Test(backend_cpu, scratch_has_a_limit_and_can_be_taken_again)
{
    struct dk_backend *b = open_backend(1, 5, 8, 48);
    struct dk_rows a, c, more;

    for (int round = 0; round < 2; round++) {
        a = take(b, 17);
        c = take(b, 31);
        for (uint32_t i = 0; i < 5 * 17; i++)
            a.data[i] = 1;
        for (uint32_t i = 0; i < 5 * 31; i++)
            c.data[i] = 2;
        cr_expect_eq(a.data[5 * 17 - 1], 1);
        cr_expect_eq(ops->rows_take(b, 1000, &more), -ENOSPC);
        ops->rows_reset(b);
    }
    for (uint32_t i = 0; i < DK_ROWS_SLOTS_MAX; i++)
        take(b, 1);
    cr_expect_eq(ops->rows_take(b, 1, &more), -ENOSPC);
    ops->close(b);
}

Test(backend_cpu, rows_move_as_asked)
{
    enum { HIDDEN = 24, VOCAB = 10, ROWS = 4 };
    struct dk_backend *b = open_backend(2, ROWS, 8, 3 * HIDDEN);
    struct dk_rows x = take(b, HIDDEN), y = take(b, HIDDEN);
    float table[VOCAB * HIDDEN], host[ROWS * HIDDEN];
    const uint32_t ids[ROWS] = {7, 0, 9, 7}, order[] = {3, 1};
    struct dk_weight *w;

    fill(table, VOCAB * HIDDEN, 1);
    w = load(b, DK_WEIGHT_TABLE, table, VOCAB, HIDDEN);
    ops->embed(b, w, ROWS, ids, x);
    ops->download(b, x, 0, ROWS, host);
    for (int i = 0; i < ROWS; i++)
        cr_expect_arr_eq(host + i * HIDDEN, table + ids[i] * HIDDEN, HIDDEN * sizeof(float));
    ops->gather(b, x, 2, order, y);
    ops->download(b, y, 0, 2, host);
    cr_expect_arr_eq(host, table + 7 * HIDDEN, HIDDEN * sizeof(float));
    cr_expect_arr_eq(host + HIDDEN, table, HIDDEN * sizeof(float));
    ops->upload(b, x, 2, 1, table + HIDDEN);
    ops->add(b, ROWS, x, x);
    ops->download(b, x, 2, 2, host);
    for (int i = 0; i < HIDDEN; i++) {
        cr_expect_eq(host[i], 2 * table[HIDDEN + i]);
        cr_expect_eq(host[HIDDEN + i], 2 * table[7 * HIDDEN + i]);
    }
    ops->weight_free(b, w);
    ops->close(b);
}

Test(backend_cpu, linear_and_norm_match_their_formulas)
{
    enum { IN = 70, OUT = 45, ROWS = 3, GROUP = 14 };
    struct dk_backend *b = open_backend(2, ROWS, 8, IN + OUT + IN);
    struct dk_rows x = take(b, IN), y = take(b, OUT), z = take(b, IN);
    float matrix[OUT * IN], norm[GROUP], host_x[ROWS * IN], host_y[ROWS * OUT], host_z[ROWS * IN], direct[ROWS * OUT];
    struct dk_weight *m, *v;

    fill(matrix, OUT * IN, 2);
    fill(norm, GROUP, 3);
    fill(host_x, ROWS * IN, 4);
    m = load(b, DK_WEIGHT_MATRIX, matrix, OUT, IN);
    v = load(b, DK_WEIGHT_VECTOR, norm, GROUP, 0);
    ops->upload(b, x, 0, ROWS, host_x);
    ops->linear(b, ROWS, x, m, y);
    ops->download(b, y, 0, ROWS, host_y);
    ops->linear_host(b, ROWS, x, m, direct);
    cr_expect_arr_eq(host_y, direct, sizeof(direct));
    ops->rmsnorm(b, ROWS, x, GROUP, v, 1e-6f, z);
    ops->download(b, z, 0, ROWS, host_z);
    for (int r = 0; r < ROWS; r++) {
        for (int o = 0; o < OUT; o++) {
            double sum = 0;

            for (int i = 0; i < IN; i++)
                sum += (double)matrix[o * IN + i] * host_x[r * IN + i];
            cr_expect_float_eq(host_y[r * OUT + o], sum, 1e-5);
        }
        for (int i = 0; i < IN; i++) {
            double square = 0;

            for (int k = 0; k < GROUP; k++)
                square += pow(host_x[r * IN + i / GROUP * GROUP + k], 2);
            cr_expect_float_eq(host_z[r * IN + i], host_x[r * IN + i] / sqrt(square / GROUP + 1e-6) * norm[i % GROUP],
                               1e-5);
        }
    }
    ops->weight_free(b, m);
    ops->weight_free(b, v);
    ops->close(b);
}

Test(backend_cpu, a_bad_scale_names_the_tensor)
{
    static uint8_t weights[64 * 130];
    float scales[2] = {1, NAN};
    const struct dk_tensor weight = {.name = "model.bad.weight",
                                     .type = DK_F8_E4M3,
                                     .rank = 2,
                                     .shape = {64, 130},
                                     .data = weights,
                                     .bytes = sizeof(weights),
                                     .file = "shard"};
    const struct dk_tensor scale = {.name = "model.bad.weight_scale_inv",
                                    .type = DK_F32,
                                    .rank = 2,
                                    .shape = {1, 2},
                                    .data = (const uint8_t *)scales,
                                    .bytes = sizeof(scales),
                                    .file = "shard"};
    struct dk_backend *b = open_backend(2, 1, 1, 1);
    struct dk_err err = {0};
    struct dk_weight *w;

    cr_expect_eq(ops->weight_load(b, DK_WEIGHT_MATRIX, &weight, &scale, &w, &err), -EINVAL);
    cr_expect_null(w);
    cr_expect_not_null(strstr(err.text, "model.bad.weight"), "%s", err.text);
    ops->close(b);
}

Test(backend_cpu, rope_turns_pairs_by_the_position)
{
    enum { HEADS = 2, DIM = 8, ROWS = 3 };
    struct dk_backend *b = open_backend(1, ROWS, 8, HEADS * DIM + DIM);
    struct dk_rows x = take(b, HEADS * DIM), angles = take(b, DIM);
    const struct dk_span spans[] = {{.row = 0, .count = 1, .position = 1000}, {.row = 1, .count = 2, .position = 5}};
    const uint32_t positions[ROWS] = {1000, 5, 6};
    const float inverse[DIM / 2] = {1, 0.1f, 0.01f, 0.001f}, factor = 1.25f;
    float before[ROWS * HEADS * DIM], after[ROWS * HEADS * DIM];

    fill(before, ROWS * HEADS * DIM, 5);
    ops->upload(b, x, 0, ROWS, before);
    ops->rope_angles(b, spans, 2, inverse, factor, angles);
    ops->rope(b, ROWS, x, DIM, 0, DK_ROPE_HALVES, angles);
    ops->download(b, x, 0, ROWS, after);
    for (int at = 0; at < ROWS * HEADS * DIM; at++) {
        int row = at / (HEADS * DIM), d = at % DIM, i = d % (DIM / 2);
        const float *pair = before + at - d + i;
        double angle = (double)positions[row] * inverse[i];
        double expected = d < DIM / 2 ? pair[0] * cos(angle) - pair[DIM / 2] * sin(angle)
                                      : pair[DIM / 2] * cos(angle) + pair[0] * sin(angle);

        cr_expect_float_eq(after[at], expected * factor, 1e-4, "at %d", at);
    }
    ops->close(b);
}

/* Three sequences with their own pages, and what attention over each in one piece must give. */
enum { HEADS = 6, KV_HEADS = 2, DIM = 32, PAGE = 4, LAYERS = 2, CONTEXT = 64, SEQUENCES = 3 };
enum { WIDTH = HEADS * DIM, KV_WIDTH = KV_HEADS * DIM };
static const uint32_t lengths[SEQUENCES] = {37, 16, 1};
static const uint32_t tables[SEQUENCES][10] = {{9, 3, 4, 0, 14, 2, 7, 11, 1, 5}, {6, 8, 13, 12}, {10}};

struct attention {
    struct dk_backend *b;
    struct dk_kv *kv;
    struct dk_rows q, k, v, y;
    const uint32_t *tables[SEQUENCES];
    float *all_q[SEQUENCES], *all_k[SEQUENCES], *all_v[SEQUENCES], *out[SEQUENCES];
};

static void attention_open(struct attention *a, uint32_t threads)
{
    const struct dk_kv_shape shape = {
        .layers = LAYERS, .kv_heads = KV_HEADS, .head_dim = DIM, .page_tokens = PAGE, .pages = 15};
    struct dk_err err = {0};

    a->b = open_backend(threads, CONTEXT, CONTEXT, 2 * WIDTH + 2 * KV_WIDTH);
    cr_assert_eq(ops->kv_open(a->b, &shape, &a->kv, &err), 0);
    a->q = take(a->b, WIDTH);
    a->k = take(a->b, KV_WIDTH);
    a->v = take(a->b, KV_WIDTH);
    a->y = take(a->b, WIDTH);
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        a->tables[s] = tables[s];
        a->all_q[s] = malloc(lengths[s] * WIDTH * sizeof(float));
        a->all_k[s] = malloc(lengths[s] * KV_WIDTH * sizeof(float));
        a->all_v[s] = malloc(lengths[s] * KV_WIDTH * sizeof(float));
        a->out[s] = calloc(lengths[s] * WIDTH, sizeof(float));
        fill(a->all_q[s], lengths[s] * WIDTH, 10 + s);
        fill(a->all_k[s], lengths[s] * KV_WIDTH, 20 + s);
        fill(a->all_v[s], lengths[s] * KV_WIDTH, 30 + s);
    }
}

static void attention_close(struct attention *a)
{
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        free(a->all_q[s]);
        free(a->all_k[s]);
        free(a->all_v[s]);
        free(a->out[s]);
    }
    ops->kv_close(a->b, a->kv);
    ops->close(a->b);
}

/* One step: sequence s gives counts[s] rows from done[s] on. */
static void attention_step(struct attention *a, uint32_t *done, const uint32_t *counts)
{
    struct dk_span spans[SEQUENCES];
    uint32_t rows = 0, n = 0;

    for (uint32_t s = 0; s < SEQUENCES; s++) {
        if (counts[s] == 0)
            continue;
        ops->upload(a->b, a->q, rows, counts[s], a->all_q[s] + done[s] * WIDTH);
        ops->upload(a->b, a->k, rows, counts[s], a->all_k[s] + done[s] * KV_WIDTH);
        ops->upload(a->b, a->v, rows, counts[s], a->all_v[s] + done[s] * KV_WIDTH);
        spans[n++] = (struct dk_span){.row = rows, .count = counts[s], .position = done[s], .pages = a->tables[s]};
        rows += counts[s];
    }
    ops->attend(a->b, a->kv, 1, spans, n, HEADS, 0.2f, a->q, a->k, a->v, a->y);
    rows = 0;
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        ops->download(a->b, a->y, rows, counts[s], a->out[s] + done[s] * WIDTH);
        rows += counts[s];
        done[s] += counts[s];
    }
}

static void attention_check(const struct attention *a)
{
    double largest = 0;

    for (uint32_t s = 0; s < SEQUENCES; s++) {
        for (uint32_t t = 0; t < lengths[s]; t++) {
            for (uint32_t h = 0; h < HEADS; h++) {
                const float *q = a->all_q[s] + t * WIDTH + h * DIM;
                uint32_t at = h / (HEADS / KV_HEADS) * DIM;
                double weight[CONTEXT], total = 0;

                for (uint32_t p = 0; p <= t; p++) {
                    double dot = 0;

                    for (uint32_t d = 0; d < DIM; d++)
                        dot += (double)q[d] * a->all_k[s][p * KV_WIDTH + at + d];
                    weight[p] = exp(dot * 0.2);
                    total += weight[p];
                }
                for (uint32_t d = 0; d < DIM; d++) {
                    double sum = 0;

                    for (uint32_t p = 0; p <= t; p++)
                        sum += weight[p] / total * a->all_v[s][p * KV_WIDTH + at + d];
                    largest = fmax(largest, difference_of(sum, (double)a->out[s][t * WIDTH + h * DIM + d]));
                }
            }
        }
    }
    cr_expect_lt(largest, 1e-6, "largest difference %g", largest);
}

Test(backend_cpu, attention_is_the_same_in_one_piece_in_chunks_and_beside_others)
{
    static const uint32_t plans[][6][SEQUENCES] = {
        {{37, 16, 1}},
        {{10, 0, 0}, {1, 16, 0}, {20, 0, 1}, {6, 0, 0}},
        {{36, 3, 0}, {0, 1, 0}, {1, 1, 1}, {0, 11, 0}},
    };
    struct attention reference, other;
    uint32_t whole[SEQUENCES] = {0};

    attention_open(&reference, 1);
    attention_step(&reference, whole, lengths);
    attention_check(&reference);
    for (uint32_t threads = 1; threads <= 3; threads++) {
        for (size_t plan = 0; plan < sizeof(plans) / sizeof(plans[0]); plan++) {
            uint32_t done[SEQUENCES] = {0};

            attention_open(&other, threads);
            for (size_t step = 0; step < 6; step++)
                attention_step(&other, done, plans[plan][step]);
            for (uint32_t s = 0; s < SEQUENCES; s++) {
                cr_assert_eq(done[s], lengths[s]);
                cr_expect_arr_eq(other.out[s], reference.out[s], lengths[s] * WIDTH * sizeof(float),
                                 "threads %u, plan %zu, sequence %u", threads, plan, s);
            }
            attention_close(&other);
        }
    }
    attention_close(&reference);
}

Test(backend_cpu, a_copied_page_serves_as_the_one_it_was_copied_from)
{
    /* Sequence 0 goes on with a copy of its third page, half full; the page itself then belongs to sequence 1. */
    static const uint32_t other_tables[2][10] = {{9, 3, 10, 0, 14, 2, 7, 11, 1, 5}, {4, 8, 13, 12}};
    static const uint32_t first[SEQUENCES] = {10, 0, 0}, second[SEQUENCES] = {1, 16, 0}, third[SEQUENCES] = {26, 0, 0};
    struct attention reference, other;
    uint32_t whole[SEQUENCES] = {0}, done[SEQUENCES] = {0};

    attention_open(&reference, 1);
    attention_step(&reference, whole, lengths);
    attention_open(&other, 2);
    attention_step(&other, done, first);
    ops->kv_copy(other.b, other.kv, 4, 10);
    for (uint32_t s = 0; s < 2; s++)
        other.tables[s] = other_tables[s];
    attention_step(&other, done, second);
    attention_step(&other, done, third);
    for (uint32_t s = 0; s < 2; s++) {
        cr_assert_eq(done[s], lengths[s]);
        cr_expect_arr_eq(other.out[s], reference.out[s], lengths[s] * WIDTH * sizeof(float), "sequence %u", s);
    }
    attention_close(&other);
    attention_close(&reference);
}
