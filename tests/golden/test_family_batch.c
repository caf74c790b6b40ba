/* SPDX-License-Identifier: Apache-2.0 */
/* What must not show in the result: how a prompt is cut into steps, which sequences run beside it, whether a sequence
 * was forked or restored, how many threads there are and which instruction set they use. Everything is compared bit for
 * bit. */
#include "golden_file.h"
#include "golden_models.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS     24u
#define FEW_STEPS 8u
#define SEQUENCES 8

/* A sanitizer's build is some ten times slower: there only every so manieth cut of a prompt is tried. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CUT_STRIDE 13u
#else
#define CUT_STRIDE 1u
#endif

static void open_model(struct local_model *m, const char *model, bool full_attention, uint32_t threads)
{
    struct local_options o = local_defaults();

    o.threads = threads;
    o.full_attention = full_attention;
    golden_open(m, model, &o);
}

/* ---- cuts of a prompt */

/* Logits of the last row of ids [0, count), which enter in pieces of `first` and then `chunk` rows. */
static void last_row(struct local_model *m, const uint32_t *ids, uint32_t count, uint32_t first, uint32_t chunk,
                     float *logits)
{
    for (uint32_t at = 0, n = first; at < count; at += n, n = chunk) {
        if (n > count - at)
            n = count - at;
        cr_assert_eq(local_step(m, &(struct local_rows){5, at, n, ids + at}, 1, false, logits), 0);
    }
    dk_cache_release(m->cache, 5);
}

static void check_cuts(struct local_model *m, const char *model, const uint32_t *ids, uint32_t count)
{
    size_t bytes = m->config.vocab * sizeof(float);
    float *whole = malloc(bytes), *cut = malloc(bytes);

    last_row(m, ids, count, count, count, whole);
    last_row(m, ids, count, 1, 1, cut);
    cr_expect_arr_eq(cut, whole, bytes, "%s: %u tokens one by one differ by %g", model, count,
                     golden_difference(cut, whole, m->config.vocab));
    for (uint32_t at = 1; at < count; at += CUT_STRIDE) {
        last_row(m, ids, count, at, count, cut);
        cr_expect_arr_eq(cut, whole, bytes, "%s: %u tokens, cut at %u, differ by %g", model, count, at,
                         golden_difference(cut, whole, m->config.vocab));
    }
    free(whole);
    free(cut);
}

static void cuts(const char *model, bool full_attention)
{
    static const uint32_t counts[] = {1, 3, 63, 64, 65, 100, 129};
    uint32_t available, *ids = golden_prompt_ids(model, "three_hundred", &available);
    struct local_model m;

    open_model(&m, model, full_attention, 1);
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        cr_assert_leq(counts[i], available);
        check_cuts(&m, model, ids, counts[i]);
    }
    cr_expect_eq(dk_cache_pages_free(m.cache), m.options.pages);
    printf("%s: %zu prompts, one by one and cut at every %s (stride %u)\n", model, sizeof(counts) / sizeof(counts[0]),
           CUT_STRIDE == 1 ? "place" : "so manieth place", CUT_STRIDE);
    local_close(&m);
    free(ids);
}

