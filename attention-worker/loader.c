/* SPDX-License-Identifier: Apache-2.0 */
/* One cursor per slot walks layers, experts and rows of the slot's slice. What a piece is follows from the cursor
 * alone, so that going back after a lost link sends the same pieces again, which a duck takes twice without harm. */
#include "attention-worker/loader.h"

#include <stdlib.h>
#include <string.h>

#include "attention-worker/expert_source.h"
#include "base/log.h"
#include "plan/plan.h"
#include "wire/wire.h"

#define PIECE_BYTES_MAX ((size_t)4 << 20)

static int fail(struct loader *l, int rc)
{
    l->state = LOADER_FAILED;
    l->err.rc = rc;
    dk_log(DK_LOG_ERROR, "load.failed", "epoch=%llu text=\"%s\"", (unsigned long long)l->plan.epoch, l->err.text);
    return rc;
}

static struct dk_slice layer_slice(const struct loader *l, uint32_t layer, uint32_t slot)
{
    struct dk_slice s = {0};

    dk_plan_slice(dk_ffn_width(&l->model->config, layer), l->plan.multiple_of, l->plan.slot_count, slot, &s, NULL);
    return s;
}

/* ---- pieces */

struct piece_place {
    uint32_t layer, expert_begin, expert_end; /* dense: [0, 1) */
    uint32_t row_begin, row_end;              /* of the slice */
};

/* The cursor's place with as much as a piece may carry: several whole experts, or some rows of one. */
static struct piece_place next_place(const struct loader *l, const struct loader_slot *s, struct dk_slice slice,
                                     size_t row_bytes, bool scaled)
{
    uint32_t hidden = l->model->config.hidden, width = slice.end - slice.begin, rows, experts;
    size_t whole = row_bytes * width + (scaled ? expert_scale_bytes(hidden, slice.begin, slice.end) : 0);
    struct piece_place p = {.layer = s->next.layer,
                            .expert_begin = s->next.expert,
                            .expert_end = s->next.expert + 1,
                            .row_begin = s->next.row,
                            .row_end = width};

    if (s->next.row == 0 && whole <= PIECE_BYTES_MAX) {
        experts = (uint32_t)(PIECE_BYTES_MAX / whole);
        if (experts > dk_ffn_experts(&l->model->config, s->next.layer) - s->next.expert)
            experts = dk_ffn_experts(&l->model->config, s->next.layer) - s->next.expert;
        p.expert_end = s->next.expert + experts;
        return p;
    }
    rows = (uint32_t)(PIECE_BYTES_MAX / row_bytes) / 32 * 32;
    rows = rows ? rows : 32;
    p.row_end = width - s->next.row < rows ? width : s->next.row + rows;
    return p;
}

static void advance(const struct loader *l, uint32_t slot, struct loader_slot *s, const struct piece_place *p)
{
    struct dk_slice slice = layer_slice(l, s->next.layer, slot);

    if (p->row_end < slice.end - slice.begin) {
        s->next.row = p->row_end;
        return;
    }
    s->next.row = 0;
    s->next.expert = p->expert_end;
    if (s->next.expert == dk_ffn_experts(&l->model->config, s->next.layer)) {
        s->next.expert = 0;
        s->next.layer++;
    }
}

/* Skips layers of which this slot has no part. */
static bool at_end(const struct loader *l, uint32_t slot, struct loader_slot *s)
{
    while (s->next.layer < l->model->config.layers) {
        struct dk_slice slice = layer_slice(l, s->next.layer, slot);

        if (slice.end > slice.begin)
            return false;
        s->next.layer++;
    }
    return true;
}

