/* SPDX-License-Identifier: Apache-2.0 */
/* Open addressing with linear steps; at most half of the slots are in use, so a search always ends at a free one. */
#include "model/tokenizer/token_maps.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* log2 of the slots for `count` entries; 0 when they do not fit. */
static unsigned slots_log2(size_t count)
{
    unsigned log2 = 4;

    while (log2 < 40 && (size_t)1 << log2 < 2 * count)
        log2++;
    return log2 < 40 ? log2 : 0;
}

int dk_text_map_init(struct dk_text_map *m, size_t count)
{
    unsigned log2 = slots_log2(count);

    memset(m, 0, sizeof *m);
    if (!log2)
        return -ENOMEM;
    m->slots = calloc((size_t)1 << log2, sizeof *m->slots);
    if (!m->slots)
        return -ENOMEM;
    m->mask = ((size_t)1 << log2) - 1;
    m->count_max = count;
    return 0;
}

void dk_text_map_fini(struct dk_text_map *m)
{
    free(m->slots);
    memset(m, 0, sizeof *m);
}

/* The slot that holds the text, or the free one where it would go. */
static struct dk_text_slot *text_slot(const struct dk_text_map *m, const char *text, size_t bytes)
{
    for (size_t i = (size_t)XXH3_64bits(text, bytes);; i++) {
        struct dk_text_slot *s = &m->slots[i & m->mask];

        if (!s->text || (s->bytes == bytes && memcmp(s->text, text, bytes) == 0))
            return s;
    }
}

int dk_text_map_put(struct dk_text_map *m, const char *text, size_t bytes, uint32_t id, uint32_t *old)
{
    struct dk_text_slot *s = text_slot(m, text, bytes);

    if (s->text) {
        *old = s->id;
        return -EEXIST;
    }
    assert(m->count < m->count_max && bytes <= UINT32_MAX);
    m->count++;
    *s = (struct dk_text_slot){.text = text, .bytes = (uint32_t)bytes, .id = id};
    return 0;
}

int dk_text_map_get(const struct dk_text_map *m, const char *text, size_t bytes, uint32_t *id)
{
    const struct dk_text_slot *s = m->slots ? text_slot(m, text, bytes) : NULL;

    if (!s || !s->text)
        return -ENOENT;
    *id = s->id;
    return 0;
}

int dk_pair_map_init(struct dk_pair_map *m, size_t count)
{
    unsigned log2 = slots_log2(count);

    memset(m, 0, sizeof *m);
    if (!log2)
        return -ENOMEM;
    m->slots = malloc(sizeof *m->slots << log2);
    if (!m->slots)
        return -ENOMEM;
    for (size_t i = 0; i < (size_t)1 << log2; i++)
        m->slots[i].key = DK_PAIR_FREE;
    m->mask = ((size_t)1 << log2) - 1;
    m->shift = 64 - log2;
    m->count_max = count;
    return 0;
}

void dk_pair_map_fini(struct dk_pair_map *m)
{
    free(m->slots);
    memset(m, 0, sizeof *m);
}

void dk_pair_map_put(struct dk_pair_map *m, uint64_t key, uint32_t first, uint32_t second)
{
    assert(key != DK_PAIR_FREE);
    for (size_t i = (size_t)(key * 0x9E3779B97F4A7C15u >> m->shift);; i++) {
        struct dk_pair_slot *s = &m->slots[i & m->mask];

        if (s->key == DK_PAIR_FREE) {
            assert(m->count < m->count_max);
            m->count++;
        } else if (s->key != key) {
            continue;
        }
        *s = (struct dk_pair_slot){.key = key, .first = first, .second = second};
        return;
    }
}
