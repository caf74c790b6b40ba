/* SPDX-License-Identifier: Apache-2.0 */
#include "golden_models.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#include "golden_file.h"

void golden_path(char *path, size_t size, const char *model, const char *file)
{
    snprintf(path, size, FIXTURES "/%s/%s", model, file);
}

void golden_open(struct local_model *m, const char *model, const struct local_options *o)
{
    struct dk_err err = {0};
    char path[512];

    golden_path(path, sizeof(path), model, "");
    cr_assert_eq(local_open(m, path, o, &err), 0, "%s: %s", model, err.text);
}

static json_t *golden_of(const char *model)
{
    char path[512];

    golden_path(path, sizeof(path), model, "golden/golden.json");
    return golden_json(path);
}

uint32_t golden_prompts(const char *model, struct golden_prompt *prompts)
{
    json_t *file = golden_of(model), *prompt;
    uint32_t n = 0;
    const char *name;

    json_object_foreach(json_object_get(file, "prompts"), name, prompt)
    {
        cr_assert_lt(n, GOLDEN_PROMPTS_MAX);
        snprintf(prompts[n].name, sizeof(prompts[n].name), "%s", name);
        prompts[n].ids = golden_ids(prompt, "ids", &prompts[n].count);
        n++;
    }
    cr_assert_geq(n, 7, "%s: prompts are missing", model);
    json_decref(file);
    return n;
}

void golden_prompts_free(struct golden_prompt *prompts, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        free(prompts[i].ids);
}

uint32_t *golden_prompt_ids(const char *model, const char *name, uint32_t *count)
{
    json_t *file = golden_of(model);
    uint32_t *ids = golden_ids(json_object_get(json_object_get(file, "prompts"), name), "ids", count);

    json_decref(file);
    return ids;
}
