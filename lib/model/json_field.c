/* SPDX-License-Identifier: Apache-2.0 */
#include "model/json_field.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VALUE_BYTES_MAX 80          /* of a value that is shown in an error */
#define WHOLE_MAX       (1ll << 53) /* a double holds all whole numbers up to here */

static json_t *whole_numbers(json_t *v);

static void whole_entries(json_t *v)
{
    const char *key;
    void *next;
    json_t *item;
    size_t i;

    json_object_foreach_safe(v, next, key, item) json_object_set_new_nocheck(v, key, whole_numbers(item));
    json_array_foreach(v, i, item) json_array_set_new(v, i, whole_numbers(item));
}

/* A new reference to v, in which the real numbers that are whole ones are integers again. */
static json_t *whole_numbers(json_t *v)
{
    double d = json_real_value(v);

    if (json_is_real(v) && d >= -WHOLE_MAX && d <= WHOLE_MAX && d == (double)(json_int_t)d)
        return json_integer((json_int_t)d);
    whole_entries(v);
    return json_incref(v);
}

/* Every number is read as a real one. A file with a number of more than 64 bits is rare enough that 2.0 may pass for 2
 * in it. */
static json_t *parse_wide(const char *text, size_t bytes, size_t flags, json_error_t *e)
{
    json_t *root = json_loadb(text, bytes, flags | JSON_DECODE_INT_AS_REAL, e);

    whole_entries(root);
    return root;
}

int dk_json_object_parse(const char *text, size_t bytes, size_t flags, const char *where, json_t **root,
                         struct dk_err *err)
{
    json_error_t e;

    *root = NULL;
    if (bytes >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3))
        return dk_err_set(err, -EINVAL,
                          "%s: it begins with a byte order mark, which JSON does not have; save it without", where);
    *root = json_loadb(text, bytes, flags, &e);
    if (!*root && json_error_code(&e) == json_error_numeric_overflow)
        *root = parse_wide(text, bytes, flags, &e);
    if (!*root)
        return dk_err_set(err, -EINVAL, "%s: not valid JSON: %s at line %d", where, e.text, e.line);
    if (json_is_object(*root))
        return 0;
    json_decref(*root);
    *root = NULL;
    return dk_err_set(err, -EINVAL, "%s: not a JSON object", where);
}

const json_t *dk_json_field(const struct dk_json_reader *r, const char *name)
{
    const json_t *v = json_object_get(r->object, name);

    return json_is_null(v) ? NULL : v;
}

void dk_json_need(struct dk_json_reader *r, const char *name)
{
    if (r->rc == 0 && !dk_json_field(r, name))
        r->rc = dk_err_set(r->err, -EINVAL, "%s: %s is missing", r->where, name);
}

void dk_json_refuse(struct dk_json_reader *r, int rc, const char *name, const char *allowed)
{
    const json_t *v = json_object_get(r->object, name);
    char *text;

    if (r->rc < 0)
        return;
    text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
    if (text && strlen(text) > VALUE_BYTES_MAX)
        memcpy(text + VALUE_BYTES_MAX - 3, "...", 4);
    r->rc = dk_err_set(r->err, rc, "%s: %s is %s; %s", r->where, name, text ? text : "absent", allowed);
    free(text);
}

bool dk_json_enter(struct dk_json_reader *r, const char *name, struct dk_json_reader *in, char *where,
                   size_t where_bytes)
{
    const json_t *v = dk_json_field(r, name);

    if (r->rc < 0 || !v)
        return false;
    if (!json_is_object(v)) {
        dk_json_refuse(r, -EINVAL, name, "an object or null is allowed");
        return false;
    }
    snprintf(where, where_bytes, "%s: %s", r->where, name);
    *in = (struct dk_json_reader){.object = v, .where = where, .err = r->err};
    return true;
}

void dk_json_leave(struct dk_json_reader *r, const struct dk_json_reader *in)
{
    if (r->rc == 0)
        r->rc = in->rc;
}

static void refuse_range(struct dk_json_reader *r, const char *name, uint32_t least, uint32_t most)
{
    char allowed[64];

    snprintf(allowed, sizeof allowed, "a whole number from %u to %u is allowed", least, most);
    dk_json_refuse(r, -EINVAL, name, allowed);
}

static bool u32_fits(const json_t *v, uint32_t least, uint32_t most)
{
    return json_is_integer(v) && json_integer_value(v) >= (json_int_t)least &&
           json_integer_value(v) <= (json_int_t)most;
}

bool dk_json_u32(struct dk_json_reader *r, const char *name, uint32_t least, uint32_t most, uint32_t *out)
{
    const json_t *v = dk_json_field(r, name);

    if (r->rc < 0 || !v)
        return false;
    if (!u32_fits(v, least, most)) {
        refuse_range(r, name, least, most);
        return false;
    }
    *out = (uint32_t)json_integer_value(v);
    return true;
}

bool dk_json_double(struct dk_json_reader *r, const char *name, double least, double most, double *out)
{
    const json_t *v = dk_json_field(r, name);
    double d = json_number_value(v);
    char allowed[96];

    if (r->rc < 0 || !v)
        return false;
    if (!json_is_number(v) || !(d >= least && d <= most)) {
        snprintf(allowed, sizeof allowed, "a number from %g to %g is allowed", least, most);
        dk_json_refuse(r, -EINVAL, name, allowed);
        return false;
    }
    *out = d;
    return true;
}

bool dk_json_bool(struct dk_json_reader *r, const char *name, bool *out)
{
    const json_t *v = dk_json_field(r, name);

    if (r->rc < 0 || !v)
        return false;
    if (!json_is_boolean(v)) {
        dk_json_refuse(r, -EINVAL, name, "true or false is allowed");
        return false;
    }
    *out = json_is_true(v);
    return true;
}

bool dk_json_text(struct dk_json_reader *r, const char *name, const char **out)
{
    const json_t *v = dk_json_field(r, name);

    if (r->rc < 0 || !v)
        return false;
    if (!json_is_string(v)) {
        dk_json_refuse(r, -EINVAL, name, "a text is allowed");
        return false;
    }
    *out = json_string_value(v);
    return true;
}

bool dk_json_u32_list(struct dk_json_reader *r, const char *name, uint32_t most, uint32_t *out, uint32_t most_count,
                      uint32_t *count)
{
    const json_t *v = dk_json_field(r, name);
    char allowed[96];
    size_t n;

    if (r->rc < 0 || !v)
        return false;
    n = json_is_array(v) ? json_array_size(v) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_is_array(v) ? json_array_get(v, i) : v;

        if (n > most_count || !u32_fits(item, 0, most)) {
            snprintf(allowed, sizeof allowed, "up to %u whole numbers from 0 to %u are allowed", most_count, most);
            dk_json_refuse(r, -EINVAL, name, allowed);
            return false;
        }
        out[i] = (uint32_t)json_integer_value(item);
    }
    *count = (uint32_t)n;
    return true;
}
