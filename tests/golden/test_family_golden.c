/* SPDX-License-Identifier: Apache-2.0 */
/* The small models against values of an outside implementation: logits, greedy tokens, and what happens inside. */
#include "golden_file.h"
#include "golden_models.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Two float32 implementations differ by about 1e-5; the weakest mistake moves logits by 0.27. */
#define LOGIT_LIMIT 1e-3
/* Inside the layers: what is kept between steps is compared to this as well. */
#define VALUE_LIMIT  1e-4
#define WEIGHT_LIMIT 1e-5
/* Of what a MoE block gives, in units of its Frobenius norm. */
#define BLOCK_LIMIT 1e-5
#define STEPS       32u
/* Greedy tokens must agree where the expected ones lead by this much. */
#define TIE_MARGIN 1e-2

struct fixture {
    const char *model;
    struct local_model m;
    json_t *file;
    struct golden_tensors tensors;
};

static void setup(struct fixture *f, const char *model, bool full_attention, const char *tensors)
{
    struct local_options o = local_defaults();
    char path[512];

    f->model = model;
    o.threads = 2;
    o.full_attention = full_attention;
    golden_open(&f->m, model, &o);
    golden_path(path, sizeof(path), model, "golden/golden.json");
    f->file = golden_json(path);
    golden_path(path, sizeof(path), model, tensors);
    golden_tensors_open(&f->tensors, path);
}

static void teardown(struct fixture *f)
{
    golden_tensors_close(&f->tensors);
    json_decref(f->file);
    local_close(&f->m);
}

static void check_greedy(const struct fixture *f, const char *name, const json_t *prompt, const uint32_t *got)
{
    uint32_t count, *expected = golden_ids(prompt, "greedy_ids", &count);

    cr_assert_eq(count, STEPS);
    for (uint32_t i = 0; i < STEPS; i++) {
        if (got[i] != expected[i] && golden_number(json_object_get(prompt, "margins"), i) < TIE_MARGIN)
            break;
        cr_expect_eq(got[i], expected[i], "%s, %s: step %u gives %u, not %u", f->model, name, i, got[i], expected[i]);
    }
    free(expected);
}

/* Tokens and last logits of the prompts in file[group]. */
static void check_prompts(struct fixture *f, const char *group, const char *prefix)
{
    const json_t *prompts = json_object_get(f->file, "prompts"), *wanted = json_object_get(f->file, group);
    float *logits = malloc((size_t)STEPS * f->m.config.vocab * sizeof(float));
    double largest = 0;
    const char *name;
    const json_t *prompt;

    cr_assert_gt(json_object_size(wanted), 0, "%s: no \"%s\"", f->model, group);
    json_object_foreach((json_t *)wanted, name, prompt)
    {
        uint32_t count, got[STEPS], *ids = golden_ids(json_object_get(prompts, name), "ids", &count);
        size_t vocab;
        float *last = golden_tensor(&f->tensors, &vocab, "%s%s.last", prefix, name);
        double difference;

        cr_assert_eq(vocab, f->m.config.vocab);
        cr_assert_eq(local_generate(&f->m, ids, count, 0, STEPS, got, logits), 0);
        difference = golden_difference(logits, last, vocab);
        cr_expect_leq(difference, LOGIT_LIMIT, "%s, %s: last logits differ by %g", f->model, name, difference);
        largest = fmax(largest, difference);
        check_greedy(f, name, prompt, got);
        free(ids);
        free(last);
    }
    printf("%s: last logits of %zu prompts differ by at most %.2e\n", f->model, json_object_size(wanted), largest);
    free(logits);
}

static void last_logits(const char *model)
{
    struct fixture f;

    setup(&f, model, false, "golden/logits.safetensors");
    cr_expect_geq(json_object_size(json_object_get(f.file, "prompts")), 7);
    check_prompts(&f, "prompts", "");
    teardown(&f);
}

