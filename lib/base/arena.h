/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_BASE_ARENA_H
#define DK_BASE_ARENA_H

#include <stddef.h>

/* One block of memory, cut into pieces from the front, all given back at once. One thread. */
struct dk_arena {
    unsigned char *base;
    size_t size;
    size_t used;
};

/* Takes size bytes from the heap. -ENOMEM. */
int dk_arena_init(struct dk_arena *a, size_t size);
/* Frees the block; fine on a zeroed arena. */
void dk_arena_fini(struct dk_arena *a);
/* align: a power of two. NULL when the arena is full: backpressure, not a crash. Contents are not cleared. */
void *dk_arena_take(struct dk_arena *a, size_t size, size_t align);
/* Forgets all pieces. */
void dk_arena_reset(struct dk_arena *a);

/* count * size zeroed bytes from the heap, aligned to 64; NULL on overflow or when there is no memory. free() it. */
void *dk_alloc_aligned(size_t count, size_t size);

#endif