#define CUTS(id, model, full)                               \
    Test(family_batch, cuts_of_the_prompt_do_not_show_##id) \
    {                                                       \
        cuts(model, full);                                  \
    }
GOLDEN_MODES(CUTS)

/* Logits of every position of a prompt that enters in pieces of `chunk` rows. */
static float *every_position(struct local_model *m, const uint32_t *ids, uint32_t count, uint32_t chunk)
{
    float *logits = malloc((size_t)count * m->config.vocab * sizeof(float));

    for (uint32_t at = 0; at < count; at += chunk) {
        uint32_t n = count - at < chunk ? count - at : chunk;

        cr_assert_eq(
            local_step(m, &(struct local_rows){5, at, n, ids + at}, 1, true, logits + (size_t)at * m->config.vocab), 0);
    }
    dk_cache_release(m->cache, 5);
    return logits;
}

static void pieces(const char *model)
{
    static const uint32_t chunks[] = {1, 7, 64};
    uint32_t count, *ids = golden_prompt_ids(model, "three_hundred", &count);
    struct local_model m;
    float *whole;
    size_t bytes;

    open_model(&m, model, false, 2);
    bytes = (size_t)count * m.config.vocab * sizeof(float);
    whole = every_position(&m, ids, count, m.options.rows_max);
    for (size_t c = 0; c < sizeof(chunks) / sizeof(chunks[0]); c++) {
        float *cut = every_position(&m, ids, count, chunks[c]);

        cr_expect_arr_eq(cut, whole, bytes, "%s: pieces of %u differ by %g", model, chunks[c],
                         golden_difference(cut, whole, bytes / sizeof(float)));
        free(cut);
    }
    free(whole);
    free(ids);
    local_close(&m);
}

#define PIECES(id, model, full)                                  \
    Test(family_batch, pieces_of_a_long_prompt_do_not_show_##id) \
    {                                                            \
        pieces(model);                                           \
    }
GOLDEN_MODELS(PIECES)

/* ---- sequences beside each other */

/* A sequence that runs beside others. */
struct running {
    const uint32_t *ids; /* its prompt */
    uint32_t count, done, made, out[STEPS];
    float *logits; /* [STEPS][vocab] */
};

/* Takes rows for one sequence: its next token, or as much of its prompt as fits. */
static struct local_rows next_rows(const struct running *r, uint64_t id, uint32_t room)
{
    struct local_rows rows = {.sequence_id = id, .position = r->done, .count = 1};

    if (r->done < r->count) {
        uint32_t left = r->count - r->done;

        rows.count = left < room ? left : room;
        rows.ids = r->ids + r->done;
    } else {
        rows.ids = &r->out[r->made - 1];
    }
    return rows;
}

/* All at once, `budget` rows a step; a new one enters every second step, so that prefill runs beside decode. */
static void run_together(struct local_model *m, struct running *all, uint32_t budget)
{
    uint32_t vocab = m->config.vocab, finished = 0;
    float *logits = malloc((size_t)SEQUENCES * vocab * sizeof(float));
    struct local_rows rows[SEQUENCES];
    uint32_t owner[SEQUENCES];

    for (uint32_t step = 0; finished < SEQUENCES; step++) {
        uint32_t used = 0, n = 0;

        /* Another one goes first at each step, so that places in the batch change. */
        for (uint32_t k = 0; k < SEQUENCES && used < budget; k++) {
            uint32_t s = (step + k) % SEQUENCES;

            if (all[s].made == STEPS || 2 * s > step)
                continue;
            rows[n] = next_rows(&all[s], 100 + s, budget - used);
            used += rows[n].count;
            owner[n++] = s;
        }
        cr_assert_lt(step, 10000u);
        cr_assert_eq(local_step(m, rows, n, false, logits), 0);
        for (uint32_t k = 0; k < n; k++) {
            struct running *r = &all[owner[k]];

            r->done += rows[k].count;
            if (r->done < r->count)
                continue;
            memcpy(r->logits + (size_t)r->made * vocab, logits + (size_t)k * vocab, vocab * sizeof(float));
            r->out[r->made++] = local_argmax(logits + (size_t)k * vocab, vocab);
            if (r->made == STEPS) {
                dk_cache_release(m->cache, 100 + owner[k]);
                finished++;
            }
        }
    }
    free(logits);
}

static void neighbours(const char *model, bool full_attention)
{
    struct golden_prompt prompts[GOLDEN_PROMPTS_MAX];
    uint32_t count = golden_prompts(model, prompts), alone[STEPS];
    struct running all[SEQUENCES];
    struct local_model m;
    float *logits;
    size_t bytes;

    open_model(&m, model, full_attention, 2);
    bytes = (size_t)STEPS * m.config.vocab * sizeof(float);
    logits = malloc(bytes);
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        /* Those that have no prompt of their own get a part of one. */
        const struct golden_prompt *p = &prompts[s < count ? s : s - count];

        all[s] = (struct running){
            .ids = p->ids, .count = s < count ? p->count : (p->count + 1) / 2, .logits = malloc(bytes)};
    }
    run_together(&m, all, 40);
    cr_expect_eq(dk_cache_pages_free(m.cache), m.options.pages);
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        cr_assert_eq(local_generate(&m, all[s].ids, all[s].count, 0, STEPS, alone, logits), 0);
        cr_expect_arr_eq(all[s].out, alone, sizeof(alone), "%s, sequence %u: other tokens", model, s);
        cr_expect_arr_eq(all[s].logits, logits, bytes, "%s, sequence %u: logits differ by %g", model, s,
                         golden_difference(all[s].logits, logits, bytes / sizeof(float)));
        free(all[s].logits);
    }
    free(logits);
    local_close(&m);
    golden_prompts_free(prompts, count);
}

