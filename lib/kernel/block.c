/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of packed matrices, in huge pages where the system gives them: a stream of weights then asks for a translation
 * every 2 MiB instead of every 4 KiB. A slice of an expert is often smaller than a huge page, so blocks of medium size
 * are cut from shared slabs, one behind the other; a slab goes back when its last block does. Space inside a slab is
 * not used again before: weights come and go by the layer, not one by one. */
#include "kernel/block.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/arena.h"

#define HUGE_BYTES  ((size_t)2 << 20)
#define SLAB_BYTES  ((size_t)64 << 20)
#define SMALL_BYTES ((size_t)64 << 10) /* blocks below this come from the heap */
#define LARGE_BYTES ((size_t)16 << 20) /* blocks from this on have a mapping of their own */

struct slab {
    struct slab *next;
    uint8_t *base;
    size_t used;
    size_t live; /* blocks */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct slab *slabs; /* the first one is being cut */

static size_t round_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) & ~(unit - 1);
}

/* Whole huge pages, aligned to one. */
static uint8_t *map_huge(size_t bytes)
{
    size_t whole = round_up(bytes, HUGE_BYTES);
    uint8_t *p, *at;

    p = mmap(NULL, whole + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    at = (uint8_t *)round_up((uintptr_t)p, HUGE_BYTES);
    if (at > p)
        munmap(p, (size_t)(at - p));
    if (p + HUGE_BYTES > at)
        munmap(at + whole, (size_t)(p + HUGE_BYTES - at));
    (void)madvise(at, whole, MADV_HUGEPAGE); /* a refusal costs speed only */
    return at;
}

static uint8_t *slab_take(size_t bytes)
{
    struct slab *s = slabs;
    uint8_t *p;

    if (!s || s->used + bytes > SLAB_BYTES) {
        s = malloc(sizeof *s);
        if (!s)
            return NULL;
        *s = (struct slab){slabs, map_huge(SLAB_BYTES), 0, 0};
        if (!s->base) {
            free(s);
            return NULL;
        }
        slabs = s;
    }
    p = s->base + s->used;
    s->used += bytes;
    s->live++;
    return p;
}

static void slab_give(uint8_t *p)
{
    for (struct slab **at = &slabs; *at; at = &(*at)->next) {
        struct slab *s = *at;

        if (p < s->base || p >= s->base + SLAB_BYTES)
            continue;
        if (--s->live == 0) {
            munmap(s->base, SLAB_BYTES);
            *at = s->next;
            free(s);
        }
        return;
    }
}

uint8_t *dk_block_alloc(size_t bytes)
{
    uint8_t *p;

    if (bytes < SMALL_BYTES)
        return dk_alloc_aligned(bytes, 1);
    if (bytes >= LARGE_BYTES)
        return bytes > SIZE_MAX / 2 ? NULL : map_huge(bytes);
    pthread_mutex_lock(&lock);
    p = slab_take(round_up(bytes, 64));
    pthread_mutex_unlock(&lock);
    return p;
}

void dk_block_free(uint8_t *p, size_t bytes)
{
    if (!p)
        return;
    if (bytes < SMALL_BYTES) {
        free(p);
    } else if (bytes >= LARGE_BYTES) {
        munmap(p, round_up(bytes, HUGE_BYTES));
    } else {
        pthread_mutex_lock(&lock);
        slab_give(p);
        pthread_mutex_unlock(&lock);
    }
}
