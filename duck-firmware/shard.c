/* SPDX-License-Identifier: Apache-2.0 */
#include "duck-firmware/shard.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"

#define SCALE_BLOCK 128u

static uint32_t units_of(uint32_t rows)
{
    return (rows + DK_PANEL_ROWS - 1) / DK_PANEL_ROWS;
}

static void layer_free(struct duck_layer *l)
{
    for (uint32_t i = 0; l->ffn && i < l->experts; i++)
        dk_ffn_free(&l->ffn[i]);
    free(l->ffn);
    free(l->have);
    memset(l, 0, sizeof *l);
}

void duck_shards_drop(struct duck_shards *s)
{
    for (uint32_t i = 0; i < DUCK_LAYERS_MAX; i++)
        layer_free(&s->layers[i]);
    s->plan_epoch = s->model_id = s->bytes = 0;
    s->layers_complete = 0;
}

static int type_from_wire(Dk__WeightType wire, enum dk_dtype *type)
{
    switch (wire) {
    case DK__WEIGHT_TYPE__F8_E4M3:
        *type = DK_F8_E4M3;
        return 0;
    case DK__WEIGHT_TYPE__BF16:
        *type = DK_BF16;
        return 0;
    case DK__WEIGHT_TYPE__F32:
        *type = DK_F32;
        return 0;
    default:
        return -EINVAL;
    }
}

static int piece_check(const struct duck_piece *p, enum dk_dtype *type, struct dk_err *err)
{
    const Dk__SliceShape *s = p->shape;
    uint32_t width;

    if (s->layer >= DUCK_LAYERS_MAX)
        return dk_err_set(err, -EINVAL, "init: layer %u; there can be %u", s->layer, DUCK_LAYERS_MAX);
    if (!s->hidden_size || s->hidden_size > 65536 || s->intermediate_size > 1u << 20 || s->begin > s->end ||
        s->end > s->intermediate_size || s->begin % DK_PANEL_ROWS)
        return dk_err_set(err, -EINVAL, "init: layer %u: hidden %u, slice [%u, %u) of %u is not a shape", s->layer,
                          s->hidden_size, s->begin, s->end, s->intermediate_size);
    width = s->end - s->begin;
    if (p->begin >= p->end || p->end > width || p->begin % DK_PANEL_ROWS || (p->end % DK_PANEL_ROWS && p->end != width))
        return dk_err_set(err, -EINVAL, "init: layer %u: piece [%u, %u) does not fit a slice of %u rows", s->layer,
                          p->begin, p->end, width);
    if (!p->experts || p->experts > DUCK_EXPERTS_MAX || p->expert_begin >= p->expert_end || p->expert_end > p->experts)
        return dk_err_set(err, -EINVAL, "init: layer %u: experts [%u, %u) of %u", s->layer, p->expert_begin,
                          p->expert_end, p->experts);
    if (type_from_wire(s->type, type) < 0)
        return dk_err_set(err, -EINVAL, "init: layer %u: unknown weight type %d", s->layer, (int)s->type);
    if ((s->has_scale_block ? s->scale_block : 0) != (*type == DK_F8_E4M3 ? SCALE_BLOCK : 0))
        return dk_err_set(err, -EINVAL, "init: layer %u: %s weights with scale block %u", s->layer,
                          dk_dtype_name(*type), s->has_scale_block ? s->scale_block : 0);
    return 0;
}

/* Of one expert, with what packing rounds up. */
static uint64_t packed_bytes(uint32_t hidden, uint32_t width, enum dk_dtype type)
{
    return dk_matrix_data_bytes(type, 2 * DK_PANEL_ROWS * dk_matrix_panels(width), hidden) +
           dk_matrix_data_bytes(type, hidden, width);
}

static int layer_open(struct duck_shards *s, struct duck_layer *l, const struct duck_piece *p, enum dk_dtype type,
                      struct dk_err *err)
{
    const Dk__SliceShape *sh = p->shape;
    uint32_t width = sh->end - sh->begin;
    uint64_t need = p->experts * packed_bytes(sh->hidden_size, width, type);
    uint64_t available = dk_ram_free_bytes(), held_before = s->bytes;
    int rc = -ENOMEM;

