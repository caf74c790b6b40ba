/* SPDX-License-Identifier: Apache-2.0 */
/* NFC with utf8proc's tables. Its own utf8proc_map() orders combining marks by exchanging neighbours, which takes
 * quadratic time on a long run of marks; here a run is merge sorted, so that hostile text costs n log n.
 *
 * Known difference: utf8proc 2.8 knows Unicode 15.0, the normalizer of the tokenizers library (0.23) an older version.
 * About a hundred combining marks that came since (U+0C3C, U+1DF6, U+10F46, ...) are ordered here and left where they
 * stand there, which shows only where one of them follows another mark of a higher class. */
#include "model/text_utf8.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* The longest canonical decomposition of one character has 4 code points (Unicode Standard Annex 15, "maximum
 * expansion"); utf8proc reports more as an error, which cannot happen. */
#define DECOMPOSED_MAX 8

static int combining_class(utf8proc_int32_t c)
{
    return utf8proc_get_property(c)->combining_class;
}

/* Merges the two sorted halves [0, middle) and [middle, count) of run; equal classes keep their order. */
static void merge_halves(utf8proc_int32_t *run, size_t middle, size_t count, utf8proc_int32_t *spare)
{
    size_t a = 0, b = middle, n = 0;

    if (combining_class(run[middle - 1]) <= combining_class(run[middle]))
        return;
    while (a < middle && b < count)
        spare[n++] = combining_class(run[b]) < combining_class(run[a]) ? run[b++] : run[a++];
    while (a < middle)
        spare[n++] = run[a++];
    memcpy(run, spare, n * sizeof *run); /* what is left of the right half is in place */
}

/* Sorts one run of marks by class, stably. */
static void sort_marks(utf8proc_int32_t *run, size_t count, utf8proc_int32_t *spare)
{
    for (size_t width = 1; width < count; width *= 2)
        for (size_t i = 0; i + width < count; i += 2 * width)
            merge_halves(run + i, width, count - i < 2 * width ? count - i : 2 * width, spare);
}

static int order_marks(utf8proc_int32_t *points, size_t count)
{
    utf8proc_int32_t *spare = NULL;
    size_t spare_count = 0;

    for (size_t i = 0; i < count;) {
        size_t end = i;

        while (end < count && combining_class(points[end]) != 0)
            end++;
        if (end - i > 1) {
            if (end - i > spare_count) {
                free(spare);
                spare_count = 2 * (end - i);
                spare = malloc(spare_count * sizeof *spare);
                if (!spare)
                    return -ENOMEM;
            }
            sort_marks(points + i, end - i, spare);
        }
        i = end + (end == i);
    }
    free(spare);
    return 0;
}

int dk_nfc(const char *text, size_t bytes, char **out, size_t *out_bytes)
{
    utf8proc_int32_t *points = NULL;
    size_t count = 0, capacity = 0, used = 0;
    utf8proc_ssize_t composed;
    bool quick = true;
    int rc = -ENOMEM;

    *out = NULL;
    /* Every character below U+0300 (UTF-8 CC 80) is NFC whatever stands beside it. */
    for (size_t i = 0; i < bytes && quick; i++)
        quick = (uint8_t)text[i] < 0xCC;
    if (quick)
        return 0;
    for (size_t i = 0; i < bytes;) {
        utf8proc_ssize_t n;
        uint32_t c;
        int boundary = 0;

        if (capacity - count < DECOMPOSED_MAX) {
            utf8proc_int32_t *more;

            capacity = capacity ? 2 * capacity : bytes / 2 + DECOMPOSED_MAX;
            more = realloc(points, capacity * sizeof *points);
            if (!more)
                goto fail;
            points = more;
        }
        i += dk_utf8_get(text + i, &c);
        n = utf8proc_decompose_char((utf8proc_int32_t)c, points + count, DECOMPOSED_MAX,
                                    UTF8PROC_STABLE | UTF8PROC_COMPOSE, &boundary);
        if (n < 1 || n > DECOMPOSED_MAX) {
            points[count] = (utf8proc_int32_t)c;
            n = 1;
        }
        count += (size_t)n;
    }
    if (order_marks(points, count) < 0)
        goto fail;
    composed = utf8proc_normalize_utf32(points, (utf8proc_ssize_t)count, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (composed < 0)
        goto fail;
    *out = malloc(4 * (size_t)composed + 1);
    if (!*out)
        goto fail;
    for (utf8proc_ssize_t i = 0; i < composed; i++)
        used += dk_utf8_put((uint32_t)points[i], *out + used);
    *out_bytes = used;
    rc = 0;
fail:
    free(points);
    return rc;
}
