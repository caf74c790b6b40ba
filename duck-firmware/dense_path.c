/* SPDX-License-Identifier: Apache-2.0 */
/* mlp_forward: the slice of a dense feed-forward, for 1..N rows. */
#include "duck-firmware/dispatch.h"

int duck_dense_forward(struct duck *d, const Dk__DataRequest *r, const uint8_t *payload, size_t payload_bytes,
                       struct duck_sums *out, struct dk_err *err)
{
    const Dk__MlpForwardRequest *q = r->mlp_forward;
    const struct duck_layer *l;
    uint64_t begin_us;
    int rc = duck_shards_layer(&d->shards, r->plan_epoch, r->model_id, q->layer, false, &l, err);

    if (rc < 0)
        return rc;
    if (!q->rows || q->hidden_size != l->hidden || payload_bytes != (uint64_t)q->rows * l->hidden * sizeof(float))
        return dk_err_set(err, -EINVAL, "mlp_forward: layer %u: %u rows of %u (held: %u) in %zu bytes", q->layer,
                          q->rows, q->hidden_size, l->hidden, payload_bytes);
    rc = duck_room(d, q->rows, l->hidden, dk_moe_scratch_bytes(q->rows, 1, 1, l->end - l->begin), err);
    if (rc < 0)
        return rc;
    begin_us = d->clock_us();
    out->weight_bytes = dk_moe(d->kernels, d->exec, l->ffn, 1, q->rows, 1, (const float *)(const void *)payload, NULL,
                               NULL, d->sums, d->scratch);
    out->compute_us = (uint32_t)(d->clock_us() - begin_us);
    out->rows = q->rows;
    out->hidden = l->hidden;
    d->counters.rows += q->rows;
    d->counters.expert_rows += q->rows;
    return 0;
}
