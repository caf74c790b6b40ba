/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dpdk_peer.h"
#include "net_namespace.h"

/* af_packet ports: a worker and two ducks, each in a network namespace of its own, on one bridge. Not a Criterion
 * program, because it must be able to say that it was skipped. */

enum { DUCKS = 2 };

static char dir[64], name[32];

#define CHECK(what)                                                              \
    do {                                                                         \
        if (!(what)) {                                                           \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #what); \
            exit(1);                                                             \
        }                                                                        \
    } while (0)

/* A process that first moves into its own namespace and waits there for its cable. */
static int in_namespace(peer_main *body, const struct peer_config *c, int in, int out)
{
    char byte;

    if (net_namespace_split() < 0 || write(out, "n", 1) != 1 || read(in, &byte, 1) != 1 ||
        net_namespace_up(c->interface) < 0)
        return 9;
    return body(c, in, out);
}

static int worker_in_namespace(const struct peer_config *c, int in, int out)
{
    return in_namespace(peer_worker, c, in, out);
}

static int duck_in_namespace(const struct peer_config *c, int in, int out)
{
    return in_namespace(peer_duck, c, in, out);
}

static struct peer plug_in(peer_main *body, const struct peer_config *c, uint32_t unique, uint8_t mac_end, uint32_t mtu)
{
    struct peer p = peer_start(body, c);

    CHECK(peer_expect(&p, 'n') == 0);
    CHECK(net_namespace_cable_add("br0", unique, p.pid, "dk0", mac_end, mtu) == 0);
    CHECK(write(p.to, "g", 1) == 1);
    return p;
}

static void all_sizes(uint32_t mtu, uint32_t frames, uint32_t pause_us, bool mixed)
{
    const struct peer_config w = {.dir = dir, .name = name, .interface = "dk0", .ports = mixed ? 2 : 1, .mixed = mixed};
    struct peer_config d[DUCKS];
    struct peer worker, ducks[DUCKS];
    struct peer_report r;

    CHECK(net_namespace_bridge_add("br0", mtu) == 0);
    worker = plug_in(worker_in_namespace, &w, 0, 0x01, mtu);
    CHECK(peer_expect(&worker, 'r') == 0);
    for (uint32_t i = 0; i < DUCKS; i++) {
        d[i] = w;
        d[i].ports = 1;
        d[i].index = i;
        d[i].frames = frames;
        d[i].pause_us = pause_us;
        ducks[i] = plug_in(duck_in_namespace, &d[i], 1 + i, (uint8_t)(0x10 + i), mtu);
    }
    for (uint32_t i = 0; i < DUCKS; i++) {
        const uint8_t mac[6] = {2, 0, 0, 0, 0, (uint8_t)(0x10 + i)};

        CHECK(peer_expect(&ducks[i], 'd') == 0);
        CHECK(peer_stop(&ducks[i], &r) == 0);
        CHECK(r.frames == frames);
        CHECK(r.bad == 0);
        CHECK(r.mtu == mtu);
        CHECK(memcmp(r.mac, mac, 6) == 0);
    }
    CHECK(peer_stop(&worker, &r) == 0);
    CHECK(r.bad == 0);
    CHECK(r.mtu == mtu);
    if (pause_us > 0) {
        CHECK(r.counters.parks > 0);
        CHECK(r.counters.wakeups > 0); /* poll() on the driver's socket sees the frames */
    }
    net_namespace_bridge_remove("br0");
}

/* In the namespace there is a loopback and, after it entered one, nothing else. */
static int errors(const struct peer_config *c, int in, int out)
{
    struct dk_port_spec s = {.kind = DK_PORT_AF_PACKET};
    struct peer_report r = {0};
    struct dk_err err = {0};
    struct dk_net *net;
    uint32_t port;

    if (peer_open(c, &net) < 0)
        return 1;
    snprintf(s.path, sizeof s.path, "dk0");
    if (dk_net_dpdk.port_add(net, &s, &port, r.mac, &r.mtu, &err) != -ENODEV || !strstr(err.text, "dk0"))
        return 2;
    snprintf(s.path, sizeof s.path, "lo");
    if (dk_net_dpdk.port_add(net, &s, &port, r.mac, &r.mtu, &err) != -ENODEV || !strstr(err.text, "Ethernet"))
        return 3;
    dk_net_dpdk.close(net);
    return peer_report_send(out, &r);
}

int main(void)
{
    const struct peer_config c = {.dir = dir, .name = name, .ports = 1};
    struct peer p;
    struct peer_report r;

    peer_dir_make(dir);
    snprintf(name, sizeof name, "a%ld", (long)getpid());
    if (net_namespace_enter() < 0 || net_namespace_bridge_add("br0", 1500) < 0) {
        fprintf(stderr, "skipped: this user may not make network namespaces, or ip or bridges are missing\n");
        rmdir(dir);
        return NET_NAMESPACE_SKIP;
    }
    net_namespace_bridge_remove("br0");

    p = peer_start(errors, &c);
    CHECK(peer_stop(&p, &r) == 0);
    all_sizes(1500, 1514 - 60 + 1, 0, false);
    all_sizes(9000, 9014 - 60 + 1, 0, false);
    all_sizes(9000, 100, 2000, false);
    all_sizes(9000, 100, 2000, true); /* cannot sleep on both kinds of port at once, and naps */
    CHECK(peer_dir_leftovers(dir, name) == 0);
    return 0;
}