#define NEIGHBOURS(id, model, full)                 \
    Test(family_batch, neighbours_do_not_show_##id) \
    {                                               \
        neighbours(model, full);                    \
    }
GOLDEN_MODES(NEIGHBOURS)

/* A traced sequence in the middle of a step gives the values that it gives alone, and the logits that it gives
 * untraced. */
static void traced(const char *model)
{
    uint32_t count, *ids = golden_prompt_ids(model, "question", &count), before = 5;
    struct dk_trace_list alone = {0}, beside = {0};
    float *logits, *expected;
    struct local_model m;
    size_t bytes;

    open_model(&m, model, false, 2);
    bytes = m.config.vocab * sizeof(float);
    logits = malloc(3 * bytes);
    expected = malloc(bytes);
    cr_assert_eq(local_step(&m, &(struct local_rows){1, 0, count, ids}, 1, false, expected), 0);
    dk_cache_release_all(m.cache);
    local_trace(&m, &alone, 0);
    cr_assert_eq(local_step(&m, &(struct local_rows){1, 0, count, ids}, 1, false, logits), 0);
    cr_expect_arr_eq(logits, expected, bytes, "%s: the trace shows in the logits", model);
    dk_cache_release_all(m.cache);
    local_trace(&m, &beside, 1);
    cr_assert_eq(local_step(&m, (struct local_rows[]){{1, 0, before, ids}, {2, 0, count, ids}, {3, 0, 1, ids}}, 3,
                            false, logits),
                 0);
    cr_assert_eq(beside.count, alone.count);
    cr_assert_gt(alone.count, 2 * m.config.layers);
    for (size_t i = 0; i < alone.count; i++) {
        const struct dk_trace_tensor *a = &alone.tensors[i], *b = &beside.tensors[i];

        cr_assert_str_eq(a->name, b->name);
        cr_assert_eq(a->bytes, b->bytes);
        cr_expect_arr_eq(a->data, b->data, a->bytes, "%s: %s", model, a->name);
    }
    local_trace(&m, NULL, 0);
    count = (uint32_t)alone.count;
    dk_cache_release_all(m.cache);
    cr_assert_eq(local_step(&m, &(struct local_rows){1, 0, before, ids}, 1, false, logits), 0);
    cr_expect_eq(alone.count, count, "%s: traced without being asked", model);
    dk_trace_list_fini(&alone);
    dk_trace_list_fini(&beside);
    free(logits);
    free(expected);
    free(ids);
    local_close(&m);
}

#define TRACED(id, model, full)                                \
    Test(family_batch, neighbours_do_not_show_in_a_trace_##id) \
    {                                                          \
        traced(model);                                         \
    }
GOLDEN_MODELS(TRACED)

/* ---- snapshots and forks */

enum { FIRST = 1, SNAPSHOT = 2, OTHER = 3 };

/* Where a sequence stands: the logits that its next token is chosen from. */
struct way {
    uint64_t sequence_id;
    uint32_t out[FEW_STEPS];
    float *logits; /* [FEW_STEPS][vocab] */
};

/* Both ways go on at the same time; the second one takes the other most likely token first. */
static void go_on_together(struct local_model *m, uint32_t position, const float *row, struct way *first,
                           struct way *other)
{
    uint32_t vocab = m->config.vocab;
    float *rows = malloc(2 * vocab * sizeof(float));

    memcpy(rows, row, vocab * sizeof(float));
    memcpy(rows + vocab, row, vocab * sizeof(float));
    rows[vocab + local_argmax(row, vocab)] = -1e30f;
    for (uint32_t i = 0; i < FEW_STEPS; i++) {
        first->out[i] = local_argmax(rows, vocab);
        other->out[i] = local_argmax(rows + vocab, vocab);
        memcpy(first->logits + (size_t)i * vocab, rows, vocab * sizeof(float));
        memcpy(other->logits + (size_t)i * vocab, rows + vocab, vocab * sizeof(float));
        cr_assert_eq(local_step(m,
                                (struct local_rows[]){{first->sequence_id, position + i, 1, &first->out[i]},
                                                      {other->sequence_id, position + i, 1, &other->out[i]}},
                                2, false, rows),
                     0);
    }
    free(rows);
}

/* A prompt of `count` tokens: a snapshot, 8 tokens, back to the snapshot and the same again, then once more beside a
 * fork that goes another way; and that one as if it had never been a fork. */
static void check_snapshot(struct local_model *m, const char *model, const uint32_t *ids, uint32_t count)
{
    size_t vocab = m->config.vocab, bytes = FEW_STEPS * vocab * sizeof(float);
    struct way once = {.sequence_id = FIRST, .logits = malloc(bytes)};
    struct way again = {.sequence_id = FIRST, .logits = malloc(bytes)};
    struct way other = {.sequence_id = OTHER, .logits = malloc(bytes)};
    float *at = malloc(vocab * sizeof(float)), *row = malloc(vocab * sizeof(float));

    cr_assert_eq(local_step(m, &(struct local_rows){FIRST, 0, count, ids}, 1, false, at), 0);
    cr_assert_eq(dk_cache_fork(m->cache, FIRST, SNAPSHOT), 0);
    memcpy(row, at, vocab * sizeof(float));
    cr_assert_eq(local_continue(m, FIRST, count, row, FEW_STEPS, once.out, once.logits), 0);

    dk_cache_release(m->cache, FIRST);
    cr_assert_eq(dk_cache_fork(m->cache, SNAPSHOT, FIRST), 0);
    cr_expect_eq(dk_cache_tokens(m->cache, FIRST), count);
    memcpy(row, at, vocab * sizeof(float));
    cr_assert_eq(local_continue(m, FIRST, count, row, FEW_STEPS, again.out, again.logits), 0);
    cr_expect_arr_eq(again.out, once.out, sizeof(once.out), "%s, %u tokens: other tokens", model, count);
    cr_expect_arr_eq(again.logits, once.logits, bytes, "%s, %u tokens: restored, logits differ by %g", model, count,
                     golden_difference(again.logits, once.logits, FEW_STEPS * vocab));

    dk_cache_release(m->cache, FIRST);
    cr_assert_eq(dk_cache_fork(m->cache, SNAPSHOT, FIRST), 0);
    cr_assert_eq(dk_cache_fork(m->cache, SNAPSHOT, OTHER), 0);
    dk_cache_release(m->cache, SNAPSHOT);
    go_on_together(m, count, at, &again, &other);
    cr_expect_arr_eq(again.logits, once.logits, bytes, "%s, %u tokens: beside a fork, logits differ by %g", model,
                     count, golden_difference(again.logits, once.logits, FEW_STEPS * vocab));
    cr_expect_neq(other.out[0], once.out[0]);
    dk_cache_release_all(m->cache);

    /* The other way alone: its tokens as a prompt. */
    cr_assert_eq(local_step(m, &(struct local_rows){FIRST, 0, count, ids}, 1, false, row), 0);
    for (uint32_t i = 0; i + 1 < FEW_STEPS; i++) {
        cr_assert_eq(local_step(m, &(struct local_rows){FIRST, count + i, 1, &other.out[i]}, 1, false, row), 0);
        cr_expect_arr_eq(other.logits + (i + 1) * vocab, row, vocab * sizeof(float),
                         "%s, %u tokens: the fork's logits differ by %g", model, count,
                         golden_difference(other.logits + (i + 1) * vocab, row, vocab));
    }
    dk_cache_release_all(m->cache);
    free(once.logits);
    free(again.logits);
    free(other.logits);
    free(at);
    free(row);
}

static void snapshots(const char *model, bool full_attention)
{
    /* Pages hold 16 tokens: inside the first, at its end, just behind, inside and at the end of later ones. */
    static const uint32_t counts[] = {1, 5, 15, 16, 17, 32, 37, 64, 100};
    uint32_t available, *ids = golden_prompt_ids(model, "three_hundred", &available);
    struct local_model m;

    open_model(&m, model, full_attention, 1);
    cr_assert_eq(m.options.page_tokens, 16);
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        check_snapshot(&m, model, ids, counts[i]);
        cr_expect_eq(dk_cache_pages_free(m.cache), m.options.pages);
    }
    local_close(&m);
    free(ids);
}

#define SNAPSHOTS(id, model, full)                           \
    Test(family_batch, snapshots_restore_the_same_bits_##id) \
    {                                                        \
        snapshots(model, full);                              \
    }
GOLDEN_MODES(SNAPSHOTS)

/* ---- how the machine does it */

struct variant {
    const char *isa;
    uint32_t threads, page_tokens;
};

/* [prompts][FEW_STEPS][vocab]. The reference is slow: the longest prompt is left to the other tests. */
static float *run_variant(const char *model, const struct variant *v, const struct golden_prompt *prompts,
                          uint32_t count, size_t *floats)
{
    struct local_options o = local_defaults();
    uint32_t out[FEW_STEPS];
    struct local_model m;
    float *logits;

    o.isa = v->isa;
    o.threads = v->threads;
    o.page_tokens = v->page_tokens;
    o.pages = (o.context + o.page_tokens - 1) / o.page_tokens;
    golden_open(&m, model, &o);
    *floats = (size_t)count * FEW_STEPS * m.config.vocab;
    logits = calloc(*floats, sizeof(float));
    for (uint32_t p = 0; p < count; p++) {
        if (prompts[p].count < 120)
            cr_assert_eq(local_generate(&m, prompts[p].ids, prompts[p].count, 0, FEW_STEPS, out,
                                        logits + (size_t)p * FEW_STEPS * m.config.vocab),
                         0);
    }
    local_close(&m);
    return logits;
}

/* Those of the list give the bits of the first one. */
static void variants(const char *model, const struct variant *list, size_t list_count)
{
    struct golden_prompt prompts[GOLDEN_PROMPTS_MAX];
    uint32_t count = golden_prompts(model, prompts);
    size_t floats;
    float *expected = run_variant(model, list, prompts, count, &floats);

    for (size_t i = 0; i < floats; i++)
        cr_assert(isfinite(expected[i]), "%s: %s gives %g", model, list->isa, expected[i]);
    for (const struct variant *v = list + 1; v < list + list_count; v++) {
        float *logits = run_variant(model, v, prompts, count, &floats);

        cr_expect_arr_eq(logits, expected, floats * sizeof(float),
                         "%s: %s with %u threads, pages of %u: differs from %s by %g", model, v->isa, v->threads,
                         v->page_tokens, list->isa, golden_difference(logits, expected, floats));
        free(logits);
    }
    free(expected);
    golden_prompts_free(prompts, count);
}

#define VARIANTS(id, model, full)                                                               \
    Test(family_batch, threads_and_pages_do_not_show_##id)                                      \
    {                                                                                           \
        static const struct variant list[] = {{"ref", 2, 7}, {"auto", 1, 16}, {"auto", 3, 64}}; \
                                                                                                \
        variants(model, list, 3);                                                               \
    }
GOLDEN_MODELS(VARIANTS)

/* Each instruction set has tests of its own, so that one that this CPU lacks shows as skipped. */
static void need(const char *isa_name)
{
    enum dk_isa isa;

    if (dk_isa_parse(isa_name, &isa) != -ENOTSUP)
        return;
    printf("skipped: this CPU cannot run %s\n", isa_name); /* for ctest: Criterion tells it only when it is verbose */
    fflush(stdout);
    cr_skip("this CPU cannot run %s", isa_name);
}

#define AVX2(id, model, full)                                                                   \
    Test(family_batch, avx2_does_not_show_##id)                                                 \
    {                                                                                           \
        static const struct variant list[] = {{"ref", 1, 16}, {"avx2", 1, 16}, {"avx2", 2, 5}}; \
                                                                                                \
        need("avx2");                                                                           \
        variants(model, list, 3);                                                               \
    }
GOLDEN_MODELS(AVX2)

/* The reference is too slow to run once more: AVX2 is compared with it above, and is there where AVX-512 is. */
#define AVX512(id, model, full)                                                       \
    Test(family_batch, avx512_does_not_show_##id)                                     \
    {                                                                                 \
        static const struct variant list[] = {                                        \
            {"avx2", 1, 16}, {"avx512", 1, 16}, {"avx512", 2, 1}, {"avx512", 3, 64}}; \
                                                                                      \
        need("avx512");                                                               \
        variants(model, list, 4);                                                     \
    }
GOLDEN_MODELS(AVX512)
