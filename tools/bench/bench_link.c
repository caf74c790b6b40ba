/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_link.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/net.h"

static const struct dk_net_ops *const net_ops = &dk_net_dpdk;

enum {
    UDP_PORT = 7000,
    FRAME_MOST = 9014,
    HANG_US = 20000000, /* no answer for so long: give up */
    WAIT_US = 100000,
    GO_ON = 0,
    STOP = 1, /* the first byte of a message */
};

/* One end: a data plane, its ports, and an engine on top unless frames are measured raw. */
struct end {
    struct dk_net *net;
    struct dk_transport *transport;
    struct dk_addr own;
    uint32_t ports[BENCH_DUCKS_MAX], peers[BENCH_DUCKS_MAX];
    uint32_t mtu;
};

static int complain(const char *what, int rc, const struct dk_err *err)
{
    fprintf(stderr, "bench_rtt: %s: %s\n", what, err && err->text[0] ? err->text : strerror(-rc));
    return rc;
}

/* ---- set-up -------------------------------------------------------------------------------------------------- */

static int end_open(struct end *e, const struct bench_case *c, bool worker, uint32_t index)
{
    const uint32_t ports = worker && !c->interface ? c->ducks : 1;
    const struct dk_net_config config = {
        .name = "bench",
        .run_dir = c->dir,
        .ports_max = ports,
        .frame_bytes = FRAME_MOST,
        .busy_poll = c->busy,
    };
    struct dk_err err = {0};
    int rc;

    rc = net_ops->open(&config, &e->net, &err);
    if (rc < 0)
        return complain("open", rc, &err);
    for (uint32_t i = 0; i < ports; i++) {
        struct dk_port_spec spec = {.kind = worker ? DK_PORT_VHOST : DK_PORT_VIRTIO_USER, .bell_index = index + i};
        uint64_t give_up_us = dk_now_us() + HANG_US;

        if (c->interface) {
            spec.kind = DK_PORT_AF_PACKET;
            snprintf(spec.path, sizeof spec.path, "%s", c->interface);
        } else {
            snprintf(spec.path, sizeof spec.path, "%s/%u", c->dir, index + i);
            snprintf(spec.bell_path, sizeof spec.bell_path, "%s/bell", c->dir);
        }
        do {
            rc = net_ops->port_add(e->net, &spec, &e->ports[i], e->own.mac, &e->mtu, &err);
            if (rc == -ENOENT)
                usleep(2000);
        } while (rc == -ENOENT && dk_now_us() < give_up_us);
        if (rc < 0)
            return complain("port_add", rc, &err);
    }
    for (uint32_t i = ports; i < BENCH_DUCKS_MAX; i++)
        e->ports[i] = e->ports[0];
    e->own.ipv4 = 0x0a4d0001 + (worker ? 0 : 1 + index); /* 10.77.0.1 is the worker */
    e->own.udp_port = UDP_PORT;
    e->own.instance = (uint32_t)dk_random_id() | 1;
    return 0;
}

/* Tells the own address, learns the others', and makes the engine. */
static int end_connect(struct end *e, const struct bench_case *c, uint32_t peers, int in, int out)
{
    struct dk_transport_config config;
    int rc;

    if (write(out, &e->own, sizeof e->own) != sizeof e->own)
        return -EPIPE;
    dk_transport_defaults(&config);
    config.own = e->own;
    config.mtu = e->mtu;
    config.peers_max = peers;
    rc = dk_transport_open(&config, &e->transport);
    if (rc < 0)
        return complain("transport", rc, NULL);
    for (uint32_t i = 0; i < peers; i++) {
        struct dk_addr other;

        if (read(in, &other, sizeof other) != sizeof other)
            return -EPIPE;
        rc = dk_transport_peer_add(e->transport, &other, e->ports[i], &e->peers[i]);
        if (rc < 0)
            return complain("peer_add", rc, NULL);
    }
    return 0;
}

static void end_close(struct end *e)
{
    dk_transport_close(e->transport);
    net_ops->close(e->net);
}

/* ---- through the transport ----------------------------------------------------------------------------------- */

