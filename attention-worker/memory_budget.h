/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_MEMORY_BUDGET_H
#define DK_MEMORY_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "model/checkpoint.h"
#include "model/config.h"

/* How much of a host's memory a worker's caches may take, worked out before a weight is loaded: pages (keys and values,
 * latents) and states of the sequences. Nothing here allocates. */

struct dk_memory_budget {
    uint64_t asked_bytes;                     /* for pages and states together; 0: half of what is left of free_bytes */
    uint64_t free_bytes;                      /* of the host's memory */
    uint64_t weight_bytes;                    /* what the weights will take of it, */
    uint64_t fixed_bytes;                     /* and scratch and the like */
    uint64_t page_bytes;                      /* of one page in all layers; 0: the model has no pages */
    uint64_t state_bytes;                     /* of one sequence's state; 0: the model has none */
    uint32_t page_tokens, context, sequences; /* sequences: most that run at a time */
};

struct dk_memory_grant {
    uint32_t pages; /* at least one sequence's, at most those of all sequences at full context */
    uint64_t pages_bytes, states_bytes;
    bool beyond; /* what is free does not allow states and one sequence: the host may begin to swap */
};

/* The states of all sequences come first, pages get the rest. -ENOSPC: asked_bytes has no room for the states and the
 * pages of one full sequence; err says what would be enough, and what else can be lowered. */
int dk_memory_divide(const struct dk_memory_budget *b, struct dk_memory_grant *out, struct dk_err *err);

/* Bytes of the worker's weights in memory, from the checkpoint's headers. FP16 matrices become FP32; a tied embedding
 * is held twice, as table and as matrix. full_attention: an indexer is not loaded. Tensors that are missing count
 * nothing. Marks the worker's tensors used, as loading them does. */
uint64_t dk_memory_weight_bytes(const struct dk_model_config *c, struct dk_checkpoint *ck, bool full_attention);

#endif
