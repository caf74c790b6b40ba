/* SPDX-License-Identifier: Apache-2.0 */
/* What must not show in the result: how a prompt is cut into steps, which sequences run beside it, how many threads
 * there are and which instruction set they use. Everything is compared bit for bit. */
#include "golden_file.h"
#include "local_model.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROMPTS   8
#define STEPS     24u
#define FEW_STEPS 8u

static const char *const models[] = {"qwen3-tiny", "qwen3-fp8-tiny", "qwen3-moe-fp8-tiny"};
#define MODELS (sizeof(models) / sizeof(models[0]))

struct prompt {
    char name[32];
    uint32_t *ids, count;
};

static void open_model(struct local_model *m, const char *model, const char *isa, uint32_t threads,
                       uint32_t page_tokens)
{
    struct local_options o = local_defaults();
    struct dk_err err = {0};
    char path[512];

    o.isa = isa;
    o.threads = threads;
    o.page_tokens = page_tokens;
    o.pages = o.sequences_max * (o.context + page_tokens - 1) / page_tokens;
    snprintf(path, sizeof(path), FIXTURES "/%s", model);
    cr_assert_eq(local_open(m, path, &o, &err), 0, "%s: %s", model, err.text);
}

static void prompts_load(const char *model, struct prompt *prompts)
{
    const char *name;
    char path[512];
    json_t *file, *prompt;
    int n = 0;

    snprintf(path, sizeof(path), FIXTURES "/%s/golden/golden.json", model);
    file = golden_json(path);
    json_object_foreach(json_object_get(file, "prompts"), name, prompt)
    {
        cr_assert_lt(n, PROMPTS);
        snprintf(prompts[n].name, sizeof(prompts[n].name), "%s", name);
        prompts[n].ids = golden_ids(prompt, "ids", &prompts[n].count);
        n++;
    }
    cr_assert_eq(n, PROMPTS);
    json_decref(file);
}

static void prompts_free(struct prompt *prompts)
{
    for (int i = 0; i < PROMPTS; i++)
        free(prompts[i].ids);
}

/* Logits of every position of a prompt that enters in pieces of `chunk` rows. */
static float *every_position(struct local_model *m, const struct prompt *p, uint32_t chunk)
{
    float *logits = malloc((size_t)p->count * m->config.vocab * sizeof(float));

    for (uint32_t at = 0; at < p->count; at += chunk) {
        uint32_t n = p->count - at < chunk ? p->count - at : chunk;

        cr_assert_eq(
            local_step(m, &(struct local_rows){5, at, n, p->ids + at}, 1, true, logits + (size_t)at * m->config.vocab),
            0);
    }
    dk_cache_release(m->cache, 5);
    return logits;
}

Test(family_batch, cuts_of_the_prompt_do_not_show)
{
    static const uint32_t chunks[] = {1, 7, 64};

    for (size_t i = 0; i < MODELS; i++) {
        struct prompt prompts[PROMPTS];
        struct local_model m;

        prompts_load(models[i], prompts);
        open_model(&m, models[i], NULL, 2, 16);
        for (int p = 0; p < PROMPTS; p++) {
            size_t bytes = (size_t)prompts[p].count * m.config.vocab * sizeof(float);
            float *whole = every_position(&m, &prompts[p], m.options.rows_max);

            for (size_t c = 0; c < sizeof(chunks) / sizeof(chunks[0]); c++) {
                float *cut = every_position(&m, &prompts[p], chunks[c]);

                cr_expect_arr_eq(cut, whole, bytes, "%s, %s: pieces of %u differ by %g", models[i], prompts[p].name,
                                 chunks[c], golden_difference(cut, whole, bytes / sizeof(float)));
                free(cut);
            }
            free(whole);
        }
        local_close(&m);
        prompts_free(prompts);
    }
}

/* A sequence that runs beside others. */
struct running {
    const struct prompt *prompt;
    uint32_t done, made, out[STEPS];
    float *logits; /* [STEPS][vocab] */
};

/* Takes rows for one sequence: its next token, or as much of its prompt as fits. */
static struct local_rows next_rows(const struct running *r, uint64_t id, uint32_t room)
{
    struct local_rows rows = {.sequence_id = id, .position = r->done, .count = 1};

    if (r->done < r->prompt->count) {
        uint32_t left = r->prompt->count - r->done;

        rows.count = left < room ? left : room;
        rows.ids = r->prompt->ids + r->done;
    } else {
        rows.ids = &r->out[r->made - 1];
    }
    return rows;
}

