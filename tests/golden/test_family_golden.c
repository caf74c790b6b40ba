/* SPDX-License-Identifier: Apache-2.0 */
/* The small models against values of an outside implementation: logits, greedy tokens, and what happens inside. */
#include "golden_file.h"
#include "local_model.h"
#include "spy_backend.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Two float32 implementations differ by about 1e-5; the weakest mistake moves logits by 0.5. */
#define LOGIT_LIMIT 1e-3
#define STEPS       32u
/* Greedy tokens must agree where the expected ones lead by this much. */
#define TIE_MARGIN 1e-2

static const char *const models[] = {"qwen3-tiny", "qwen3-fp8-tiny", "qwen3-moe-fp8-tiny"};
#define MODELS (sizeof(models) / sizeof(models[0]))

static void path_of(char *path, size_t size, const char *model, const char *file)
{
    snprintf(path, size, FIXTURES "/%s/%s", model, file);
}

static void open_model(struct local_model *m, const char *model, const struct dk_backend_ops *ops)
{
    struct local_options o = local_defaults();
    struct dk_err err = {0};
    char path[512];

    o.threads = 2;
    o.ops = ops;
    path_of(path, sizeof(path), model, "");
    cr_assert_eq(local_open(m, path, &o, &err), 0, "%s: %s", model, err.text);
}

static void check_greedy(const char *model, const char *name, const json_t *prompt, const uint32_t *got)
{
    uint32_t count, *expected = golden_ids(prompt, "greedy_ids", &count);

    cr_assert_eq(count, STEPS);
    for (uint32_t i = 0; i < STEPS; i++) {
        if (got[i] != expected[i] && golden_number(json_object_get(prompt, "margins"), i) < TIE_MARGIN)
            break;
        cr_expect_eq(got[i], expected[i], "%s, %s: step %u gives %u, not %u", model, name, i, got[i], expected[i]);
    }
    free(expected);
}

Test(family_golden, greedy_tokens_and_last_logits)
{
    for (size_t i = 0; i < MODELS; i++) {
        struct golden_tensors tensors;
        struct local_model m;
        double largest = 0;
        const char *name;
        json_t *file, *prompt;
        char path[512];
        float *logits;

        path_of(path, sizeof(path), models[i], "golden/golden.json");
        file = golden_json(path);
        path_of(path, sizeof(path), models[i], "golden/logits.safetensors");
        golden_tensors_open(&tensors, path);
        open_model(&m, models[i], NULL);
        logits = malloc((size_t)STEPS * m.config.vocab * sizeof(float));
        cr_assert_eq(json_object_size(json_object_get(file, "prompts")), 8);
        json_object_foreach(json_object_get(file, "prompts"), name, prompt)
        {
            uint32_t count, got[STEPS], *ids = golden_ids(prompt, "ids", &count);
            size_t vocab;
            float *last = golden_tensor(&tensors, &vocab, "%s.last", name);
            double difference;

            cr_assert_eq(vocab, m.config.vocab);
            cr_assert_eq(local_generate(&m, ids, count, 0, STEPS, got, logits), 0);
            difference = golden_difference(logits, last, vocab);
            cr_expect_leq(difference, LOGIT_LIMIT, "%s, %s: last logits differ by %g", models[i], name, difference);
            largest = difference > largest ? difference : largest;
            check_greedy(models[i], name, prompt, got);
            free(ids);
            free(last);
        }
        printf("%s: last logits of all prompts differ by at most %.2e\n", models[i], largest);
        free(logits);
        local_close(&m);
        golden_tensors_close(&tensors);
        json_decref(file);
    }
}

