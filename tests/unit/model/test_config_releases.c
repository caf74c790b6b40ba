/* SPDX-License-Identifier: Apache-2.0 */
/* config.json of published releases, written out by hand, and how many parameters each model has. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <jansson.h>
#include <stdio.h>

#include "config_text.h"
#include "model/model_tensors.h"

#define RELEASES FIXTURES "/releases"

/* parameters.json: {release: {parameters: 1e9, as published; elements: of a reference's model of that config; source}}
 */
static json_t *counts_load(void)
{
    json_error_t e;
    json_t *root = json_load_file(RELEASES "/parameters.json", 0, &e);

    cr_assert(root, "%s at line %d", e.text, e.line);
    return root;
}

static unsigned folders_count(void)
{
    DIR *d = opendir(RELEASES);
    struct dirent *e;
    unsigned n = 0;

    cr_assert(d);
    while ((e = readdir(d)))
        n += e->d_name[0] != '.' && e->d_type == DT_DIR;
    closedir(d);
    return n;
}

Test(config_releases, parameters)
{
    json_t *root = counts_load(), *about;
    const char *release;

    cr_expect_eq(json_object_size(root), folders_count(), "a release without a count, or the other way round");
    cr_expect_geq(json_object_size(root), 18);
    json_object_foreach(root, release, about)
    {
        struct dk_model_config c = config_released(release);
        uint64_t n = dk_model_parameters(&c),
                 elements = (uint64_t)json_integer_value(json_object_get(about, "elements"));
        double published = json_number_value(json_object_get(about, "parameters"));

        cr_expect_float_eq((double)n / 1e9 / published, 1, 0.005, "%s: %.4f", release, (double)n / 1e9);
        cr_expect_eq(n, elements, "%s: %llu", release, (unsigned long long)n);
    }
    json_decref(root);
}

static int elements_add(void *ctx, const struct dk_tensor_want *t)
{
    uint64_t n = 1;

    for (uint32_t i = 0; i < t->rank; i++)
        n *= t->shape[i];
    *(uint64_t *)ctx += n;
    return 0;
}

/* The list with all experts has as many elements as the count that names none of them. */
Test(config_releases, the_list_of_tensors_has_all_parameters)
{
    json_t *root = counts_load(), *about;
    const char *release;

    json_object_foreach(root, release, about)
    {
        struct dk_model_config c = config_released(release);
        uint64_t elements = 0;

        cr_assert_eq(dk_model_tensors(&c, elements_add, &elements), 0);
        cr_expect_eq(elements, dk_model_parameters(&c), "%s", release);
    }
    json_decref(root);
}

/* The other file has another spelling of everything that transformers 5 calls by another name. */
Test(config_releases, transformers_5_writes_the_same_models)
{
    static const struct {
        const char *release, *field, *value; /* with one field changed; NULL: as it is */
        const char *written;
    } cases[] = {
        {"Qwen3-30B-A3B-FP8", NULL, NULL, "Qwen3-30B-A3B-FP8-transformers5"},
        {"DeepSeek-V3.2", NULL, NULL, "DeepSeek-V3.2-transformers5"},
        {"Llama-3.1-8B", NULL, NULL, "Llama-3.1-8B-transformers5"},
        {"Qwen3.6-35B-A3B-text-only", NULL, NULL, "Qwen3.6-35B-A3B-text-only-transformers5"},
        {"Qwen3.5-27B", "tie_word_embeddings", "true", "Qwen3.5-27B-tied-transformers5"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dk_model_config old = cases[i].field ? config_with(cases[i].release, cases[i].field, cases[i].value)
                                                    : config_released(cases[i].release),
                               now = config_released(cases[i].written);

        cr_expect_arr_eq(&now, &old, sizeof now, "%s", cases[i].written);
    }
}
