/* SPDX-License-Identifier: Apache-2.0 */
/* A model that was really trained, bf16 and FP8: the environment variable DUCK_SMOLLM2 names the folder that holds
 * BF16/ and FP8/ (`tools/smollm2 DIR` makes it). Without it the program exits with 77: skipped. */
#include "attention-worker/sampler.h"
#include "golden_file.h"
#include "local_model.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK         256u
#define PROMPTS       5
#define STEPS         64u
#define LONG_STEPS    16u
#define TOP           20u
#define LOGPROB_LIMIT 1e-3
#define NLL_LIMIT     0.05 /* of about 1575 */

struct fixture {
    const char *label;
    struct local_model m;
    json_t *file;
    struct golden_tensors tensors;
    double tie_margin;
};

static void setup(struct fixture *f, const char *label, const char *folder, const char *golden)
{
    struct local_options o = {
        .threads = 2, .rows_max = CHUNK, .context = 1600, .sequences_max = PROMPTS, .page_tokens = 16, .pages = 140};
    struct dk_err err = {0};
    char path[1024];

    f->label = label;
    snprintf(path, sizeof(path), "%s/%s", getenv("DUCK_SMOLLM2"), folder);
    cr_assert_eq(local_open(&f->m, path, &o, &err), 0, "%s", err.text);
    snprintf(path, sizeof(path), FIXTURES "/smollm2/%s.json", golden);
    f->file = golden_json(path);
    snprintf(path, sizeof(path), FIXTURES "/smollm2/%s.safetensors", golden);
    golden_tensors_open(&f->tensors, path);
    f->tie_margin = json_number_value(json_object_get(f->file, "tie_margin"));
    cr_assert_gt(f->tie_margin, 0);
}

static void teardown(struct fixture *f)
{
    golden_tensors_close(&f->tensors);
    json_decref(f->file);
    local_close(&f->m);
}

static void check_greedy(const struct fixture *f, const char *name, const json_t *prompt, const uint32_t *got,
                         uint32_t steps)
{
    uint32_t count, same = 0, *expected = golden_ids(prompt, "greedy_ids", &count);
    const json_t *margins = json_object_get(prompt, "margins");

    cr_assert_eq(count, steps);
    while (same < steps && got[same] == expected[same])
        same++;
    printf("%s: %s: %u of %u greedy tokens\n", f->label, name, same, steps);
    /* After a tie either token is right, and what follows may differ. */
    if (same < steps)
        cr_expect_lt(golden_number(margins, same), f->tie_margin, "%s: %s: step %u gives %u, not %u, margin %g",
                     f->label, name, same, got[same], expected[same], golden_number(margins, same));
    free(expected);
}

/* Our log-probabilities of [id, logit, log-probability] triples. */
static double top_difference(const json_t *top, const float *logits, uint32_t vocab)
{
    struct dk_sampling greedy = {.top_p = 1};
    uint32_t *scratch = malloc(vocab * sizeof(uint32_t));
    struct dk_sampled sampled;
    double largest = 0, log_total;

    cr_assert_eq(dk_sample(logits, vocab, &greedy, 0, scratch, &sampled), 0);
    log_total = (double)logits[sampled.token] - sampled.logprob;
    cr_assert_eq(json_array_size(top), TOP);
    for (size_t i = 0; i < TOP; i++) {
        const json_t *entry = json_array_get(top, i);
        double logprob = logits[(size_t)golden_number(entry, 0)] - log_total;

        largest = fmax(largest, golden_distance(logprob, golden_number(entry, 2)));
    }
    free(scratch);
    return largest;
}

/* The largest difference in units of the largest expected value: the residual stream grows to some hundreds. */
static double relative_difference(const float *got, const float *expected, uint32_t count)
{
    double scale = 0;

    for (uint32_t i = 0; i < count; i++)
        scale = fmax(scale, fabs(expected[i]));
    return golden_difference(got, expected, count) / scale;
}

