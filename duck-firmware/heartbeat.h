/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCK_HEARTBEAT_H
#define DUCK_HEARTBEAT_H

#include "duck-firmware/poll.h"
#include "rpc/rpc.h"

/* The control actor of a duck: tells the coordinator what the duck is and holds, and hands what the replies say about
 * the worker to the engine. Runs on a libev loop. */
struct duck_heartbeat {
    const struct duck_options *options;
    struct duck_engine *engine;
    struct dk_loop_ev *loop;
    struct dk_rpc_client *client;
    struct duck_report last;
    struct dk_timer beat;
    bool in_flight;
    uint64_t interval_us;
    char host[64];
    int refused_logged; /* rc of the last failure that was logged */
};

int duck_heartbeat_open(struct duck_heartbeat *h, const struct duck_options *o, const struct dk_control_ops *plane,
                        struct dk_err *err);
/* Runs until SIGINT or SIGTERM, then says goodbye to the coordinator. engine is open. */
void duck_heartbeat_run(struct duck_heartbeat *h, struct duck_engine *engine);
void duck_heartbeat_close(struct duck_heartbeat *h);

#endif
