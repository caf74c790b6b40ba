/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "net/net.h"
#include "net/sim/sim.h"
#include "transport/transport.h"

static const struct dk_net_ops *const ops = &dk_net_sim;

static struct dk_net *net_open(const char *faults)
{
    struct dk_net_config config = {.name = "test", .ports_max = 4, .frame_bytes = 1514};
    struct dk_net *net = NULL;

    cr_assert_eq(dk_net_faults_parse(faults, &config.faults, NULL), 0);
    cr_assert_eq(ops->open(&config, &net, NULL), 0);
    return net;
}

static uint32_t port_of(struct dk_net *net, enum dk_port_kind kind, const char *path, uint8_t mac[6])
{
    struct dk_port_spec spec = {.kind = kind};
    uint32_t port = 99, mtu = 0;

    strcpy(spec.path, path);
    cr_assert_eq(ops->port_add(net, &spec, &port, mac, &mtu, NULL), 0);
    cr_assert_eq(mtu, 1500);
    return port;
}

static void send_to(struct dk_net *net, uint32_t port, const uint8_t target[6], uint8_t content)
{
    struct dk_frame f;

    cr_assert_eq(ops->frame_get(net, &f), 0);
    cr_assert_geq(f.bytes, 100);
    memset(f.data, content, 100);
    memcpy(f.data, target, 6);
    f.bytes = 100;
    f.port = port;
    ops->send(net, &f);
    ops->flush(net);
}

static uint32_t receive(struct dk_net *net, uint8_t *content, uint32_t *port)
{
    struct dk_frame f;
    uint32_t n = ops->recv(net, &f, 1);

    if (n == 0)
        return 0;
    cr_assert_eq(f.bytes, 100);
    *content = f.data[99];
    *port = f.port;
    ops->frame_put(net, &f);
    return 1;
}

Test(net_sim, frames_go_to_whom_they_are_addressed)
{
    struct dk_net *a = net_open(""), *b = net_open(""), *c = net_open("");
    uint8_t of_a[6], of_b[6], of_c[6], other[6], broadcast[6], content = 0;
    uint32_t a0 = port_of(a, DK_PORT_SIM, "wire", of_a), port = 9;

    port_of(b, DK_PORT_SIM, "elsewhere", other);
    cr_assert_eq(port_of(b, DK_PORT_SIM, "wire", of_b), 1);
    port_of(c, DK_PORT_SIM, "wire", of_c);
    cr_assert(memcmp(of_a, of_b, 6) && memcmp(of_b, of_c, 6) && memcmp(of_b, other, 6));
    send_to(a, a0, of_b, 7);
    cr_assert_eq(receive(c, &content, &port), 0);
    cr_assert_eq(receive(b, &content, &port), 1);
    cr_assert(content == 7 && port == 1);
    memset(broadcast, 0xff, 6);
    send_to(a, a0, broadcast, 8);
    cr_assert_eq(receive(a, &content, &port), 0, "own frames do not come back");
    cr_assert(receive(b, &content, &port) && receive(c, &content, &port));
    send_to(a, a0, (const uint8_t[]){2, 9, 9, 9, 9, 9}, 8);
    cr_assert(receive(b, &content, &port) && receive(c, &content, &port), "unknown addresses are flooded");
    cr_assert_eq(ops->counters(a)->frames_out, 3);
    cr_assert_eq(ops->counters(b)->frames_in, 3);
    ops->port_remove(b, 1);
    send_to(a, a0, of_b, 9);
    cr_assert_eq(receive(b, &content, &port), 0);
    ops->close(a);
    ops->close(b);
    ops->close(c);
    ops->close(NULL);
}

Test(net_sim, ports_come_up_in_the_order_of_the_real_ones)
{
    struct dk_net *worker = net_open(""), *duck = net_open("");
    struct dk_port_spec spec = {.kind = DK_PORT_VIRTIO_USER, .path = "run/duck-1.sock"};
    struct dk_err err = {0};
    uint8_t mac[6];
    uint32_t port, mtu;

    cr_assert_eq(ops->port_add(duck, &spec, &port, mac, &mtu, &err), -ENOENT);
    cr_assert(strstr(err.text, "duck-1.sock"));
    port_of(worker, DK_PORT_VHOST, spec.path, mac);
    cr_assert_eq(ops->port_add(duck, &spec, &port, mac, &mtu, &err), 0);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(ops->port_add(duck, &spec, &port, mac, &mtu, &err), 0);
    cr_assert_eq(ops->port_add(duck, &spec, &port, mac, &mtu, &err), -ENOSPC);
    spec.path[0] = 0;
    cr_assert_eq(ops->port_add(duck, &spec, &port, mac, &mtu, &err), -EINVAL);
    ops->close(worker);
    ops->close(duck);
}

Test(net_sim, an_empty_pool_is_a_counted_loss)
{
    struct dk_net *a = net_open(""), *b = net_open("");
    uint8_t of_a[6], of_b[6];
    uint32_t port = port_of(a, DK_PORT_SIM, "wire", of_a), count = 0;
    struct dk_frame f;

    port_of(b, DK_PORT_SIM, "wire", of_b);
    for (int i = 0; i < 3000; i++)
        send_to(a, port, of_b, 1);
    cr_assert_eq(ops->counters(b)->frames_in + ops->counters(b)->no_buffer, 3000);
    cr_assert_gt(ops->counters(b)->no_buffer, 0);
    while (ops->recv(b, &f, 1)) {
        ops->frame_put(b, &f);
        count++;
    }
    cr_assert_eq(count, ops->counters(b)->frames_in);
    send_to(a, port, of_b, 1);
    cr_assert_eq(ops->recv(b, &f, 1), 1, "all buffers came back");
    ops->close(a);
    ops->close(b);
}

