/* SPDX-License-Identifier: Apache-2.0 */
#include "coordinator/stop_filter.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int dk_stop_filter_init(struct dk_stop_filter *f, char *const *strings, uint32_t count)
{
    memset(f, 0, sizeof *f);
    for (uint32_t i = 0; i < count; i++) {
        f->strings[i] = strdup(strings[i]);
        if (!f->strings[i]) {
            dk_stop_filter_fini(f);
            return -ENOMEM;
        }
        f->count++;
    }
    return 0;
}

void dk_stop_filter_fini(struct dk_stop_filter *f)
{
    for (uint32_t i = 0; i < f->count; i++)
        free(f->strings[i]);
    free(f->buffer);
    memset(f, 0, sizeof *f);
}

/* Length of the longest end of text that is a beginning of stop, but not all of it. */
static size_t overlap(const char *text, size_t bytes, const char *stop)
{
    size_t most = strlen(stop) - 1;

    for (size_t n = most < bytes ? most : bytes; n; n--)
        if (!memcmp(text + bytes - n, stop, n))
            return n;
    return 0;
}

static int push(struct dk_stop_filter *f, const char *text, size_t bytes)
{
    const char *found = NULL, *found_end = NULL;
    size_t held = 0;

    if (f->hit || !bytes)
        return 0;
    if (f->bytes + bytes > f->capacity) {
        size_t capacity = 2 * (f->bytes + bytes);
        char *grown = realloc(f->buffer, capacity);

        if (!grown)
            return -ENOMEM;
        f->buffer = grown;
        f->capacity = capacity;
    }
    memcpy(f->buffer + f->bytes, text, bytes);
    f->bytes += bytes;
    for (uint32_t i = 0; i < f->count; i++) {
        const char *at = memmem(f->buffer, f->bytes, f->strings[i], strlen(f->strings[i]));
        size_t n = overlap(f->buffer, f->bytes, f->strings[i]);

        /* The one that is complete first, and of several the longest: so it does not matter how the text is cut. */
        if (at) {
            const char *end = at + strlen(f->strings[i]);

            if (!found || end < found_end || (end == found_end && at < found)) {
                found = at;
                found_end = end;
            }
        }
        if (n > held)
            held = n;
    }
    if (found) {
        f->hit = true;
        f->bytes = (size_t)(found - f->buffer);
        held = 0;
    }
    f->ready = f->bytes - held;
    return 0;
}

int dk_stop_filter_push(struct dk_stop_filter *f, const char *text, size_t bytes)
{
    while (bytes) {
        size_t n = strnlen(text, bytes);
        int rc = push(f, text, n);

        if (rc == 0 && n < bytes) {
            rc = push(f, "\xef\xbf\xbd", 3);
            n++;
        }
        if (rc < 0)
            return rc;
        text += n;
        bytes -= n;
    }
    return 0;
}

void dk_stop_filter_flush(struct dk_stop_filter *f)
{
    f->ready = f->bytes;
}

char *dk_stop_filter_take(struct dk_stop_filter *f)
{
    char *text;

    if (!f->ready)
        return NULL;
    text = strndup(f->buffer, f->ready);
    f->bytes -= f->ready;
    memmove(f->buffer, f->buffer + f->ready, f->bytes);
    f->ready = 0;
    return text;
}
