/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKER_CONTROL_H
#define WORKER_CONTROL_H

#include "attention-worker/engine.h"
#include "rpc/rpc.h"

/* The control actor of a worker: heartbeats, and the pulling of steps. Runs on a libev loop. */
struct worker_control {
    const struct worker_options *options;
    struct worker_engine *engine;
    struct dk_loop_ev *loop;
    struct dk_rpc_client *client;
    struct engine_news *last; /* newest report */
    struct dk_timer beat, pull;
    bool beat_in_flight, pull_in_flight, step_running;
    Dk__StepResult *result; /* of the last step, until the coordinator has it */
    uint64_t interval_us;
    char host[64];
    int beat_failure, pull_failure; /* last one logged */
};

int worker_control_open(struct worker_control *c, const struct worker_options *o, const struct dk_control_ops *plane,
                        struct dk_err *err);
/* Until SIGINT or SIGTERM; then says goodbye to the coordinator. */
void worker_control_run(struct worker_control *c, struct worker_engine *engine);
void worker_control_close(struct worker_control *c);

#endif
