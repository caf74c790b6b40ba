/* SPDX-License-Identifier: Apache-2.0 */
/* Turns what is due into frames: a peer at a time, short frames that others wait for first. */
#include <assert.h>

#include "transport/transport_internal.h"

/* A peer sends so many frames before the next one's turn: its request is under way early, and a long message of
 * another does not hold it up. */
enum { BURST_FRAMES = 16 };

static size_t frame_finish(struct dk_transport *t, struct peer *p, uint8_t *frame, struct dk_datagram *d,
                           uint32_t payload_bytes)
{
    d->source_instance = t->config.own.instance;
    d->target_instance = p->remote.instance;
    d->source_session = p->session;
    d->target_session = p->remote_session;
    t->counters.frames_sent++;
    return dk_datagram_encode(frame, &t->config.own, &p->remote, t->ipv4_id++, d, payload_bytes);
}

static size_t hello_write(struct dk_transport *t, struct peer *p, uint8_t *frame)
{
    struct dk_datagram d = {.type = DK_DATAGRAM_HELLO, .flags = p->hello_asks ? DK_FLAG_ACK_ME : 0};

    p->hello_due = p->hello_asks = false;
    return frame_finish(t, p, frame, &d, 0);
}

static size_t refuse_write(struct dk_transport *t, struct peer *p, uint8_t *frame)
{
    struct dk_datagram d = {.type = DK_DATAGRAM_REFUSE, .slot = p->refuse_slot, .request_id = p->refuse_id};

    p->refuse_due = false;
    return frame_finish(t, p, frame, &d, 0);
}

static size_t request_ack_write(struct dk_transport *t, struct peer *p, uint8_t *frame)
{
    uint32_t slot = (uint32_t)__builtin_ctz(p->answers_to_ack);
    struct answer *a = &p->answers[slot];
    struct dk_datagram d = {.type = DK_DATAGRAM_REQUEST_ACK, .slot = (uint8_t)slot, .request_id = a->id};

    p->answers_to_ack &= p->answers_to_ack - 1;
    return frame_finish(t, p, frame, &d, dk_incoming_write_ack(&a->in, frame + DK_FRAME_HEAD_BYTES));
}

static size_t response_ack_write(struct dk_transport *t, struct peer *p, uint8_t *frame)
{
    uint32_t slot = (uint32_t)__builtin_ctz(p->calls_to_ack);
    struct call *c = &p->calls[slot];
    struct dk_datagram d = {.type = DK_DATAGRAM_RESPONSE_ACK,
                            .slot = (uint8_t)slot,
                            .flags = c->poll ? DK_FLAG_ACK_ME : 0,
                            .request_id = c->id,
                            .grant = c->in.grant};

    p->calls_to_ack &= p->calls_to_ack - 1;
    c->poll = false;
    return frame_finish(t, p, frame, &d, dk_incoming_write_ack(&c->in, frame + DK_FRAME_HEAD_BYTES));
}

static size_t fragment_write(struct dk_transport *t, struct peer *p, uint8_t *frame, const struct dk_outgoing *out,
                             struct dk_datagram *d)
{
    d->message_bytes = out->bytes;
    d->fragment_bytes = out->fragment_bytes;
    return frame_finish(t, p, frame, d, dk_outgoing_copy(out, d->fragment, frame + DK_FRAME_HEAD_BYTES));
}

static size_t call_write(struct dk_transport *t, struct peer *p, uint32_t slot, uint8_t *frame, uint64_t now_us)
{
    struct call *c = &p->calls[slot];
    struct dk_outgoing *out = &c->out;
    uint32_t window = t->config.window_frames, quarter = (window + 3) / 4;
    struct dk_datagram d = {
        .type = DK_DATAGRAM_REQUEST, .slot = (uint8_t)slot, .request_id = c->id, .grant = c->in.grant};

    if (out->resend_count > 0) {
        d.fragment = dk_outgoing_pop_resend(out);
        t->counters.retransmitted++;
        if (out->resend_count == 0)
            d.flags = DK_FLAG_ACK_ME;
    } else if (dk_outgoing_has_new(out) && p->in_flight < window) {
        d.fragment = out->next++;
        out->in_flight++;
        p->in_flight++;
        /* A request within the window needs no ack but its response; a longer one has its window moved on by acks. */
        if (p->in_flight == window || (out->count > window && out->next < out->count && out->next % quarter == 0))
            d.flags = DK_FLAG_ACK_ME;
        if (c->sample_us == 0 && (d.flags || out->next == out->count))
            c->sample_us = now_us;
    } else {
        return 0;
    }
    if (c->retry)
        d.flags = DK_FLAG_ACK_ME | DK_FLAG_RETRY;
    c->retry = false;
    call_arm(t, p, c, now_us);
    return fragment_write(t, p, frame, out, &d);
}

