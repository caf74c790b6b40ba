/* SPDX-License-Identifier: Apache-2.0 */
/* What each kind of frame does to the state. Nothing is sent here: what is due is marked, and output sends it. */
#include <string.h>

#include "transport/transport_internal.h"

/* Puts a fragment's bytes in their place; the message's buffer is made with its first fragment. */
static enum dk_fragment_verdict fragment_store(struct dk_transport *t, struct dk_incoming *in,
                                               const struct dk_datagram *d)
{
    enum dk_fragment_verdict verdict;
    bool reordered;

    if (in->buffer == DK_BUFFER_NONE) {
        in->buffer = dk_buffer_take(&t->buffers, d->message_bytes);
        if (in->buffer == DK_BUFFER_NONE) {
            t->counters.no_room++;
            return DK_FRAGMENT_BAD;
        }
    }
    verdict = dk_incoming_take(in, d, &reordered);
    switch (verdict) {
    case DK_FRAGMENT_NEW:
        memcpy(dk_buffer_data(&t->buffers, in->buffer) + (size_t)d->fragment * d->fragment_bytes, d->payload,
               d->payload_bytes);
        t->counters.reordered += reordered;
        break;
    case DK_FRAGMENT_DUPLICATE:
        t->counters.duplicates++;
        break;
    case DK_FRAGMENT_BAD:
        t->counters.corrupt++;
        break;
    }
    return verdict;
}

/* The whole message is here: its buffer becomes the event's. */
static void message_deliver(struct dk_transport *t, struct peer *p, enum dk_transport_event_type type, uint64_t id,
                            struct dk_incoming *in)
{
    struct dk_transport_event event = {
        .type = type,
        .peer = peer_index(t, p),
        .request_id = id,
        .data = dk_buffer_data(&t->buffers, in->buffer),
        .bytes = in->bytes,
        .buffer = in->buffer,
    };

    in->buffer = DK_BUFFER_NONE;
    t->counters.messages_received++;
    transport_event_push(t, &event);
}

static void answer_due(struct dk_transport *t, struct peer *p, struct answer *a)
{
    p->answers_to_ack |= 1u << (a - p->answers);
    peer_ready(t, p);
}

static void answer_send(struct dk_transport *t, struct peer *p, struct answer *a)
{
    p->answers_to_send |= 1u << (a - p->answers);
    peer_ready(t, p);
}

/* A request that was answered already came again. */
static void answer_replay(struct dk_transport *t, struct peer *p, struct answer *a, const struct dk_datagram *d)
{
    if (!(d->flags & DK_FLAG_RETRY) || t->config.no_retransmit)
        return; /* the network's copy, not the requester's need */
    dk_outgoing_resend_below(&a->out, a->grant);
    if (a->out.resend_count > 0) {
        t->counters.replayed++;
        answer_send(t, p, a);
    } else {
        answer_due(t, p, a);
    }
}

static void on_request(struct dk_transport *t, struct peer *p, const struct dk_datagram *d, uint64_t now_us)
{
    struct answer *a = &p->answers[d->slot];

    if (d->request_id < a->id) {
        t->counters.duplicates++;
        return;
    }
    if (d->message_bytes > t->config.message_bytes_max) {
        p->refuse_due = true;
        p->refuse_slot = d->slot;
        p->refuse_id = d->request_id;
        peer_ready(t, p);
        return;
    }
    if (d->request_id > a->id) {
        peer_watch(t, p, now_us);
        answer_clear(t, p, a); /* the slot's use says that the earlier response has arrived */
        a->id = d->request_id;
        a->state = ANSWER_RECEIVING;
        p->answers_partial |= 1u << d->slot;
    }
    if (d->grant > a->grant)
        a->grant = d->grant;
    switch (a->state) {
    case ANSWER_EMPTY: /* request_id 0, which nobody gives out */
        t->counters.corrupt++;
        break;
    case ANSWER_RECEIVING:
        if (fragment_store(t, &a->in, d) == DK_FRAGMENT_NEW && dk_incoming_complete(&a->in)) {
            a->state = ANSWER_COMPUTING;
            p->answers_partial &= ~(1u << d->slot);
            message_deliver(t, p, DK_EVENT_REQUEST, a->id, &a->in);
        }
        if (d->flags & DK_FLAG_RETRY)
            dk_incoming_ask(&a->in, a->in.highest);
        if (d->flags & DK_FLAG_ACK_ME || (a->state == ANSWER_RECEIVING && dk_incoming_find_gap(&a->in)))
            answer_due(t, p, a);
        break;
    case ANSWER_COMPUTING:
        t->counters.duplicates++;
        if (d->flags & DK_FLAG_ACK_ME)
            answer_due(t, p, a);
        break;
    case ANSWER_KEPT:
        t->counters.duplicates++;
        answer_replay(t, p, a, d);
        break;
    }
}

static void on_request_ack(struct dk_transport *t, struct peer *p, const struct dk_datagram *d, uint64_t now_us)
{
    struct call *c = &p->calls[d->slot];
    uint32_t newly;

    if (c->state != CALL_SENDING || c->id != d->request_id)
        return; /* late: more has been heard since */
    newly = dk_outgoing_ack(&c->out, d, !t->config.no_retransmit);
    p->in_flight -= newly;
    if (newly > 0)
        call_progress(t, p, c, now_us);
    if (c->out.cumulative == c->out.count)
        call_acked(t, p, c);
    p->calls_to_send |= p->calls_active; /* there may be room in the window for any of them now */
    peer_ready(t, p);
}

