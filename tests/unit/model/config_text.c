/* SPDX-License-Identifier: Apache-2.0 */
#include "config_text.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model_folder.h"

char *config_of(const char *release)
{
    json_error_t e;
    char path[512], *text;
    json_t *root;

    snprintf(path, sizeof path, FIXTURES "/releases/%s/config.json", release);
    root = json_load_file(path, 0, &e);
    cr_assert(root, "%s: %s", path, e.text);
    text = json_dumps(root, 0);
    json_decref(root);
    return text;
}

char *config_changed(const char *text, const char *path, const char *value)
{
    json_t *root = json_loads(text, 0, NULL), *object = root, *v;
    const char *name = path, *dot;
    char *changed, step[128];

    cr_assert(root);
    while ((dot = strchr(name, '.'))) {
        snprintf(step, sizeof step, "%.*s", (int)(dot - name), name);
        object = json_object_get(object, step);
        cr_assert(object, "%s: there is no %s", path, step);
        name = dot + 1;
    }
    if (value) {
        v = json_loads(value, JSON_DECODE_ANY, NULL);
        cr_assert(v, "%s", value);
        json_object_set_new(object, name, v);
    } else {
        cr_assert_eq(json_object_del(object, name), 0, "there is no %s", path);
    }
    changed = json_dumps(root, 0);
    json_decref(root);
    return changed;
}

int config_parse(const char *text, struct dk_model_config *c, struct dk_err *err)
{
    memset(err, 0, sizeof *err);
    return dk_model_config_parse(text, strlen(text), "config.json", c, err);
}

struct dk_model_config config_with(const char *release, const char *path, const char *value)
{
    char *text = config_of(release), *changed = config_changed(text, path, value);
    struct dk_model_config c;
    struct dk_err err;

    cr_assert_eq(config_parse(changed, &c, &err), 0, "%s, %s = %s: %s", release, path, value ? value : "(absent)",
                 err.text);
    free(changed);
    free(text);
    return c;
}

struct dk_model_config config_released(const char *release)
{
    char *text = config_of(release);
    struct dk_model_config c;
    struct dk_err err;

    cr_assert_eq(config_parse(text, &c, &err), 0, "%s: %s", release, err.text);
    free(text);
    return c;
}

static void case_run(const struct config_case *k)
{
    char *text = config_of(k->base), *changed = config_changed(text, k->path, k->value);
    const char *value = k->value ? k->value : "(absent)", *field = strrchr(k->path, '.');
    struct dk_model_config c;
    struct dk_err err;
    int rc = config_parse(changed, &c, &err);

    cr_expect_eq(rc, k->rc, "%s, %s = %s: %d %s", k->base, k->path, value, rc, err.text);
    cr_expect_eq(err.rc, rc);
    if (k->rc < 0) {
        expect_words(err.text, "config.json: ");
        expect_words(err.text, field ? field + 1 : k->path);
        expect_words(err.text, k->words);
        cr_expect_eq(c.hidden, 0, "%s = %s: nothing is left of a config that is refused", k->path, value);
    }
    free(changed);
    free(text);
}

void config_cases_run(const struct config_case *cases, size_t count)
{
    for (size_t i = 0; i < count; i++)
        case_run(&cases[i]);
}
