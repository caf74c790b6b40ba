/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_TESTS_TRANSPORT_RIG_H
#define DK_TESTS_TRANSPORT_RIG_H

#include <stdbool.h>
#include <stdint.h>

#include "net/faults.h"
#include "transport/transport.h"

/* Transport engines of one process joined by a network with a fixed delay, faults from a seed and a clock that only
 * jumps: the same seed gives the same run. No memory is taken per frame. */

enum { RIG_ENDPOINTS_MAX = 40, RIG_FRAMES_MAX = 4096, RIG_FRAME_BYTES = 9014, RIG_DELAY_US = 20 };

struct rig;

/* Sees every frame before the faults; false drops it. */
typedef bool rig_filter(void *ctx, uint32_t from, uint32_t to, const uint8_t *frame, uint32_t bytes);
/* An event of endpoint `at`. Must call event_done for it, now or later. */
typedef void rig_on_event(void *ctx, struct rig *rig, uint32_t at, struct dk_transport_event *event);

struct rig_wire {
    uint32_t frame; /* in the pool */
    uint32_t bytes;
    uint32_t to;
    uint64_t due_us;
};

struct rig {
    uint32_t count;
    struct dk_transport *ends[RIG_ENDPOINTS_MAX];
    struct dk_addr addresses[RIG_ENDPOINTS_MAX];
    uint64_t now_us;
    struct dk_fault_injector injector;
    struct dk_net_counters faults; /* what was injected */
    uint64_t frames;               /* put on the wire, copies included */
    uint64_t overflow;             /* dropped because the pool was empty */
    rig_filter *filter;
    rig_on_event *on_event;
    void *ctx;
    uint8_t *pool; /* [RIG_FRAMES_MAX][RIG_FRAME_BYTES] */
    uint32_t free[RIG_FRAMES_MAX], free_count;
    struct rig_wire wire[RIG_FRAMES_MAX];
    uint32_t wire_at, wire_count;
};

/* The address of endpoint i in its first life. */
struct dk_addr rig_address(uint32_t i);
void rig_init(struct rig *r, const struct dk_net_faults *faults);
void rig_fini(struct rig *r);
/* Opens endpoint number r->count; config->own is filled in. */
void rig_add(struct rig *r, struct dk_transport_config *config);
/* Makes a and b peers of each other. */
void rig_join(struct rig *r, uint32_t a, uint32_t b, uint32_t *peer_of_a, uint32_t *peer_of_b);
/* Sends what is due, moves the clock to the next thing that happens, takes it in and hands out events. False: nothing
 * will ever happen again. */
bool rig_step(struct rig *r);
/* Steps until *stop, silence for ever, or the time has passed. */
void rig_run(struct rig *r, const bool *stop, uint64_t for_us);
/* Lets endpoint i send all that it has to send now. */
void rig_send(struct rig *r, uint32_t i);

#endif
