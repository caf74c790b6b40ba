/* SPDX-License-Identifier: Apache-2.0 */
/* A message as JSON text, written straight from its descriptor: numbers get the fewest digits that read back as the
 * same value, which a generic JSON tree cannot do for floats. */
#include "wire/wire_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct text {
    char *data;
    size_t bytes, room;
    int failed; /* no memory; everything after is skipped */
    int indent;
};

static void put(struct text *t, const char *data, size_t bytes)
{
    if (t->failed)
        return;
    if (t->room - t->bytes <= bytes) {
        size_t room = 2 * t->room + bytes + 256;
        char *grown = realloc(t->data, room);

        if (!grown) {
            t->failed = 1;
            return;
        }
        t->data = grown;
        t->room = room;
    }
    memcpy(t->data + t->bytes, data, bytes);
    t->bytes += bytes;
    t->data[t->bytes] = 0;
}

static void put_text(struct text *t, const char *s)
{
    put(t, s, strlen(s));
}

__attribute__((format(printf, 2, 3))) static void put_format(struct text *t, const char *format, ...)
{
    char s[64];
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(s, sizeof s, format, args);
    va_end(args);
    put(t, s, (size_t)n);
}

static void put_line(struct text *t, int depth)
{
    if (!t->indent)
        return;
    put_text(t, "\n");
    for (int i = 0; i < depth * t->indent; i++)
        put_text(t, " ");
}

static void put_string(struct text *t, const char *s)
{
    size_t left = strlen(s), n;

    put_text(t, "\"");
    for (; left; s += n, left -= n) {
        unsigned char c = (unsigned char)*s;

        n = wire_utf8_next((const unsigned char *)s, left);
        if (!n) {
            put_text(t, "\xef\xbf\xbd"); /* U+FFFD, as JSON cannot carry other bytes */
            n = 1;
        } else if (c == '"' || c == '\\') {
            put_format(t, "\\%c", c);
        } else if (c == '\n') {
            put_text(t, "\\n");
        } else if (c == '\t') {
            put_text(t, "\\t");
        } else if (c < 0x20 || c == 0x7f) {
            put_format(t, "\\u%04x", c);
        } else {
            put(t, s, n);
        }
    }
    put_text(t, "\"");
}

static void put_base64(struct text *t, const ProtobufCBinaryData *b)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    put_text(t, "\"");
    for (size_t i = 0; i < b->len; i += 3) {
        size_t n = b->len - i < 3 ? b->len - i : 3;
        uint32_t v = (uint32_t)b->data[i] << 16 | (n > 1 ? (uint32_t)b->data[i + 1] << 8 : 0) |
                     (n > 2 ? (uint32_t)b->data[i + 2] : 0);
        char four[4] = {digits[v >> 18], digits[v >> 12 & 63], n > 1 ? digits[v >> 6 & 63] : '=',
                        n > 2 ? digits[v & 63] : '='};

        put(t, four, 4);
    }
    put_text(t, "\"");
}

static void put_real(struct text *t, double v, int is_float)
{
    char s[40];
    int digits = is_float ? 6 : 15;

    if (isnan(v) || isinf(v)) {
        put_text(t, isnan(v) ? "\"NaN\"" : v > 0 ? "\"Infinity\"" : "\"-Infinity\"");
        return;
    }
    if (v == 0 && signbit(v)) {
        put_text(t, "-0.0"); /* "-0" would be read as an integer */
        return;
    }
    do {
        snprintf(s, sizeof s, "%.*g", digits++, v);
    } while (is_float ? strtof(s, NULL) != (float)v : strtod(s, NULL) != v);
    put_text(t, s);
}

static void put_message(struct text *t, const ProtobufCMessage *m, int depth);

static void put_value(struct text *t, const ProtobufCFieldDescriptor *f, const void *value, int depth)
{
    switch (f->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
        put_format(t, "%" PRId32, *(const int32_t *)value);
        break;
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        put_format(t, "%" PRIu32, *(const uint32_t *)value);
        break;
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        put_format(t, "%" PRId64, *(const int64_t *)value);
        break;
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64: {
        uint64_t v = *(const uint64_t *)value;

        put_format(t, v > INT64_MAX ? "\"%" PRIu64 "\"" : "%" PRIu64, v);
        break;
    }
    case PROTOBUF_C_TYPE_FLOAT:
        put_real(t, (double)*(const float *)value, 1);
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        put_real(t, *(const double *)value, 0);
        break;
    case PROTOBUF_C_TYPE_BOOL:
        put_text(t, *(const protobuf_c_boolean *)value ? "true" : "false");
        break;
    case PROTOBUF_C_TYPE_ENUM: {
        const ProtobufCEnumValue *v = protobuf_c_enum_descriptor_get_value(f->descriptor, *(const int *)value);

        if (v)
            put_string(t, v->name);
        else
            put_format(t, "%d", *(const int *)value);
        break;
    }
    case PROTOBUF_C_TYPE_STRING: {
        const char *s = *(char *const *)value;

        put_string(t, s ? s : "");
        break;
    }
    case PROTOBUF_C_TYPE_BYTES:
        put_base64(t, value);
        break;
    case PROTOBUF_C_TYPE_MESSAGE:
        put_message(t, *(ProtobufCMessage *const *)value, depth);
        break;
    }
}

static void put_message(struct text *t, const ProtobufCMessage *m, int depth)
{
    const char *separator = "";

    put_text(t, "{");
    for (unsigned i = 0; m && i < m->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &m->descriptor->fields[i];
        const char *at = (const char *)m + f->offset;
        size_t count = wire_field_count(m, f);
        int repeated = f->label == PROTOBUF_C_LABEL_REPEATED;
        /* Numbers stay on one line; messages get one each. */
        int lines = repeated && f->type == PROTOBUF_C_TYPE_MESSAGE;

        if (!count)
            continue;
        put_text(t, separator);
        separator = t->indent ? "," : ", ";
        put_line(t, depth + 1);
        put_string(t, f->name);
        put_text(t, ": ");
        if (repeated) {
            at = *(const char *const *)at;
            put_text(t, "[");
        }
        for (size_t j = 0; j < count; j++) {
            if (j)
                put_text(t, lines && t->indent ? "," : ", ");
            if (lines)
                put_line(t, depth + 2);
            put_value(t, f, at + j * wire_value_bytes(f->type), depth + 1 + lines);
        }
        if (lines)
            put_line(t, depth + 1);
        if (repeated)
            put_text(t, "]");
    }
    if (*separator)
        put_line(t, depth);
    put_text(t, "}");
}

char *dk_json_from_message(const ProtobufCMessage *m, int indent)
{
    struct text t = {.indent = indent > 0 ? indent : 0};

    put_message(&t, m, 0);
    if (t.failed) {
        free(t.data);
        return NULL;
    }
    return t.data;
}
