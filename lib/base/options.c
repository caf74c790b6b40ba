/* SPDX-License-Identifier: Apache-2.0 */
#include "base/options.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool choice_allowed(const char *choices, const char *text)
{
    size_t n = strlen(text);

    for (const char *p = choices; *p;) {
        size_t len = strcspn(p, "|");

        if (len == n && !memcmp(p, text, n))
            return true;
        p += len;
        p += *p == '|';
    }
    return false;
}

static int store(const struct dk_option *o, void *settings, const char *text, struct dk_err *err)
{
    void *field = (char *)settings + o->offset;
    char *end;

    errno = 0;
    switch (o->type) {
    case DK_OPT_TEXT:
        if (o->choices && !choice_allowed(o->choices, text))
            return dk_err_set(err, -EINVAL, "--%s: '%s' is not one of %s", o->name, text, o->choices);
        *(const char **)field = text;
        return 0;
    case DK_OPT_LIST: {
        struct dk_option_list *list = field;

        if (list->count == sizeof list->items / sizeof *list->items)
            return dk_err_set(err, -EINVAL, "--%s: given more than %u times", o->name, list->count);
        list->items[list->count++] = text;
        return 0;
    }
    case DK_OPT_U32:
    case DK_OPT_U64: {
        unsigned long long v = strtoull(text, &end, 10);

        if (errno || end == text || *end || text[0] < '0' || text[0] > '9' || (double)v < o->least ||
            (double)v > o->most)
            return dk_err_set(err, -EINVAL, "--%s: '%s' is not a whole number from %.0f to %.0f", o->name, text,
                              o->least, o->most);
        if (o->type == DK_OPT_U32)
            *(uint32_t *)field = (uint32_t)v;
        else
            *(uint64_t *)field = v;
        return 0;
    }
    case DK_OPT_DOUBLE: {
        double v = strtod(text, &end);

        if (errno || end == text || *end || !isfinite(v) || v < o->least || v > o->most)
            return dk_err_set(err, -EINVAL, "--%s: '%s' is not a number from %g to %g", o->name, text, o->least,
                              o->most);
        *(double *)field = v;
        return 0;
    }
    default:
        *(bool *)field = true;
        return 0;
    }
}

/* The option of that name; *settings becomes the struct that its offset counts in. */
static const struct dk_option *find(const struct dk_option *options, const char *name, size_t len, void **settings)
{
    for (; options->name; options++) {
        void *inner = (char *)*settings + options->offset;
        const struct dk_option *o;

        if (options->type == DK_OPT_GROUP && (o = find(options->group, name, len, &inner))) {
            *settings = inner;
            return o;
        }
        if (options->type != DK_OPT_GROUP && strlen(options->name) == len && !memcmp(options->name, name, len))
            return options;
    }
    return NULL;
}

int dk_options_parse(const struct dk_option *options, void *settings, int argc, char **argv, const char **positional,
                     int positional_most, int *positional_count, struct dk_err *err)
{
    bool options_ended = false;
    int rc;

    *positional_count = 0;
    for (int i = 0; i < argc; i++) {
        const char *a = argv[i], *value = NULL;
        const struct dk_option *o;
        void *place = settings;

        if (options_ended || a[0] != '-' || !a[1]) {
            if (*positional_count == positional_most)
                return dk_err_set(err, -EINVAL, "unexpected argument '%s'", a);
            positional[(*positional_count)++] = a;
            continue;
        }
        if (!strcmp(a, "--")) {
            options_ended = true;
            continue;
        }
        if (strncmp(a, "--", 2))
            return dk_err_set(err, -EINVAL, "unknown option '%s'; options are written --name", a);
        o = find(options, a + 2, strcspn(a + 2, "="), &place);
        if (!o)
            return dk_err_set(err, -EINVAL, "unknown option '%s'; see --help", a);
        if (strchr(a, '='))
            value = strchr(a, '=') + 1;
        if (o->type == DK_OPT_FLAG && value)
            return dk_err_set(err, -EINVAL, "--%s takes no value", o->name);
        if (o->type != DK_OPT_FLAG && !value) {
            if (i + 1 == argc)
                return dk_err_set(err, -EINVAL, "--%s needs a value (%s)", o->name, o->value ? o->value : "VALUE");
            value = argv[++i];
        }
        rc = store(o, place, value, err);
        if (rc < 0)
            return rc;
        if (o->given)
            *o->given = true;
    }
    return 0;
}

void dk_options_help(const struct dk_option *options, const void *defaults, FILE *out)
{
    for (; options->name; options++) {
        const void *field = (const char *)defaults + options->offset;
        char left[64];

        if (options->type == DK_OPT_GROUP) {
            dk_options_help(options->group, field, out);
            continue;
        }
        snprintf(left, sizeof left, "--%s%s%s", options->name, options->type == DK_OPT_FLAG ? "" : " ",
                 options->type == DK_OPT_FLAG ? ""
                 : options->value             ? options->value
                                              : "VALUE");
        fprintf(out, "  %-28s %s", left, options->help);
        if (options->type == DK_OPT_TEXT && options->choices &&
            (!options->value || strcmp(options->choices, options->value)))
            fprintf(out, " (%s)", options->choices);
        if (options->type == DK_OPT_TEXT && *(const char *const *)field)
            fprintf(out, " [%s]", *(const char *const *)field);
        else if (options->type == DK_OPT_U32 && *(const uint32_t *)field)
            fprintf(out, " [%u]", *(const uint32_t *)field);
        else if (options->type == DK_OPT_U64 && *(const uint64_t *)field)
            fprintf(out, " [%llu]", (unsigned long long)*(const uint64_t *)field);
        else if (options->type == DK_OPT_DOUBLE && *(const double *)field >= 0)
            fprintf(out, " [%g]", *(const double *)field);
        fputc('\n', out);
    }
}
