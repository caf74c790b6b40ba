/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKER_CONTROL_H
#define WORKER_CONTROL_H

#include "attention-worker/engine.h"
#include "node/node.h"

/* What the worker tells the coordinator, what it makes of the replies, and the pulling of steps. */
struct worker_control {
    struct dk_node node;
    struct worker_engine *engine;
    struct engine_news *last; /* newest report */
    struct dk_node_call pull;
    struct dk_timer pull_again;
    bool step_running;
    Dk__StepResult *result; /* of the last step, until the coordinator has it */
    /* what the request being packed points to */
    Dk__TransportCounters transport;
    Dk__LoadProgress load;
    Dk__Holding holding;
    Dk__Plan *plan; /* the last one that came with a reply, for a coordinator that was restarted */
    Dk__Status status;
    Dk__DuckLink links[WORKER_LINKS_MAX], *link_list[WORKER_LINKS_MAX];
};

extern const struct dk_node_control worker_control_ops; /* its ctx is a struct worker_control */
void worker_control_fini(struct worker_control *c);

#endif
