/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_COORDINATOR_STOP_FILTER_H
#define DK_COORDINATOR_STOP_FILTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Finds stop strings in a text that comes in pieces. Text is held back while it could still be the beginning of one. */

#define DK_STOP_STRINGS_MAX 16u
#define DK_STOP_BYTES_MAX   256u

struct dk_stop_filter {
    char *strings[DK_STOP_STRINGS_MAX]; /* owned */
    uint32_t count;
    char *buffer; /* text that was not taken yet */
    size_t bytes, capacity;
    size_t ready; /* bytes at the front of the buffer that may be taken */
    bool hit;     /* a stop string was found; it and all that follows is gone */
};

/* Strings are copied; at most DK_STOP_STRINGS_MAX of them, none empty. -ENOMEM. */
int dk_stop_filter_init(struct dk_stop_filter *f, char *const *strings, uint32_t count);
void dk_stop_filter_fini(struct dk_stop_filter *f); /* fine on a zeroed one */
/* A string of a message ends at its first zero byte, so a zero byte in the text becomes U+FFFD instead of hiding what
 * follows. -ENOMEM. */
int dk_stop_filter_push(struct dk_stop_filter *f, const char *text, size_t bytes);
void dk_stop_filter_flush(struct dk_stop_filter *f); /* the text ends here: everything is ready */
/* What is ready, as a malloc'ed string; NULL: nothing, or no memory (then it is lost). */
char *dk_stop_filter_take(struct dk_stop_filter *f);

#endif
