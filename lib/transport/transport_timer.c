/* SPDX-License-Identifier: Apache-2.0 */
/* Time-outs and death. The requester alone repeats; both sides may find the other dead. */
#include "transport/transport_internal.h"

enum {
    RTO_LEAST_US = 1000, /* well above a poll loop's jitter; a lost frame is rare on a LAN */
    RTO_MOST_US = 250000,
    HELLOS_BEFORE_DEATH = 3, /* so that this side's own stall does not look like the peer's silence */
    TRIES_MOST = 20
};

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t peer_rto_us(const struct dk_transport *t, const struct peer *p, uint32_t tries)
{
    uint64_t rto_us = t->config.rto_first_us, most_us = RTO_MOST_US;

    if (p->srtt_us) {
        rto_us = p->srtt_us + 4 * p->rttvar_us; /* RFC 6298, 2.3 */
        if (rto_us < RTO_LEAST_US)
            rto_us = RTO_LEAST_US;
    }
    /* Several repetitions must fit in before a peer counts as dead. */
    if (t->config.dead_after_us)
        most_us = least(most_us, t->config.dead_after_us / 16 + 1);
    return least(rto_us << tries, most_us);
}

void peer_rtt_sample(struct peer *p, uint64_t rtt_us)
{
    uint64_t off_us;

    if (rtt_us == 0)
        rtt_us = 1;
    if (!p->srtt_us) {
        p->srtt_us = rtt_us;
        p->rttvar_us = rtt_us / 2;
        return;
    }
    off_us = rtt_us > p->srtt_us ? rtt_us - p->srtt_us : p->srtt_us - rtt_us;
    p->rttvar_us = (3 * p->rttvar_us + off_us) / 4; /* RFC 6298, beta 1/4, alpha 1/8 */
    p->srtt_us = (7 * p->srtt_us + rtt_us) / 8;
    if (p->srtt_us == 0)
        p->srtt_us = 1;
}

void call_arm(struct dk_transport *t, struct peer *p, struct call *c, uint64_t now_us)
{
    c->timeout_us = now_us + peer_rto_us(t, p, c->tries);
    t->timeouts_us = least(t->timeouts_us, c->timeout_us);
}

void call_progress(struct dk_transport *t, struct peer *p, struct call *c, uint64_t now_us)
{
    /* Karn: after a repetition nobody knows which of the frames was answered. */
    if (c->sample_us && c->tries == 0)
        peer_rtt_sample(p, now_us - c->sample_us);
    c->sample_us = 0;
    c->tries = 0;
    call_arm(t, p, c, now_us);
}

static void call_expire(struct dk_transport *t, struct peer *p, struct call *c, uint64_t now_us)
{
    uint32_t bit = 1u << (c - p->calls);

    if (t->config.no_retransmit) {
        c->timeout_us = UINT64_MAX;
        return;
    }
    if (c->tries < TRIES_MOST)
        c->tries++;
    if (c->state == CALL_SENDING) {
        if (c->out.in_flight > 0) {
            dk_outgoing_resend_last(&c->out);
            c->retry = true;
        }
        p->calls_to_send |= bit;
    } else {
        uint32_t granted = c->in.grant;

        dk_incoming_ask(&c->in, c->in.count && c->in.count < granted ? c->in.count : granted);
        c->poll = true;
        p->calls_to_ack |= bit;
    }
    peer_ready(t, p);
    call_arm(t, p, c, now_us);
}

/* Returns when the peer's silence needs attention again. */
static uint64_t silence_check(struct dk_transport *t, struct peer *p, uint64_t now_us)
{
    uint64_t dead_us = p->heard_us + t->config.dead_after_us;

    if (t->config.dead_after_us == 0 || !peer_watched(p))
        return UINT64_MAX;
    if (p->hellos >= HELLOS_BEFORE_DEATH && now_us >= dead_us) {
        peer_die(t, p);
        return UINT64_MAX;
    }
    if (now_us >= p->hello_us) {
        p->hello_due = p->hello_asks = true;
        peer_ready(t, p);
        p->hellos++;
        p->hello_us = now_us + t->config.dead_after_us / 8 + 1;
    }
    return p->hellos >= HELLOS_BEFORE_DEATH ? least(dead_us, p->hello_us) : p->hello_us;
}

void transport_timers_run(struct dk_transport *t, uint64_t now_us)
{
    uint64_t next_us = UINT64_MAX;

    t->timeouts_us = UINT64_MAX;
    for (uint32_t i = 0; i < t->config.peers_max; i++) {
        struct peer *p = &t->peers[i];

        if (p->state != PEER_ALIVE)
            continue;
        next_us = least(next_us, silence_check(t, p, now_us));
        for (uint32_t left = p->calls_active; left; left &= left - 1) {
            struct call *c = &p->calls[__builtin_ctz(left)];

            if (now_us >= c->timeout_us)
                call_expire(t, p, c, now_us);
            next_us = least(next_us, c->timeout_us);
        }
    }
    t->timeouts_us = next_us;
}