Test(family_golden, logits_of_every_position)
{
    for (size_t i = 0; i < MODELS; i++) {
        struct golden_tensors tensors;
        struct local_model m;
        uint32_t count, *ids;
        size_t values;
        float *all, *logits;
        double difference;
        json_t *file;
        char path[512];

        path_of(path, sizeof(path), models[i], "golden/golden.json");
        file = golden_json(path);
        path_of(path, sizeof(path), models[i], "golden/logits.safetensors");
        golden_tensors_open(&tensors, path);
        open_model(&m, models[i], NULL);
        ids = golden_ids(json_object_get(json_object_get(file, "prompts"), "multi_turn"), "ids", &count);
        all = golden_tensor(&tensors, &values, "multi_turn.all");
        cr_assert_eq(values, (size_t)count * m.config.vocab);
        logits = malloc(values * sizeof(float));
        cr_assert_eq(local_step(&m, &(struct local_rows){7, 0, count, ids}, 1, true, logits), 0);
        difference = golden_difference(logits, all, values);
        printf("%s: logits of %u positions differ by at most %.2e\n", models[i], count, difference);
        cr_expect_leq(difference, LOGIT_LIMIT);
        free(ids);
        free(all);
        free(logits);
        local_close(&m);
        golden_tensors_close(&tensors);
        json_decref(file);
    }
}

/* The router's and experts' part of a trace. */
struct moe_trace {
    struct golden_tensors *tensors;
    struct local_model *m;
    double in, out, logits, weights, alone;
};

