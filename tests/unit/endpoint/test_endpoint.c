/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "endpoint/endpoint.h"
#include "net/sim/sim.h"

enum { LOOPBACK = 0x7f000001 };

static uint64_t now_us = 1000;

static uint64_t sim_now(void *ctx)
{
    (void)ctx;
    return now_us;
}

static struct dk_net_config net_config(void)
{
    return (struct dk_net_config){.name = "test", .run_dir = "sim", .ports_max = 2, .frame_bytes = 1514};
}

static struct dk_addr address(uint32_t i)
{
    return (struct dk_addr){
        .mac = {2, 0, 0, 0, 0, (uint8_t)i}, .ipv4 = 0x0a000000u + i, .udp_port = 7700, .instance = 10 + i};
}

/* An endpoint on the wire "w" with a peer. */
static uint32_t open_on_wire(struct dk_endpoint *e, uint32_t own, uint32_t other, uint32_t *port)
{
    struct dk_net_config net = net_config();
    struct dk_port_spec spec = {.kind = DK_PORT_SIM, .path = "w"};
    struct dk_transport_config t;
    struct dk_addr remote = address(other);
    struct dk_err err = {0};
    uint32_t peer, mtu;
    uint8_t mac[6];

    cr_assert_eq(dk_endpoint_open(e, &dk_net_sim, &net, &err), 0, "%s", err.text);
    cr_assert_null(e->transport);
    cr_assert_eq(e->ops->port_add(e->net, &spec, port, mac, &mtu, &err), 0);
    cr_assert_not(dk_endpoint_poll(e, now_us), "nothing is there to do before start");
    dk_transport_defaults(&t);
    t.own = address(own);
    t.mtu = mtu;
    t.peers_max = 2;
    cr_assert_eq(dk_endpoint_start(e, &t, &err), 0, "%s", err.text);
    cr_assert_eq(dk_transport_peer_add(e->transport, &remote, *port, &peer), 0);
    return peer;
}

Test(endpoint, carries_messages_both_ways)
{
    uint8_t request[5000], response[7000];
    struct iovec part = {request, sizeof request};
    struct dk_transport_event event;
    struct dk_endpoint a, b;
    uint32_t port, peer;
    uint64_t id, sum = 0;
    bool answered = false;

    dk_sim_clock_set(sim_now, NULL);
    memset(request, 3, sizeof request);
    memset(response, 4, sizeof response);
    peer = open_on_wire(&a, 1, 2, &port);
    open_on_wire(&b, 2, 1, &port);
    cr_assert_eq(dk_transport_request(a.transport, peer, &part, 1, now_us, &id), 0);
    for (int i = 0; i < 200 && !answered; i++, now_us += 10) {
        dk_endpoint_poll(&a, now_us);
        dk_endpoint_poll(&b, now_us);
        for (dk_transport_event(b.transport, &event); event.type; dk_transport_event(b.transport, &event)) {
            struct iovec answer = {response, sizeof response};

            cr_assert_eq(event.type, DK_EVENT_REQUEST);
            cr_assert_eq(event.bytes, sizeof request);
            cr_assert_eq(memcmp(event.data, request, sizeof request), 0);
            cr_assert_eq(dk_transport_respond(b.transport, event.peer, event.request_id, &answer, 1, now_us), 0);
            dk_transport_event_done(b.transport, &event);
        }
        for (dk_transport_event(a.transport, &event); event.type; dk_transport_event(a.transport, &event)) {
            cr_assert_eq(event.type, DK_EVENT_RESPONSE);
            cr_assert_eq(event.request_id, id);
            cr_assert_eq(event.bytes, sizeof response);
            cr_assert_eq(memcmp(event.data, response, sizeof response), 0);
            answered = true;
            dk_transport_event_done(a.transport, &event);
        }
    }
    cr_assert(answered);
    for (int i = 0; i < 5; i++, now_us += 10) { /* then there is silence */
        sum += dk_endpoint_poll(&a, now_us);
        sum += dk_endpoint_poll(&b, now_us);
    }
    cr_assert_leq(sum, 2);
    dk_endpoint_close(&a);
    dk_endpoint_close(&b);
}