static int pack_header(const struct loader *l, const struct piece_place *p, struct dk_slice slice, enum dk_dtype type,
                       uint8_t *out)
{
    Dk__DataRequest r = DK__DATA_REQUEST__INIT;
    Dk__SliceShape shape = DK__SLICE_SHAPE__INIT;
    Dk__MlpInitRequest mlp = DK__MLP_INIT_REQUEST__INIT;
    Dk__MoeInitRequest moe = DK__MOE_INIT_REQUEST__INIT;

    shape.layer = p->layer;
    shape.hidden_size = l->model->config.hidden;
    shape.intermediate_size = dk_ffn_width(&l->model->config, p->layer);
    shape.begin = slice.begin;
    shape.end = slice.end;
    shape.type = type == DK_F8_E4M3 ? DK__WEIGHT_TYPE__F8_E4M3
                 : type == DK_BF16  ? DK__WEIGHT_TYPE__BF16
                                    : DK__WEIGHT_TYPE__F32;
    shape.has_scale_block = type == DK_F8_E4M3;
    shape.scale_block = EXPERT_SCALE_BLOCK;
    r.plan_epoch = l->plan.epoch;
    r.model_id = l->model->id;
    if (l->model->config.layer_is_moe[p->layer]) {
        moe.shape = &shape;
        moe.piece_begin = p->row_begin;
        moe.piece_end = p->row_end;
        moe.experts = dk_ffn_experts(&l->model->config, p->layer);
        moe.expert_begin = p->expert_begin;
        moe.expert_end = p->expert_end;
        r.op_case = DK__DATA_REQUEST__OP_MOE_INIT;
        r.moe_init = &moe;
    } else {
        mlp.shape = &shape;
        mlp.piece_begin = p->row_begin;
        mlp.piece_end = p->row_end;
        r.op_case = DK__DATA_REQUEST__OP_MLP_INIT;
        r.mlp_init = &mlp;
    }
    return dk_data_pack(&r.base, out, DK_DATA_HEADER_MAX);
}

static size_t buffer_bytes(const struct loader *l)
{
    size_t least = (size_t)32 * 3 * l->model->config.hidden * sizeof(float) + (1 << 20);

    return DK_DATA_HEADER_MAX + (least > PIECE_BYTES_MAX + (1 << 20) ? least : PIECE_BYTES_MAX + (1 << 20));
}

/* 0 sent; 1 the link takes no more now; negative: the load has failed. */
static int send_piece(struct loader *l, uint32_t slot, struct loader_piece *piece, const struct worker_link *link,
                      uint64_t now_us)
{
    struct loader_slot *s = &l->slots[slot];
    struct dk_slice slice = layer_slice(l, s->next.layer, slot);
    uint32_t hidden = l->model->config.hidden;
    struct dk_ffn_tensors t;
    struct piece_place p;
    enum dk_dtype type;
    struct iovec parts[2];
    uint8_t *end;
    int rc = dk_ffn_tensors_find(l->model->checkpoint, &l->model->config, s->next.layer, s->next.expert, &t, &l->err),
        header;

    if (rc < 0)
        return rc;
    type = expert_wire_type(&t);
    p = next_place(l, s, slice, (size_t)3 * hidden * dk_dtype_bytes(type), type == DK_F8_E4M3);
    header = pack_header(l, &p, slice, type, piece->buffer);
    if (header < 0)
        return dk_err_set(&l->err, header, "layer %u: the piece's header does not fit", p.layer);
    end = piece->buffer + DK_DATA_HEADER_MAX;
    for (uint32_t e = p.expert_begin; e < p.expert_end; e++) {
        rc = dk_ffn_tensors_find(l->model->checkpoint, &l->model->config, p.layer, e, &t, &l->err);
        if (rc == 0 && expert_wire_type(&t) != type)
            rc = dk_err_set(&l->err, -ENOTSUP, "layer %u: experts of different types", p.layer);
        if (rc < 0)
            return rc;
        end = expert_put(end, &t, hidden, slice.begin + p.row_begin, slice.begin + p.row_end);
    }
    parts[0] = (struct iovec){piece->buffer, (size_t)header};
    parts[1] = (struct iovec){piece->buffer + DK_DATA_HEADER_MAX, (size_t)(end - piece->buffer - DK_DATA_HEADER_MAX)};
    rc = dk_transport_request(l->links->endpoint->transport, link->peer, parts, 2, now_us, &piece->request_id);
    if (rc == -EAGAIN || rc == -EHOSTDOWN)
        return 1;
    if (rc < 0)
        return dk_err_set(&l->err, rc, "duck %s: a piece of %zu bytes cannot be sent: %s", link->name, parts[1].iov_len,
                          strerror(-rc));
    piece->busy = true;
    piece->place = s->next;
    piece->later_bytes = 0;
    piece->weight_bytes = (uint64_t)3 * hidden * (p.row_end - p.row_begin) * (p.expert_end - p.expert_begin) *
                          dk_dtype_bytes(type);
    advance(l, slot, s, &p);
    return 0;
}

