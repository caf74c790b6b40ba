/* SPDX-License-Identifier: Apache-2.0 */
/* Short words, nearly all of them, look at every pair again for each merge: fewest instructions. Long ones keep a heap
 * of the pairs that may merge. A heap entry is never removed when its pair changes; it is recognised when it comes
 * up, because the pair that then stands there has another rank. */
#include "model/tokenizer/bpe.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SHORT_MAX 32
#define NONE      UINT32_MAX

int dk_id_list_add(struct dk_id_list *l, const uint32_t *ids, size_t count)
{
    if (l->capacity - l->count < count) {
        size_t capacity = 2 * l->capacity + count + 64;
        uint32_t *more = realloc(l->ids, capacity * sizeof *more);

        if (!more)
            return -ENOMEM;
        l->ids = more;
        l->capacity = capacity;
    }
    if (count)
        memcpy(l->ids + l->count, ids, count * sizeof *ids);
    l->count += count;
    return 0;
}

void dk_bpe_scratch_fini(struct dk_bpe_scratch *s)
{
    free(s->symbols);
    free(s->heap);
    memset(s, 0, sizeof *s);
}

static void look_up(const struct dk_bpe *b, uint32_t left, uint32_t right, uint32_t *rank, uint32_t *made)
{
    const struct dk_pair_slot *p = dk_pair_map_get(&b->merges, dk_pair_key(left, right));

    *rank = p ? p->first : NONE;
    *made = p ? p->second : NONE;
}

static int merge_short(const struct dk_bpe *b, struct dk_bpe_scratch *s, const uint8_t *bytes, size_t count,
                       struct dk_id_list *out)
{
    uint32_t id[SHORT_MAX], rank[SHORT_MAX], made[SHORT_MAX]; /* rank[i], made[i]: the pair (i, i + 1) */
    size_t n = 0;

    for (size_t i = 0; i < count; i++)
        if (b->byte_id[bytes[i]] != DK_NO_TOKEN)
            id[n++] = b->byte_id[bytes[i]];
    for (size_t i = 0; i + 1 < n; i++)
        look_up(b, id[i], id[i + 1], &rank[i], &made[i]);
    while (n > 1) {
        size_t best = 0;

        for (size_t i = 1; i + 1 < n; i++)
            best = rank[i] < rank[best] ? i : best;
        s->steps += n;
        if (rank[best] == NONE)
            break;
        id[best] = made[best];
        memmove(id + best + 1, id + best + 2, (n - best - 2) * sizeof *id);
        if (n - best > 2) {
            memmove(rank + best, rank + best + 1, (n - best - 2) * sizeof *rank);
            memmove(made + best, made + best + 1, (n - best - 2) * sizeof *made);
        }
        n--;
        if (best + 1 < n)
            look_up(b, id[best], id[best + 1], &rank[best], &made[best]);
        if (best > 0)
            look_up(b, id[best - 1], id[best], &rank[best - 1], &made[best - 1]);
    }
    return dk_id_list_add(out, id, n);
}

/* Four children a node: half the levels of a binary heap, and the four are side by side in memory. */
#define CHILDREN 4

static void heap_push(struct dk_bpe_scratch *s, uint64_t pair)
{
    size_t i = s->heap_count++;

    for (; i > 0 && pair < s->heap[(i - 1) / CHILDREN]; i = (i - 1) / CHILDREN, s->steps++)
        s->heap[i] = s->heap[(i - 1) / CHILDREN];
    s->heap[i] = pair;
    s->steps++;
}

static uint64_t heap_pop(struct dk_bpe_scratch *s)
{
    uint64_t top = s->heap[0], last = s->heap[--s->heap_count];
    size_t i = 0;

    for (;; s->steps++) {
        size_t first = CHILDREN * i + 1, end = first + CHILDREN, least = first;

        if (end > s->heap_count)
            end = s->heap_count;
        for (size_t k = first + 1; k < end; k++)
            least = s->heap[k] < s->heap[least] ? k : least;
        if (first >= end || s->heap[least] >= last)
            break;
        s->heap[i] = s->heap[least];
        i = least;
    }
    s->heap[i] = last;
    s->steps++;
    return top;
}

static void push_pair(const struct dk_bpe *b, struct dk_bpe_scratch *s, uint32_t at)
{
    uint32_t next = at == NONE ? NONE : s->symbols[at].next, rank, made;

    if (next == NONE)
        return;
    look_up(b, s->symbols[at].id, s->symbols[next].id, &rank, &made);
    if (rank != NONE)
        heap_push(s, (uint64_t)rank << 32 | at);
}

/* Each merge takes one entry and adds two at most, so the heap never holds more than twice the symbols. */
static int reserve(struct dk_bpe_scratch *s, size_t count)
{
    if (count > s->symbols_max) {
        free(s->symbols);
        s->symbols = malloc(count * sizeof *s->symbols);
        s->symbols_max = s->symbols ? count : 0;
    }
    if (2 * count > s->heap_max) {
        free(s->heap);
        s->heap = malloc(2 * count * sizeof *s->heap);
        s->heap_max = s->heap ? 2 * count : 0;
    }
    return s->symbols && s->heap ? 0 : -ENOMEM;
}

static int merge_long(const struct dk_bpe *b, struct dk_bpe_scratch *s, const uint8_t *bytes, size_t count,
                      struct dk_id_list *out)
{
    struct dk_bpe_symbol *y;
    uint32_t n = 0;
    int rc = reserve(s, count);

    if (rc < 0)
        return rc;
    y = s->symbols;
    for (size_t i = 0; i < count; i++) {
        uint32_t id = b->byte_id[bytes[i]];

        if (id == DK_NO_TOKEN)
            continue;
        y[n] = (struct dk_bpe_symbol){.id = id, .previous = n ? n - 1 : NONE, .next = n + 1};
        n++;
    }
    if (n == 0)
        return 0;
    y[n - 1].next = NONE;
    s->heap_count = 0;
    for (uint32_t i = 0; i < n; i++)
        push_pair(b, s, i);
    while (s->heap_count) {
        uint64_t pair = heap_pop(s);
        uint32_t at = (uint32_t)pair, next = y[at].next, rank, made;

        if (y[at].id == DK_NO_TOKEN || next == NONE)
            continue;
        look_up(b, y[at].id, y[next].id, &rank, &made);
        if (rank != pair >> 32)
            continue;
        y[at].id = made;
        y[at].next = y[next].next;
        y[next].id = DK_NO_TOKEN;
        if (y[next].next != NONE)
            y[y[next].next].previous = at;
        push_pair(b, s, y[at].previous);
        push_pair(b, s, at);
    }
    for (uint32_t i = 0; i != NONE; i = y[i].next) {
        rc = dk_id_list_add(out, &y[i].id, 1);
        if (rc < 0)
            return rc;
    }
    return 0;
}

int dk_bpe_word(const struct dk_bpe *b, struct dk_bpe_scratch *s, const uint8_t *bytes, size_t count,
                struct dk_id_list *out)
{
    if (count >= (size_t)1 << 31)
        return -E2BIG;
    return count <= SHORT_MAX ? merge_short(b, s, bytes, count, out) : merge_long(b, s, bytes, count, out);
}
