/* SPDX-License-Identifier: Apache-2.0 */
#include "model/text_utf8.h"

#include <stdlib.h>
#include <string.h>

static size_t put_replacement(char *out)
{
    memcpy(out, "\xEF\xBF\xBD", 3);
    return 3;
}

/* Bytes of the character that starts with this one; 0 for a byte that starts none. */
static unsigned lead_bytes(uint8_t lead)
{
    if (lead < 0x80)
        return 1;
    if (lead < 0xC2 || lead > 0xF4)
        return 0;
    return lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

/* May `byte` follow the `have` bytes that begin with `lead`? The second byte of some leads is narrower: it keeps out
 * overlong forms, surrogates and values above U+10FFFF. */
static int may_follow(uint8_t lead, uint32_t have, uint8_t byte)
{
    uint8_t low = 0x80, high = 0xBF;

    if (have == 1) {
        if (lead == 0xE0)
            low = 0xA0;
        else if (lead == 0xED)
            high = 0x9F;
        else if (lead == 0xF0)
            low = 0x90;
        else if (lead == 0xF4)
            high = 0x8F;
    }
    return byte >= low && byte <= high;
}

size_t dk_utf8_push(struct dk_utf8_state *s, uint8_t byte, char *out)
{
    size_t n = 0;

    if (s->pending_bytes > 0) {
        if (may_follow(s->pending[0], s->pending_bytes, byte)) {
            s->pending[s->pending_bytes++] = byte;
            if (s->pending_bytes == lead_bytes(s->pending[0])) {
                n = s->pending_bytes;
                memcpy(out, s->pending, n);
                s->pending_bytes = 0;
            }
            return n;
        }
        n = put_replacement(out);
        s->pending_bytes = 0;
    }
    switch (lead_bytes(byte)) {
    case 0:
        return n + put_replacement(out + n);
    case 1:
        out[n] = (char)byte;
        return n + 1;
    default:
        s->pending[0] = byte;
        s->pending_bytes = 1;
        return n;
    }
}

size_t dk_utf8_finish(struct dk_utf8_state *s, char *out)
{
    if (s->pending_bytes == 0)
        return 0;
    s->pending_bytes = 0;
    return put_replacement(out);
}

size_t dk_utf8_valid(const char *text, size_t bytes)
{
    const uint8_t *p = (const uint8_t *)text;
    size_t i = 0;

    while (i < bytes) {
        unsigned n = lead_bytes(p[i]), k = 1;

        if (n == 0 || n > bytes - i)
            break;
        while (k < n && may_follow(p[i], k, p[i + k]))
            k++;
        if (k < n)
            break;
        i += n;
    }
    return i;
}

char *dk_utf8_replace(const char *text, size_t bytes, size_t *out_bytes)
{
    struct dk_utf8_state s = {.pending_bytes = 0};
    char *out = malloc(3 * bytes + 3);
    size_t n = 0;

    if (!out)
        return NULL;
    for (size_t i = 0; i < bytes; i++)
        n += dk_utf8_push(&s, (uint8_t)text[i], out + n);
    n += dk_utf8_finish(&s, out + n);
    *out_bytes = n;
    return out;
}

size_t dk_utf8_get(const char *text, uint32_t *codepoint)
{
    const uint8_t *p = (const uint8_t *)text;

    if (p[0] < 0x80) {
        *codepoint = p[0];
        return 1;
    }
    if (p[0] < 0xE0) {
        *codepoint = (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu);
        return 2;
    }
    if (p[0] < 0xF0) {
        *codepoint = (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
        return 3;
    }
    *codepoint = (p[0] & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
    return 4;
}

size_t dk_utf8_put(uint32_t c, char *out)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xC0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3F));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xE0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3F));
        out[2] = (char)(0x80 | (c & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3F));
    out[2] = (char)(0x80 | (c >> 6 & 0x3F));
    out[3] = (char)(0x80 | (c & 0x3F));
    return 4;
}
