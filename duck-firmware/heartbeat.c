/* SPDX-License-Identifier: Apache-2.0 */
#include "duck-firmware/heartbeat.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"

#define INTERVAL_FIRST_US 200000u
#define CALL_TIMEOUT_MS   2000u

/* The end of a heartbeat call, as a message to this actor. */
struct call_end {
    int rc;
    Dk__HeartbeatReply *reply;
    struct dk_err err;
};

/* Reports and call ends share one mailbox; a call end is told apart by its lowest pointer bit. */
static void *tag(struct call_end *c)
{
    return (void *)((uintptr_t)c | 1);
}

static void on_done(void *ctx, int rc, ProtobufCMessage *reply, const struct dk_err *err)
{
    struct duck_heartbeat *h = ctx;
    struct call_end *c = calloc(1, sizeof *c);

    if (c) {
        c->rc = rc;
        c->reply = (Dk__HeartbeatReply *)reply;
        if (err)
            c->err = *err;
    }
    if (!c || dk_mailbox_push(dk_loop_ev_mailbox(h->loop), tag(c)) < 0) {
        if (reply)
            protobuf_c_message_free_unpacked(reply, NULL);
        free(c);
    }
}

static void beat(struct duck_heartbeat *h)
{
    const struct duck_engine *e = h->engine;
    const struct duck_report *r = &h->last;
    Dk__HeartbeatRequest q = DK__HEARTBEAT_REQUEST__INIT;
    Dk__NodeInfo node = DK__NODE_INFO__INIT;
    Dk__DataAddress address = DK__DATA_ADDRESS__INIT;
    Dk__Holding holding = DK__HOLDING__INIT;
    Dk__DuckCounters duck = DK__DUCK_COUNTERS__INIT;
    Dk__TransportCounters t = DK__TRANSPORT_COUNTERS__INIT;
    struct dk_err err = {0};

    dk_addr_to_wire(&e->identity.own, e->identity.mtu, &address);
    node.name = (char *)(uintptr_t)h->options->name;
    node.kind = DK__NODE_KIND__DUCK;
    node.host = h->host;
    node.isa = (char *)(uintptr_t)dk_isa_name(h->options->isa);
    node.version = DUCKLLM_VERSION;
    node.port_kind = h->options->port_kind == DK_PORT_AF_PACKET ? DK__PORT_KIND__AF_PACKET : DK__PORT_KIND__VHOST;
    node.address = &address;
#define SET(m, field, v) ((m).has_##field = true, (m).field = (v))
    SET(node, pid, (uint32_t)getpid());
    SET(node, cores, dk_cpu_count());
    SET(node, kernel_threads, h->options->threads);
    SET(node, ram_total_bytes, dk_ram_total_bytes());
    SET(node, ram_free_bytes, dk_ram_free_bytes());
    SET(node, memory_bytes_per_s, e->memory_bytes_per_s);
    SET(holding, plan_epoch, r->holding.plan_epoch);
    SET(holding, model_id, r->holding.model_id);
    SET(holding, layers, r->holding.layers);
    SET(holding, bytes, r->holding.bytes);
    SET(duck, requests, r->counters.requests);
    SET(duck, rows, r->counters.rows);
    SET(duck, expert_rows, r->counters.expert_rows);
    SET(duck, refused, r->counters.refused);
    SET(duck, weight_bytes, r->counters.weight_bytes);
    SET(duck, compute_us, r->counters.compute_us);
#undef SET
    dk_counters_to_wire(&r->transport, &r->net, &t);
    q.node = &node;
    q.holding = &holding;
    q.duck = &duck;
    q.transport = &t;
    if (dk_rpc_call_start(h->client, &dk__membership__descriptor, "Heartbeat", &q.base, CALL_TIMEOUT_MS, on_done, h,
                          &err) == 0)
        h->in_flight = true;
    else
        dk_log(DK_LOG_WARN, "heartbeat.start", "text=\"%s\"", err.text);
}

static void on_beat(void *ctx, uint64_t now_us)
{
    struct duck_heartbeat *h = ctx;

    if (!h->in_flight)
        beat(h);
    dk_timer_arm(dk_loop_ev_timers(h->loop), &h->beat, now_us + h->interval_us);
}

