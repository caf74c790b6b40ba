/* SPDX-License-Identifier: Apache-2.0 */
/* JSON text into a message. Everything is allocated as protobuf_c_message_free_unpacked expects it, so a half-read
 * message is freed the same way as a whole one. */
#include "wire/wire_internal.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    struct dk_err *err;
    char path[160]; /* "node.address.mac", cut when too long */
    size_t path_bytes;
};

/* Appends a step to the path; the return value goes to path_leave. */
static size_t path_enter(struct reader *r, const char *name, long index)
{
    size_t before = r->path_bytes, room = sizeof r->path - before;
    int n = index >= 0 ? snprintf(r->path + before, room, "[%ld]", index)
                       : snprintf(r->path + before, room, "%s%s", before ? "." : "", name);

    r->path_bytes = (size_t)n < room ? before + (size_t)n : sizeof r->path - 1;
    return before;
}

static void path_leave(struct reader *r, size_t before)
{
    r->path_bytes = before;
    r->path[before] = 0;
}

static const char *json_kind(const json_t *j)
{
    static const char *const names[] = {"an object", "an array", "a text", "an integer",
                                        "a number",  "true",     "false",  "null"};

    return names[json_typeof(j)];
}

static int wrong(struct reader *r, const json_t *j, const char *takes)
{
    return dk_err_set(r->err, -EINVAL, "%s takes %s, not %s", r->path, takes, json_kind(j));
}

/* Integers as JSON numbers or as texts; least and most are the type's range. */
static int read_signed(struct reader *r, const json_t *j, int64_t least, int64_t most, int64_t *out)
{
    char *end = NULL;
    long long v;

    if (json_is_integer(j)) {
        v = json_integer_value(j);
    } else if (json_is_string(j)) {
        const char *s = json_string_value(j);

        errno = 0;
        v = strtoll(s, &end, 10);
        if (errno || end == s || *end || strspn(s, "-0123456789") != strlen(s))
            return dk_err_set(r->err, -EINVAL, "%s takes an integer from %lld to %lld, not \"%.40s\"", r->path,
                              (long long)least, (long long)most, s);
    } else {
        return wrong(r, j, "an integer");
    }
    if (v < least || v > most)
        return dk_err_set(r->err, -EINVAL, "%s takes an integer from %lld to %lld, not %lld", r->path, (long long)least,
                          (long long)most, v);
    *out = v;
    return 0;
}

static int read_unsigned(struct reader *r, const json_t *j, uint64_t most, uint64_t *out)
{
    unsigned long long v;
    char *end = NULL;

    if (json_is_integer(j)) {
        if (json_integer_value(j) < 0)
            return dk_err_set(r->err, -EINVAL, "%s takes an integer from 0 to %llu, not %lld", r->path,
                              (unsigned long long)most, (long long)json_integer_value(j));
        v = (unsigned long long)json_integer_value(j);
    } else if (json_is_string(j)) {
        const char *s = json_string_value(j);

        errno = 0;
        v = strtoull(s, &end, 10);
        if (errno || end == s || *end || strspn(s, "0123456789") != strlen(s))
            return dk_err_set(r->err, -EINVAL, "%s takes an integer from 0 to %llu, not \"%.40s\"", r->path,
                              (unsigned long long)most, s);
    } else {
        return wrong(r, j, "an integer");
    }
    if (v > most)
        return dk_err_set(r->err, -EINVAL, "%s takes an integer from 0 to %llu, not %llu", r->path,
                          (unsigned long long)most, v);
    *out = v;
    return 0;
}

static int read_real(struct reader *r, const json_t *j, double *out)
{
    static const struct {
        const char *name;
        double value;
    } specials[] = {{"NaN", NAN}, {"Infinity", INFINITY}, {"-Infinity", -INFINITY}};

    if (json_is_string(j)) {
        for (size_t i = 0; i < sizeof specials / sizeof *specials; i++)
            if (!strcmp(json_string_value(j), specials[i].name)) {
                *out = specials[i].value;
                return 0;
            }
        return dk_err_set(r->err, -EINVAL, "%s takes a number, \"NaN\", \"Infinity\" or \"-Infinity\", not \"%.40s\"",
                          r->path, json_string_value(j));
    }
    if (!json_is_number(j))
        return wrong(r, j, "a number");
    *out = json_number_value(j);
    return 0;
}

static int base64_digit(char c)
{
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+' || c == '-' ? 62 /* also the URL-safe alphabet, RFC 4648 section 5 */
           : c == '/' || c == '_' ? 63
                                  : -1;
}