static int by_id(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

static void raise_to(double *largest, const float *got, struct golden_tensors *t, size_t count, const char *format,
                     uint32_t layer)
{
    size_t values;
    char name[64];
    float *expected;
    double difference;

    snprintf(name, sizeof(name), format, layer); /* NOLINT: the formats are this file's */
    expected = golden_tensor(t, &values, "%s", name);
    cr_assert_eq(values, count, "%s has %zu values, not %zu", name, values, count);
    difference = golden_difference(got, expected, count);
    *largest = difference > *largest ? difference : *largest;
    free(expected);
}

/* The expected experts come by falling weight; sorted by id they are what the router gives. */
static void check_experts(struct moe_trace *t, uint32_t layer, uint32_t rows, const int32_t *ids, const float *weights)
{
    uint32_t k = t->m->config.top_k;
    int32_t *expected_ids = golden_tensor(t->tensors, NULL, "layer.%u.moe.expert_ids", layer);
    float *expected_weights = golden_tensor(t->tensors, NULL, "layer.%u.moe.expert_weights", layer);

    for (uint32_t row = 0; row < rows; row++) {
        int32_t *wanted = expected_ids + row * k, sorted[16];

        memcpy(sorted, wanted, k * sizeof(int32_t));
        qsort(sorted, k, sizeof(int32_t), by_id);
        for (uint32_t i = 0; i < k; i++) {
            uint32_t from = 0;
            double difference;

            cr_assert_eq(ids[row * k + i], sorted[i], "layer %u, row %u: experts differ", layer, row);
            while (wanted[from] != sorted[i])
                from++;
            difference = fabs((double)weights[row * k + i] - expected_weights[row * k + from]);
            t->weights = difference > t->weights ? difference : t->weights;
        }
    }
    free(expected_ids);
    free(expected_weights);
}

static void watch_moe(void *ctx, uint32_t layer, uint32_t rows, const float *in, const float *out, const float *logits,
                      const int32_t *ids, const float *weights)
{
    struct moe_trace *t = ctx;
    size_t values = (size_t)rows * t->m->config.hidden;

    if (!logits)
        return;
    raise_to(&t->in, in, t->tensors, values, "layer.%u.moe.in", layer);
    raise_to(&t->out, out, t->tensors, values, "layer.%u.moe.out", layer);
    raise_to(&t->logits, logits, t->tensors, (size_t)rows * t->m->config.experts, "layer.%u.moe.router_logits", layer);
    check_experts(t, layer, rows, ids, weights);
}

/* One MoE block on the expected input: relative Frobenius error. Uses the routing of the step just run. */
static double moe_alone(struct local_model *m, struct golden_tensors *tensors, uint32_t layer, uint32_t rows,
                        const int32_t *ids, const float *weights)
{
    size_t values;
    float *in = golden_tensor(tensors, &values, "layer.%u.moe.in", layer);
    float *out = golden_tensor(tensors, NULL, "layer.%u.moe.out", layer);
    float *y = malloc(values * sizeof(float));
    double difference = 0, norm = 0;

    local_ffn(m, layer, rows, in, ids, weights, y);
    for (size_t i = 0; i < values; i++) {
        difference += ((double)y[i] - out[i]) * ((double)y[i] - out[i]);
        norm += (double)out[i] * out[i];
    }
    free(in);
    free(out);
    free(y);
    return sqrt(difference / norm);
}

/* Expected keys and values are [kv_heads][rows][head_dim], rows here [rows][kv_heads * head_dim]. */
static float *by_head(const float *rows_first, uint32_t rows, const struct dk_model_config *c)
{
    float *out = malloc((size_t)rows * c->kv_heads * c->head_dim * sizeof(float));

    for (uint32_t h = 0; h < c->kv_heads; h++) {
        for (uint32_t row = 0; row < rows; row++)
            memcpy(out + ((size_t)h * rows + row) * c->head_dim,
                   rows_first + ((size_t)row * c->kv_heads + h) * c->head_dim, c->head_dim * sizeof(float));
    }
    return out;
}

Test(family_golden, values_inside_the_layers)
{
    for (size_t i = 0; i < MODELS; i++) {
        double embed = 0, mixer = 0, out = 0, k = 0, v = 0, norm = 0;
        struct spy_record *record = spy_record();
        struct golden_tensors tensors;
        struct local_model m;
        struct moe_trace moe = {.tensors = &tensors, .m = &m};
        uint32_t count, *ids;
        size_t hidden_values;
        float *logits;
        json_t *file;
        char path[512];

        path_of(path, sizeof(path), models[i], "golden/golden.json");
        file = golden_json(path);
        path_of(path, sizeof(path), models[i], "golden/trace.safetensors");
        golden_tensors_open(&tensors, path);
        open_model(&m, models[i], spy_backend(&dk_backend_cpu));
        m.watch = watch_moe;
        m.watch_ctx = &moe;
        ids = golden_ids(json_object_get(json_object_get(file, "prompts"), "short"), "ids", &count);
        logits = malloc((size_t)count * m.config.vocab * sizeof(float));
        cr_assert_eq(local_step(&m, &(struct local_rows){1, 0, count, ids}, 1, true, logits), 0);

        hidden_values = (size_t)count * m.config.hidden;
        raise_to(&embed, record->embed, &tensors, hidden_values, "embed", 0);
        raise_to(&norm, record->final_norm, &tensors, hidden_values, "final_norm", 0);
        cr_assert_eq(record->layers, m.config.layers);
        for (uint32_t layer = 0; layer < m.config.layers; layer++) {
            float *keys = by_head(record->k[layer], count, &m.config);
            float *values = by_head(record->v[layer], count, &m.config);
            size_t kv_values = (size_t)count * m.config.kv_heads * m.config.head_dim;

            raise_to(&mixer, record->mixer_out[layer], &tensors, hidden_values, "layer.%u.mixer_out", layer);
            raise_to(&out, record->out[layer], &tensors, hidden_values, "layer.%u.out", layer);
            raise_to(&k, keys, &tensors, kv_values, "layer.%u.k", layer);
            raise_to(&v, values, &tensors, kv_values, "layer.%u.v", layer);
            free(keys);
            free(values);
        }
        printf("%s: embed %.1e, k %.1e, v %.1e, mixer_out %.1e, out %.1e, final_norm %.1e\n", models[i], embed, k, v,
               mixer, out, norm);
        cr_expect_eq(embed, 0);
        cr_expect_leq(k, 1e-4);
        cr_expect_leq(v, 1e-4);
        cr_expect_leq(mixer, 1e-4);
        cr_expect_leq(out, 1e-4);
        cr_expect_leq(norm, 1e-4);
        if (m.config.experts > 0) {
            uint32_t last = m.config.layers - 1;

            moe.alone = moe_alone(&m, &tensors, last, count, m.expert_ids, m.expert_weights);
            printf(
                "%s: moe.in %.1e, router_logits %.1e, expert_weights %.1e, moe.out %.1e, block alone %.1e (relative)\n",
                models[i], moe.in, moe.logits, moe.weights, moe.out, moe.alone);
            cr_expect_gt(moe.in, 0, "no MoE layer was seen");
            cr_expect_leq(moe.in, 1e-4);
            cr_expect_leq(moe.logits, 1e-4);
            cr_expect_leq(moe.weights, 1e-5);
            cr_expect_leq(moe.out, 1e-4);
            cr_expect_leq(moe.alone, 1e-5);
        }
        free(ids);
        free(logits);
        spy_reset();
        local_close(&m);
        golden_tensors_close(&tensors);
        json_decref(file);
    }
}