static void order_link(struct duck_heartbeat *h, const Dk__HeartbeatReply *reply)
{
    struct duck_link_order *o = calloc(1, sizeof *o);
    const Dk__WorkerLink *w = reply->worker;

    if (!o)
        return;
    if (w && dk_addr_from_wire(w->worker, &o->worker) && dk_addr_from_wire(w->own, &o->own)) {
        const struct dk_identity *id = &h->engine->identity;

        /* Otherwise the addresses were given to an earlier life of this duck. */
        o->present = o->own.instance == id->own.instance;
        o->mtu = w->worker->mtu < id->mtu ? w->worker->mtu : id->mtu;
        o->member_index = w->member_index;
        dk_text_copy(o->socket_path, sizeof o->socket_path, w->socket_path);
        dk_text_copy(o->bell_path, sizeof o->bell_path, w->bell_path);
    }
    if (dk_mailbox_push(h->engine->orders, o) < 0)
        free(o);
}

static void on_call_end(struct duck_heartbeat *h, struct call_end *c)
{
    h->in_flight = false;
    if (c->rc == 0) {
        if (h->refused_logged)
            dk_log(DK_LOG_INFO, "heartbeat.ok", "coordinator=%s", h->options->coordinator);
        h->refused_logged = 0;
        if (c->reply->interval_ms >= 10 && c->reply->interval_ms <= 60000)
            h->interval_us = c->reply->interval_ms * 1000u;
        order_link(h, c->reply);
        protobuf_c_message_free_unpacked(&c->reply->base, NULL);
    } else if (h->refused_logged != c->rc) {
        dk_log(DK_LOG_WARN, "heartbeat.failed", "text=\"%s\" retry=yes", c->err.text);
        h->refused_logged = c->rc;
    }
    free(c);
}

static void on_message(void *ctx, void *message, uint64_t now_us)
{
    struct duck_heartbeat *h = ctx;
    bool changed;

    if ((uintptr_t)message & 1) {
        on_call_end(h, (struct call_end *)((uintptr_t)message - 1));
        return;
    }
    changed = memcmp(&h->last.holding, &((struct duck_report *)message)->holding, sizeof h->last.holding) != 0;
    h->last = *(struct duck_report *)message;
    free(message);
    if (changed) /* what a duck holds is news that the cluster waits for */
        dk_timer_arm(dk_loop_ev_timers(h->loop), &h->beat, now_us);
}

static void on_signal(void *ctx, int signal)
{
    struct duck_heartbeat *h = ctx;

    dk_log(DK_LOG_INFO, "duck.end", "signal=%d", signal);
    dk_loop_ev_stop(h->loop);
}

int duck_heartbeat_open(struct duck_heartbeat *h, const struct duck_options *o, const struct dk_control_ops *plane,
                        struct dk_err *err)
{
    static const struct dk_loop_ev_handlers handlers = {on_message, NULL, on_signal};
    int rc;

    memset(h, 0, sizeof *h);
    h->options = o;
    h->interval_us = INTERVAL_FIRST_US;
    h->beat.fire = on_beat;
    h->beat.ctx = h;
    gethostname(h->host, sizeof h->host - 1);
    rc = dk_loop_ev_open(&handlers, h, 256, &h->loop);
    if (rc < 0)
        return dk_err_set(err, rc, "no memory for the control loop");
    return dk_rpc_dial(plane, o->coordinator, &h->client, err);
}

void duck_heartbeat_run(struct duck_heartbeat *h, struct duck_engine *engine)
{
    Dk__LeaveRequest leave = DK__LEAVE_REQUEST__INIT;
    ProtobufCMessage *reply;
    struct dk_err err = {0};

    h->engine = engine;
    dk_timer_arm(dk_loop_ev_timers(h->loop), &h->beat, 0);
    dk_loop_ev_run(h->loop);
    leave.name = (char *)(uintptr_t)h->options->name;
    leave.instance = engine->identity.own.instance;
    if (dk_rpc_call(h->client, &dk__membership__descriptor, "Leave", &leave.base, 300, &reply, &err) == 0)
        protobuf_c_message_free_unpacked(reply, NULL);
}

void duck_heartbeat_close(struct duck_heartbeat *h)
{
    void *m;

    dk_rpc_client_close(h->client);
    while (h->loop && (m = dk_mailbox_pop(dk_loop_ev_mailbox(h->loop)))) {
        struct call_end *c = (uintptr_t)m & 1 ? (struct call_end *)((uintptr_t)m - 1) : NULL;

        if (c && c->reply)
            protobuf_c_message_free_unpacked(&c->reply->base, NULL);
        free(c ? (void *)c : m);
    }
    dk_loop_ev_close(h->loop);
}
