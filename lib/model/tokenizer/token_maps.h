/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_MODEL_TOKEN_MAPS_H
#define DK_MODEL_TOKEN_MAPS_H

#include <stddef.h>
#include <stdint.h>

/* The two hash tables of the tokenizer. Both are filled once, from a count known beforehand, and then only read. */

struct dk_text_slot {
    const char *text; /* NULL: free; not owned */
    uint32_t bytes;
    uint32_t id;
};

/* Text to id. */
struct dk_text_map {
    struct dk_text_slot *slots;
    size_t mask;
    size_t count, count_max;
};

/* Room for `count` texts. -ENOMEM. */
int dk_text_map_init(struct dk_text_map *m, size_t count);
void dk_text_map_fini(struct dk_text_map *m);
/* The text must outlive the map. -EEXIST: it is there already, with the id that *old then holds. */
int dk_text_map_put(struct dk_text_map *m, const char *text, size_t bytes, uint32_t id, uint32_t *old);
/* -ENOENT. */
int dk_text_map_get(const struct dk_text_map *m, const char *text, size_t bytes, uint32_t *id);

struct dk_pair_slot {
    uint64_t key; /* DK_PAIR_FREE: free */
    uint32_t first, second;
};
#define DK_PAIR_FREE UINT64_MAX

/* A number of 64 bits to two of 32. */
struct dk_pair_map {
    struct dk_pair_slot *slots;
    unsigned shift; /* 64 - log2(slots) */
    size_t mask;
    size_t count, count_max;
};

int dk_pair_map_init(struct dk_pair_map *m, size_t count);
void dk_pair_map_fini(struct dk_pair_map *m);
/* Overwrites what is there. key is not DK_PAIR_FREE. */
void dk_pair_map_put(struct dk_pair_map *m, uint64_t key, uint32_t first, uint32_t second);

static inline uint64_t dk_pair_key(uint32_t a, uint32_t b)
{
    return (uint64_t)a << 32 | b;
}

/* NULL: not there. In the header: the merge loop does little else. */
static inline const struct dk_pair_slot *dk_pair_map_get(const struct dk_pair_map *m, uint64_t key)
{
    size_t i;

    if (!m->slots)
        return NULL;
    for (i = (size_t)(key * 0x9E3779B97F4A7C15u >> m->shift);; i++) {
        const struct dk_pair_slot *s = &m->slots[i & m->mask];

        if (s->key == key)
            return s;
        if (s->key == DK_PAIR_FREE)
            return NULL;
    }
}

#endif