    if (s->reserve_bytes > available || need > available - s->reserve_bytes) {
        return dk_err_set(err, -ENOMEM,
                          "layer %u needs %llu MiB, %llu MiB are free and %llu MiB are kept in reserve: use more ducks "
                          "or a smaller model",
                          sh->layer, (unsigned long long)(need >> 20), (unsigned long long)(available >> 20),
                          (unsigned long long)(s->reserve_bytes >> 20));
    }
    l->moe = p->moe;
    l->hidden = sh->hidden_size;
    l->intermediate = sh->intermediate_size;
    l->begin = sh->begin;
    l->end = sh->end;
    l->type = type;
    l->scaled = type == DK_F8_E4M3;
    l->ffn = calloc(p->experts, sizeof *l->ffn);
    l->have = calloc((size_t)p->experts * units_of(width), 1);
    if (!l->ffn || !l->have)
        goto fail;
    l->experts = p->experts;
    l->units_needed = (uint64_t)p->experts * units_of(width);
    for (uint32_t e = 0; e < p->experts; e++) {
        rc = dk_ffn_alloc(&l->ffn[e], type, l->hidden, width, l->begin, l->scaled);
        if (rc < 0)
            goto fail;
        s->bytes += dk_ffn_bytes(&l->ffn[e]);
    }
    return 0;
fail:
    layer_free(l);
    s->bytes = held_before;
    return dk_err_set(err, rc, "layer %u: no memory for %llu MiB of weights", sh->layer,
                      (unsigned long long)(need >> 20));
}

static bool same_shape(const struct duck_layer *l, const struct duck_piece *p, enum dk_dtype type)
{
    const Dk__SliceShape *s = p->shape;

    return l->moe == p->moe && l->experts == p->experts && l->hidden == s->hidden_size &&
           l->intermediate == s->intermediate_size && l->begin == s->begin && l->end == s->end && l->type == type;
}

/* The matrices of one expert inside the payload, in the order of the wire. */
struct expert_layout {
    size_t weights; /* bytes of one of gate, up, down */
    uint32_t row_blocks, col_blocks;
    size_t bytes; /* of the whole expert */
};

static struct expert_layout layout_of(const struct duck_piece *p, enum dk_dtype type)
{
    const Dk__SliceShape *s = p->shape;
    uint32_t first = s->begin + p->begin, last = s->begin + p->end;
    struct expert_layout l = {.weights = (size_t)(p->end - p->begin) * s->hidden_size * dk_dtype_bytes(type)};

    l.bytes = 3 * l.weights;
    if (type == DK_F8_E4M3) {
        l.row_blocks = (last + SCALE_BLOCK - 1) / SCALE_BLOCK - first / SCALE_BLOCK;
        l.col_blocks = (s->hidden_size + SCALE_BLOCK - 1) / SCALE_BLOCK;
        l.bytes += (size_t)3 * l.row_blocks * l.col_blocks * sizeof(float);
    }
    return l;
}

static int expert_pack(struct dk_ffn *ffn, const struct duck_piece *p, enum dk_dtype type,
                       const struct expert_layout *at, const uint8_t *bytes, struct dk_err *err)
{
    size_t scales = (size_t)at->row_blocks * at->col_blocks * sizeof(float);
    const uint8_t *first_scale = bytes + 3 * at->weights;
    struct dk_matrix_source gate = {
        .data = bytes,
        .type = type,
        .row_stride = p->shape->hidden_size,
        .row_origin = p->shape->begin + p->begin,
        .scales = scales ? first_scale : NULL,
        .scale_type = DK_F32,
        .scale_stride = at->col_blocks,
    };
    struct dk_matrix_source up = gate, down = gate;

    up.data = bytes + at->weights;
    down.data = bytes + 2 * at->weights;
    down.row_stride = p->end - p->begin;
    down.row_origin = 0;
    down.col_origin = p->shape->begin + p->begin;
    if (scales) {
        up.scales = first_scale + scales;
        down.scales = first_scale + 2 * scales;
        down.scale_stride = at->row_blocks;
    }
    return dk_ffn_pack(ffn, p->begin, p->end, &gate, &up, &down, err);
}