/* The traced rows' last one. */
static const float *last_row(const struct dk_trace_list *list, const char *name, uint32_t hidden)
{
    const struct dk_trace_tensor *t = dk_trace_list_find(list, name);

    cr_assert_not_null(t, "%s is not traced", name);
    cr_assert_eq(t->shape[1], hidden);
    return (const float *)t->data + (size_t)(t->shape[0] - 1) * hidden;
}

/* The last position of prompt `capital` in all layers. */
static void check_hidden(struct fixture *f, const struct dk_trace_list *list)
{
    uint32_t hidden = f->m.config.hidden, layers = f->m.config.layers;
    size_t values;
    float *expected = golden_tensor(&f->tensors, &values, "hidden.capital");
    double largest = 0;
    char name[64];

    cr_assert_eq(values, (size_t)(layers + 2) * hidden);
    cr_expect_eq(golden_difference(last_row(list, "embed", hidden), expected, hidden), 0);
    for (uint32_t layer = 0; layer < layers; layer++) {
        snprintf(name, sizeof(name), "layer.%u.out", layer);
        largest = fmax(largest, relative_difference(last_row(list, name, hidden),
                                                    expected + (size_t)(layer + 1) * hidden, hidden));
    }
    largest = fmax(largest, relative_difference(last_row(list, "final_norm", hidden),
                                                expected + (size_t)(layers + 1) * hidden, hidden));
    printf("%s: hidden.capital differs by %.1e (relative)\n", f->label, largest);
    cr_expect_leq(largest, 2e-5);
    free(expected);
}

/* The five prompts run beside each other. */
static void check_prompts(struct fixture *f)
{
    static const char *const names[PROMPTS] = {"capital", "count", "factorial", "rainbow", "multi_turn"};
    const json_t *prompts = json_object_get(f->file, "prompts");
    uint32_t vocab = f->m.config.vocab, *ids[PROMPTS], out[PROMPTS][STEPS];
    float *logits = malloc((size_t)PROMPTS * vocab * sizeof(float));
    struct local_rows rows[PROMPTS];
    struct dk_trace_list list = {0};

    for (uint32_t p = 0; p < PROMPTS; p++) {
        rows[p] = (struct local_rows){.sequence_id = p};
        ids[p] = golden_ids(json_object_get(prompts, names[p]), "ids", &rows[p].count);
        rows[p].ids = ids[p];
    }
    for (uint32_t step = 0; step < STEPS; step++) {
        local_trace(&f->m, step == 0 ? &list : NULL, 0);
        cr_assert_eq(local_step(&f->m, rows, PROMPTS, false, logits), 0);
        if (step == 0)
            check_hidden(f, &list);
        for (uint32_t p = 0; p < PROMPTS; p++) {
            if (step == 0) {
                double d = top_difference(json_object_get(json_object_get(prompts, names[p]), "last_top20"),
                                          logits + (size_t)p * vocab, vocab);

                printf("%s: %s: log-probabilities differ by %.1e\n", f->label, names[p], d);
                cr_expect_leq(d, LOGPROB_LIMIT);
            }
            out[p][step] = local_argmax(logits + (size_t)p * vocab, vocab);
            rows[p].position += rows[p].count;
            rows[p].count = 1;
            rows[p].ids = &out[p][step];
        }
    }
    for (uint32_t p = 0; p < PROMPTS; p++) {
        check_greedy(f, names[p], json_object_get(prompts, names[p]), out[p], STEPS);
        dk_cache_release(f->m.cache, p);
        free(ids[p]);
    }
    dk_trace_list_fini(&list);
    free(logits);
}