/* Starting again is a new life: what was outstanding is gone and the old peers with it. */
Test(endpoint, starts_again)
{
    uint8_t byte = 1;
    struct iovec part = {&byte, 1};
    struct dk_transport_config t;
    struct dk_err err = {0};
    struct dk_endpoint e;
    uint32_t port, peer;
    uint64_t id;

    dk_sim_clock_set(sim_now, NULL);
    peer = open_on_wire(&e, 1, 2, &port);
    cr_assert_eq(dk_transport_request(e.transport, peer, &part, 1, now_us, &id), 0);
    dk_transport_defaults(&t);
    t.own = address(1);
    t.mtu = 100; /* refused: the present engine goes on */
    t.peers_max = 2;
    cr_assert_eq(dk_endpoint_start(&e, &t, &err), -EINVAL);
    cr_assert(strstr(err.text, "mtu 100"), "%s", err.text);
    cr_assert_not_null(e.transport);
    cr_assert(dk_endpoint_poll(&e, now_us));
    t.mtu = 1500;
    t.own.instance++;
    cr_assert_eq(dk_endpoint_start(&e, &t, &err), 0);
    cr_assert_eq(dk_transport_request(e.transport, peer, &part, 1, now_us, &id), -EHOSTDOWN);
    cr_assert_eq(dk_transport_deadline(e.transport), UINT64_MAX);
    dk_endpoint_close(&e);
    cr_assert_null(e.net);
    dk_endpoint_close(&e); /* twice is fine */
}

/* ---- waiting: asked of a back end that only notes it */

static uint64_t waited_until;
static bool waited_worked;
static int wakes;

static void note_wait(struct dk_net *net, bool worked, uint64_t now, uint64_t deadline_us)
{
    (void)net;
    (void)now;
    waited_until = deadline_us;
    waited_worked = worked;
}

static void note_wake(struct dk_net *net)
{
    (void)net;
    wakes++;
}

Test(endpoint, waits_for_the_earlier_deadline)
{
    struct dk_net_ops ops = dk_net_sim;
    uint8_t byte = 1;
    struct iovec part = {&byte, 1};
    struct dk_endpoint e;
    uint32_t port, peer;
    uint64_t id, own;

    dk_sim_clock_set(sim_now, NULL);
    peer = open_on_wire(&e, 1, 2, &port);
    ops.wait = note_wait;
    ops.wake = note_wake;
    e.ops = &ops;
    dk_endpoint_wait(&e, true, now_us, 123456);
    cr_assert(waited_until == 123456 && waited_worked);
    cr_assert_eq(dk_transport_request(e.transport, peer, &part, 1, now_us, &id), 0);
    dk_endpoint_poll(&e, now_us);
    own = dk_transport_deadline(e.transport);
    cr_assert_gt(own, now_us);
    cr_assert_lt(own, now_us + 1000000);
    dk_endpoint_wait(&e, false, now_us, UINT64_MAX);
    cr_assert(waited_until == own && !waited_worked);
    dk_endpoint_wait(&e, false, now_us, now_us + 1);
    cr_assert_eq(waited_until, now_us + 1);
    dk_endpoint_wake(&e);
    cr_assert_eq(wakes, 1);
    e.ops = &dk_net_sim;
    dk_endpoint_close(&e);
}

/* ---- who we are */

Test(endpoint, identity_behind_vhost)
{
    struct dk_net_config net = net_config();
    struct dk_identity a, b;
    struct dk_err err = {0};
    struct dk_endpoint e;

    cr_assert_eq(dk_endpoint_open(&e, &dk_net_sim, &net, &err), 0);
    cr_assert_eq(dk_endpoint_identify(&e, DK_PORT_VHOST, NULL, 7700, 0x0a4d0001, &a, &err), 0);
    cr_assert_eq(dk_endpoint_identify(&e, DK_PORT_VIRTIO_USER, NULL, 7701, 0, &b, &err), 0);
    cr_assert(a.own.instance && b.own.instance);
    cr_assert_neq(a.own.instance, b.own.instance, "two lives with one number");
    cr_assert_eq(a.own.mac[0], 2, "not a locally administered unicast address");
    cr_assert_neq(memcmp(a.own.mac, b.own.mac, 6), 0);
    cr_assert_eq(a.own.ipv4, 0x0a4d0001);
    cr_assert_eq(b.own.ipv4, 0);
    cr_assert(a.own.udp_port == 7700 && b.own.udp_port == 7701);
    cr_assert_eq(a.mtu, 9000);
    dk_endpoint_close(&e);
}

/* A UDP socket of ours on 127.0.0.1; the port that it got. */
static int bind_udp(uint16_t *port)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(LOOPBACK)};
    socklen_t length = sizeof sa;
    int fd = socket(AF_INET, SOCK_DGRAM, 0);

    cr_assert_geq(fd, 0);
    cr_assert_eq(bind(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&sa, &length), 0);
    *port = ntohs(sa.sin_port);
    return fd;
}

static bool can_bind(uint16_t port)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(LOOPBACK), .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_DGRAM, 0), rc = bind(fd, (struct sockaddr *)&sa, sizeof sa);

    close(fd);
    return rc == 0;
}