/* All prompts at once, `budget` rows a step; a new one enters every second step, so that prefill runs beside decode. */
static void run_together(struct local_model *m, struct running *all, uint32_t budget)
{
    uint32_t vocab = m->config.vocab, finished = 0;
    float *logits = malloc((size_t)PROMPTS * vocab * sizeof(float));
    struct local_rows rows[PROMPTS];
    uint32_t owner[PROMPTS];

    for (uint32_t step = 0; finished < PROMPTS; step++) {
        uint32_t used = 0, n = 0;

        /* Another one goes first at each step, so that places in the batch change. */
        for (uint32_t k = 0; k < PROMPTS && used < budget; k++) {
            uint32_t s = (step + k) % PROMPTS;

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
            if (r->done < r->prompt->count)
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

Test(family_batch, neighbours_do_not_show)
{
    for (size_t i = 0; i < MODELS; i++) {
        struct prompt prompts[PROMPTS];
        struct local_model m;
        struct running all[PROMPTS];
        uint32_t alone[STEPS];
        float *logits;
        size_t bytes;

        prompts_load(models[i], prompts);
        open_model(&m, models[i], NULL, 2, 16);
        bytes = (size_t)STEPS * m.config.vocab * sizeof(float);
        logits = malloc(bytes);
        for (int p = 0; p < PROMPTS; p++)
            all[p] = (struct running){.prompt = &prompts[p], .logits = malloc(bytes)};
        run_together(&m, all, 40);
        cr_expect_eq(dk_cache_pages_free(m.cache), m.options.pages);
        for (int p = 0; p < PROMPTS; p++) {
            cr_assert_eq(local_generate(&m, prompts[p].ids, prompts[p].count, 0, STEPS, alone, logits), 0);
            cr_expect_arr_eq(all[p].out, alone, sizeof(alone), "%s, %s: other tokens", models[i], prompts[p].name);
            cr_expect_arr_eq(all[p].logits, logits, bytes, "%s, %s: logits differ by %g", models[i], prompts[p].name,
                             golden_difference(all[p].logits, logits, bytes / sizeof(float)));
            free(all[p].logits);
        }
        free(logits);
        local_close(&m);
        prompts_free(prompts);
    }
}

Test(family_batch, instruction_sets_threads_and_pages_do_not_show)
{
    static const struct {
        const char *isa;
        uint32_t threads, page_tokens;
    } variants[] = {{"ref", 1, 16},    {"ref", 2, 7},    {"avx2", 1, 16},   {"avx2", 2, 5},
                    {"avx512", 1, 16}, {"avx512", 2, 1}, {"avx512", 3, 64}, {"auto", 2, 16}};

    for (size_t i = 0; i < MODELS; i++) {
        struct prompt prompts[PROMPTS];
        float *reference = NULL, *logits;
        uint32_t compared = 0, out[FEW_STEPS];
        size_t bytes = 0;

        prompts_load(models[i], prompts);
        for (size_t k = 0; k < sizeof(variants) / sizeof(variants[0]); k++) {
            struct local_model m;
            enum dk_isa isa;

            if (dk_isa_parse(variants[k].isa, &isa) == -ENOTSUP) {
                printf("%s: this CPU has no %s, not compared\n", models[i], variants[k].isa);
                continue;
            }
            open_model(&m, models[i], variants[k].isa, variants[k].threads, variants[k].page_tokens);
            bytes = (size_t)PROMPTS * FEW_STEPS * m.config.vocab * sizeof(float);
            logits = calloc(1, bytes);
            for (int p = 0; p < PROMPTS; p++) {
                /* The reference is slow: the longest prompt is left to the other tests. */
                if (prompts[p].count < 120)
                    cr_assert_eq(local_generate(&m, prompts[p].ids, prompts[p].count, 0, FEW_STEPS, out,
                                                logits + (size_t)p * FEW_STEPS * m.config.vocab),
                                 0);
            }
            if (!reference) {
                reference = logits;
            } else {
                cr_expect_arr_eq(logits, reference, bytes, "%s: %s with %u threads, pages of %u: differs by %g",
                                 models[i], variants[k].isa, variants[k].threads, variants[k].page_tokens,
                                 golden_difference(logits, reference, bytes / sizeof(float)));
                free(logits);
                compared++;
            }
            local_close(&m);
        }
        printf("%s: %u variants give the bits of ref\n", models[i], compared);
        free(reference);
        prompts_free(prompts);
    }
}
