/* SPDX-License-Identifier: Apache-2.0 */
/* Paged latents of multi-head latent attention, and index keys beside them. */
#include "attention-worker/backend/cpu/latents_cpu.h"

#include <stdlib.h>
#include <string.h>

static bool product(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static size_t latent_floats(const struct dk_latents_shape *s) /* of a position */
{
    return attend_padded(s->rank + s->rope_dim);
}

static size_t index_page_floats(const struct dk_latents_shape *s)
{
    return (size_t)s->index_dim * attend_padded(s->page_tokens);
}

static size_t query_floats(const struct dk_latents_shape *s)
{
    return (size_t)LATENT_BLOCKS_MAX * (s->rank + s->rope_dim) * ATTEND_LANES;
}

static size_t score_floats(uint32_t context)
{
    return (size_t)LATENT_SCORE_HEADS * (attend_padded(context) + ATTEND_LANES);
}

void cpu_latents_bytes(const struct dk_backend_config *c, const struct dk_latents_shape *s, struct dk_stores_bytes *out)
{
    out->page += (uint64_t)s->layers * (s->page_tokens * latent_floats(s) + index_page_floats(s)) * sizeof(float);
    out->fixed += (query_floats(s) + score_floats(c->context)) * sizeof(float);
}

/* false: no memory, or a size that overflows. */
static bool allocate(struct dk_latents *l, uint32_t context)
{
    const struct dk_latents_shape *s = &l->shape;
    size_t blocks, row_floats, key_floats;

    if (!product((size_t)s->layers, s->pages, &blocks) ||
        !product(blocks, s->page_tokens * latent_floats(s), &row_floats) ||
        !product(blocks, index_page_floats(s), &key_floats))
        return false;
    l->score_floats = score_floats(context);
    l->rows = cpu_floats(row_floats);
    l->index_keys = s->index_dim > 0 ? cpu_floats(key_floats) : NULL;
    l->queries = cpu_floats(query_floats(s));
    l->scores = cpu_floats(l->score_floats);
    return l->rows && (l->index_keys || s->index_dim == 0) && l->queries && l->scores;
}

int cpu_latents_open(struct dk_backend *b, const struct dk_latents_shape *shape, struct dk_latents **out,
                     struct dk_err *err)
{
    struct dk_latents *l = calloc(1, sizeof(*l));

    *out = NULL;
    if (!l)
        goto no_memory;
    l->shape = *shape;
    l->width = (uint32_t)latent_floats(shape);
    l->key_stride = attend_padded(shape->page_tokens);
    if (!allocate(l, b->context))
        goto no_memory;
    *out = l;
    return 0;
no_memory:
    cpu_latents_close(b, l);
    return dk_err_set(err, -ENOMEM,
                      "no memory for a latent cache of %u pages of %u positions and scores of a context of %u: lower "
                      "the cache or the context",
                      shape->pages, shape->page_tokens, b->context);
}

void cpu_latents_close(struct dk_backend *b, struct dk_latents *l)
{
    if (!l)
        return;
    free(l->rows);
    free(l->index_keys);
    free(l->queries);
    free(l->scores);
    free(l);
}

void cpu_latents_copy(struct dk_backend *b, struct dk_latents *l, uint32_t from_page, uint32_t to_page)
{
    const struct dk_latents_shape *s = &l->shape;

    assert(from_page < s->pages && to_page < s->pages && from_page != to_page);
    for (uint32_t layer = 0; layer < s->layers; layer++) {
        memcpy(latent_row(l, layer, &to_page, 0), latent_row(l, layer, &from_page, 0),
               (size_t)s->page_tokens * l->width * sizeof(float));
        if (l->index_keys)
            memcpy(index_key_page(l, layer, to_page), index_key_page(l, layer, from_page),
                   (size_t)s->index_dim * l->key_stride * sizeof(float));
    }
}
