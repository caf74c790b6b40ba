/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/fanout.h"

#include <string.h>

#include "plan/plan.h"
#include "wire/wire.h"

static int pack_request(struct fanout *f, bool moe)
{
    Dk__DataRequest r = DK__DATA_REQUEST__INIT;
    Dk__MlpForwardRequest mlp = DK__MLP_FORWARD_REQUEST__INIT;
    Dk__MoeForwardRequest q = DK__MOE_FORWARD_REQUEST__INIT;

    r.plan_epoch = f->plan->epoch;
    r.model_id = f->model_id;
    if (moe) {
        q.layer = f->layer;
        q.rows = f->rows;
        q.hidden_size = f->config->hidden;
        q.num_activated = f->config->top_k;
        r.op_case = DK__DATA_REQUEST__OP_MOE_FORWARD;
        r.moe_forward = &q;
    } else {
        mlp.layer = f->layer;
        mlp.rows = f->rows;
        mlp.hidden_size = f->config->hidden;
        r.op_case = DK__DATA_REQUEST__OP_MLP_FORWARD;
        r.mlp_forward = &mlp;
    }
    return dk_data_pack(&r.base, f->headers, sizeof f->headers);
}

int fanout_begin(struct fanout *f, uint32_t layer, uint32_t rows, const float *x, const int32_t *ids,
                 const float *weights, uint64_t now_us, struct dk_err *err)
{
    bool moe = f->config->layer_is_moe[layer];
    uint32_t width = dk_ffn_width(f->config, layer);
    size_t routing = (size_t)rows * f->config->top_k * sizeof(float);
    struct iovec parts[4];
    int header, rc;

    memset(f->slots, 0, sizeof f->slots);
    f->layer = layer;
    f->rows = rows;
    f->waiting = 0;
    f->overtaken = 0;
    f->running = true;
    header = pack_request(f, moe);
    if (header < 0)
        return dk_err_set(err, header, "layer %u: the request's header does not fit", layer);
    parts[0] = (struct iovec){f->headers, (size_t)header};
    parts[1] = (struct iovec){(void *)(uintptr_t)x, (size_t)rows * f->config->hidden * sizeof(float)};
    parts[2] = (struct iovec){(void *)(uintptr_t)ids, routing};
    parts[3] = (struct iovec){(void *)(uintptr_t)weights, routing};
    for (uint32_t s = 0; s < f->plan->slot_count; s++) {
        const struct plan_slot *p = &f->plan->slots[s];
        const struct worker_link *link = worker_links_find(f->links, p->member_index, p->instance);
        struct dk_slice slice;

        rc = dk_plan_slice(width, f->plan->multiple_of, f->plan->slot_count, s, &slice, err);
        if (rc < 0)
            return rc;
        if (slice.begin == slice.end)
            continue; /* an empty part: nothing to ask */
        if (!link)
            return dk_err_set(err, -EHOSTDOWN, "layer %u: duck %s cannot be reached", layer, p->duck);
        rc = dk_transport_request(f->links->endpoint->transport, link->peer, parts, moe ? 4 : 2, now_us,
                                  &f->slots[s].request_id);
        if (rc < 0)
            return dk_err_set(err, rc, "layer %u: duck %s: %s", layer, p->duck, strerror(-rc));
        f->slots[s].asked = true;
        f->slots[s].peer = link->peer;
        f->waiting++;
    }
    f->asked_us = now_us;
    return 0;
}

static int take_answer(struct fanout *f, uint32_t s, const struct dk_transport_event *event, struct dk_arena *arena,
                       struct dk_err *err)
{
    const char *duck = f->plan->slots[s].duck;
    size_t want = (size_t)f->rows * f->config->hidden * sizeof(float), payload_bytes;
    const Dk__DataReply *r;
    ProtobufCMessage *m;
    const uint8_t *payload;
    int rc = dk_data_unpack(&dk__data_reply__descriptor, event->data, event->bytes, arena, &m, &payload,
                            &payload_bytes);

