/* SPDX-License-Identifier: Apache-2.0 */
/* moe_forward: the slice of every activated expert, weighted and summed per row, for 1..N rows. */
#include "duck-firmware/dispatch.h"

#include <math.h>
#include <string.h>

#define ACTIVATED_MAX 64u

/* Every id in range and no expert twice in a row; every weight finite. */
static int routing_check(const Dk__MoeForwardRequest *q, uint32_t experts, const int32_t *ids, const float *weights,
                         struct dk_err *err)
{
    uint64_t seen[(DUCK_EXPERTS_MAX + 63) / 64];

    for (uint32_t row = 0; row < q->rows; row++) {
        memset(seen, 0, sizeof seen);
        for (uint32_t j = 0; j < q->num_activated; j++) {
            int32_t id = ids[(size_t)row * q->num_activated + j];

            if (id < 0 || (uint32_t)id >= experts)
                return dk_err_set(err, -EINVAL, "moe_forward: layer %u row %u: expert %d of %u", q->layer, row, id,
                                  experts);
            if (seen[id / 64] >> id % 64 & 1)
                return dk_err_set(err, -EINVAL, "moe_forward: layer %u row %u: expert %d twice", q->layer, row, id);
            seen[id / 64] |= (uint64_t)1 << id % 64;
            if (!isfinite(weights[(size_t)row * q->num_activated + j]))
                return dk_err_set(err, -EINVAL, "moe_forward: layer %u row %u: weight of expert %d is not finite",
                                  q->layer, row, id);
        }
    }
    return 0;
}

int duck_moe_forward(struct duck *d, const Dk__DataRequest *r, const uint8_t *payload, size_t payload_bytes,
                     struct duck_sums *out, struct dk_err *err)
{
    const Dk__MoeForwardRequest *q = r->moe_forward;
    const struct duck_layer *l;
    const float *x = (const float *)(const void *)payload, *weights;
    const int32_t *ids;
    uint64_t begin_us, cells = (uint64_t)q->rows * q->num_activated;
    int rc = duck_shards_layer(&d->shards, r->plan_epoch, r->model_id, q->layer, true, &l, err);

    if (rc < 0)
        return rc;
    if (!q->rows || q->hidden_size != l->hidden || !q->num_activated || q->num_activated > ACTIVATED_MAX ||
        q->num_activated > l->experts || payload_bytes != ((uint64_t)q->rows * l->hidden + 2 * cells) * sizeof(float))
        return dk_err_set(err, -EINVAL, "moe_forward: layer %u: %u rows of %u (held: %u), %u of %u experts, %zu bytes",
                          q->layer, q->rows, q->hidden_size, l->hidden, q->num_activated, l->experts, payload_bytes);
    ids = (const int32_t *)(const void *)(x + (size_t)q->rows * l->hidden);
    weights = (const float *)(const void *)(ids + cells);
    rc = routing_check(q, l->experts, ids, weights, err);
    if (rc == 0)
        rc = duck_room(d, q->rows, l->hidden,
                       dk_moe_scratch_bytes(q->rows, q->num_activated, l->experts, l->end - l->begin), err);
    if (rc < 0)
        return rc;
    begin_us = d->clock_us();
    out->weight_bytes = dk_moe(d->kernels, d->exec, l->ffn, l->experts, q->rows, q->num_activated, x, ids, weights,
                               d->sums, d->scratch);
    out->compute_us = (uint32_t)(d->clock_us() - begin_us);
    out->rows = q->rows;
    out->hidden = l->hidden;
    d->counters.rows += q->rows;
    d->counters.expert_rows += cells;
    return 0;
}
