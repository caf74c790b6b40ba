/* SPDX-License-Identifier: Apache-2.0 */
/* Request in, answer out: decodes the header, calls the path, packs the reply. */
#include "duck-firmware/dispatch.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"

#define ARENA_BYTES 65536u

int duck_open(struct duck *d, const struct dk_kernels *kernels, struct dk_exec *exec, uint64_t (*clock_us)(void),
              size_t message_bytes_max, uint64_t reserve_bytes)
{
    memset(d, 0, sizeof *d);
    d->kernels = kernels;
    d->exec = exec;
    d->clock_us = clock_us;
    d->message_bytes_max = message_bytes_max;
    d->shards.reserve_bytes = reserve_bytes;
    return dk_arena_init(&d->arena, ARENA_BYTES);
}

void duck_close(struct duck *d)
{
    duck_shards_drop(&d->shards);
    dk_arena_fini(&d->arena);
    free(d->sums);
    free(d->scratch);
    d->sums = NULL;
    d->scratch = NULL;
}

static int grow(void **buffer, size_t *have, size_t need)
{
    void *larger;

    if (need <= *have)
        return 0;
    larger = dk_alloc_aligned(need, 1);
    if (!larger)
        return -ENOMEM;
    free(*buffer);
    *buffer = larger;
    *have = need;
    return 0;
}

int duck_room(struct duck *d, uint32_t rows, uint32_t hidden, size_t scratch_bytes, struct dk_err *err)
{
    uint64_t bytes = (uint64_t)rows * hidden * sizeof(float);
    void *sums = d->sums;
    int rc;

    if (bytes + DK_DATA_HEADER_MAX > d->message_bytes_max)
        return dk_err_set(err, -EMSGSIZE, "forward: %u rows of %u do not fit an answer of %zu bytes", rows, hidden,
                          d->message_bytes_max);
    rc = grow(&sums, &d->sums_bytes, bytes);
    d->sums = sums;
    if (rc == 0)
        rc = grow(&d->scratch, &d->scratch_bytes, scratch_bytes);
    return rc < 0 ? dk_err_set(err, rc, "forward: no memory for %u rows", rows) : 0;
}

static int init(struct duck *d, const Dk__DataRequest *r, const struct duck_piece *piece, Dk__InitReply *reply,
                struct dk_err *err)
{
    const struct duck_layer *l;
    int rc = duck_shards_take(&d->shards, r->plan_epoch, r->model_id, piece, err);

    if (rc < 0)
        return rc;
    l = &d->shards.layers[piece->shape->layer];
    reply->layer = piece->shape->layer;
    reply->pieces_held = l->units_held;
    reply->complete = l->units_held == l->units_needed;
    return 0;
}

static int mlp_init(struct duck *d, const Dk__DataRequest *r, const uint8_t *payload, size_t bytes,
                    Dk__InitReply *reply, struct dk_err *err)
{
    const Dk__MlpInitRequest *q = r->mlp_init;
    struct duck_piece piece = {.shape = q->shape,
                               .begin = q->piece_begin,
                               .end = q->piece_end,
                               .experts = 1,
                               .expert_end = 1,
                               .payload = payload,
                               .payload_bytes = bytes};

    return init(d, r, &piece, reply, err);
}

static int moe_init(struct duck *d, const Dk__DataRequest *r, const uint8_t *payload, size_t bytes,
                    Dk__InitReply *reply, struct dk_err *err)
{
    const Dk__MoeInitRequest *q = r->moe_init;
    struct duck_piece piece = {.shape = q->shape,
                               .moe = true,
                               .begin = q->piece_begin,
                               .end = q->piece_end,
                               .experts = q->experts,
                               .expert_begin = q->expert_begin,
                               .expert_end = q->expert_end,
                               .payload = payload,
                               .payload_bytes = bytes};

    return init(d, r, &piece, reply, err);
}

static void pack(struct duck_answer *a, const Dk__DataReply *reply)
{
    int n = dk_data_pack(&reply->base, a->header, sizeof a->header);

    a->header_bytes = n > 0 ? (size_t)n : 0;
}