    if (rc < 0)
        return dk_err_set(err, rc, "layer %u: duck %s: a reply of %zu bytes cannot be decoded", f->layer, duck,
                          event->bytes);
    r = (const Dk__DataReply *)m;
    if (r->result_case == DK__DATA_REPLY__RESULT_ERROR && r->error->code != DK__CODE__OK)
        return dk_err_set(err, dk_errno_from_code(r->error->code), "layer %u: duck %s: %s", f->layer, duck,
                          r->error->text ? r->error->text : dk_code_name(r->error->code));
    if (r->result_case != DK__DATA_REPLY__RESULT_FORWARD || r->plan_epoch != f->plan->epoch ||
        r->forward->layer != f->layer || r->forward->rows != f->rows || r->forward->hidden_size != f->config->hidden ||
        payload_bytes != want || (uintptr_t)payload % sizeof(float))
        return dk_err_set(err, -EBADMSG, "layer %u: duck %s: an answer to something else", f->layer, duck);
    f->slots[s].sums = (const float *)(const void *)payload;
    f->slots[s].compute_us = r->forward->compute_us;
    f->slots[s].weight_bytes = r->forward->weight_bytes;
    return 0;
}

int fanout_on_event(struct fanout *f, const struct dk_transport_event *event, struct dk_arena *arena, bool *taken,
                    struct dk_err *err)
{
    *taken = false;
    for (uint32_t s = 0; f->running && s < f->plan->slot_count; s++) {
        struct fanout_slot *slot = &f->slots[s];
        int rc;

        if (!slot->asked || slot->answered || slot->peer != event->peer || slot->request_id != event->request_id)
            continue;
        if (event->type == DK_EVENT_FAILED) {
            slot->asked = false; /* the transport has let go of the rows */
            return dk_err_set(err, event->rc, "layer %u: duck %s %s", f->layer, f->plan->slots[s].duck,
                              event->rc == -EMSGSIZE ? "or this worker takes no message of this length"
                                                     : "does not answer");
        }
        *taken = true;
        for (uint32_t earlier = 0; earlier < s; earlier++)
            if (f->slots[earlier].asked && !f->slots[earlier].answered) {
                f->overtaken++;
                break;
            }
        slot->answered = true;
        slot->event = *event;
        rc = take_answer(f, s, event, arena, err);
        if (rc < 0)
            return rc;
        return --f->waiting == 0;
    }
    return 0;
}

int fanout_check(const struct fanout *f, uint64_t changed, struct dk_err *err)
{
    for (uint32_t s = 0; f->running && s < f->plan->slot_count; s++)
        if (f->slots[s].asked && !f->slots[s].answered && (changed >> f->plan->slots[s].member_index & 1))
            return dk_err_set(err, -EHOSTDOWN, "layer %u: duck %s has left", f->layer, f->plan->slots[s].duck);
    return 0;
}

static void give_back(struct fanout *f)
{
    for (uint32_t s = 0; s < f->plan->slot_count; s++)
        if (f->slots[s].answered) {
            dk_transport_event_done(f->links->endpoint->transport, &f->slots[s].event);
            f->slots[s].answered = f->slots[s].asked = false;
        }
    f->running = false;
}

void fanout_sum(struct fanout *f, float *y)
{
    size_t n = (size_t)f->rows * f->config->hidden;
    bool first = true;

    f->duck_max_us = 0;
    f->weight_bytes = 0;
    for (uint32_t s = 0; s < f->plan->slot_count; s++) {
        const struct fanout_slot *slot = &f->slots[s];

        if (!slot->answered)
            continue;
        if (first)
            memcpy(y, slot->sums, n * sizeof *y);
        else
            for (size_t i = 0; i < n; i++)
                y[i] += slot->sums[i];
        first = false;
        f->duck_max_us = slot->compute_us > f->duck_max_us ? slot->compute_us : f->duck_max_us;
        f->weight_bytes += slot->weight_bytes;
    }
    if (first)
        memset(y, 0, n * sizeof *y);
    give_back(f);
}

void fanout_abort(struct fanout *f)
{
    if (!f->running)
        return;
    for (uint32_t s = 0; s < f->plan->slot_count; s++)
        if (f->slots[s].asked && !f->slots[s].answered)
            worker_links_peer_lost(f->links, f->slots[s].peer);
    give_back(f);
}