static bool pump(struct end *e)
{
    struct dk_frame frames[32], f;
    uint32_t got = net_ops->recv(e->net, frames, 32);
    uint64_t now_us = dk_now_us();

    for (uint32_t i = 0; i < got; i++) {
        dk_transport_input(e->transport, frames[i].port, frames[i].data, frames[i].bytes, now_us);
        net_ops->frame_put(e->net, &frames[i]);
    }
    while (net_ops->frame_get(e->net, &f) == 0) {
        f.bytes = (uint32_t)dk_transport_output(e->transport, f.data, f.bytes, &f.port, now_us);
        if (f.bytes == 0) {
            net_ops->frame_put(e->net, &f);
            break;
        }
        net_ops->send(e->net, &f);
    }
    net_ops->flush(e->net);
    return got > 0;
}

static void rest(struct end *e, bool worked)
{
    uint64_t now_us = dk_now_us(), deadline_us = now_us + WAIT_US, due_us;

    if (e->transport) {
        due_us = dk_transport_deadline(e->transport);
        if (due_us < deadline_us)
            deadline_us = due_us;
    }
    net_ops->wait(e->net, worked, now_us, deadline_us);
}

/* One request to each duck; ends with the last response. */
static int round_messages(struct end *e, const struct bench_case *c, uint8_t *message)
{
    const struct iovec part = {message, c->bytes};
    uint64_t give_up_us = dk_now_us() + HANG_US, id;
    uint32_t answers = 0;

    for (uint32_t i = 0; i < c->ducks; i++) {
        int rc = dk_transport_request(e->transport, e->peers[i], &part, 1, dk_now_us(), &id);

        if (rc < 0)
            return rc;
    }
    for (;;) {
        bool worked = pump(e);
        struct dk_transport_event event;

        for (dk_transport_event(e->transport, &event); event.type != DK_EVENT_NONE;
             dk_transport_event(e->transport, &event)) {
            int rc = event.type == DK_EVENT_RESPONSE ? 0 : -EHOSTDOWN;

            if (rc == 0 && event.bytes != c->bytes)
                rc = -EBADMSG;
            dk_transport_event_done(e->transport, &event);
            if (rc < 0)
                return rc;
            answers++;
        }
        if (answers < c->ducks && dk_now_us() > give_up_us)
            return -ETIMEDOUT;
        rest(e,
             worked); /* after the last answer too, as a loop does: it returns at once and starts the spinning anew */
        if (answers == c->ducks)
            return 0;
    }
}

static int duck_messages(struct end *e, const struct bench_case *c)
{
    uint64_t stop_us = UINT64_MAX;

    while (dk_now_us() < stop_us) {
        bool worked = pump(e);
        struct dk_transport_event event;

        dk_transport_event(e->transport, &event);
        if (event.type == DK_EVENT_REQUEST) {
            const struct iovec part = {event.data, event.bytes};

            if (event.data[0] == STOP)
                stop_us = dk_now_us() + 20000; /* time for the answer to be sent again */
            (void)dk_transport_respond(e->transport, event.peer, event.request_id, &part, 1, dk_now_us());
            worked = true;
        }
        if (event.type != DK_EVENT_NONE)
            dk_transport_event_done(e->transport, &event);
        rest(e, worked);
    }
    return 0;
}

/* ---- single frames ------------------------------------------------------------------------------------------- */

/* An experimental ether type (IEEE 802, local experiments); byte 14 is the order to the duck. */
static void frame_head(uint8_t *data, const uint8_t *to, const uint8_t *from)
{
    memcpy(data, to, 6);
    memcpy(data + 6, from, 6);
    data[12] = 0x88;
    data[13] = 0xb5;
}

static bool is_bench_frame(const struct dk_frame *f)
{
    return f->bytes > 14 && f->data[12] == 0x88 && f->data[13] == 0xb5;
}

static int round_frames(struct end *e, const struct bench_case *c, const struct dk_addr *ducks, const uint8_t *message)
{
    uint64_t give_up_us = dk_now_us() + HANG_US;
    uint32_t answers = 0;

    for (uint32_t i = 0; i < c->ducks; i++) {
        struct dk_frame f;

        if (net_ops->frame_get(e->net, &f) < 0)
            return -ENOMEM;
        f.port = e->ports[i];
        f.bytes = 14 + c->bytes;
        memcpy(f.data + 14, message, c->bytes);
        frame_head(f.data, ducks[i].mac, e->own.mac);
        net_ops->send(e->net, &f);
    }
    net_ops->flush(e->net);
    while (answers < c->ducks) {
        struct dk_frame frames[32];
        uint32_t got = net_ops->recv(e->net, frames, 32);

        for (uint32_t i = 0; i < got; i++) {
            answers += is_bench_frame(&frames[i]);
            net_ops->frame_put(e->net, &frames[i]);
        }
        if (dk_now_us() > give_up_us)
            return -ETIMEDOUT;
        rest(e, got > 0);
    }
    return 0;
}