static int read_bytes(struct reader *r, const json_t *j, ProtobufCBinaryData *out)
{
    const char *s = json_string_value(j);
    size_t digits = 0, length, bytes = 0;
    uint32_t bits = 0;

    if (!s)
        return wrong(r, j, "a text in base64");
    length = strlen(s);
    while (length && s[length - 1] == '=' && length % 4 != 1)
        length--;
    if (length % 4 == 1)
        return dk_err_set(r->err, -EINVAL, "%s takes base64, and the text given is cut off", r->path);
    out->data = malloc(length / 4 * 3 + 3);
    if (!out->data)
        return dk_err_set(r->err, -ENOMEM, "%s: no memory", r->path);
    for (; digits < length; digits++) {
        int d = base64_digit(s[digits]);

        if (d < 0)
            return dk_err_set(r->err, -EINVAL, "%s takes base64, and character %zu is none of its digits", r->path,
                              digits + 1);
        bits = bits << 6 | (uint32_t)d;
        if (digits % 4)
            out->data[bytes++] = (uint8_t)(bits >> (6 - 2 * (digits % 4)));
    }
    out->len = bytes;
    return 0;
}

/* Puts every name into a list for an error text: "A, B, C". */
static void list_append(char *list, size_t room, const char *name)
{
    size_t used = strlen(list);

    snprintf(list + used, room - used, "%s%s", used ? ", " : "", name);
}

static int read_enum(struct reader *r, const json_t *j, const ProtobufCEnumDescriptor *e, int *out)
{
    const ProtobufCEnumValue *v = NULL;
    char list[300] = "";

    if (json_is_string(j))
        v = protobuf_c_enum_descriptor_get_value_by_name(e, json_string_value(j));
    else if (json_is_integer(j) && json_integer_value(j) >= INT32_MIN && json_integer_value(j) <= INT32_MAX)
        v = protobuf_c_enum_descriptor_get_value(e, (int)json_integer_value(j));
    if (v) {
        *out = v->value;
        return 0;
    }
    for (unsigned i = 0; i < e->n_values; i++)
        list_append(list, sizeof list, e->values[i].name);
    if (json_is_string(j))
        return dk_err_set(r->err, -EINVAL, "%s takes one of %s, not \"%.40s\"", r->path, list, json_string_value(j));
    return dk_err_set(r->err, -EINVAL, "%s takes one of %s", r->path, list);
}

static int read_message(struct reader *r, const json_t *j, const ProtobufCMessageDescriptor *type,
                        ProtobufCMessage **out);

/* One value into zeroed memory. */
static int read_value(struct reader *r, const json_t *j, const ProtobufCFieldDescriptor *f, void *to)
{
    uint64_t u = 0;
    int64_t i = 0;
    double d = 0;
    int rc = 0;

    switch (f->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
        rc = read_signed(r, j, INT32_MIN, INT32_MAX, &i);
        *(int32_t *)to = (int32_t)i;
        return rc;
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        return read_signed(r, j, INT64_MIN, INT64_MAX, to);
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        rc = read_unsigned(r, j, UINT32_MAX, &u);
        *(uint32_t *)to = (uint32_t)u;
        return rc;
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        return read_unsigned(r, j, UINT64_MAX, to);
    case PROTOBUF_C_TYPE_FLOAT:
        rc = read_real(r, j, &d);
        if (rc == 0 && isfinite(d) && !isfinite((float)d))
            return dk_err_set(r->err, -EINVAL, "%s takes a 32-bit float; %g is too large", r->path, d);
        *(float *)to = (float)d;
        return rc;
    case PROTOBUF_C_TYPE_DOUBLE:
        return read_real(r, j, to);
    case PROTOBUF_C_TYPE_BOOL:
        if (!json_is_boolean(j))
            return wrong(r, j, "true or false");
        *(protobuf_c_boolean *)to = json_is_true(j);
        return 0;
    case PROTOBUF_C_TYPE_ENUM:
        return read_enum(r, j, f->descriptor, to);
    case PROTOBUF_C_TYPE_STRING:
        if (!json_is_string(j))
            return wrong(r, j, "a text");
        *(char **)to = strdup(json_string_value(j));
        return *(char **)to ? 0 : dk_err_set(r->err, -ENOMEM, "%s: no memory", r->path);
    case PROTOBUF_C_TYPE_BYTES:
        return read_bytes(r, j, to);
    case PROTOBUF_C_TYPE_MESSAGE:
        return read_message(r, j, f->descriptor, to);
    }
    return dk_err_set(r->err, -EINVAL, "%s has a type that JSON does not carry", r->path);
}

