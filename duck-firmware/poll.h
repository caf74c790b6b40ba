/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCK_POLL_H
#define DUCK_POLL_H

#include <pthread.h>

#include "actor/actor.h"
#include "duck-firmware/dispatch.h"
#include "duck-firmware/link.h"
#include "duck-firmware/options.h"
#include "endpoint/endpoint.h"

/* What the engine tells the heartbeat actor: malloc'ed, the receiver frees it. */
struct duck_report {
    struct duck_holding {
        uint64_t plan_epoch, model_id, bytes, layers;
    } holding;
    struct duck_counters counters;
    struct dk_transport_counters transport;
    struct dk_net_counters net;
    bool connected;
};

/* The engine of a duck: one thread that owns the data plane, the shards and the kernels. */
struct duck_engine {
    const struct duck_options *options;
    const struct dk_net_ops *net_ops;
    struct dk_endpoint endpoint;
    struct duck_link link;
    struct duck duck;
    struct dk_exec *exec;
    struct dk_mailbox *orders;  /* struct duck_link_order, from the heartbeat actor */
    struct dk_mailbox *reports; /* to it */
    uint64_t report_due_us;
    struct dk_loop_poll loop;

    /* set before `ready` is posted, then constant */
    struct dk_identity identity;
    uint64_t memory_bytes_per_s;
};

/* Opens ports, kernels and memory; the calling thread becomes the data plane's. */
int duck_engine_open(struct duck_engine *e, const struct duck_options *o, const struct dk_net_ops *net_ops,
                     struct dk_mailbox *reports, struct dk_err *err);
void duck_engine_run(struct duck_engine *e);  /* until duck_engine_stop */
void duck_engine_stop(struct duck_engine *e); /* any thread */
void duck_engine_close(struct duck_engine *e);

#endif
