/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_FUZZ_DATAGRAM_SCRIPT_H
#define DK_FUZZ_DATAGRAM_SCRIPT_H

#include "transport/transport.h"

/* An input of fuzz_datagram is a script for one engine with two peers: operations one after the other, numbers
 * little-endian. */
enum script_op {
    SCRIPT_FRAME,   /* u16 length, bytes: taken in as they are */
    SCRIPT_FIXED,   /* the same, after its checksums were made right: gets past them whatever was changed */
    SCRIPT_REQUEST, /* u8 peer, u16 length */
    SCRIPT_RESPOND, /* u16 length: to the oldest request that is held */
    SCRIPT_DONE,    /* gives the oldest held request's buffer back */
    SCRIPT_ADVANCE, /* u16: the clock, by 64 us each */
    SCRIPT_OUTPUT,  /* fetches all frames */
    SCRIPT_REJOIN,  /* u8 peer: removed and added again */
    SCRIPT_OPS
};

enum { SCRIPT_PEERS = 2, SCRIPT_START_US = 1000000, SCRIPT_CONTENT_BYTES = 65535 };

/* Address 0 is the engine's own. */
static inline struct dk_addr script_address(uint32_t i)
{
    return (struct dk_addr){
        .mac = {2, 0, 0, 0, 0, (uint8_t)i}, .ipv4 = 0x0a000001 + i, .udp_port = 7000, .instance = 9 + i};
}

static inline struct dk_transport_config script_config(uint32_t i)
{
    struct dk_transport_config c;

    dk_transport_defaults(&c);
    c.own = script_address(i);
    c.mtu = 576;
    c.peers_max = SCRIPT_PEERS;
    c.message_bytes_max = 48 << 10; /* less than a script may ask for */
    c.window_frames = 8;
    c.credit_frames = 12;
    return c;
}

#endif