static void on_response(struct dk_transport *t, struct peer *p, const struct dk_datagram *d, uint64_t now_us)
{
    struct call *c = &p->calls[d->slot];

    if (c->state == CALL_FREE || c->id != d->request_id) {
        t->counters.duplicates++; /* of a response that is complete */
        return;
    }
    if (d->message_bytes > t->config.message_bytes_max) {
        call_fail(t, p, c, -EMSGSIZE);
        credits_distribute(t);
        return;
    }
    if (d->fragment >= c->in.grant) {
        t->counters.corrupt++;
        return;
    }
    if (c->state == CALL_SENDING) {
        call_acked(t, p, c);
        p->calls_to_send |= p->calls_active & ~(1u << d->slot);
        peer_ready(t, p);
    }
    c->state = CALL_RECEIVING;
    if (fragment_store(t, &c->in, d) != DK_FRAGMENT_NEW)
        return;
    call_progress(t, p, c, now_us);
    if (dk_incoming_complete(&c->in)) {
        uint32_t decayed = p->expected - (p->expected + 7) / 8; /* short ones among long ones do not count */

        p->expected = c->in.count > decayed ? c->in.count : decayed;
        message_deliver(t, p, DK_EVENT_RESPONSE, c->id, &c->in);
        call_free(t, p, c);
    } else {
        credits_update(t, p, c);
        if (dk_incoming_find_gap(&c->in)) {
            p->calls_to_ack |= 1u << d->slot;
            peer_ready(t, p);
        }
    }
    credits_distribute(t);
}

static void on_response_ack(struct dk_transport *t, struct peer *p, const struct dk_datagram *d)
{
    struct answer *a = &p->answers[d->slot];
    bool more = false;

    if (a->state == ANSWER_EMPTY || a->id != d->request_id)
        return;
    if (d->grant > a->grant)
        a->grant = d->grant;
    if (a->state == ANSWER_KEPT) {
        dk_outgoing_ack(&a->out, d, !t->config.no_retransmit);
        more = a->out.resend_count > 0 || (dk_outgoing_has_new(&a->out) && a->out.next < a->grant);
    }
    if (more)
        answer_send(t, p, a);
    else if (d->flags & DK_FLAG_ACK_ME)
        answer_due(t, p, a);
}

static void on_refuse(struct dk_transport *t, struct peer *p, const struct dk_datagram *d)
{
    struct call *c = &p->calls[d->slot];

    if (c->state != CALL_SENDING || c->id != d->request_id)
        return;
    call_fail(t, p, c, -EMSGSIZE);
    p->calls_to_send |= p->calls_active;
    peer_ready(t, p);
    credits_distribute(t);
}

/* The instances name lives of processes, the sessions lives of peers inside one: a side that removed the other and
 * added it again has forgotten everything and says so with a higher session. False: the frame must not be used. */
static bool session_check(struct dk_transport *t, struct peer *p, const struct dk_datagram *d)
{
    if (d->target_instance != t->config.own.instance || d->source_instance != p->remote.instance ||
        d->source_session < p->remote_session) {
        t->counters.stale_instance++;
        return false;
    }
    if (d->source_session > p->remote_session) {
        if (p->remote_session != 0)
            peer_restart(t, p);
        p->remote_session = d->source_session;
    }
    if (d->target_session != 0 && d->target_session != p->session) {
        t->counters.stale_instance++;
        p->hello_due = true;
        peer_ready(t, p);
        return false;
    }
    return true;
}

void dk_transport_input(struct dk_transport *t, uint32_t port, const uint8_t *frame, size_t bytes, uint64_t now_us)
{
    struct dk_datagram d;
    struct peer *p = NULL;
    uint32_t ipv4;
    uint16_t udp_port;

    t->counters.frames_received++;
    switch (dk_datagram_decode(frame, bytes, &t->config.own, &ipv4, &udp_port, &d)) {
    case DK_DATAGRAM_GOOD:
        p = peer_find(t, ipv4, udp_port);
        break;
    case DK_DATAGRAM_FOREIGN:
        break;
    case DK_DATAGRAM_CORRUPT:
        t->counters.corrupt++;
        return;
    }
    if (!p || p->state != PEER_ALIVE) {
        t->counters.foreign++;
        return;
    }
    if (!session_check(t, p, &d))
        return;
    peer_heard(t, p, now_us);
    switch (d.type) {
    case DK_DATAGRAM_REQUEST:
        on_request(t, p, &d, now_us);
        break;
    case DK_DATAGRAM_RESPONSE:
        on_response(t, p, &d, now_us);
        break;
    case DK_DATAGRAM_REQUEST_ACK:
        on_request_ack(t, p, &d, now_us);
        break;
    case DK_DATAGRAM_RESPONSE_ACK:
        on_response_ack(t, p, &d);
        break;
    case DK_DATAGRAM_REFUSE:
        on_refuse(t, p, &d);
        break;
    case DK_DATAGRAM_HELLO:
        if (d.flags & DK_FLAG_ACK_ME) {
            p->hello_due = true;
            peer_ready(t, p);
        }
        break;
    }
}
