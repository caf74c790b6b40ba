/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_TRANSPORT_INTERNAL_H
#define DK_TRANSPORT_INTERNAL_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

#include "transport/datagram.h"
#include "transport/fragments.h"
#include "transport/message_buffer.h"
#include "transport/transport.h"

/* The state of the engine, shared by its files and white-box tests.
 *
 * Between two endpoints each direction has DK_SLOTS slots. A requester puts a request into a free slot and names the
 * slot in every frame; it uses the slot again only when it has the whole response. So a newer request id in a slot
 * tells the responder that the response kept there is no longer needed, and an older one is an old duplicate: no
 * acknowledgement of responses, no table of ids. Ids of one engine only ever rise.
 *
 * Only the requester has timers: it repeats what may have been lost and asks for what has not come. The responder
 * answers each frame from the state it has. */

enum call_state {
    CALL_FREE,
    CALL_SENDING,   /* fragments of the request are not acknowledged yet */
    CALL_WAITING,   /* the responder has the whole request; nothing of the response is here */
    CALL_RECEIVING, /* at least one fragment of the response is here */
};

/* A request of ours. */
struct call {
    enum call_state state;
    uint64_t id;
    struct dk_outgoing out;
    struct dk_incoming in;
    uint32_t credits;    /* response fragments granted that have not come */
    uint32_t tries;      /* time-outs since something was heard about this request */
    uint64_t timeout_us; /* when the next one is due; UINT64_MAX: not armed */
    uint64_t sample_us;  /* when its last fragment was first sent; 0: not, or measured already */
    bool retry;          /* the next frame of the request carries RETRY */
    bool poll;           /* the next ack of the response asks for an answer */
};

enum answer_state {
    ANSWER_EMPTY,
    ANSWER_RECEIVING, /* some fragments of the request are here */
    ANSWER_COMPUTING, /* its event is waiting or with the caller */
    ANSWER_KEPT,      /* the response is there, sent or being sent, kept until the slot gets a newer request */
};

/* A request of the peer's. */
struct answer {
    enum answer_state state;
    uint64_t id; /* of the newest request seen in this slot */
    struct dk_incoming in;
    struct dk_outgoing out;
    uint32_t buffer; /* of the response */
    uint32_t grant;  /* response fragments below it may be sent */
};

enum peer_state { PEER_UNUSED, PEER_ALIVE, PEER_DEAD };

struct peer {
    enum peer_state state;
    struct dk_addr remote;
    uint32_t port;
    uint32_t fragment_bytes; /* of our messages to it: what both sides' MTUs let through */
    uint32_t session;        /* ours with this peer: rises with every peer_add */
    uint32_t remote_session; /* 0: not heard yet */

    /* One bit a slot. */
    uint32_t calls_active;
    uint32_t calls_to_send; /* may have a fragment that can be sent */
    uint32_t calls_to_ack;  /* an ack of the response is due */
    uint32_t calls_starved; /* their response waits for credits */
    uint32_t answers_to_send;
    uint32_t answers_to_ack;    /* an ack of the request is due */
    uint32_t answers_partial;   /* in ANSWER_RECEIVING */
    uint32_t turn;              /* slot after the one that sent last */
    bool hello_due, hello_asks; /* asks: wants a hello back */
    bool refuse_due;
    uint8_t refuse_slot;
    uint64_t refuse_id;

    uint32_t in_flight;          /* request fragments sent and not acknowledged */
    uint32_t credits;            /* sum over calls */
    uint32_t expected;           /* fragments of the next response, guessed from the last ones */
    uint64_t srtt_us, rttvar_us; /* RFC 6298; srtt 0: nothing measured */

    uint64_t heard_us; /* last good frame, or when something became outstanding */
    uint64_t hello_us; /* next keep-alive */
    uint32_t hellos;   /* keep-alives since something was heard */

    struct call calls[DK_SLOTS];
    struct answer answers[DK_SLOTS];
};

struct dk_transport {
    struct dk_transport_config config;
    struct dk_transport_counters counters;
    uint32_t sessions; /* given out so far */
    uint64_t ids;      /* last request id; starts in the instance's own range */
    uint16_t ipv4_id;
    uint32_t credits; /* sum over peers */
    uint32_t starved; /* responses that wait for credits */
    uint32_t starved_turn;
    uint64_t timeouts_us; /* no call or keep-alive is due before; may be too early, never too late */

    struct peer *peers;
    uint64_t *keys;  /* [peers_max] peer_key, 0 for unused ones: found without touching the peers */
    uint64_t *ready; /* [peers_max] bits: may have something to send */
    uint32_t ready_turn;
    uint32_t burst; /* frames that the present peer has sent in its turn */

    struct dk_buffers buffers;
    struct dk_transport_event *events; /* ring */
    uint32_t events_max, events_at, events_count;
};

/* transport.c */
void transport_event_push(struct dk_transport *t, const struct dk_transport_event *event);

/* transport_peer.c */
uint64_t peer_key(uint32_t ipv4, uint16_t udp_port);
struct peer *peer_find(struct dk_transport *t, uint32_t ipv4, uint16_t udp_port);
uint32_t peer_index(const struct dk_transport *t, const struct peer *p);
void peer_ready(struct dk_transport *t, struct peer *p);
/* Something is outstanding with the peer, so that its silence counts. */
bool peer_watched(const struct peer *p);
/* Call before a peer gets its first outstanding thing. */
void peer_watch(struct dk_transport *t, struct peer *p, uint64_t now_us);
void peer_heard(struct dk_transport *t, struct peer *p, uint64_t now_us);
/* The remote side has forgotten us: our requests start again, its own are dropped. */
void peer_restart(struct dk_transport *t, struct peer *p);
/* Frees all slots and their buffers. */
void peer_clear(struct dk_transport *t, struct peer *p);
void peer_die(struct dk_transport *t, struct peer *p);

/* Makes a call whose id and out are set active. */
void call_start(struct dk_transport *t, struct peer *p, struct call *c);
void call_free(struct dk_transport *t, struct peer *p, struct call *c);
void call_fail(struct dk_transport *t, struct peer *p, struct call *c, int rc);
/* The responder has the whole request. */
void call_acked(struct dk_transport *t, struct peer *p, struct call *c);
void answer_clear(struct dk_transport *t, struct peer *p, struct answer *a);

/* transport_timer.c */
uint64_t peer_rto_us(const struct dk_transport *t, const struct peer *p, uint32_t tries);
void peer_rtt_sample(struct peer *p, uint64_t rtt_us);
void call_arm(struct dk_transport *t, struct peer *p, struct call *c, uint64_t now_us);
/* Something about the call was heard. */
void call_progress(struct dk_transport *t, struct peer *p, struct call *c, uint64_t now_us);
void transport_timers_run(struct dk_transport *t, uint64_t now_us);

/* credits.c */
void credits_begin(struct dk_transport *t, struct peer *p, struct call *c);
/* A fragment of the response came, or its length became known. */
void credits_update(struct dk_transport *t, struct peer *p, struct call *c);
void credits_end(struct dk_transport *t, struct peer *p, struct call *c);
/* Gives free credits to responses that wait for them. */
void credits_distribute(struct dk_transport *t);

#endif
