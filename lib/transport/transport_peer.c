/* SPDX-License-Identifier: Apache-2.0 */
/* Peers, and the states of calls and answers in their slots. */
#include <string.h>

#include "transport/transport_internal.h"

uint64_t peer_key(uint32_t ipv4, uint16_t udp_port)
{
    return UINT64_C(1) << 63 | (uint64_t)ipv4 << 16 | udp_port; /* never 0, which is an unused place */
}

struct peer *peer_find(struct dk_transport *t, uint32_t ipv4, uint16_t udp_port)
{
    uint64_t key = peer_key(ipv4, udp_port);

    for (uint32_t i = 0; i < t->config.peers_max; i++)
        if (t->keys[i] == key)
            return &t->peers[i];
    return NULL;
}

uint32_t peer_index(const struct dk_transport *t, const struct peer *p)
{
    return (uint32_t)(p - t->peers);
}

void peer_ready(struct dk_transport *t, struct peer *p)
{
    uint32_t i = peer_index(t, p);

    t->ready[i / 64] |= UINT64_C(1) << (i % 64);
}

bool peer_watched(const struct peer *p)
{
    return p->calls_active || p->answers_partial;
}

void peer_heard(struct dk_transport *t, struct peer *p, uint64_t now_us)
{
    p->heard_us = now_us;
    p->hello_us = now_us + t->config.dead_after_us / 4;
    p->hellos = 0;
}

void peer_watch(struct dk_transport *t, struct peer *p, uint64_t now_us)
{
    if (peer_watched(p) || t->config.dead_after_us == 0)
        return;
    peer_heard(t, p, now_us);
    if (p->hello_us < t->timeouts_us)
        t->timeouts_us = p->hello_us;
}

void call_free(struct dk_transport *t, struct peer *p, struct call *c)
{
    uint32_t keep = ~(1u << (c - p->calls));

    credits_end(t, p, c);
    dk_buffer_put(&t->buffers, c->in.buffer);
    c->in.buffer = DK_BUFFER_NONE;
    p->in_flight -= c->out.in_flight;
    c->out.in_flight = 0;
    c->state = CALL_FREE;
    p->calls_active &= keep;
    p->calls_to_send &= keep;
    p->calls_to_ack &= keep;
}

void call_fail(struct dk_transport *t, struct peer *p, struct call *c, int rc)
{
    struct dk_transport_event event = {
        .type = DK_EVENT_FAILED, .peer = peer_index(t, p), .request_id = c->id, .rc = rc, .buffer = DK_BUFFER_NONE};

    call_free(t, p, c);
    transport_event_push(t, &event);
}

void call_acked(struct dk_transport *t, struct peer *p, struct call *c)
{
    p->in_flight -= c->out.in_flight;
    dk_outgoing_finish(&c->out);
    c->retry = false;
    c->state = CALL_WAITING;
    p->calls_to_send &= ~(1u << (c - p->calls));
}

void call_start(struct dk_transport *t, struct peer *p, struct call *c)
{
    memset(&c->in, 0, sizeof c->in);
    c->in.buffer = DK_BUFFER_NONE;
    c->state = CALL_SENDING;
    c->tries = 0;
    c->timeout_us = UINT64_MAX;
    c->sample_us = 0;
    c->retry = c->poll = false;
    credits_begin(t, p, c);
    p->calls_active |= 1u << (c - p->calls);
    p->calls_to_send |= 1u << (c - p->calls);
    peer_ready(t, p);
}

void answer_clear(struct dk_transport *t, struct peer *p, struct answer *a)
{
    uint32_t keep = ~(1u << (a - p->answers));

    dk_buffer_put(&t->buffers, a->in.buffer);
    dk_buffer_put(&t->buffers, a->buffer);
    memset(&a->in, 0, sizeof a->in);
    a->in.buffer = a->buffer = DK_BUFFER_NONE;
    a->grant = 0;
    a->id = 0;
    a->state = ANSWER_EMPTY;
    p->answers_to_send &= keep;
    p->answers_to_ack &= keep;
    p->answers_partial &= keep;
}

void peer_restart(struct dk_transport *t, struct peer *p)
{
    for (int i = 0; i < DK_SLOTS; i++)
        answer_clear(t, p, &p->answers[i]);
    for (uint32_t left = p->calls_active; left; left &= left - 1) {
        struct call *c = &p->calls[__builtin_ctz(left)];

        call_free(t, p, c);
        dk_outgoing_restart(&c->out);
        call_start(t, p, c);
    }
    p->refuse_due = false;
}

void peer_clear(struct dk_transport *t, struct peer *p)
{
    uint32_t i = peer_index(t, p);

    for (int s = 0; s < DK_SLOTS; s++) {
        if (p->calls[s].state != CALL_FREE)
            call_free(t, p, &p->calls[s]);
        answer_clear(t, p, &p->answers[s]);
    }
    p->hello_due = p->hello_asks = p->refuse_due = false;
    t->ready[i / 64] &= ~(UINT64_C(1) << (i % 64));
}

void peer_die(struct dk_transport *t, struct peer *p)
{
    struct dk_transport_event event = {.type = DK_EVENT_DEAD, .peer = peer_index(t, p), .buffer = DK_BUFFER_NONE};

    for (uint32_t left = p->calls_active; left; left &= left - 1)
        call_fail(t, p, &p->calls[__builtin_ctz(left)], -EHOSTDOWN);
    peer_clear(t, p);
    p->state = PEER_DEAD;
    t->counters.peers_dead++;
    event.rc = -EHOSTDOWN;
    transport_event_push(t, &event);
    credits_distribute(t);
}
