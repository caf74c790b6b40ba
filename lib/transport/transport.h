/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_TRANSPORT_H
#define DK_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/* The data plane's protocol engine: requests and responses of up to message_bytes_max each, cut into UDP/IPv4
 * datagrams inside Ethernet frames. Time and bytes go in, frames and events come out: no I/O, no clock, no threads.
 * Nothing above it sees a lost, doubled, reordered or damaged frame.
 *
 * A response acknowledges its request. Missing fragments are asked for one by one (selective retransmission).
 * The last responses are kept and sent again when a request comes again. A receiver grants credits, so that many
 * answers do not meet in one queue. Each side's instance number names its life: frames to or from an earlier life
 * are refused and counted. A peer that stays silent while something is outstanding for dead_after_us is dead.
 *
 * One engine serves one endpoint with many peers. One thread. docs/protocol.md has the bytes. */

struct dk_addr {
    uint8_t mac[6];
    uint32_t ipv4; /* host order */
    uint16_t udp_port;
    uint32_t instance; /* not 0 */
    uint32_t mtu;      /* of a remote: largest IPv4 packet that it takes; 0: as large as our own */
};

struct dk_transport_config {
    struct dk_addr own;
    uint32_t mtu; /* largest IPv4 packet, bytes: 576 to 9000 */
    uint32_t peers_max;
    uint32_t requests_max;      /* per peer and direction, waiting for their responses: 1 to 16 */
    uint32_t message_bytes_max; /* up to 64 MiB */
    uint64_t dead_after_us;     /* 0: never */
    uint64_t rto_first_us;      /* first retransmission time-out, before anything is measured */
    uint32_t window_frames;     /* most fragments in flight to or from one peer: 1 to 512 */
    uint32_t credit_frames;     /* most response fragments in flight from all peers together; every peer may have
                                 * at least one for each request beyond that, so that none can starve */
    bool no_retransmit;         /* tests only: shows that the tests need it */
};

/* The values that suit a LAN; own, mtu and peers_max remain to be set. */
void dk_transport_defaults(struct dk_transport_config *c);

struct dk_transport_counters {
    uint64_t frames_sent, frames_received;
    uint64_t messages_sent, messages_received;
    uint64_t retransmitted;  /* fragments sent again */
    uint64_t duplicates;     /* fragments received again */
    uint64_t replayed;       /* kept responses sent again because their request came again */
    uint64_t reordered;      /* fragments that came before an earlier one of their message */
    uint64_t corrupt;        /* checksum, length or header wrong */
    uint64_t foreign;        /* not for this endpoint, or from an unknown peer */
    uint64_t stale_instance; /* of or for an earlier life of an endpoint, or from before a peer_remove */
    uint64_t no_room;        /* valid, but no buffer: the sender will repeat */
    uint64_t peers_dead;
};

struct dk_transport;

/* -EINVAL: config out of range; -ENOMEM. */
int dk_transport_open(const struct dk_transport_config *config, struct dk_transport **out);
void dk_transport_close(struct dk_transport *t); /* NULL is fine */

/* port: the lib/net port that leads to the peer; handed back by output. *peer: small index, may be reused after
 * remove. -EEXIST: its ipv4 and udp_port are there already; -ENOSPC; -EINVAL: instance 0. */
int dk_transport_peer_add(struct dk_transport *t, const struct dk_addr *remote, uint32_t port, uint32_t *peer);
/* Forgets the peer; outstanding requests end without an event. The caller's request memory is free at once. */
void dk_transport_peer_remove(struct dk_transport *t, uint32_t peer);

/* Starts a request whose bytes are the concatenation of parts (at most 4, not empty in total). The memory stays the
 * caller's and must not change until the RESPONSE, FAILED or peer_remove of this request.
 * *request_id: unique within the engine, always rising. -EAGAIN: requests_max are waiting; -EINVAL: empty;
 * -EMSGSIZE; -EHOSTDOWN: peer is dead or not there. */
int dk_transport_request(struct dk_transport *t, uint32_t peer, const struct iovec *parts, int part_count,
                         uint64_t now_us, uint64_t *request_id);

/* Answers a REQUEST event; the bytes are copied and kept for repeats until the peer's later requests push them out.
 * -ENOENT: the peer is gone or was answered already; -EINVAL: empty; -EMSGSIZE; -ENOMEM. */
int dk_transport_respond(struct dk_transport *t, uint32_t peer, uint64_t request_id, const struct iovec *parts,
                         int part_count, uint64_t now_us);

/* Takes one received Ethernet frame; copies what it needs. Anything may be in it. */
void dk_transport_input(struct dk_transport *t, uint32_t port, const uint8_t *frame, size_t bytes, uint64_t now_us);

/* Writes the next frame to send (at most capacity bytes; capacity >= mtu + 14) and the port to send it on.
 * Returns its length, 0 when there is nothing to send now. */
size_t dk_transport_output(struct dk_transport *t, uint8_t *frame, size_t capacity, uint32_t *port, uint64_t now_us);

enum dk_transport_event_type {
    DK_EVENT_NONE,
    DK_EVENT_REQUEST,  /* data: a whole request; answer it with respond */
    DK_EVENT_RESPONSE, /* data: the whole response to request_id */
    DK_EVENT_FAILED,   /* request_id will not be answered: the peer is dead (rc -EHOSTDOWN), or one side does not
                        * take messages of this length (rc -EMSGSIZE) */
    DK_EVENT_DEAD,     /* the peer is dead; its FAILED events came before; it may be removed and added again */
};

struct dk_transport_event {
    enum dk_transport_event_type type;
    uint32_t peer;
    uint64_t request_id;
    uint8_t *data; /* 64-byte aligned start of the message; owned by the transport until event_done */
    size_t bytes;
    int rc;
    uint32_t buffer; /* private */
};

/* The next event; type NONE when there is none. Each event with data must be given back with event_done: a REQUEST
 * may be kept while it is computed, and event_done may come after respond. */
void dk_transport_event(struct dk_transport *t, struct dk_transport_event *event);
void dk_transport_event_done(struct dk_transport *t, struct dk_transport_event *event);

/* When output may have something to send again without any input (UINT64_MAX: never). */
uint64_t dk_transport_deadline(const struct dk_transport *t);

const struct dk_transport_counters *dk_transport_counters(const struct dk_transport *t);

#endif