static void check_long(struct fixture *f)
{
    const json_t *prompt = json_object_get(f->file, "long");
    uint32_t count, *ids = golden_ids(prompt, "ids", &count), out[LONG_STEPS];
    size_t vocab;
    float *last = golden_tensor(&f->tensors, &vocab, "long.last");
    float *logits = malloc(LONG_STEPS * vocab * sizeof(float));
    double difference;

    cr_assert_eq(vocab, f->m.config.vocab);
    cr_assert_eq(local_generate(&f->m, ids, count, CHUNK, LONG_STEPS, out, logits), 0);
    difference = golden_difference(logits, last, vocab);
    printf("%s: long (%u tokens): last logits differ by %.1e\n", f->label, count, difference);
    cr_expect_leq(difference, LOGPROB_LIMIT);
    check_greedy(f, "long", prompt, out, LONG_STEPS);
    free(ids);
    free(last);
    free(logits);
}

static void check_text(struct fixture *f)
{
    const json_t *text = json_object_get(f->file, "text");
    uint32_t count, vocab = f->m.config.vocab, *ids = golden_ids(text, "ids", &count);
    float *next = golden_tensor(&f->tensors, NULL, "text.next_logprob");
    int32_t *top_ids = golden_tensor(&f->tensors, NULL, "text.top20_ids");
    float *top = golden_tensor(&f->tensors, NULL, "text.top20_logprobs");
    float *logits = malloc((size_t)CHUNK * vocab * sizeof(float));
    double nll = 0, expected_nll = json_number_value(json_object_get(text, "nll_total")), largest_next = 0,
           largest_top = 0;

    for (uint32_t at = 0; at < count; at += CHUNK) {
        uint32_t n = count - at < CHUNK ? count - at : CHUNK;

        cr_assert_eq(local_step(&f->m, &(struct local_rows){9, at, n, ids + at}, 1, true, logits), 0);
        for (uint32_t i = 0; i < n; i++) {
            const float *row = logits + (size_t)i * vocab;
            float best = row[local_argmax(row, vocab)];
            double total = 0, log_total;

            for (uint32_t t = 0; t < vocab; t++)
                total += exp((double)row[t] - best);
            log_total = best + log(total);
            for (uint32_t k = 0; k < TOP; k++) {
                double logprob = (double)row[top_ids[(at + i) * TOP + k]] - log_total;

                largest_top = fmax(largest_top, golden_distance(logprob, (double)top[(at + i) * TOP + k]));
            }
            if (at + i + 1 == count)
                continue;
            nll -= row[ids[at + i + 1]] - log_total;
            largest_next = fmax(largest_next,
                                golden_distance((double)row[ids[at + i + 1]] - log_total, (double)next[at + i]));
        }
    }
    printf("%s: text: NLL %.4f, expected %.4f; log-probabilities differ by %.1e (next), %.1e (top 20)\n", f->label, nll,
           expected_nll, largest_next, largest_top);
    cr_expect_float_eq(nll, expected_nll, NLL_LIMIT);
    cr_expect_leq(largest_next, LOGPROB_LIMIT);
    cr_expect_leq(largest_top, LOGPROB_LIMIT);
    dk_cache_release(f->m.cache, 9);
    free(ids);
    free(next);
    free(top_ids);
    free(top);
    free(logits);
}

static void check_all(const char *label, const char *folder, const char *golden)
{
    struct fixture f;

    setup(&f, label, folder, golden);
    check_prompts(&f);
    check_long(&f);
    check_text(&f);
    teardown(&f);
}

Test(smollm2_golden, bf16)
{
    check_all("bf16", "BF16", "golden");
}

Test(smollm2_golden, fp8)
{
    check_all("fp8", "FP8", "golden_fp8");
}

int main(int argc, char **argv)
{
    struct criterion_test_set *tests;
    int rc = 0;

    if (!getenv("DUCK_SMOLLM2")) {
        printf("skipped: DUCK_SMOLLM2 does not name the folder of BF16/ and FP8/\n");
        return 77;
    }
    tests = criterion_initialize();
    if (criterion_handle_args(argc, argv, true))
        rc = !criterion_run_all_tests(tests);
    criterion_finalize(tests);
    return rc;
}
