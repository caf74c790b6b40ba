/* SPDX-License-Identifier: Apache-2.0 */
/* The burst loop: frames in, requests to duck_handle, answers out; orders from the heartbeat actor in between. */
#include "duck-firmware/poll.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"

#define REPORT_EVERY_US  100000u
#define READ_PROBE_BYTES ((size_t)96 << 20)

struct read_probe {
    const struct dk_kernels *kernels;
    const uint8_t *data;
    uint64_t sums[256];
};

static void read_part(void *arg, uint32_t part, uint32_t parts)
{
    struct read_probe *p = arg;
    size_t each = READ_PROBE_BYTES / parts;

    p->sums[part % 256] = dk_read(p->kernels, p->data + part * each, each);
}

/* Plain read of more memory than the caches hold, by all kernel threads: what a forward pass can reach at best. */
static uint64_t memory_speed(const struct dk_kernels *k, struct dk_exec *exec)
{
    struct read_probe p = {.kernels = k};
    uint8_t *data = dk_alloc_aligned(READ_PROBE_BYTES, 1);
    uint64_t best_us = UINT64_MAX;

    if (!data)
        return 0;
    memset(data, 1, READ_PROBE_BYTES);
    p.data = data;
    for (int i = 0; i < 2; i++) {
        uint64_t begin_us = dk_now_us(), took_us;

        dk_exec_run(exec, read_part, &p);
        took_us = dk_now_us() - begin_us;
        best_us = took_us < best_us ? took_us : best_us;
    }
    free(data);
    return best_us ? READ_PROBE_BYTES * 1000000u / best_us : 0;
}

static bool take_orders(struct duck_engine *e)
{
    struct duck_order *o = dk_mailbox_pop(e->orders);
    const struct dk_node_options *n = &e->options->node;

    if (!o)
        return false;
    duck_link_follow(&e->link, &e->endpoint, n->port_kind, n->dead_after_ms, &o->link);
    if (o->drop_before > e->duck.shards.plan_epoch && e->duck.shards.plan_epoch) {
        dk_log(DK_LOG_INFO, "shard.drop", "epoch=%llu text=\"the plan has no part for this duck\"",
               (unsigned long long)e->duck.shards.plan_epoch);
        duck_shards_drop(&e->duck.shards);
    }
    free(o);
    return true;
}

static void answer(struct duck_engine *e, struct dk_transport_event *event, uint64_t now_us)
{
    struct duck_answer a;
    struct iovec parts[2];
    int rc;

    duck_handle(&e->duck, event->data, event->bytes, &a);
    parts[0] = (struct iovec){a.header, a.header_bytes};
    parts[1] = (struct iovec){(void *)(uintptr_t)a.payload, a.payload_bytes};
    rc = dk_transport_respond(e->endpoint.transport, event->peer, event->request_id, parts, a.payload_bytes ? 2 : 1,
                              now_us);
    if (rc < 0 && rc != -ENOENT) {
        /* An answer that cannot be kept must not leave the worker waiting: a new session makes it ask again. */
        dk_log(DK_LOG_ERROR, "duck.respond", "bytes=%zu error=%d", a.header_bytes + a.payload_bytes, -rc);
        e->lost_peer = true;
    }
}

static bool take_events(struct duck_engine *e, uint64_t now_us)
{
    struct dk_transport_event event;
    bool any = false;

    while (e->endpoint.transport && (dk_transport_event(e->endpoint.transport, &event), event.type != DK_EVENT_NONE)) {
        any = true;
        if (event.type == DK_EVENT_REQUEST)
            answer(e, &event, now_us);
        dk_transport_event_done(e->endpoint.transport, &event);
        if (event.type == DK_EVENT_DEAD || e->lost_peer)
            duck_link_peer_lost(&e->link, &e->endpoint);
        e->lost_peer = false;
    }
    return any;
}