static uint64_t fake_us;

static uint64_t fake_now(void *ctx)
{
    return fake_us;
}

Test(net_sim, faults_use_the_clock_that_was_set)
{
    struct dk_net *a, *b;
    uint8_t of_a[6], of_b[6], content;
    uint32_t port, from;

    dk_sim_clock_set(fake_now, NULL);
    a = net_open("delay=1,delay_us=500");
    b = net_open("");
    port = port_of(a, DK_PORT_SIM, "wire", of_a);
    port_of(b, DK_PORT_SIM, "wire", of_b);
    send_to(a, port, of_b, 5);
    cr_assert_eq(receive(b, &content, &from), 0);
    fake_us = 499;
    ops->flush(a);
    cr_assert_eq(receive(b, &content, &from), 0);
    fake_us = 500;
    ops->flush(a);
    cr_assert_eq(receive(b, &content, &from), 1);
    ops->wait(a, false, fake_us, UINT64_MAX); /* returns: nobody could end it */
    send_to(a, port, of_b, 5);
    ops->close(a); /* with a frame held */
    ops->close(b);
    dk_sim_clock_set(NULL, NULL);
}

/* ---- two threads, each with an engine, as the programs run them ----------------------------------------------- */

struct side {
    struct dk_net *net;
    struct dk_transport *transport;
    uint32_t peer;
    bool asks;
    uint32_t answered;
    bool *stop;
};

enum { ROUNDS = 200 };

static uint8_t content_of[100000];

static void side_event(struct side *s, struct dk_transport_event *event, uint64_t now_us)
{
    struct iovec part = {content_of, event->bytes};

    cr_assert(!memcmp(event->data, content_of, event->bytes));
    if (event->type == DK_EVENT_REQUEST)
        dk_transport_respond(s->transport, event->peer, event->request_id, &part, 1, now_us);
    else
        s->answered++;
    dk_transport_event_done(s->transport, event);
}

static void *side_main(void *ctx)
{
    struct side *s = ctx;
    struct dk_transport_event event;
    struct dk_frame f;
    uint32_t asked = 0;

    while (!__atomic_load_n(s->stop, __ATOMIC_ACQUIRE)) {
        uint64_t now_us = dk_now_us(), id;
        bool worked = false;

        while (ops->recv(s->net, &f, 1)) {
            dk_transport_input(s->transport, f.port, f.data, f.bytes, now_us);
            ops->frame_put(s->net, &f);
            worked = true;
        }
        for (dk_transport_event(s->transport, &event); event.type; dk_transport_event(s->transport, &event))
            side_event(s, &event, now_us);
        if (s->asks && s->answered == asked && asked < ROUNDS) {
            struct iovec part = {content_of, 1 + asked * 497 % sizeof content_of};

            cr_assert_eq(dk_transport_request(s->transport, s->peer, &part, 1, now_us, &id), 0);
            asked++;
        }
        while (ops->frame_get(s->net, &f) == 0) {
            f.bytes = (uint32_t)dk_transport_output(s->transport, f.data, f.bytes, &f.port, now_us);
            if (f.bytes == 0) {
                ops->frame_put(s->net, &f);
                break;
            }
            ops->send(s->net, &f);
        }
        ops->flush(s->net);
        if (s->asks && s->answered == ROUNDS)
            break;
        ops->wait(s->net, worked, now_us, dk_transport_deadline(s->transport));
    }
    return NULL;
}

Test(net_sim, engines_on_two_threads_talk_over_a_lossy_wire, .timeout = 120)
{
    struct side sides[2] = {0};
    struct dk_addr addresses[2] = {0};
    pthread_t threads[2];
    bool stop = false;

    for (size_t i = 0; i < sizeof content_of; i++)
        content_of[i] = (uint8_t)(i * 7);
    for (int i = 0; i < 2; i++) {
        struct dk_transport_config c;

        sides[i].net = net_open("drop=0.02,dup=0.02,reorder=0.02,corrupt=0.01,seed=3");
        sides[i].stop = &stop;
        addresses[i] = (struct dk_addr){.ipv4 = 1 + (uint32_t)i, .udp_port = 7000, .instance = 1 + (uint32_t)i};
        port_of(sides[i].net, DK_PORT_SIM, "wire", addresses[i].mac);
        dk_transport_defaults(&c);
        c.own = addresses[i];
        c.mtu = 1500;
        c.peers_max = 1;
        cr_assert_eq(dk_transport_open(&c, &sides[i].transport), 0);
    }
    sides[0].asks = true;
    for (int i = 0; i < 2; i++)
        cr_assert_eq(dk_transport_peer_add(sides[i].transport, &addresses[!i], 0, &sides[i].peer), 0);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, side_main, &sides[i]), 0);
    pthread_join(threads[0], NULL);
    __atomic_store_n(&stop, true, __ATOMIC_RELEASE);
    ops->wake(sides[1].net);
    pthread_join(threads[1], NULL);
    cr_assert_eq(sides[0].answered, ROUNDS);
    cr_assert_gt(ops->counters(sides[0].net)->fault_dropped, 0);
    for (int i = 0; i < 2; i++) {
        dk_transport_close(sides[i].transport);
        ops->close(sides[i].net);
    }
}
