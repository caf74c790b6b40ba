/* SPDX-License-Identifier: Apache-2.0 */
#include "coord_fixture.h"

static struct fx fx;

static void start(void)
{
    fx_init(&fx);
    fx_open(&fx);
}

static void stop(void)
{
    fx_close(&fx);
}

TestSuite(membership, .init = start, .fini = stop);

static uint32_t index_of(const char *name)
{
    struct dk_member *m = dk_member_find(fx.c, name);

    cr_assert_not_null(m);
    return m->index;
}

Test(membership, indices_are_small_and_stable)
{
    struct answer a;
    struct fx_beat b = {.name = "duck-a", .kind = DK__NODE_KIND__DUCK, .instance = 1};
    Dk__LeaveRequest leave = DK__LEAVE_REQUEST__INIT;

    fx_heartbeat(&fx, &b, &a);
    cr_assert_eq(FX_REPLY(&a, Dk__HeartbeatReply)->interval_ms, 200u);
    cr_assert_null(FX_REPLY(&a, Dk__HeartbeatReply)->plan);
    fx_clear(&a);
    fx_worker_beat(&fx);
    fx_duck(&fx, "duck-b", 2);
    fx_duck(&fx, "duck-c", 3);
    cr_assert_eq(index_of("duck-a"), 0u);
    cr_assert_eq(index_of("duck-b"), 1u);
    cr_assert_eq(index_of("duck-c"), 2u);
    leave.name = (char *)"duck-b";
    leave.instance = 2;
    fx_call(&fx, &leave, &a);
    FX_REPLY(&a, Dk__LeaveReply);
    fx_clear(&a);
    fx_call(&fx, &leave, &a); /* again: nothing left to do */
    FX_REPLY(&a, Dk__LeaveReply);
    fx_clear(&a);
    cr_assert_eq(index_of("duck-c"), 2u);
    fx_duck(&fx, "duck-d", 4);
    cr_assert_eq(index_of("duck-d"), 1u, "the free one");
    leave.name = (char *)"duck-d";
    leave.instance = 77;
    fx_call(&fx, &leave, &a);
    fx_assert_failed(&a, DK__CODE__FAILED_PRECONDITION, "another instance");
}

Test(membership, bad_nodes_are_refused)
{
    struct answer a;
    struct fx_beat b = {.name = "", .kind = DK__NODE_KIND__DUCK, .instance = 1};

    fx_heartbeat(&fx, &b, &a);
    fx_assert_failed(&a, DK__CODE__INVALID_ARGUMENT, "node.name");
    b.name = "a b";
    fx_heartbeat(&fx, &b, &a);
    fx_assert_failed(&a, DK__CODE__INVALID_ARGUMENT, "node.name");
    b.name = "0123456789012345678901234567890123456789012345678901234567890123";
    fx_heartbeat(&fx, &b, &a);
    fx_assert_failed(&a, DK__CODE__INVALID_ARGUMENT, "node.name");
    b.name = "a";
    b.instance = 0;
    fx_heartbeat(&fx, &b, &a);
    fx_assert_failed(&a, DK__CODE__INVALID_ARGUMENT, "instance");
    b.instance = 1;
    b.version = "0.9";
    fx_heartbeat(&fx, &b, &a);
    fx_assert_failed(&a, DK__CODE__VERSION_MISMATCH, "duck 'a' is version 0.9, the coordinator version 1.0");
    cr_assert_eq(fx.c->member_count, 0u);
    b.version = "1.0";
    fx_heartbeat(&fx, &b, &a);
    FX_REPLY(&a, Dk__HeartbeatReply);
    fx_clear(&a);
}

Test(membership, one_name_one_node)
{
    struct answer a;
    struct fx_beat other = {.name = "duck-1", .kind = DK__NODE_KIND__DUCK, .instance = 50};

    fx_duck(&fx, "duck-1", 1);
    fx_duck(&fx, "duck-2", 2);
    for (int i = 0; i < 10; i++) { /* both live: the older one keeps the name */
        fx_tick(&fx, 200 * MS);
        fx_heartbeat(&fx, &other, &a);
        fx_assert_failed(&a, DK__CODE__FAILED_PRECONDITION, "another duck is called 'duck-1'");
        fx_duck(&fx, "duck-1", 1);
    }
    /* The older one is killed: its successor is taken soon, with the same index. */
    fx_tick(&fx, 1000 * MS);
    fx_heartbeat(&fx, &other, &a);
    fx_assert_failed(&a, DK__CODE__FAILED_PRECONDITION, "heard of 1000 ms ago");
    fx_tick(&fx, 100 * MS);
    fx_duck(&fx, "duck-1", 50);
    cr_assert_eq(index_of("duck-1"), 0u);
    other.instance = 1; /* and the old one was only asleep */
    fx_heartbeat(&fx, &other, &a);
    fx_assert_failed(&a, DK__CODE__FAILED_PRECONDITION, "another duck is called");
    other.kind = DK__NODE_KIND__WORKER;
    fx_heartbeat(&fx, &other, &a);
    fx_assert_failed(&a, DK__CODE__FAILED_PRECONDITION, "another duck is called");
}