static int duck_frames(struct end *e)
{
    for (bool stop = false; !stop;) {
        struct dk_frame frames[32];
        uint32_t got = net_ops->recv(e->net, frames, 32);

        for (uint32_t i = 0; i < got; i++) {
            uint8_t to[6];

            if (!is_bench_frame(&frames[i])) {
                net_ops->frame_put(e->net, &frames[i]);
                continue;
            }
            stop |= frames[i].data[14] == STOP;
            memcpy(to, frames[i].data + 6, 6);
            frame_head(frames[i].data, to, e->own.mac);
            net_ops->send(e->net, &frames[i]);
        }
        net_ops->flush(e->net);
        rest(e, got > 0);
    }
    usleep(20000); /* the answers are in memory that goes with this process */
    return 0;
}

/* ---- bodies -------------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double now_precise_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int measure(struct end *e, const struct bench_case *c, const struct dk_addr *ducks, struct bench_result *r)
{
    const uint32_t warm = c->rounds / 10 + 1;
    double *took_us = calloc(c->rounds, sizeof *took_us);
    uint8_t *message = calloc(1, c->bytes);
    int rc = took_us && message ? 0 : -ENOMEM;

    for (uint32_t n = 0; n < warm + c->rounds && rc == 0; n++) {
        double before_us;

        if (c->pause_us > 0)
            usleep(c->pause_us);
        message[0] = GO_ON;
        before_us = now_precise_us();
        rc = c->raw ? round_frames(e, c, ducks, message) : round_messages(e, c, message);
        if (n >= warm)
            took_us[n - warm] = now_precise_us() - before_us;
    }
    if (rc == 0) {
        qsort(took_us, c->rounds, sizeof *took_us, by_value);
        r->least_us = took_us[0];
        r->median_us = took_us[c->rounds / 2];
        r->p99_us = took_us[c->rounds - 1 - c->rounds / 100];
        message[0] = STOP;
        rc = c->raw ? round_frames(e, c, ducks, message) : round_messages(e, c, message);
    }
    free(message);
    free(took_us);
    return rc;
}

int bench_worker(const struct bench_case *c, int in, int out)
{
    struct bench_result r = {0};
    struct dk_addr ducks[BENCH_DUCKS_MAX];
    struct end e = {0};
    int rc;

    rc = end_open(&e, c, true, 0);
    if (rc < 0)
        return 1;
    if (c->raw) {
        const ssize_t bytes = (ssize_t)(c->ducks * sizeof ducks[0]);

        if (write(out, &e.own, sizeof e.own) != sizeof e.own || read(in, ducks, (size_t)bytes) != bytes)
            return 1;
    } else if (end_connect(&e, c, c->ducks, in, out) < 0) {
        return 1;
    }
    r.rc = measure(&e, c, ducks, &r);
    if (r.rc < 0)
        complain("round", r.rc, NULL);
    r.parks = net_ops->counters(e.net)->parks;
    r.send_full = net_ops->counters(e.net)->send_full;
    if (e.transport)
        r.retransmitted = dk_transport_counters(e.transport)->retransmitted;
    end_close(&e);
    return write(out, &r, sizeof r) == sizeof r ? 0 : 1;
}

int bench_duck(const struct bench_case *c, uint32_t index, int in, int out)
{
    struct end e = {0};
    int rc;

    rc = end_open(&e, c, false, index);
    if (rc < 0)
        return 1;
    if (c->raw) {
        struct dk_addr worker;

        if (write(out, &e.own, sizeof e.own) != sizeof e.own || read(in, &worker, sizeof worker) != sizeof worker)
            return 1;
        rc = duck_frames(&e);
    } else {
        rc = end_connect(&e, c, 1, in, out);
        if (rc == 0)
            rc = duck_messages(&e, c);
    }
    end_close(&e);
    return rc < 0 ? 1 : 0;
}
