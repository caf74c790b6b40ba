/* SPDX-License-Identifier: Apache-2.0 */
#include "model/chat_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void dk_chat_add(struct dk_chat_text *t, const char *text, size_t bytes)
{
    if (t->no_memory)
        return;
    if (t->capacity - t->used <= bytes) {
        size_t capacity = 2 * t->capacity + bytes + 256;
        char *more = realloc(t->data, capacity);

        if (!more) {
            t->no_memory = true;
            return;
        }
        t->data = more;
        t->capacity = capacity;
    }
    if (bytes)
        memcpy(t->data + t->used, text, bytes);
    t->used += bytes;
    t->data[t->used] = 0;
}

void dk_chat_puts(struct dk_chat_text *t, const char *text)
{
    dk_chat_add(t, text, strlen(text));
}

void dk_chat_add_span(struct dk_chat_text *t, struct dk_span s)
{
    dk_chat_add(t, s.text, s.bytes);
}

struct dk_span dk_span_trim_left(struct dk_span s, char c)
{
    while (s.bytes && *s.text == c) {
        s.text++;
        s.bytes--;
    }
    return s;
}

struct dk_span dk_span_trim_right(struct dk_span s, char c)
{
    while (s.bytes && s.text[s.bytes - 1] == c)
        s.bytes--;
    return s;
}

static void add_json_text(struct dk_chat_text *t, const char *text, size_t bytes)
{
    size_t done = 0;

    dk_chat_puts(t, "\"");
    for (size_t i = 0; i < bytes; i++) {
        static const char plain[] = "\"\\\n\r\t\f\b", letters[] = "\"\\nrtfb";
        unsigned char c = (unsigned char)text[i];
        const char *known = c ? strchr(plain, c) : NULL;
        char escape[8];

        if (!known && c >= 0x20)
            continue;
        dk_chat_add(t, text + done, i - done);
        if (known)
            snprintf(escape, sizeof escape, "\\%c", letters[known - plain]);
        else
            snprintf(escape, sizeof escape, "\\u%04x", c);
        dk_chat_puts(t, escape);
        done = i + 1;
    }
    dk_chat_add(t, text + done, bytes - done);
    dk_chat_puts(t, "\"");
}

/* Python's repr of a float: the fewest digits that read back as the same number, plain from 1e-4 up to 1e16. */
static void add_json_real(struct dk_chat_text *t, double value)
{
    char shortest[40], digits[24], out[64];
    const char *sign = "", *p;
    size_t n = 0;
    int exponent, precision = 0;

    do
        snprintf(shortest, sizeof shortest, "%.*e", precision, value);
    while (strtod(shortest, NULL) != value && ++precision < 17);
    p = shortest;
    if (*p == '-') {
        sign = "-";
        p++;
    }
    for (; *p && *p != 'e'; p++)
        if (*p >= '0' && *p <= '9' && n < sizeof digits - 1)
            digits[n++] = *p;
    digits[n] = 0;
    exponent = *p ? (int)strtol(p + 1, NULL, 10) : 0;
    if (exponent < -4 || exponent >= 16)
        snprintf(out, sizeof out, "%s%c%s%se%c%02d", sign, digits[0], n > 1 ? "." : "", digits + 1,
                 exponent < 0 ? '-' : '+', abs(exponent));
    else if (exponent < 0)
        snprintf(out, sizeof out, "%s0.%.*s%s", sign, -exponent - 1, "0000", digits);
    else if (n <= (size_t)exponent + 1)
        snprintf(out, sizeof out, "%s%s%.*s.0", sign, digits, (int)((size_t)exponent + 1 - n), "0000000000000000");
    else
        snprintf(out, sizeof out, "%s%.*s.%s", sign, exponent + 1, digits, digits + exponent + 1);
    dk_chat_puts(t, out);
}

static void add_json_object(struct dk_chat_text *t, const json_t *object)
{
    const char *key, *between = "";
    json_t *v;

    dk_chat_puts(t, "{");
    json_object_foreach((json_t *)object, key, v)
    {
        dk_chat_puts(t, between);
        add_json_text(t, key, strlen(key));
        dk_chat_puts(t, ": ");
        dk_chat_json(t, v);
        between = ", ";
    }
    dk_chat_puts(t, "}");
}

void dk_chat_json(struct dk_chat_text *t, const json_t *v)
{
    char number[32];

    switch (json_typeof(v)) {
    case JSON_OBJECT:
        add_json_object(t, v);
        break;
    case JSON_ARRAY:
        dk_chat_puts(t, "[");
        for (size_t i = 0; i < json_array_size(v); i++) {
            dk_chat_puts(t, i ? ", " : "");
            dk_chat_json(t, json_array_get(v, i));
        }
        dk_chat_puts(t, "]");
        break;
    case JSON_STRING:
        add_json_text(t, json_string_value(v), json_string_length(v));
        break;
    case JSON_INTEGER:
        snprintf(number, sizeof number, "%lld", (long long)json_integer_value(v));
        dk_chat_puts(t, number);
        break;
    case JSON_REAL:
        add_json_real(t, json_real_value(v));
        break;
    case JSON_TRUE:
        dk_chat_puts(t, "true");
        break;
    case JSON_FALSE:
        dk_chat_puts(t, "false");
        break;
    case JSON_NULL:
        dk_chat_puts(t, "null");
        break;
    }
}

int dk_chat_field(const json_t *messages, size_t i, const char *name, struct dk_span *out, struct dk_err *err)
{
    const json_t *v = json_object_get(json_array_get(messages, i), name);

    *out = (struct dk_span){NULL, 0};
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_string(v))
        return dk_err_set(err, -EINVAL, "messages[%zu].%s is not a text", i, name);
    *out = (struct dk_span){json_string_value(v), json_string_length(v)};
    /* The rendered chat is a C string: what stood behind a NUL would be lost without a word. */
    if (memchr(out->text, 0, out->bytes))
        return dk_err_set(err, -EINVAL, "messages[%zu].%s has a NUL character", i, name);
    return 0;
}

int dk_chat_role(const json_t *messages, size_t i, const char **role, struct dk_err *err)
{
    struct dk_span s;
    int rc;

    if (!json_is_object(json_array_get(messages, i)))
        return dk_err_set(err, -EINVAL, "messages[%zu] is not an object", i);
    rc = dk_chat_field(messages, i, "role", &s, err);
    if (rc < 0)
        return rc;
    if (!s.text)
        return dk_err_set(err, -EINVAL, "messages[%zu].role is missing", i);
    *role = s.text;
    return 0;
}
