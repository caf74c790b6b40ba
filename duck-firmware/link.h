/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCK_LINK_H
#define DUCK_LINK_H

#include "endpoint/endpoint.h"

/* Where the worker answers, as the last heartbeat's reply said. malloc'ed; the engine frees it. */
struct duck_link_order {
    bool present; /* false: the coordinator knows of no worker now; what is connected stays */
    struct dk_addr worker, own;
    uint32_t mtu; /* smaller of both sides */
    uint32_t member_index;
    char socket_path[100], bell_path[100];
};

/* The connection to the worker: wanted and actual state. Level-triggered: the same order again changes nothing
 * unless the port could not be opened before. */
struct duck_link {
    struct duck_link_order order;
    bool port_up, peer_up;
    uint32_t port, peer;
};

/* Brings the link to what the order says. kind: of this duck's port; an af_packet port is open already and stays
 * (link->port is it). */
void duck_link_follow(struct duck_link *l, struct dk_endpoint *e, enum dk_port_kind kind, uint32_t dead_after_ms,
                      const struct duck_link_order *order);
/* The worker is dead for the transport: its peer is made anew. */
void duck_link_peer_lost(struct duck_link *l, struct dk_endpoint *e);

#endif
