/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCK_HEARTBEAT_H
#define DUCK_HEARTBEAT_H

#include "duck-firmware/poll.h"
#include "node/node.h"

/* What a duck tells the coordinator, and what it makes of the replies. */
struct duck_heartbeat {
    struct dk_node node;
    struct duck_engine *engine;
    struct duck_report last;
    /* what the request being packed points to */
    Dk__Holding holding;
    Dk__DuckCounters counters;
    Dk__TransportCounters transport;
};

extern const struct dk_node_control duck_control; /* its ctx is a struct duck_heartbeat */

#endif