static void refuse(struct duck *d, struct duck_answer *a, uint64_t plan_epoch, const struct dk_err *err)
{
    Dk__DataReply reply = DK__DATA_REPLY__INIT;
    Dk__Status status = DK__STATUS__INIT;
    char text[400];

    dk_text_copy(text, sizeof text, err->text);
    status.code = dk_code_from_errno(err->rc);
    status.text = text;
    reply.plan_epoch = plan_epoch;
    reply.result_case = DK__DATA_REPLY__RESULT_ERROR;
    reply.error = &status;
    a->payload = NULL;
    a->payload_bytes = 0;
    pack(a, &reply);
    d->counters.refused++;
    dk_log(DK_LOG_WARN, "duck.refuse", "text=\"%s\"", text);
}

void duck_handle(struct duck *d, const uint8_t *data, size_t bytes, struct duck_answer *a)
{
    Dk__DataReply reply = DK__DATA_REPLY__INIT;
    Dk__InitReply init_reply = DK__INIT_REPLY__INIT;
    Dk__ForwardReply forward_reply = DK__FORWARD_REPLY__INIT;
    struct duck_sums sums = {0};
    struct dk_err err = {0};
    const Dk__DataRequest *r;
    ProtobufCMessage *m;
    const uint8_t *payload;
    size_t payload_bytes;
    int rc = dk_data_unpack(&dk__data_request__descriptor, data, bytes, &d->arena, &m, &payload, &payload_bytes);

    a->payload = NULL;
    a->payload_bytes = 0;
    if (rc < 0) {
        dk_err_set(&err, rc, "a message of %zu bytes cannot be decoded", bytes);
        refuse(d, a, 0, &err);
        return;
    }
    r = (const Dk__DataRequest *)m;
    if ((uintptr_t)payload % sizeof(float)) { /* dk_data_pack sees to it */
        dk_err_set(&err, -EBADMSG, "the payload after a header of %zu bytes is not aligned", (size_t)(payload - data));
        refuse(d, a, r->plan_epoch, &err);
        return;
    }
    switch (r->op_case) {
    case DK__DATA_REQUEST__OP_MLP_INIT:
        rc = mlp_init(d, r, payload, payload_bytes, &init_reply, &err);
        break;
    case DK__DATA_REQUEST__OP_MOE_INIT:
        rc = moe_init(d, r, payload, payload_bytes, &init_reply, &err);
        break;
    case DK__DATA_REQUEST__OP_MLP_FORWARD:
        rc = duck_dense_forward(d, r, payload, payload_bytes, &sums, &err);
        forward_reply.layer = rc == 0 ? r->mlp_forward->layer : 0;
        break;
    case DK__DATA_REQUEST__OP_MOE_FORWARD:
        rc = duck_moe_forward(d, r, payload, payload_bytes, &sums, &err);
        forward_reply.layer = rc == 0 ? r->moe_forward->layer : 0;
        break;
    default:
        rc = dk_err_set(&err, -ENOSYS, "a request of a kind that this duck does not know");
    }
    if (rc < 0) {
        refuse(d, a, r->plan_epoch, &err);
        return;
    }
    reply.plan_epoch = r->plan_epoch;
    if (sums.rows) {
        forward_reply.rows = sums.rows;
        forward_reply.hidden_size = sums.hidden;
        forward_reply.has_compute_us = forward_reply.has_weight_bytes = true;
        forward_reply.compute_us = sums.compute_us;
        forward_reply.weight_bytes = sums.weight_bytes;
        reply.result_case = DK__DATA_REPLY__RESULT_FORWARD;
        reply.forward = &forward_reply;
        a->payload = d->sums;
        a->payload_bytes = (size_t)sums.rows * sums.hidden * sizeof(float);
        d->counters.requests++;
        d->counters.weight_bytes += sums.weight_bytes;
        d->counters.compute_us += sums.compute_us;
    } else {
        reply.result_case = DK__DATA_REPLY__RESULT_INIT;
        reply.init = &init_reply;
    }
    pack(a, &reply);
}
