/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_TRANSPORT_DATAGRAM_H
#define DK_TRANSPORT_DATAGRAM_H

#include <stddef.h>
#include <stdint.h>

#include "transport/transport.h"

/* One frame of the data plane: Ethernet II, IPv4, UDP, then a fixed little-endian header (docs/protocol.md has the
 * table) and the payload. Serves lib/transport and its tests only. */

enum {
    DK_ETHERNET_BYTES = 14,
    DK_IPV4_BYTES = 20,
    DK_UDP_BYTES = 8,
    DK_DATAGRAM_BYTES = 52, /* the protocol's own header */
    DK_FRAME_HEAD_BYTES = DK_ETHERNET_BYTES + DK_IPV4_BYTES + DK_UDP_BYTES + DK_DATAGRAM_BYTES,
    DK_MTU_MIN = 576,
    DK_MTU_MAX = 9000,
    DK_FRAGMENT_BYTES_MAX = DK_MTU_MAX - DK_IPV4_BYTES - DK_UDP_BYTES - DK_DATAGRAM_BYTES,
    DK_SLOTS = 16,             /* requests outstanding in one direction between two endpoints */
    DK_RANGE_FRAGMENTS = 1024, /* fragments of one message beyond its first unacknowledged one that may be in flight */
    DK_ACK_FIXED_BYTES = 16,
    DK_ACK_BYTES_MAX = DK_ACK_FIXED_BYTES + DK_RANGE_FRAGMENTS / 8,
};

enum dk_datagram_type {
    DK_DATAGRAM_REQUEST = 1,  /* a fragment of a request */
    DK_DATAGRAM_RESPONSE,     /* a fragment of a response */
    DK_DATAGRAM_REQUEST_ACK,  /* which fragments of the request are here */
    DK_DATAGRAM_RESPONSE_ACK, /* which fragments of the response are here, and how many more may come */
    DK_DATAGRAM_REFUSE,       /* the request is longer than this endpoint takes */
    DK_DATAGRAM_HELLO,        /* nothing but the header: tells the session, shows life */
    DK_DATAGRAM_TYPES
};

enum {
    DK_FLAG_ACK_ME = 1, /* request, response ack, hello: answer at once, whatever there is to say */
    DK_FLAG_RETRY = 2,  /* request: nothing came back in time; a kept response is to be sent again */
    DK_FLAGS_KNOWN = 3
};

struct dk_datagram {
    uint8_t type, slot, flags;
    uint32_t source_instance, target_instance;
    uint32_t source_session, target_session; /* target 0: not known yet */
    uint64_t request_id;
    uint32_t grant; /* request, response ack: response fragments below this index may be sent */
    /* request and response */
    uint32_t message_bytes, fragment, fragment_bytes; /* fragment_bytes: of every fragment but the last */
    /* acks */
    uint32_t cumulative;            /* every fragment below it is here */
    uint32_t highest;               /* none at or beyond it is here */
    uint32_t nack_from, nack_below; /* those in this range that are not here are to be sent again */
    const uint8_t *bitmap;          /* bit i: fragment cumulative + i is here; (highest - cumulative) bits */
    const uint8_t *payload;
    uint32_t payload_bytes;
};

enum dk_datagram_verdict {
    DK_DATAGRAM_GOOD,
    DK_DATAGRAM_FOREIGN, /* another protocol, address or port */
    DK_DATAGRAM_CORRUPT,
};

/* Puts the headers before a payload that lies at frame + DK_FRAME_HEAD_BYTES already; returns the frame's length.
 * d->payload and the ack fields are not read. */
size_t dk_datagram_encode(uint8_t *frame, const struct dk_addr *source, const struct dk_addr *target, uint16_t ipv4_id,
                          const struct dk_datagram *d, uint32_t payload_bytes);

/* Writes an ack's payload but its bitmap; returns where the bitmap starts. */
uint8_t *dk_datagram_encode_ack(uint8_t *payload, const struct dk_datagram *d);

/* Checks everything that can be checked without knowing the peers. *ipv4 and *udp_port: the sender's. Pointers in *d
 * point into frame. */
enum dk_datagram_verdict dk_datagram_decode(const uint8_t *frame, size_t bytes, const struct dk_addr *own,
                                            uint32_t *ipv4, uint16_t *udp_port, struct dk_datagram *d);

static inline uint32_t dk_fragment_count(uint32_t message_bytes, uint32_t fragment_bytes)
{
    return (message_bytes - 1) / fragment_bytes + 1; /* no message is empty; does not overflow */
}

#endif
