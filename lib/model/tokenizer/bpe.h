/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_MODEL_BPE_H
#define DK_MODEL_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "model/tokenizer/token_maps.h"

/* The merges of byte-pair encoding over one word (what the pre-tokenizer cut off), in bytes. */

#define DK_NO_TOKEN UINT32_MAX

struct dk_bpe {
    uint32_t byte_id[256];     /* DK_NO_TOKEN: the vocabulary lacks this byte, and it gives no token */
    struct dk_pair_map merges; /* dk_pair_key(left id, right id) -> rank, merged id */
};

struct dk_id_list {
    uint32_t *ids; /* malloc'ed */
    size_t count, capacity;
};
int dk_id_list_add(struct dk_id_list *l, const uint32_t *ids, size_t count);

struct dk_bpe_symbol {
    uint32_t id; /* DK_NO_TOKEN: merged into an earlier symbol */
    uint32_t previous, next;
};

/* Working memory of one caller, reused from word to word; zeroed at first. */
struct dk_bpe_scratch {
    struct dk_bpe_symbol *symbols;
    uint64_t *heap; /* pairs that may merge: rank in the high half, index of the left symbol in the low one */
    size_t symbols_max, heap_max, heap_count;
    uint64_t steps; /* comparisons and heap moves so far: the work done, for tests */
};
void dk_bpe_scratch_fini(struct dk_bpe_scratch *s);

/* Appends the word's ids: of all neighbours that may merge, the pair with the lowest rank first, the leftmost of
 * equals. -ENOMEM, -E2BIG: 2^31 bytes or more. */
int dk_bpe_word(const struct dk_bpe *b, struct dk_bpe_scratch *s, const uint8_t *bytes, size_t count,
                struct dk_id_list *out);

#endif