static void report(struct duck_engine *e, uint64_t now_us)
{
    struct duck_report *r;

    if (now_us < e->report_due_us || !(r = calloc(1, sizeof *r)))
        return;
    e->report_due_us = now_us + REPORT_EVERY_US;
    r->holding.plan_epoch = e->duck.shards.plan_epoch;
    r->holding.model_id = e->duck.shards.model_id;
    r->holding.bytes = e->duck.shards.bytes;
    r->holding.layers = e->duck.shards.layers_complete;
    r->counters = e->duck.counters;
    if (e->endpoint.transport)
        r->transport = *dk_transport_counters(e->endpoint.transport);
    r->net = *e->endpoint.ops->counters(e->endpoint.net);
    if (dk_mailbox_push(e->reports, r) < 0)
        free(r);
}

static bool poll_once(void *ctx, uint64_t now_us)
{
    struct duck_engine *e = ctx;
    bool worked = dk_endpoint_poll(&e->endpoint, now_us);

    worked |= take_events(e, now_us);
    worked |= take_orders(e);
    report(e, now_us);
    return worked;
}

static void wait_for_work(void *ctx, bool worked, uint64_t now_us, uint64_t deadline_us)
{
    struct duck_engine *e = ctx;

    dk_endpoint_wait(&e->endpoint, worked, now_us, deadline_us);
}

static uint64_t next_deadline(void *ctx)
{
    return ((struct duck_engine *)ctx)->report_due_us;
}

static void wake_engine(void *ctx)
{
    dk_endpoint_wake(&((struct duck_engine *)ctx)->endpoint);
}

int duck_engine_open(struct duck_engine *e, const struct duck_options *o, const struct dk_net_ops *net_ops,
                     struct dk_mailbox *reports, struct dk_err *err)
{
    const struct dk_node_options *n = &o->node;
    const struct dk_kernels *kernels = dk_kernels_get(n->isa);
    struct dk_net_config net = {.name = n->name,
                                .run_dir = n->run_dir,
                                .ports_max = 2,
                                .frame_bytes = 9014,
                                .busy_poll = n->busy_poll,
                                .faults = n->faults};
    struct dk_transport_config defaults;
    int rc;

    memset(e, 0, sizeof *e);
    e->options = o;
    e->reports = reports;
    e->loop = (struct dk_loop_poll){.poll = poll_once, .wait = wait_for_work, .deadline = next_deadline, .ctx = e};
    rc = dk_exec_open(n->threads, n->pin, &e->exec);
    if (rc < 0)
        return dk_err_set(err, rc, "--threads %u: %s", n->threads, strerror(-rc));
    dk_transport_defaults(&defaults);
    rc = duck_open(&e->duck, kernels, e->exec, dk_now_us, defaults.message_bytes_max, o->reserve_mib << 20);
    if (rc < 0)
        return dk_err_set(err, rc, "no memory for request buffers");
    rc = dk_endpoint_open(&e->endpoint, net_ops, &net, err);
    if (rc == 0)
        rc = dk_endpoint_identify(&e->endpoint, n->port_kind, n->interface, n->udp_port, 0, &e->identity, err);
    if (rc < 0)
        return rc;
    e->link.port = e->identity.port;
    rc = dk_mailbox_open(64, wake_engine, e, &e->orders);
    if (rc < 0)
        return dk_err_set(err, rc, "no memory for a mailbox");
    e->memory_bytes_per_s = memory_speed(kernels, e->exec);
    return 0;
}

static void engine_run(void *ctx)
{
    struct duck_engine *e = ctx;

    dk_loop_poll_run(&e->loop);
}

static void engine_stop(void *ctx)
{
    struct duck_engine *e = ctx;

    dk_loop_poll_stop(&e->loop);
    dk_endpoint_wake(&e->endpoint);
}

static void engine_close(void *ctx)
{
    struct duck_engine *e = ctx;
    struct duck_order *order;

    while (e->orders && (order = dk_mailbox_pop(e->orders)))
        free(order);
    dk_mailbox_close(e->orders);
    dk_endpoint_close(&e->endpoint);
    duck_close(&e->duck);
    dk_exec_close(e->exec);
}

/* ---- as a node's engine */

static const struct dk_identity *engine_identity(void *ctx)
{
    return &((struct duck_engine *)ctx)->identity;
}

const struct dk_node_engine duck_engine_ops = {
    .run = engine_run,
    .stop = engine_stop,
    .close = engine_close,
    .identity = engine_identity,
};