/* ---- the loader */

static int total_bytes(struct loader *l)
{
    for (uint32_t layer = 0; layer < l->model->config.layers; layer++) {
        struct dk_ffn_tensors t;
        int rc = dk_ffn_tensors_find(l->model->checkpoint, &l->model->config, layer, 0, &t, &l->err);

        if (rc < 0)
            return rc;
        l->bytes_total += (uint64_t)3 * dk_ffn_width(&l->model->config, layer) * l->model->config.hidden *
                          dk_ffn_experts(&l->model->config, layer) * dk_dtype_bytes(expert_wire_type(&t));
    }
    return 0;
}

int loader_begin(struct loader *l, const struct worker_plan *plan, const struct worker_model *model,
                 struct worker_links *links)
{
    int rc;

    loader_stop(l);
    l->plan = *plan;
    l->model = model;
    l->links = links;
    l->state = LOADER_FEEDING;
    rc = total_bytes(l);
    for (uint32_t s = 0; rc == 0 && s < plan->slot_count; s++)
        for (uint32_t i = 0; rc == 0 && i < LOADER_IN_FLIGHT; i++) {
            l->slots[s].pieces[i].buffer = malloc(buffer_bytes(l));
            if (!l->slots[s].pieces[i].buffer)
                rc = dk_err_set(&l->err, -ENOMEM, "no memory for the pieces of duck %s", plan->slots[s].duck);
        }
    return rc < 0 ? fail(l, rc) : 0;
}

static void free_buffers(struct loader *l)
{
    for (uint32_t s = 0; s < PLAN_SLOTS_MAX; s++)
        for (uint32_t i = 0; i < LOADER_IN_FLIGHT; i++)
            if (!l->slots[s].pieces[i].busy) {
                free(l->slots[s].pieces[i].buffer);
                l->slots[s].pieces[i].buffer = NULL;
            }
}

void loader_stop(struct loader *l)
{
    /* The transport may still read the buffers of outstanding pieces: their peers are made anew first. */
    for (uint32_t s = 0; s < l->plan.slot_count; s++) {
        const struct worker_link *link = worker_links_find(l->links, l->plan.slots[s].member_index,
                                                           l->plan.slots[s].instance);
        bool busy = false;

        for (uint32_t i = 0; i < LOADER_IN_FLIGHT; i++)
            busy |= l->slots[s].pieces[i].busy;
        if (busy && link)
            worker_links_peer_lost(l->links, link->peer);
        for (uint32_t i = 0; i < LOADER_IN_FLIGHT; i++)
            l->slots[s].pieces[i].busy = false;
    }
    free_buffers(l);
    memset(l, 0, sizeof *l);
}

static bool all_done(struct loader *l)
{
    for (uint32_t s = 0; s < l->plan.slot_count; s++) {
        if (!l->slots[s].all_sent)
            return false;
        for (uint32_t i = 0; i < LOADER_IN_FLIGHT; i++)
            if (l->slots[s].pieces[i].busy)
                return false;
    }
    return true;
}

bool loader_poll(struct loader *l, uint64_t now_us)
{
    bool sent = false;

    if (l->state != LOADER_FEEDING)
        return false;
    for (uint32_t s = 0; s < l->plan.slot_count; s++) {
        const struct worker_link *link = worker_links_find(l->links, l->plan.slots[s].member_index,
                                                           l->plan.slots[s].instance);

        for (uint32_t i = 0; link && i < LOADER_IN_FLIGHT && !l->slots[s].all_sent; i++) {
            int rc;

            if (l->slots[s].pieces[i].busy)
                continue;
            if (at_end(l, s, &l->slots[s])) {
                l->slots[s].all_sent = true;
                break;
            }
            rc = send_piece(l, s, &l->slots[s].pieces[i], link, now_us);
            if (rc < 0) {
                fail(l, rc);
                return true;
            }
            sent |= rc == 0;
        }
    }
    if (all_done(l)) {
        l->state = LOADER_READY;
        free_buffers(l);
        dk_log(DK_LOG_INFO, "load.ready", "epoch=%llu ducks=%u bytes=%llu", (unsigned long long)l->plan.epoch,
               l->plan.slot_count, (unsigned long long)l->bytes_done);
    }
    return sent;
}

