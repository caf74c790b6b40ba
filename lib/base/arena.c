/* SPDX-License-Identifier: Apache-2.0 */
#include "base/arena.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int dk_arena_init(struct dk_arena *a, size_t size)
{
    memset(a, 0, sizeof *a);
    a->base = malloc(size ? size : 1);
    if (!a->base)
        return -ENOMEM;
    a->size = size;
    return 0;
}

void dk_arena_fini(struct dk_arena *a)
{
    free(a->base);
    memset(a, 0, sizeof *a);
}

void *dk_arena_take(struct dk_arena *a, size_t size, size_t align)
{
    uintptr_t at = (uintptr_t)a->base + a->used;
    size_t skip = (size_t)(-at & (align - 1));

    if (skip > a->size - a->used || size > a->size - a->used - skip)
        return NULL;
    a->used += skip + size;
    return (void *)(at + skip);
}

void dk_arena_reset(struct dk_arena *a)
{
    a->used = 0;
}

void *dk_alloc_aligned(size_t count, size_t size)
{
    size_t bytes;
    void *p;

    if (__builtin_mul_overflow(count, size, &bytes) || bytes > SIZE_MAX - 64)
        return NULL;
    bytes = (bytes + 63) & ~(size_t)63;
    p = aligned_alloc(64, bytes ? bytes : 64);
    if (p)
        memset(p, 0, bytes);
    return p;
}