#define LAST_LOGITS(id, model, full)                        \
    Test(family_golden, greedy_tokens_and_last_logits_##id) \
    {                                                       \
        last_logits(model);                                 \
    }
GOLDEN_MODELS(LAST_LOGITS)

Test(family_golden, attending_to_everything)
{
    struct fixture f;

    setup(&f, "deepseek_v32-fp8-tiny", true, "golden/logits.safetensors");
    check_prompts(&f, "full_attention_prompts", "full_attention.");
    teardown(&f);
}

static void all_logits(const char *model)
{
    struct fixture f;
    uint32_t count, *ids = golden_prompt_ids(model, "multi_turn", &count);
    size_t values;
    float *all, *logits;
    double difference;

    setup(&f, model, false, "golden/logits.safetensors");
    all = golden_tensor(&f.tensors, &values, "multi_turn.all");
    cr_assert_eq(values, (size_t)count * f.m.config.vocab);
    logits = malloc(values * sizeof(float));
    cr_assert_eq(local_step(&f.m, &(struct local_rows){7, 0, count, ids}, 1, true, logits), 0);
    difference = golden_difference(logits, all, values);
    printf("%s: logits of %u positions differ by at most %.2e\n", model, count, difference);
    cr_expect_leq(difference, LOGIT_LIMIT);
    free(ids);
    free(all);
    free(logits);
    teardown(&f);
}

#define ALL_LOGITS(id, model, full)                    \
    Test(family_golden, logits_of_every_position_##id) \
    {                                                  \
        all_logits(model);                             \
    }
GOLDEN_MODELS(ALL_LOGITS)

/* The largest difference of all layers' tensors of one name. */
struct kind {
    char name[32];
    double largest;
    uint32_t tensors;
};

#define KINDS_MAX 24

static struct kind *kind_of(struct kind *kinds, const char *tensor)
{
    const char *name = tensor;

    if (strncmp(name, "layer.", 6) == 0)
        name = strchr(name + 6, '.') + 1;
    for (struct kind *k = kinds; k < kinds + KINDS_MAX; k++) {
        if (strcmp(k->name, name) == 0)
            return k;
        if (k->name[0] == 0) {
            snprintf(k->name, sizeof(k->name), "%s", name);
            return k;
        }
    }
    cr_assert(false, "%s: more kinds than %d", tensor, KINDS_MAX);
    return NULL;
}

static double relative_norm(const float *got, const float *expected, size_t count)
{
    double difference = 0, norm = 0;

    for (size_t i = 0; i < count; i++) {
        difference += ((double)got[i] - expected[i]) * ((double)got[i] - expected[i]);
        norm += (double)expected[i] * expected[i];
    }
    return sqrt(difference / norm);
}

static void check_tensor(struct fixture *f, const struct dk_tensor *golden, const struct dk_trace_list *list,
                         struct kind *kinds)
{
    const struct dk_trace_tensor *got = dk_trace_list_find(list, golden->name);
    struct kind *kind = kind_of(kinds, golden->name);
    void *expected = golden_tensor(&f->tensors, NULL, "%s", golden->name);
    bool f32 = golden->type == DK_F32;
    double difference = 0;

    cr_assert_not_null(got, "%s: %s is not traced", f->model, golden->name);
    cr_assert_eq(got->type, f32 ? DK_TRACE_F32 : DK_TRACE_I32, "%s: %s", f->model, golden->name);
    cr_assert_eq(got->rank, golden->rank, "%s: %s", f->model, golden->name);
    for (uint32_t i = 0; i < got->rank; i++)
        cr_assert_eq(got->shape[i], golden->shape[i], "%s: %s: dimension %u", f->model, golden->name, i);
    if (f32)
        difference = golden_difference(got->data, expected, got->bytes / 4);
    else
        cr_expect_arr_eq(got->data, expected, got->bytes, "%s: %s is another one", f->model, golden->name);
    cr_expect_leq(difference, strcmp(kind->name, "moe.expert_weights") == 0 ? WEIGHT_LIMIT : VALUE_LIMIT,
                  "%s: %s differs by %g", f->model, golden->name, difference);
    if (strcmp(kind->name, "moe.out") == 0)
        cr_expect_leq(relative_norm(got->data, expected, got->bytes / 4), BLOCK_LIMIT, "%s: %s: %g", f->model,
                      golden->name, relative_norm(got->data, expected, got->bytes / 4));
    kind->largest = fmax(kind->largest, difference);
    kind->tensors++;
    free(expected);
}

/* Every expected tensor but those that end in `except`; how many were compared. */
static uint32_t check_trace(struct fixture *f, const struct dk_trace_list *list, const char *except)
{
    struct kind kinds[KINDS_MAX] = {0};
    uint32_t compared = 0;

    cr_assert_not(list->no_memory);
    for (uint32_t i = 0; i < dk_checkpoint_tensor_count(f->tensors.file); i++) {
        const struct dk_tensor *t = dk_checkpoint_tensor(f->tensors.file, i);
        size_t length = strlen(t->name);

        if (except && strcmp(t->name + length - strlen(except), except) == 0)
            continue;
        check_tensor(f, t, list, kinds);
        compared++;
    }
    printf("%s: %u tensors, largest differences:", f->model, compared);
    for (struct kind *k = kinds; k < kinds + KINDS_MAX && k->tensors; k++)
        printf(" %s %.1e", k->name, k->largest);
    printf("\n");
    return compared;
}

static void run_traced(struct fixture *f, const char *prompt, struct dk_trace_list *list)
{
    uint32_t count, *ids = golden_ids(json_object_get(json_object_get(f->file, "prompts"), prompt), "ids", &count);
    float *logits = malloc(f->m.config.vocab * sizeof(float));

    local_trace(&f->m, list, 0);
    cr_assert_eq(local_step(&f->m, &(struct local_rows){1, 0, count, ids}, 1, false, logits), 0);
    free(logits);
    free(ids);
}

static void values_inside(const char *model)
{
    struct dk_trace_list list = {0};
    struct fixture f;
    uint32_t compared;

    setup(&f, model, false, "golden/trace.safetensors");
    run_traced(&f, "short", &list);
    compared = check_trace(&f, &list, NULL);
    cr_expect_geq(compared, 2 + 2 * f.m.config.layers);
    for (size_t i = 0; i < list.count; i++) {
        const char *selected = strstr(list.tensors[i].name, ".selected");

        compared += selected != NULL; /* has a file of its own */
    }
    cr_expect_eq(list.count, compared, "%s: %zu tensors are traced, %u are expected", model, list.count, compared);
    dk_trace_list_fini(&list);
    teardown(&f);
}

#define VALUES_INSIDE(id, model, full)                 \
    Test(family_golden, values_inside_the_layers_##id) \
    {                                                  \
        values_inside(model);                          \
    }
GOLDEN_MODELS(VALUES_INSIDE)

/* One row's selection: positions rising, -1 behind the last. */
static void check_selection(const json_t *expected, const int32_t *got, uint32_t top_k, uint32_t layer, size_t row)
{
    size_t count = json_array_size(expected);

    cr_assert(count > 0 && count <= top_k);
    for (size_t i = 0; i < top_k; i++)
        cr_expect_eq(got[i], i < count ? (int32_t)golden_number(expected, i) : -1, "layer %u, row %zu, place %zu: %d",
                     layer, row, i, got[i]);
}

Test(family_golden, selected_positions)
{
    struct dk_trace_list list = {0};
    struct fixture f;
    char path[512], name[64];
    json_t *dsa;

    setup(&f, "deepseek_v32-fp8-tiny", false, "golden/dsa_trace.safetensors");
    golden_path(path, sizeof(path), f.model, "golden/dsa.json");
    dsa = golden_json(path);
    run_traced(&f, "multi_turn", &list);
    check_trace(&f, &list, ".score");
    cr_assert_eq(json_object_size(json_object_get(dsa, "selected")), f.m.config.layers);
    for (uint32_t layer = 0; layer < f.m.config.layers; layer++) {
        const struct dk_trace_tensor *selected;
        const json_t *rows;

        snprintf(name, sizeof(name), "%u", layer);
        rows = json_object_get(json_object_get(dsa, "selected"), name);
        snprintf(name, sizeof(name), "layer.%u.selected", layer);
        selected = dk_trace_list_find(&list, name);
        cr_assert_not_null(selected);
        cr_assert_eq(selected->shape[0], json_array_size(rows));
        cr_assert_eq(selected->shape[1], f.m.config.index.top_k);
        cr_assert_gt(selected->shape[0], selected->shape[1], "nothing is left out");
        for (size_t row = 0; row < selected->shape[0]; row++)
            check_selection(json_array_get(rows, row), (const int32_t *)selected->data + row * selected->shape[1],
                            selected->shape[1], layer, row);
    }
    dk_trace_list_fini(&list);
    json_decref(dsa);
    teardown(&f);
}
