/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_NET_FAULTS_H
#define DK_NET_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "net/net.h"

/* Fault injection on the sending side, shared by the data plane's back ends; serves lib/net only. A back end's send
 * gives each frame to dk_faults_send() when dk_faults_active(), and its recv, flush and wait call dk_faults_poll()
 * with the present time, so that held frames leave. No memory is taken per frame; one thread. */

enum { DK_FAULTS_HELD_MAX = 64 };

/* What the injector needs of its back end. */
struct dk_fault_ops {
    /* Really queues the frame; it is the back end's then. */
    void (*pass)(void *ctx, struct dk_frame *f);
    /* Gives the frame's buffer back without sending it. */
    void (*drop)(void *ctx, struct dk_frame *f);
    /* Makes *to a second frame with the bytes, length and port of *from. -EAGAIN: no buffer; then no duplicate. */
    int (*copy)(void *ctx, const struct dk_frame *from, struct dk_frame *to);
};

/* A frame that waits for later ones to overtake it (passes > 0) or for its time. */
struct dk_fault_held {
    struct dk_frame frame;
    uint64_t release_us;
    uint32_t passes; /* so many later frames of any port free it before its time; 0: only time does */
};

struct dk_fault_injector {
    struct dk_net_faults faults;
    struct dk_rng rng;
    struct dk_net_counters *counters;
    const struct dk_fault_ops *ops;
    void *ctx;
    bool active;
    uint32_t held_count;
    struct dk_fault_held held[DK_FAULTS_HELD_MAX]; /* in the order they came */
};

/* counters, ops and ctx stay the caller's and must outlive f. The same seed and frames give the same faults. */
void dk_faults_init(struct dk_fault_injector *f, const struct dk_net_faults *faults, struct dk_net_counters *counters,
                    const struct dk_fault_ops *ops, void *ctx);
/* Drops what is held. Fine on a zeroed f. */
void dk_faults_fini(struct dk_fault_injector *f);

/* Whether any fault is configured; when not, the back end may send directly. */
static inline bool dk_faults_active(const struct dk_fault_injector *f)
{
    return f->active;
}

/* Decides the frame's fate: it, its copy, and held frames that it sets free go to ops->pass or ops->drop during this
 * call or a later one. frame->data must be writable: a corrupted frame has one bit turned. */
void dk_faults_send(struct dk_fault_injector *f, struct dk_frame *frame, uint64_t now_us);

/* Passes the held frames whose time has come. */
void dk_faults_poll(struct dk_fault_injector *f, uint64_t now_us);

/* When the next held frame is due; UINT64_MAX: none is held. A wait must not sleep longer. */
uint64_t dk_faults_deadline(const struct dk_fault_injector *f);

/* Drops the held frames of a port that goes away. */
void dk_faults_forget_port(struct dk_fault_injector *f, uint32_t port);

#endif
