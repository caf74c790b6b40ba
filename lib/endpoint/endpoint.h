/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_ENDPOINT_H
#define DK_ENDPOINT_H

#include "base/error.h"
#include "net/net.h"
#include "transport/transport.h"
#include "wire/wire.h"

/* A node's place on the data plane: ports of lib/net and an engine of lib/transport, pumped together. The owner takes
 * the transport's events after each poll. One thread, except wake. */
struct dk_endpoint {
    const struct dk_net_ops *ops;
    struct dk_net *net;
    struct dk_transport *transport; /* NULL until dk_endpoint_start */
};

/* Opens the net back end only: ports may be added, their MAC and MTU are then known. */
int dk_endpoint_open(struct dk_endpoint *e, const struct dk_net_ops *ops, const struct dk_net_config *config,
                     struct dk_err *err);
/* Starts (or starts again, with a new life of all connections) the transport engine. */
int dk_endpoint_start(struct dk_endpoint *e, const struct dk_transport_config *config, struct dk_err *err);
void dk_endpoint_close(struct dk_endpoint *e); /* fine on any half-open one */

/* Frames in, engine, frames out. True: there was work. Never blocks. */
bool dk_endpoint_poll(struct dk_endpoint *e, uint64_t now_us);
/* Waits as lib/net does, until deadline_us or the engine's own next deadline. */
void dk_endpoint_wait(struct dk_endpoint *e, bool worked, uint64_t now_us, uint64_t deadline_us);
void dk_endpoint_wake(struct dk_endpoint *e); /* any thread */

/* What a node says of its data plane when it joins, and how its frames look. */
struct dk_identity {
    struct dk_addr own;
    uint32_t mtu;
    uint32_t port; /* af_packet: the one port, open; vhost: none yet */
};

/* Draws an instance number and finds out addresses. kind AF_PACKET opens the interface's port: MAC and MTU are its own,
 * the IPv4 address too (169.254/16 if it has none), and the first free UDP port from udp_port on is reserved in the
 * kernel, which would otherwise answer datagrams with "port unreachable". Other kinds: a made-up MAC, the address
 * vhost_ipv4 (0: the coordinator gives one), udp_port as it is. -ENODEV, -EPERM, -EADDRINUSE with the way out in *err.
 */
int dk_endpoint_identify(struct dk_endpoint *e, enum dk_port_kind kind, const char *interface, uint32_t udp_port,
                         uint32_t vhost_ipv4, struct dk_identity *out, struct dk_err *err);

/* ---- to and from the control plane's messages (endpoint_wire.c) */

/* mac: 6 bytes that *to points to. */
void dk_addr_to_wire(const struct dk_addr *from, uint32_t mtu, Dk__DataAddress *to);
/* False: absent, or a field out of range. */
bool dk_addr_from_wire(const Dk__DataAddress *from, struct dk_addr *to);
void dk_counters_to_wire(const struct dk_transport_counters *t, const struct dk_net_counters *n,
                         Dk__TransportCounters *to);

#endif