Test(membership, one_worker)
{
    struct answer a;
    struct fx_beat other = {.name = "worker-2", .kind = DK__NODE_KIND__WORKER, .instance = 50};

    fx_worker_beat(&fx);
    fx_heartbeat(&fx, &other, &a);
    fx_assert_failed(&a, DK__CODE__FAILED_PRECONDITION, "has an attention-worker already: 'worker'");
    fx_tick(&fx, 2100 * MS);
    fx_heartbeat(&fx, &other, &a);
    FX_REPLY(&a, Dk__HeartbeatReply);
    fx_clear(&a);
    cr_assert_null(dk_member_find(fx.c, "worker"));
    cr_assert_eq(index_of("worker-2"), 0u);
}

Test(membership, silence)
{
    struct answer a;
    Dk__StatusRequest q = DK__STATUS_REQUEST__INIT;
    Dk__StatusReply *r;

    fx_duck(&fx, "duck-10", 1);
    fx_tick(&fx, 1500 * MS);
    fx_duck(&fx, "duck-2", 2);
    fx_worker_beat(&fx);
    fx_tick(&fx, 600 * MS);
    fx_call(&fx, &q, &a);
    r = FX_REPLY(&a, Dk__StatusReply);
    cr_assert_eq(r->n_nodes, 3);
    cr_assert_str_eq(r->nodes[0]->node->name, "worker");
    cr_assert_str_eq(r->nodes[1]->node->name, "duck-2");
    cr_assert_str_eq(r->nodes[2]->node->name, "duck-10");
    cr_assert(r->nodes[1]->alive);
    cr_assert_eq(r->nodes[1]->silent_ms, 600u);
    cr_assert_not(r->nodes[2]->alive);
    cr_assert_eq(r->nodes[2]->silent_ms, 2100u);
    cr_assert_eq(r->uptime_ms, 2100u);
    cr_assert_str_eq(r->version, "1.0");
    fx_clear(&a);
    fx_tick(&fx, 28500 * MS);
    cr_assert_null(dk_member_find(fx.c, "duck-10"), "forgotten");
    cr_assert_not_null(dk_member_find(fx.c, "duck-2"));
}

static Dk__HeartbeatReply *duck_beat(Dk__PortKind port, uint32_t instance, struct answer *a)
{
    struct fx_beat b = {.name = "duck-1", .kind = DK__NODE_KIND__DUCK, .instance = instance, .port = port};

    fx_heartbeat(&fx, &b, a);
    return FX_REPLY(a, Dk__HeartbeatReply);
}

static void worker_beat_with_link(uint32_t duck_instance, struct answer *a)
{
    struct fx_beat b = {
        .name = "worker", .kind = DK__NODE_KIND__WORKER, .instance = 100, .link_instance = duck_instance};

    fx_heartbeat(&fx, &b, a);
}

Test(membership, a_duck_connects_when_the_worker_is_ready_for_it)
{
    struct answer a;
    Dk__HeartbeatReply *r;

    cr_assert_null(duck_beat(DK__PORT_KIND__VHOST, 7, &a)->worker, "no worker yet");
    fx_clear(&a);
    worker_beat_with_link(0, &a);
    r = FX_REPLY(&a, Dk__HeartbeatReply);
    cr_assert_eq(r->n_ducks, 1);
    cr_assert_eq(r->ducks[0]->member_index, 0u);
    cr_assert_eq(r->ducks[0]->node->address->ipv4, 0x0a4d0002u);
    cr_assert_eq(r->ducks[0]->node->address->udp_port, 7718u);
    cr_assert_eq(r->ducks[0]->node->address->mac.data[5], 7);
    fx_clear(&a);
    cr_assert_null(duck_beat(DK__PORT_KIND__VHOST, 7, &a)->worker, "no port yet");
    fx_clear(&a);
    worker_beat_with_link(6, &a);
    fx_clear(&a);
    cr_assert_null(duck_beat(DK__PORT_KIND__VHOST, 7, &a)->worker, "a port for an earlier life");
    fx_clear(&a);
    worker_beat_with_link(7, &a);
    fx_clear(&a);
    r = duck_beat(DK__PORT_KIND__VHOST, 7, &a);
    cr_assert_not_null(r->worker);
    cr_assert_str_eq(r->worker->socket_path, "/run/d0.sock");
    cr_assert_eq(r->worker->worker->ipv4, 0x0a4d0001u);
    cr_assert_eq(r->worker->worker->udp_port, 7717u);
    cr_assert_eq(r->worker->worker->instance, 100u);
    cr_assert_eq(r->worker->own->ipv4, 0x0a4d0002u);
    cr_assert_eq(r->worker->own->instance, 7u);
    cr_assert_eq(r->worker->own->mac.data[5], 7);
    fx_clear(&a);
    fx_tick(&fx, 2100 * MS);
    cr_assert_null(duck_beat(DK__PORT_KIND__VHOST, 7, &a)->worker, "the worker is silent");
    fx_clear(&a);
}