/* The kernel must not answer our datagrams with "port unreachable", so it is given a socket for them. */
Test(endpoint, identity_on_an_interface)
{
    struct dk_net_config net = net_config();
    struct dk_identity id;
    struct dk_err err = {0};
    struct dk_endpoint e;
    uint16_t taken;
    int fd = bind_udp(&taken);

    cr_assert_lt(taken, 65000);
    cr_assert_eq(dk_endpoint_open(&e, &dk_net_sim, &net, &err), 0);
    cr_assert_eq(dk_endpoint_identify(&e, DK_PORT_AF_PACKET, "lo", taken, 0, &id, &err), 0, "%s", err.text);
    cr_assert_eq(id.own.ipv4, LOOPBACK);
    cr_assert_gt(id.own.udp_port, taken);
    cr_assert_leq(id.own.udp_port, taken + 200);
    cr_assert_not(can_bind(id.own.udp_port), "the port is not reserved");
    cr_assert_eq(id.mtu, 1500);
    cr_assert_neq(memcmp(id.own.mac, (uint8_t[6]){0}, 6), 0, "the MAC is the port's");
    close(fd);
    dk_endpoint_close(&e);
}

Test(endpoint, identity_on_an_interface_without_an_address)
{
    struct dk_net_config net = net_config();
    struct dk_identity id;
    struct dk_err err = {0};
    struct dk_endpoint e;

    net.ports_max = 1;
    cr_assert_eq(dk_endpoint_open(&e, &dk_net_sim, &net, &err), 0);
    cr_assert_eq(dk_endpoint_identify(&e, DK_PORT_AF_PACKET, "nowhere0", 7700, 0, &id, &err), 0, "%s", err.text);
    cr_assert_eq(id.own.ipv4 >> 16, 0xa9fe, "not a link-local address");
    cr_assert_eq(id.own.udp_port, 7700);
    cr_assert_eq(dk_endpoint_identify(&e, DK_PORT_AF_PACKET, "nowhere1", 7700, 0, &id, &err), -ENOSPC, "one port only");
    dk_endpoint_close(&e);
}

/* ---- to and from the control plane */

Test(endpoint, addresses_on_the_wire)
{
    struct dk_addr from = address(7), to;
    Dk__DataAddress wire;

    dk_addr_to_wire(&from, 9000, &wire);
    cr_assert_eq(wire.mtu, 9000);
    cr_assert(dk_addr_from_wire(&wire, &to));
    cr_assert(to.ipv4 == from.ipv4 && to.udp_port == from.udp_port && to.instance == from.instance);
    cr_assert_eq(memcmp(to.mac, from.mac, 6), 0);

    cr_assert_not(dk_addr_from_wire(NULL, &to));
    wire.mac.len = 5;
    cr_assert_not(dk_addr_from_wire(&wire, &to));
    wire.mac.len = 6;
    wire.udp_port = 65536;
    cr_assert_not(dk_addr_from_wire(&wire, &to));
    wire.udp_port = 0;
    cr_assert_not(dk_addr_from_wire(&wire, &to));
    wire.udp_port = 65535;
    cr_assert(dk_addr_from_wire(&wire, &to));
    wire.instance = 0;
    cr_assert_not(dk_addr_from_wire(&wire, &to));
    wire.instance = 1;
    wire.ipv4 = 0;
    cr_assert_not(dk_addr_from_wire(&wire, &to));
}

Test(endpoint, counters_on_the_wire)
{
    struct dk_transport_counters t = {.frames_sent = 1,
                                      .frames_received = 2,
                                      .messages_sent = 3,
                                      .messages_received = 4,
                                      .retransmitted = 5,
                                      .replayed = 60,
                                      .duplicates = 7,
                                      .corrupt = 8,
                                      .reordered = 9,
                                      .stale_instance = 10};
    struct dk_net_counters n = {
        .fault_dropped = 11, .fault_duplicated = 12, .fault_reordered = 13, .fault_corrupted = 14, .fault_delayed = 15};
    Dk__TransportCounters w;

    dk_counters_to_wire(&t, &n, &w);
    cr_assert(w.frames_sent == 1 && w.frames_received == 2 && w.messages_sent == 3 && w.messages_received == 4);
    cr_assert(w.retransmitted == 65 && w.duplicates == 7 && w.corrupt == 8 && w.reordered == 9);
    cr_assert(w.foreign_instance == 10 && w.fault_dropped == 11 && w.fault_duplicated == 12);
    cr_assert(w.fault_reordered == 13 && w.fault_corrupted == 14 && w.fault_delayed == 15);
    cr_assert(w.has_frames_sent && w.has_retransmitted && w.has_foreign_instance && w.has_fault_delayed);
}