static int check_reply(struct loader *l, uint32_t slot, const struct dk_transport_event *event, struct dk_arena *arena)
{
    const char *duck = l->plan.slots[slot].duck;
    const Dk__DataReply *r;
    ProtobufCMessage *m;
    const uint8_t *payload;
    size_t payload_bytes;
    int rc = dk_data_unpack(&dk__data_reply__descriptor, event->data, event->bytes, arena, &m, &payload,
                            &payload_bytes);

    if (rc < 0)
        return dk_err_set(&l->err, rc, "duck %s: a reply of %zu bytes cannot be decoded", duck, event->bytes);
    r = (const Dk__DataReply *)m;
    if (r->result_case == DK__DATA_REPLY__RESULT_ERROR && r->error->code != DK__CODE__OK)
        return dk_err_set(&l->err, dk_errno_from_code(r->error->code), "%s: %s (found by duck %s)", l->plan.model_dir,
                          r->error->text ? r->error->text : dk_code_name(r->error->code), duck);
    if (r->result_case != DK__DATA_REPLY__RESULT_INIT || r->plan_epoch != l->plan.epoch)
        return dk_err_set(&l->err, -EBADMSG, "duck %s: answered an init with something else", duck);
    return 0;
}

static bool before(const struct loader_cursor *a, const struct loader_cursor *b)
{
    if (a->layer != b->layer)
        return a->layer < b->layer;
    return a->expert != b->expert ? a->expert < b->expert : a->row < b->row;
}

static void acknowledged(struct loader *l, struct loader_slot *slot, const struct loader_piece *p)
{
    l->bytes_done += p->weight_bytes;
    for (uint32_t i = 0; i < LOADER_IN_FLIGHT; i++)
        if (slot->pieces[i].busy && before(&slot->pieces[i].place, &p->place))
            slot->pieces[i].later_bytes += p->weight_bytes;
}

/* The slot goes on from this piece, unless it has to go further back anyway. */
static void send_again(struct loader *l, struct loader_slot *slot, struct loader_piece *p)
{
    p->busy = false;
    slot->all_sent = false;
    if (!before(&p->place, &slot->next))
        return;
    slot->next = p->place;
    l->bytes_done -= p->later_bytes;
    for (uint32_t i = 0; i < LOADER_IN_FLIGHT; i++)
        if (slot->pieces[i].busy && before(&slot->pieces[i].place, &p->place))
            slot->pieces[i].later_bytes -= p->later_bytes;
}

int loader_on_event(struct loader *l, const struct dk_transport_event *event, struct dk_arena *arena)
{
    for (uint32_t s = 0; s < l->plan.slot_count; s++) {
        const struct worker_link *link = worker_links_find(l->links, l->plan.slots[s].member_index,
                                                           l->plan.slots[s].instance);

        for (uint32_t i = 0; link && link->peer == event->peer && i < LOADER_IN_FLIGHT; i++) {
            struct loader_piece *p = &l->slots[s].pieces[i];
            int rc;

            if (!p->busy || p->request_id != event->request_id)
                continue;
            if (l->state == LOADER_FEEDING && event->type == DK_EVENT_FAILED && event->rc == -EHOSTDOWN) {
                send_again(l, &l->slots[s], p);
                return 0;
            }
            p->busy = false;
            if (l->state != LOADER_FEEDING)
                return 0;
            rc = event->type == DK_EVENT_RESPONSE
                     ? check_reply(l, s, event, arena)
                     : dk_err_set(&l->err, event->rc, "duck %s: takes no piece of %llu bytes", l->plan.slots[s].duck,
                                  (unsigned long long)p->weight_bytes);
            if (rc < 0) {
                fail(l, rc);
                return 0;
            }
            acknowledged(l, &l->slots[s], p);
            return 0;
        }
    }
    return -ENOENT;
}

void loader_on_link_lost(struct loader *l, uint32_t member_index)
{
    if (l->state != LOADER_FEEDING)
        return;
    for (uint32_t s = 0; s < l->plan.slot_count; s++)
        if (l->plan.slots[s].member_index == member_index) {
            for (uint32_t i = 0; i < LOADER_IN_FLIGHT; i++)
                if (l->slots[s].pieces[i].busy)
                    send_again(l, &l->slots[s], &l->slots[s].pieces[i]);
        }
}