Test(membership, af_packet_addresses_are_the_nodes_own)
{
    struct answer a;
    Dk__HeartbeatReply *r;

    duck_beat(DK__PORT_KIND__AF_PACKET, 7, &a);
    fx_clear(&a);
    worker_beat_with_link(7, &a);
    r = FX_REPLY(&a, Dk__HeartbeatReply);
    cr_assert_eq(r->ducks[0]->node->address->ipv4, 0x0a000007u);
    fx_clear(&a);
    r = duck_beat(DK__PORT_KIND__AF_PACKET, 7, &a);
    cr_assert_eq(r->worker->own->ipv4, 0x0a000007u);
    fx_clear(&a);
}

Test(membership, a_full_cluster_refuses)
{
    static const struct {
        Dk__PortKind port;
        uint32_t most;
        const char *text;
    } kinds[] = {{DK__PORT_KIND__VHOST, DK_VHOST_DUCKS_MAX, "with --port vhost it has at most 31 ducks"},
                 {DK__PORT_KIND__AF_PACKET, DK_PLAN_DUCKS_MAX, "it has at most 64 ducks"}};
    struct answer a;
    char name[20];

    for (int k = 0; k < 2; k++) {
        struct fx_beat b = {.name = name, .kind = DK__NODE_KIND__DUCK, .port = kinds[k].port};

        for (uint32_t i = fx.c->member_count; i <= kinds[k].most; i++) {
            snprintf(name, sizeof name, "duck-%u", i);
            b.instance = i + 1;
            fx_heartbeat(&fx, &b, &a);
            if (i < kinds[k].most)
                FX_REPLY(&a, Dk__HeartbeatReply);
            else
                fx_assert_failed(&a, DK__CODE__RESOURCE_EXHAUSTED, kinds[k].text);
            fx_clear(&a);
        }
        cr_assert_eq(fx.c->member_count, kinds[k].most);
    }
    fx_worker_beat(&fx); /* has a place of its own */
}

static void address_refused(Dk__HeartbeatRequest *q, const char *part)
{
    struct answer a;

    fx_call(&fx, q, &a);
    fx_assert_failed(&a, DK__CODE__INVALID_ARGUMENT, part);
    cr_assert_eq(fx.c->member_count, 0u);
}

Test(membership, addresses_are_checked)
{
    Dk__HeartbeatRequest q = DK__HEARTBEAT_REQUEST__INIT;
    Dk__NodeInfo n = DK__NODE_INFO__INIT;
    Dk__DataAddress good = DK__DATA_ADDRESS__INIT, at;
    uint8_t mac[7] = {2, 0, 0, 0, 0, 1};
    struct answer a;

    good.instance = 5;
    good.mac = (ProtobufCBinaryData){.data = mac, .len = 6};
    good.ipv4 = 0x0a000001;
    good.udp_port = 65535;
    good.mtu = 1500;
    n.name = (char *)"duck-1";
    n.kind = DK__NODE_KIND__DUCK;
    n.port_kind = DK__PORT_KIND__AF_PACKET;
    n.address = &at;
    q.node = &n;
    at = good;
    at.mtu = 575;
    address_refused(&q, "mtu: 575 is not from 576 to 9000");
    at.mtu = 9001;
    address_refused(&q, "mtu: 9001");
    at = good;
    at.udp_port = 0;
    address_refused(&q, "udp_port: 0 is not from 1 to 65535");
    at.udp_port = 65536;
    address_refused(&q, "udp_port: 65536");
    n.port_kind = DK__PORT_KIND__VHOST;
    address_refused(&q, "udp_port: 65536");
    n.port_kind = (Dk__PortKind)9;
    address_refused(&q, "port_kind");
    n.port_kind = DK__PORT_KIND__AF_PACKET;
    at = good;
    at.ipv4 = 0;
    address_refused(&q, "ipv4: is missing");
    at = good;
    at.instance = 0;
    address_refused(&q, "instance");
    at = good;
    at.mac.len = 5;
    address_refused(&q, "mac: has 5 bytes");
    at.mac.len = 7;
    address_refused(&q, "mac: has 7 bytes");
    at = good;
    mac[0] = 1;
    address_refused(&q, "mac: is not the address of one port");
    mac[0] = mac[5] = 0;
    address_refused(&q, "mac: is not the address of one port");
    mac[0] = 2;
    at.mtu = 576;
    fx_call(&fx, &q, &a);
    FX_REPLY(&a, Dk__HeartbeatReply);
    fx_clear(&a);
    at.mtu = 9000;
    at.ipv4 = at.udp_port = 0; /* vhost links get theirs */
    n.port_kind = DK__PORT_KIND__VHOST;
    fx_call(&fx, &q, &a);
    FX_REPLY(&a, Dk__HeartbeatReply);
    fx_clear(&a);
}
