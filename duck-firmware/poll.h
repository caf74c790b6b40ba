/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCK_POLL_H
#define DUCK_POLL_H

#include "actor/actor.h"
#include "duck-firmware/dispatch.h"
#include "duck-firmware/link.h"
#include "duck-firmware/options.h"
#include "endpoint/endpoint.h"
#include "node/node.h"

/* What the engine tells the heartbeat actor: malloc'ed, the receiver frees it. */
struct duck_report {
    struct duck_holding {
        uint64_t plan_epoch, model_id, bytes, layers;
    } holding;
    struct duck_counters counters;
    struct dk_transport_counters transport;
    struct dk_net_counters net;
};

/* From the heartbeat actor to the engine: malloc'ed, the engine frees it. */
struct duck_order {
    struct duck_link_order link;
    uint64_t drop_before; /* weights of an older plan epoch are no longer wanted; 0: keep them */
};

/* The engine of a duck: one thread that owns the data plane, the shards and the kernels. */
struct duck_engine {
    const struct duck_options *options;
    const struct dk_net_ops *net_ops;
    struct dk_endpoint endpoint;
    struct duck_link link;
    struct duck duck;
    struct dk_exec *exec;
    struct dk_mailbox *orders;  /* struct duck_order, from the heartbeat actor */
    struct dk_mailbox *reports; /* to it */
    uint64_t report_due_us;
    bool lost_peer; /* the worker's peer is to be made anew */
    struct dk_loop_poll loop;

    /* set before `ready` is posted, then constant */
    struct dk_identity identity;
    uint64_t memory_bytes_per_s;
};

/* Opens ports, kernels and memory; the calling thread becomes the data plane's. */
int duck_engine_open(struct duck_engine *e, const struct duck_options *o, const struct dk_net_ops *net_ops,
                     struct dk_mailbox *reports, struct dk_err *err);

/* The same as a node's engine, but for open, which needs to know the net back end; its ctx is a struct duck_engine. */
extern const struct dk_node_engine duck_engine_ops;

#endif