static int read_repeated(struct reader *r, const json_t *j, const ProtobufCFieldDescriptor *f, ProtobufCMessage *m)
{
    size_t *count = (size_t *)((char *)m + f->quantifier_offset), n = json_array_size(j);
    char **array = (char **)((char *)m + f->offset);
    int rc = 0;

    if (!json_is_array(j))
        return wrong(r, j, "an array");
    if (!n)
        return 0;
    *array = calloc(n, wire_value_bytes(f->type));
    if (!*array)
        return dk_err_set(r->err, -ENOMEM, "%s: no memory", r->path);
    for (size_t i = 0; i < n && rc == 0; i++) {
        size_t before = path_enter(r, "", (long)i);

        *count = i + 1;
        rc = read_value(r, json_array_get(j, i), f, *array + i * wire_value_bytes(f->type));
        if (rc == 0)
            path_leave(r, before);
    }
    return rc;
}

static int read_field(struct reader *r, const json_t *j, const ProtobufCFieldDescriptor *f, ProtobufCMessage *m)
{
    char *to = (char *)m + f->offset, *quantifier = (char *)m + f->quantifier_offset;

    if (f->label == PROTOBUF_C_LABEL_REPEATED)
        return read_repeated(r, j, f, m);
    if (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) {
        uint32_t *which = (uint32_t *)quantifier;

        for (unsigned i = 0; *which && i < m->descriptor->n_fields; i++)
            if (m->descriptor->fields[i].id == *which)
                return dk_err_set(r->err, -EINVAL, "%s cannot be given together with %s", r->path,
                                  m->descriptor->fields[i].name);
        *which = f->id;
        memset(to, 0, wire_value_bytes(f->type));
        return read_value(r, j, f, to);
    }
    if (f->type != PROTOBUF_C_TYPE_MESSAGE && f->type != PROTOBUF_C_TYPE_STRING &&
        f->label == PROTOBUF_C_LABEL_OPTIONAL)
        *(protobuf_c_boolean *)quantifier = 1;
    memset(to, 0, wire_value_bytes(f->type)); /* a default must not be freed as if it were ours */
    return read_value(r, j, f, to);
}

static int unknown_field(struct reader *r, const char *name, const ProtobufCMessageDescriptor *type)
{
    char list[300] = "";

    for (unsigned i = 0; i < type->n_fields; i++)
        list_append(list, sizeof list, type->fields[i].name);
    return dk_err_set(r->err, -EINVAL, "%s%s%s has no field \"%.60s\"; it takes %s", r->path, *r->path ? ": " : "",
                      type->short_name, name, *list ? list : "none");
}

static int read_message(struct reader *r, const json_t *j, const ProtobufCMessageDescriptor *type,
                        ProtobufCMessage **out)
{
    ProtobufCMessage *m;
    const char *name;
    json_t *value;
    int rc;

    if (!json_is_object(j))
        return wrong(r, j, "an object");
    m = *out = calloc(1, type->sizeof_message);
    if (!m)
        return dk_err_set(r->err, -ENOMEM, "%s: no memory", type->short_name);
    type->message_init(m);
    json_object_foreach((json_t *)j, name, value)
    {
        const ProtobufCFieldDescriptor *f = protobuf_c_message_descriptor_get_field_by_name(type, name);
        size_t before;

        if (!f)
            return unknown_field(r, name, type);
        if (json_is_null(value))
            continue;
        before = path_enter(r, name, -1);
        rc = read_field(r, value, f, m);
        if (rc < 0)
            return rc;
        path_leave(r, before);
    }
    for (unsigned i = 0; i < type->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &type->fields[i];
        const json_t *given = json_object_get(j, f->name);

        if (f->label == PROTOBUF_C_LABEL_REQUIRED && (!given || json_is_null(given)))
            return dk_err_set(r->err, -EINVAL, "%s%s%s needs the field %s", r->path, *r->path ? ": " : "",
                              type->short_name, f->name);
    }
    return 0;
}

int dk_json_to_message(const ProtobufCMessageDescriptor *type, const char *json, ProtobufCMessage **m,
                       struct dk_err *err)
{
    struct reader r = {.err = err};
    json_error_t where;
    json_t *j;
    int rc;

    *m = NULL;
    j = json_loads(json, JSON_REJECT_DUPLICATES, &where);
    if (!j)
        return dk_err_set(err, -EINVAL, "%s: line %d, column %d: %s", type->short_name, where.line, where.column,
                          where.text);
    if (!json_is_object(j))
        rc = dk_err_set(err, -EINVAL, "%s takes an object, not %s", type->short_name, json_kind(j));
    else
        rc = read_message(&r, j, type, m);
    json_decref(j);
    if (rc < 0) {
        protobuf_c_message_free_unpacked(*m, NULL);
        *m = NULL;
    }
    return rc;
}
