/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_CACHE_H
#define DK_CACHE_H

#include <stdint.h>

/* Which memory of the back end belongs to which sequence, whatever a layer keeps there:
 *   pages   hold page_tokens positions of all layers that keep something for each position (keys and values, MLA
 *           latents, index keys); written once, so that sequences with the same beginning may share them
 *   states  one slot per sequence for all layers that keep a fixed size (convolution inputs, recurrent states); every
 *           step overwrites it
 * Allocated once; a full cache is backpressure. */

struct dk_cache;

struct dk_cache_shape {
    uint32_t page_tokens, pages;
    uint32_t sequences_max; /* open at a time, forks among them: also the count of state slots */
    uint32_t context;
};

/* Who copies what a fork cannot share. Either may be NULL: no layer keeps such a thing. */
struct dk_cache_store {
    void *ctx;
    void (*copy_page)(void *ctx, uint32_t from, uint32_t to);
    void (*copy_state)(void *ctx, uint32_t from, uint32_t to);
};

/* Where a sequence lies. */
struct dk_cache_place {
    const uint32_t *pages; /* valid until the sequence is released, and rewritten only at its end by later calls */
    uint32_t state;
};

/* -EINVAL: a 0 in the shape; -ENOMEM. */
int dk_cache_open(const struct dk_cache_shape *shape, const struct dk_cache_store *store, struct dk_cache **out);
void dk_cache_close(struct dk_cache *c); /* NULL is fine */
/* Makes room for positions [0, tokens) of a sequence, opening it if need be; never takes room away. -ENOSPC: no page or
 * no sequence slot free (nothing changed); -E2BIG: beyond context; -EINVAL: tokens 0. */
int dk_cache_extend(struct dk_cache *c, uint64_t sequence_id, uint32_t tokens, struct dk_cache_place *place);
/* For reusing the work on a common beginning and for speculative decoding; nothing in the worker forks yet.
 * A second sequence that holds what the first one holds now, between steps: full pages are shared, the last one and the
 * state are copied, and both go on on their own. A snapshot is a fork that is not run; to restore it, release the
 * sequence and fork the snapshot under the sequence's id. -ENOENT: no such sequence; -EEXIST: `to` is open; -ENOSPC. */
int dk_cache_fork(struct dk_cache *c, uint64_t from, uint64_t to);
uint32_t dk_cache_tokens(const struct dk_cache *c, uint64_t sequence_id); /* 0: not open */
void dk_cache_release(struct dk_cache *c, uint64_t sequence_id);          /* fine if not open */
void dk_cache_release_all(struct dk_cache *c);
uint32_t dk_cache_pages_free(const struct dk_cache *c);

#endif
