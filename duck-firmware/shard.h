/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCK_SHARD_H
#define DUCK_SHARD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "kernel/kernel.h"
#include "wire/wire.h"

/* The weights that this duck keeps: per layer one packed feed-forward (dense) or one per expert. They arrive in pieces,
 * in any order and perhaps several times. */

#define DUCK_LAYERS_MAX  512u
#define DUCK_EXPERTS_MAX 1024u

struct duck_layer {
    bool moe;
    uint32_t hidden, intermediate, begin, end; /* slice [begin, end) of the intermediate dimension */
    enum dk_dtype type;                        /* packed */
    bool scaled;
    uint32_t experts;   /* 0: the layer is not there; dense: 1 */
    struct dk_ffn *ffn; /* [experts] */
    uint8_t *have;      /* [experts][units of 32 rows], 1: packed */
    uint64_t units_held, units_needed;
};

struct duck_shards {
    uint64_t plan_epoch; /* 0: nothing held */
    uint64_t model_id;
    struct duck_layer layers[DUCK_LAYERS_MAX];
    uint32_t layers_complete;
    uint64_t bytes;         /* resident */
    uint64_t reserve_bytes; /* RAM to leave free */
};

/* A part of one layer's weights, as a request describes it. */
struct duck_piece {
    const Dk__SliceShape *shape;
    bool moe;
    uint32_t begin, end; /* rows of the slice */
    uint32_t experts, expert_begin, expert_end;
    const uint8_t *payload;
    size_t payload_bytes;
};

/* Packs a piece. A newer plan epoch drops everything held before; the same piece again is checked and packed again. A
 * piece with damaged weights is not held after, even if it was before. -EINVAL: shape or payload is wrong; -ENOMEM:
 * says how much is needed and how much is free; -ESTALE: an older epoch, another model in the same epoch, or another
 * shape of the same layer. */
int duck_shards_take(struct duck_shards *s, uint64_t plan_epoch, uint64_t model_id, const struct duck_piece *piece,
                     struct dk_err *err);
void duck_shards_drop(struct duck_shards *s);

/* The complete layer for a forward request. -ESTALE: another epoch or model; -ENOENT: not held or not complete. */
int duck_shards_layer(const struct duck_shards *s, uint64_t plan_epoch, uint64_t model_id, uint32_t layer, bool moe,
                      const struct duck_layer **out, struct dk_err *err);

#endif
