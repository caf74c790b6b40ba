/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_LATENTS_CPU_H
#define DK_LATENTS_CPU_H

#include <assert.h>

#include "attention-worker/backend/cpu/backend_cpu_internal.h"

/* Blocks whose queries are held at a time; a block is ATTEND_LANES heads of one row. */
#define LATENT_BLOCKS_MAX 64u
/* Scores held at a time, in heads of a full context. */
#define LATENT_SCORE_HEADS 128u

/* Each position is stored once, as a row: it is both the key (all of it) and the value (its first rank elements) of
 * every head. Index keys are only ever keys, so they lie as attend_kernels.h asks for. */
struct dk_latents {
    struct dk_latents_shape shape;
    uint32_t width;      /* floats of a row: latent, rotated key, padding */
    uint32_t key_stride; /* page_tokens, padded */
    float *rows;         /* [layers][pages][page_tokens][width] */
    float *index_keys;   /* [layers][pages][index_dim][key_stride]; NULL: no indexer */
    /* Scratch of one call, its size whatever the threads. */
    float *queries; /* [LATENT_BLOCKS_MAX][rank + rope_dim][ATTEND_LANES] */
    float *scores;  /* [LATENT_SCORE_HEADS][context, padded and some]; the indexer keeps its own there */
    size_t score_floats;
};

struct dk_picks {
    uint32_t top_k;
    uint32_t stride;     /* top_k, or the context if that is less */
    uint32_t *counts;    /* [rows_max] */
    uint32_t *positions; /* [rows_max][stride], rising */
};

static inline float *latent_row(const struct dk_latents *l, uint32_t layer, const uint32_t *pages, uint32_t position)
{
    uint32_t page = pages[position / l->shape.page_tokens], place = position % l->shape.page_tokens;

    assert(page < l->shape.pages);
    return l->rows + (((size_t)layer * l->shape.pages + page) * l->shape.page_tokens + place) * l->width;
}

static inline float *index_key_page(const struct dk_latents *l, uint32_t layer, uint32_t page)
{
    assert(page < l->shape.pages);
    return l->index_keys + ((size_t)layer * l->shape.pages + page) * l->shape.index_dim * l->key_stride;
}

/* Positions of a call are cut into pieces that any thread may take. */
static inline uint32_t pieces_of(uint32_t length, uint32_t piece)
{
    return length / piece + (length % piece != 0);
}

#endif