static size_t answer_write(struct dk_transport *t, struct peer *p, uint32_t slot, uint8_t *frame)
{
    struct answer *a = &p->answers[slot];
    struct dk_datagram d = {.type = DK_DATAGRAM_RESPONSE, .slot = (uint8_t)slot, .request_id = a->id};

    if (a->out.resend_count > 0) {
        d.fragment = dk_outgoing_pop_resend(&a->out);
        t->counters.retransmitted++;
    } else if (dk_outgoing_has_new(&a->out) && a->out.next < a->grant) {
        d.fragment = a->out.next++;
        a->out.in_flight++;
    } else {
        return 0;
    }
    return fragment_write(t, p, frame, &a->out, &d);
}

/* One fragment of whichever slot's turn it is. */
static size_t data_write(struct dk_transport *t, struct peer *p, uint8_t *frame, uint64_t now_us)
{
    uint32_t left = p->calls_to_send | p->answers_to_send;

    while (left) {
        uint32_t after = left & (UINT32_MAX << p->turn), slot = (uint32_t)__builtin_ctz(after ? after : left);
        uint32_t bit = 1u << slot;
        size_t bytes = 0;

        if (p->answers_to_send & bit) {
            bytes = answer_write(t, p, slot, frame);
            if (bytes == 0)
                p->answers_to_send &= ~bit;
        }
        if (bytes == 0 && p->calls_to_send & bit) {
            bytes = call_write(t, p, slot, frame, now_us);
            if (bytes == 0)
                p->calls_to_send &= ~bit;
        }
        if (bytes > 0) {
            p->turn = (slot + 1) % DK_SLOTS;
            return bytes;
        }
        left &= ~bit;
    }
    return 0;
}

static size_t peer_write(struct dk_transport *t, struct peer *p, uint8_t *frame, uint64_t now_us)
{
    if (p->hello_due)
        return hello_write(t, p, frame);
    if (p->refuse_due)
        return refuse_write(t, p, frame);
    if (p->answers_to_ack)
        return request_ack_write(t, p, frame);
    if (p->calls_to_ack)
        return response_ack_write(t, p, frame);
    return data_write(t, p, frame, now_us);
}

/* The first ready peer from `from` on, going round; UINT32_MAX: none. */
static uint32_t ready_next(const struct dk_transport *t, uint32_t from)
{
    uint32_t words = (t->config.peers_max + 63) / 64;

    for (uint32_t n = 0; n <= words; n++) {
        uint32_t w = (from / 64 + n) % words;
        uint64_t word = t->ready[w];

        if (n == 0)
            word &= UINT64_MAX << (from % 64);
        if (word)
            return w * 64 + (uint32_t)__builtin_ctzll(word);
    }
    return UINT32_MAX;
}

size_t dk_transport_output(struct dk_transport *t, uint8_t *frame, size_t capacity, uint32_t *port, uint64_t now_us)
{
    uint32_t i;

    assert(capacity >= t->config.mtu + DK_ETHERNET_BYTES);
    if (now_us >= t->timeouts_us)
        transport_timers_run(t, now_us);
    while ((i = ready_next(t, t->ready_turn)) != UINT32_MAX) {
        struct peer *p = &t->peers[i];
        size_t bytes;

        if (i != t->ready_turn)
            t->burst = 0;
        t->ready_turn = i;
        bytes = peer_write(t, p, frame, now_us);
        if (bytes == 0)
            t->ready[i / 64] &= ~(UINT64_C(1) << (i % 64));
        if (bytes == 0 || ++t->burst == BURST_FRAMES) {
            t->ready_turn = (i + 1) % t->config.peers_max;
            t->burst = 0;
        }
        if (bytes > 0) {
            *port = p->port;
            return bytes;
        }
    }
    return 0;
}

uint64_t dk_transport_deadline(const struct dk_transport *t)
{
    return ready_next(t, 0) != UINT32_MAX ? 0 : t->timeouts_us;
}
