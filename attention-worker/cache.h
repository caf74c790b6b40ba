/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_CACHE_H
#define DK_CACHE_H

#include <stdint.h>

/* Which pages of the KV cache belong to which sequence. Pages hold the keys and values of page_tokens positions in all
 * layers. Allocated once; a full cache is backpressure. */

struct dk_cache;

int dk_cache_open(uint32_t page_tokens, uint32_t pages, uint32_t sequences_max, uint32_t context,
                  struct dk_cache **out);
void dk_cache_close(struct dk_cache *c);
/* Makes room for positions [0, tokens) of a sequence, opening it if need be; never takes room away. *page_table: valid
 * until the sequence is released, and rewritten only at its end by later calls. -ENOSPC: no page or no sequence slot
 * free (nothing changed); -E2BIG: beyond context; -EINVAL: tokens 0. */
int dk_cache_extend(struct dk_cache *c, uint64_t sequence_id, uint32_t tokens, const uint32_t **page_table);
uint32_t dk_cache_tokens(const struct dk_cache *c, uint64_t sequence_id); /* 0: not open */
void dk_cache_release(struct dk_cache *c, uint64_t sequence_id);          /* fine if not open */
void dk_cache_release_all(struct dk_cache *c);
uint32_t dk_cache_pages_free(const struct dk_cache *c);

#endif
