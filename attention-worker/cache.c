/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/cache.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

struct slot {
    bool open;
    uint64_t sequence_id;
    uint32_t tokens, pages;
    uint32_t *table; /* [pages_per_sequence], the first `pages` are its own */
};

struct dk_cache {
    uint32_t page_tokens, context, slot_count, free_count;
    uint32_t *free_pages; /* a stack */
    uint32_t *tables;
    struct slot *slots;
};

static uint32_t pages_for(const struct dk_cache *c, uint32_t tokens)
{
    return (uint32_t)(((uint64_t)tokens + c->page_tokens - 1) / c->page_tokens);
}

int dk_cache_open(uint32_t page_tokens, uint32_t pages, uint32_t sequences_max, uint32_t context, struct dk_cache **out)
{
    struct dk_cache *c;
    uint32_t per_sequence;

    *out = NULL;
    if (page_tokens == 0 || pages == 0 || sequences_max == 0 || context == 0)
        return -EINVAL;
    c = calloc(1, sizeof(*c));
    if (!c)
        return -ENOMEM;
    c->page_tokens = page_tokens;
    c->context = context;
    c->slot_count = sequences_max;
    per_sequence = pages_for(c, context);
    c->free_pages = calloc(pages, sizeof(*c->free_pages));
    c->tables = calloc((size_t)sequences_max * per_sequence, sizeof(*c->tables));
    c->slots = calloc(sequences_max, sizeof(*c->slots));
    if (!c->free_pages || !c->tables || !c->slots) {
        dk_cache_close(c);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < sequences_max; i++)
        c->slots[i].table = c->tables + (size_t)i * per_sequence;
    /* The lowest page is taken first. */
    for (uint32_t i = 0; i < pages; i++)
        c->free_pages[i] = pages - 1 - i;
    c->free_count = pages;
    *out = c;
    return 0;
}

void dk_cache_close(struct dk_cache *c)
{
    if (!c)
        return;
    free(c->free_pages);
    free(c->tables);
    free(c->slots);
    free(c);
}

/* The sequence's slot; otherwise NULL, and *vacant (may be NULL) is a slot that is not open, or NULL. A worker runs
 * tens of sequences: a walk is short beside a step. */
static struct slot *find(const struct dk_cache *c, uint64_t sequence_id, struct slot **vacant)
{
    struct slot *first_vacant = NULL, *found = NULL;

    for (uint32_t i = 0; i < c->slot_count && !found; i++) {
        struct slot *s = &c->slots[i];

        if (s->open && s->sequence_id == sequence_id)
            found = s;
        else if (!s->open && !first_vacant)
            first_vacant = s;
    }
    if (vacant)
        *vacant = first_vacant;
    return found;
}

int dk_cache_extend(struct dk_cache *c, uint64_t sequence_id, uint32_t tokens, const uint32_t **page_table)
{
    struct slot *vacant, *s = find(c, sequence_id, &vacant);
    uint32_t pages = pages_for(c, tokens);

    if (tokens == 0)
        return -EINVAL;
    if (tokens > c->context)
        return -E2BIG;
    if (!s)
        s = vacant;
    if (!s || (pages > s->pages && pages - s->pages > c->free_count))
        return -ENOSPC;
    s->open = true;
    s->sequence_id = sequence_id;
    if (tokens > s->tokens)
        s->tokens = tokens;
    while (s->pages < pages)
        s->table[s->pages++] = c->free_pages[--c->free_count];
    *page_table = s->table;
    return 0;
}

uint32_t dk_cache_tokens(const struct dk_cache *c, uint64_t sequence_id)
{
    const struct slot *s = find(c, sequence_id, NULL);

    return s ? s->tokens : 0;
}

void dk_cache_release(struct dk_cache *c, uint64_t sequence_id)
{
    struct slot *s = find(c, sequence_id, NULL);

    if (!s)
        return;
    while (s->pages > 0)
        c->free_pages[c->free_count++] = s->table[--s->pages];
    s->tokens = 0;
    s->open = false;
}

void dk_cache_release_all(struct dk_cache *c)
{
    for (uint32_t i = 0; i < c->slot_count; i++)
        if (c->slots[i].open)
            dk_cache_release(c, c->slots[i].sequence_id);
}

uint32_t dk_cache_pages_free(const struct dk_cache *c)
{
    return c->free_count;
}
