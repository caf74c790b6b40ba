/* SPDX-License-Identifier: Apache-2.0 */
/* A slot is a sequence's page table and its state slot, which has the same index. Pages are counted: forks share the
 * full ones, which nobody writes again. */
#include "attention-worker/cache.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct slot {
    bool open;
    uint64_t sequence_id;
    uint32_t tokens, pages;
    uint32_t *table; /* [pages_per_sequence], the first `pages` are its own or shared */
};

struct dk_cache {
    struct dk_cache_shape shape;
    struct dk_cache_store store;
    uint32_t free_count;
    uint32_t *free_pages; /* a stack */
    uint32_t *owners;     /* [pages] sequences that have the page in their table */
    uint32_t *tables;
    struct slot *slots;
};

static uint32_t pages_for(const struct dk_cache *c, uint32_t tokens)
{
    return (uint32_t)(((uint64_t)tokens + c->shape.page_tokens - 1) / c->shape.page_tokens);
}

int dk_cache_open(const struct dk_cache_shape *shape, const struct dk_cache_store *store, struct dk_cache **out)
{
    struct dk_cache *c;
    uint32_t per_sequence;

    *out = NULL;
    if (shape->page_tokens == 0 || shape->pages == 0 || shape->sequences_max == 0 || shape->context == 0)
        return -EINVAL;
    c = calloc(1, sizeof(*c));
    if (!c)
        return -ENOMEM;
    c->shape = *shape;
    c->store = *store;
    per_sequence = pages_for(c, shape->context);
    c->free_pages = calloc(shape->pages, sizeof(*c->free_pages));
    c->owners = calloc(shape->pages, sizeof(*c->owners));
    c->tables = calloc((size_t)shape->sequences_max * per_sequence, sizeof(*c->tables));
    c->slots = calloc(shape->sequences_max, sizeof(*c->slots));
    if (!c->free_pages || !c->owners || !c->tables || !c->slots) {
        dk_cache_close(c);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < shape->sequences_max; i++)
        c->slots[i].table = c->tables + (size_t)i * per_sequence;
    /* The lowest page is taken first. */
    for (uint32_t i = 0; i < shape->pages; i++)
        c->free_pages[i] = shape->pages - 1 - i;
    c->free_count = shape->pages;
    *out = c;
    return 0;
}

void dk_cache_close(struct dk_cache *c)
{
    if (!c)
        return;
    free(c->free_pages);
    free(c->owners);
    free(c->tables);
    free(c->slots);
    free(c);
}

/* The sequence's slot; otherwise NULL, and *vacant (may be NULL) is a slot that is not open, or NULL. A worker runs
 * tens of sequences: a walk is short beside a step. */
static struct slot *find(const struct dk_cache *c, uint64_t sequence_id, struct slot **vacant)
{
    struct slot *first_vacant = NULL, *found = NULL;

    for (uint32_t i = 0; i < c->shape.sequences_max && !found; i++) {
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

static uint32_t page_take(struct dk_cache *c)
{
    uint32_t page = c->free_pages[--c->free_count];

    c->owners[page] = 1;
    return page;
}

int dk_cache_extend(struct dk_cache *c, uint64_t sequence_id, uint32_t tokens, struct dk_cache_place *place)
{
    struct slot *vacant, *s = find(c, sequence_id, &vacant);
    uint32_t pages = pages_for(c, tokens);

    if (tokens == 0)
        return -EINVAL;
    if (tokens > c->shape.context)
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
        s->table[s->pages++] = page_take(c);
    *place = (struct dk_cache_place){.pages = s->table, .state = (uint32_t)(s - c->slots)};
    return 0;
}

int dk_cache_fork(struct dk_cache *c, uint64_t from, uint64_t to)
{
    struct slot *target, *source = find(c, from, NULL);
    uint32_t shared;

    if (!source)
        return -ENOENT;
    if (find(c, to, &target))
        return -EEXIST;
    shared = source->tokens / c->shape.page_tokens;
    if (!target || source->pages - shared > c->free_count)
        return -ENOSPC;
    target->open = true;
    target->sequence_id = to;
    target->tokens = source->tokens;
    memcpy(target->table, source->table, shared * sizeof(*target->table));
    for (uint32_t i = 0; i < shared; i++)
        c->owners[source->table[i]]++;
    target->pages = shared;
    while (target->pages < source->pages) {
        uint32_t page = page_take(c);

        if (c->store.copy_page)
            c->store.copy_page(c->store.ctx, source->table[target->pages], page);
        target->table[target->pages++] = page;
    }
    if (c->store.copy_state)
        c->store.copy_state(c->store.ctx, (uint32_t)(source - c->slots), (uint32_t)(target - c->slots));
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
    while (s->pages > 0) {
        uint32_t page = s->table[--s->pages];

        if (--c->owners[page] == 0)
            c->free_pages[c->free_count++] = page;
    }
    s->tokens = 0;
    s->open = false;
}

void dk_cache_release_all(struct dk_cache *c)
{
    for (uint32_t i = 0; i < c->shape.sequences_max; i++)
        if (c->slots[i].open)
            dk_cache_release(c, c->slots[i].sequence_id);
}

uint32_t dk_cache_pages_free(const struct dk_cache *c)
{
    return c->free_count;
}
