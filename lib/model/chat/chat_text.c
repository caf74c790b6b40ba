/* SPDX-License-Identifier: Apache-2.0 */
#include "model/chat/chat_text.h"

#include <stdlib.h>
#include <string.h>

#include "model/text_utf8.h"

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

/* Python's str.isspace(). */
static bool is_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

struct dk_span dk_span_strip(struct dk_span s)
{
    uint32_t c;

    while (s.bytes) {
        size_t n = dk_utf8_get(s.text, &c);

        if (!is_space(c))
            break;
        s.text += n;
        s.bytes -= n;
    }
    while (s.bytes) {
        size_t start = s.bytes - 1;

        while (((unsigned char)s.text[start] & 0xC0) == 0x80)
            start--;
        dk_utf8_get(s.text + start, &c);
        if (!is_space(c))
            break;
        s.bytes = start;
    }
    return s;
}

const char *dk_span_first(struct dk_span s, const char *needle)
{
    return s.bytes ? memmem(s.text, s.bytes, needle, strlen(needle)) : NULL;
}

const char *dk_span_last(struct dk_span s, const char *needle)
{
    const char *at, *found = NULL;
    struct dk_span rest = s;

    while ((at = dk_span_first(rest, needle))) {
        found = at;
        rest = dk_span_between(at + strlen(needle), s.text + s.bytes);
    }
    return found;
}

struct dk_span dk_span_between(const char *from, const char *to)
{
    return (struct dk_span){from, (size_t)(to - from)};
}

bool dk_span_begins_and_ends(struct dk_span s, const char *head, const char *tail)
{
    size_t h = strlen(head), n = strlen(tail);

    return s.bytes >= h && s.bytes >= n && memcmp(s.text, head, h) == 0 && memcmp(s.text + s.bytes - n, tail, n) == 0;
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

const char *dk_chat_role_of(const json_t *messages, size_t i)
{
    return json_string_value(json_object_get(json_array_get(messages, i), "role"));
}

int dk_chat_content(const json_t *messages, size_t i, struct dk_span *out, struct dk_err *err)
{
    int rc = dk_chat_field(messages, i, "content", out, err);

    return rc == 0 && !out->text ? dk_err_set(err, -EINVAL, "messages[%zu].content is missing", i) : rc;
}