/* The units of a piece of one expert are there, or no longer. */
static void units_mark(struct duck_shards *s, struct duck_layer *l, uint32_t expert, const struct duck_piece *p,
                       bool there)
{
    uint8_t *have = l->have + (size_t)expert * units_of(l->end - l->begin);
    bool complete = l->units_held == l->units_needed;

    for (uint32_t u = p->begin / DK_PANEL_ROWS; u < units_of(p->end); u++) {
        l->units_held += (uint64_t)there - have[u];
        have[u] = there;
    }
    s->layers_complete += (uint32_t)(l->units_held == l->units_needed) - complete;
}

static int other_model(uint64_t plan_epoch, struct dk_err *err)
{
    return dk_err_set(err, -ESTALE, "this duck holds another model in plan epoch %llu", (unsigned long long)plan_epoch);
}

int duck_shards_take(struct duck_shards *s, uint64_t plan_epoch, uint64_t model_id, const struct duck_piece *p,
                     struct dk_err *err)
{
    struct expert_layout at;
    struct duck_layer *l;
    enum dk_dtype type = DK_F32;
    uint32_t count;
    int rc = piece_check(p, &type, err);

    if (rc < 0)
        return rc;
    if (!plan_epoch || plan_epoch < s->plan_epoch)
        return dk_err_set(err, -ESTALE, "init: plan epoch %llu, this duck serves %llu", (unsigned long long)plan_epoch,
                          (unsigned long long)s->plan_epoch);
    if (plan_epoch == s->plan_epoch && model_id != s->model_id)
        return other_model(plan_epoch, err);
    at = layout_of(p, type);
    count = p->expert_end - p->expert_begin;
    if (at.bytes > SIZE_MAX / count || p->payload_bytes != at.bytes * count)
        return dk_err_set(err, -EINVAL, "init: layer %u: payload of %zu bytes, the header describes %zu",
                          p->shape->layer, p->payload_bytes, at.bytes * count);
    if (plan_epoch > s->plan_epoch) {
        if (s->plan_epoch)
            dk_log(DK_LOG_INFO, "shard.drop", "epoch=%llu new_epoch=%llu", (unsigned long long)s->plan_epoch,
                   (unsigned long long)plan_epoch);
        duck_shards_drop(s);
        s->plan_epoch = plan_epoch;
        s->model_id = model_id;
    }
    l = &s->layers[p->shape->layer];
    if (l->experts && !same_shape(l, p, type))
        return dk_err_set(err, -ESTALE, "init: layer %u is held with another shape", p->shape->layer);
    if (!l->experts && (rc = layer_open(s, l, p, type, err)) < 0)
        return rc;
    for (uint32_t e = p->expert_begin; e < p->expert_end; e++) {
        rc = expert_pack(&l->ffn[e], p, type, &at, p->payload + (e - p->expert_begin) * at.bytes, err);
        if (rc < 0) {
            units_mark(s, l, e, p, false); /* some of it may have been written over what was there */
            dk_err_prefix(err, "layer %u expert %u", p->shape->layer, e);
            return rc;
        }
        units_mark(s, l, e, p, true);
    }
    return 0;
}

int duck_shards_layer(const struct duck_shards *s, uint64_t plan_epoch, uint64_t model_id, uint32_t layer, bool moe,
                      const struct duck_layer **out, struct dk_err *err)
{
    const struct duck_layer *l;

    if (plan_epoch != s->plan_epoch)
        return dk_err_set(err, -ESTALE, "forward: plan epoch %llu, this duck serves %llu",
                          (unsigned long long)plan_epoch, (unsigned long long)s->plan_epoch);
    if (model_id != s->model_id)
        return other_model(plan_epoch, err);
    if (layer >= DUCK_LAYERS_MAX || !s->layers[layer].experts)
        return dk_err_set(err, -ENOENT, "forward: layer %u is not held", layer);
    l = &s->layers[layer];
    if (l->units_held != l->units_needed)
        return dk_err_set(err, -ENOENT, "forward: layer %u is not complete: %llu of %llu units", layer,
                          (unsigned long long)l->units_held, (unsigned long long)l->units_needed);
    if (l->moe != moe)
        return dk_err_set(err, -EINVAL, "forward: layer %u is %s", layer, l->moe ? "a mixture of experts" : "dense");
    *out = l;
    return 0;
}
