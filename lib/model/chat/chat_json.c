/* SPDX-License-Identifier: Apache-2.0 */
/* JSON as Python prints it. The depth of a value is at most what jansson parses (2048). */
#include "model/chat/chat_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
static void add_real(struct dk_chat_text *t, double value)
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

static void add_integer(struct dk_chat_text *t, const json_t *v)
{
    char number[32];

    snprintf(number, sizeof number, "%lld", (long long)json_integer_value(v));
    dk_chat_puts(t, number);
}

/* How deep a value stands, and how many blanks each level has: 0 for JSON on one line. */
struct layout {
    unsigned indent, level;
};

static void add_value(struct dk_chat_text *t, const json_t *v, struct layout at);

static void add_line(struct dk_chat_text *t, struct layout at)
{
    if (!at.indent)
        return;
    dk_chat_puts(t, "\n");
    for (unsigned i = 0; i < at.indent * at.level; i++)
        dk_chat_puts(t, " ");
}

static void add_object(struct dk_chat_text *t, const json_t *object, struct layout at)
{
    struct layout inner = {at.indent, at.level + 1};
    const char *key, *between = "";
    json_t *v;

    dk_chat_puts(t, "{");
    json_object_foreach((json_t *)object, key, v)
    {
        dk_chat_puts(t, between);
        add_line(t, inner);
        add_json_text(t, key, strlen(key));
        dk_chat_puts(t, ": ");
        add_value(t, v, inner);
        between = at.indent ? "," : ", ";
    }
    if (json_object_size(object))
        add_line(t, at);
    dk_chat_puts(t, "}");
}

static void add_array(struct dk_chat_text *t, const json_t *array, struct layout at)
{
    struct layout inner = {at.indent, at.level + 1};

    dk_chat_puts(t, "[");
    for (size_t i = 0; i < json_array_size(array); i++) {
        dk_chat_puts(t, i == 0 ? "" : at.indent ? "," : ", ");
        add_line(t, inner);
        add_value(t, json_array_get(array, i), inner);
    }
    if (json_array_size(array))
        add_line(t, at);
    dk_chat_puts(t, "]");
}

static void add_value(struct dk_chat_text *t, const json_t *v, struct layout at)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        add_object(t, v, at);
        break;
    case JSON_ARRAY:
        add_array(t, v, at);
        break;
    case JSON_STRING:
        add_json_text(t, json_string_value(v), json_string_length(v));
        break;
    case JSON_INTEGER:
        add_integer(t, v);
        break;
    case JSON_REAL:
        add_real(t, json_real_value(v));
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

void dk_chat_json(struct dk_chat_text *t, const json_t *v)
{
    add_value(t, v, (struct layout){0, 0});
}

void dk_chat_json_indented(struct dk_chat_text *t, const json_t *v, unsigned indent)
{
    add_value(t, v, (struct layout){indent, 0});
}

bool dk_chat_json_is_deeper(const json_t *v, unsigned levels)
{
    const char *key;
    json_t *inner;

    if (levels == 0)
        return json_is_object(v) || json_is_array(v);
    json_object_foreach((json_t *)v, key, inner) if (dk_chat_json_is_deeper(inner, levels - 1)) return true;
    for (size_t i = 0; i < json_array_size(v); i++)
        if (dk_chat_json_is_deeper(json_array_get(v, i), levels - 1))
            return true;
    return false;
}

void dk_chat_python_scalar(struct dk_chat_text *t, const json_t *v)
{
    if (json_is_integer(v))
        add_integer(t, v);
    else if (json_is_real(v))
        add_real(t, json_real_value(v));
    else
        dk_chat_puts(t, json_is_true(v) ? "True" : json_is_false(v) ? "False" : "None");
}
