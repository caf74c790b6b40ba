/* SPDX-License-Identifier: Apache-2.0 */
/* A libev loop round one actor. Each round takes a batch of messages, fires due timers and ticks, then sleeps in libev
 * until the mailbox's wake (ev_async), the next deadline or a signal. A push after the batch leaves the async pending,
 * so the sleep ends at once: no wake-up is lost. */
#include "actor/actor.h"

#include <errno.h>
#include <ev.h>
#include <signal.h>
#include <stdlib.h>

#include "base/clock.h"

#define BATCH 256 /* messages before signals and timers get their turn */

static const int signals[] = {SIGINT, SIGTERM};
#define SIGNALS (sizeof signals / sizeof *signals)

struct dk_loop_ev {
    struct dk_loop_ev_handlers handlers;
    void *ctx;
    struct ev_loop *ev;
    ev_async wake;
    ev_timer deadline;
    ev_signal signal[SIGNALS];
    bool signals_taken;
    bool stop; /* atomic */
    struct dk_mailbox *mailbox;
    struct dk_timers timers;
};

/* libev lets a signal belong to one loop of a process. */
static bool signals_owned; /* atomic */

static void on_push(void *ctx)
{
    struct dk_loop_ev *loop = ctx;

    ev_async_send(loop->ev, &loop->wake);
}

static void on_wake(struct ev_loop *ev, ev_async *w, int events)
{
    (void)ev, (void)w, (void)events; /* it only ends the sleep; dk_loop_ev_run looks for itself */
}

static void on_deadline(struct ev_loop *ev, ev_timer *w, int events)
{
    (void)ev, (void)w, (void)events;
}

static void on_signal(struct ev_loop *ev, ev_signal *w, int events)
{
    struct dk_loop_ev *loop = w->data;

    (void)ev, (void)events;
    loop->handlers.on_signal(loop->ctx, w->signum);
}

int dk_loop_ev_open(const struct dk_loop_ev_handlers *h, void *ctx, uint32_t mailbox_capacity, struct dk_loop_ev **out)
{
    struct dk_loop_ev *loop = calloc(1, sizeof *loop);
    int rc;

    if (!loop)
        return -ENOMEM;
    loop->handlers = *h;
    loop->ctx = ctx;
    rc = dk_mailbox_open(mailbox_capacity, on_push, loop, &loop->mailbox);
    if (rc < 0)
        goto fail;
    rc = -ENOMEM;
    loop->ev = ev_loop_new(EVFLAG_AUTO | EVFLAG_NOENV);
    if (!loop->ev)
        goto fail;
    ev_async_init(&loop->wake, on_wake);
    ev_async_start(loop->ev, &loop->wake);
    ev_timer_init(&loop->deadline, on_deadline, 0, 0);
    if (h->on_signal) {
        rc = -EBUSY;
        if (__atomic_exchange_n(&signals_owned, true, __ATOMIC_ACQ_REL))
            goto fail;
        loop->signals_taken = true;
        for (size_t i = 0; i < SIGNALS; i++) {
            ev_signal_init(&loop->signal[i], on_signal, signals[i]);
            loop->signal[i].data = loop;
            ev_signal_start(loop->ev, &loop->signal[i]);
        }
    }
    *out = loop;
    return 0;

fail:
    dk_loop_ev_close(loop);
    return rc;
}

struct dk_mailbox *dk_loop_ev_mailbox(struct dk_loop_ev *loop)
{
    return loop->mailbox;
}

struct dk_timers *dk_loop_ev_timers(struct dk_loop_ev *loop)
{
    return &loop->timers;
}

/* Sleeps until something may have happened; not at all when `more` is waiting. */
static void loop_sleep(struct dk_loop_ev *loop, bool more)
{
    uint64_t deadline_us = dk_timers_deadline(&loop->timers), now_us = dk_now_us();

    ev_timer_stop(loop->ev, &loop->deadline);
    if (more || deadline_us <= now_us) {
        ev_run(loop->ev, EVRUN_NOWAIT);
        return;
    }
    if (deadline_us != UINT64_MAX) {
        ev_now_update(loop->ev); /* libev counts from its own idea of now */
        ev_timer_set(&loop->deadline, (double)(deadline_us - now_us) / 1e6, 0);
        ev_timer_start(loop->ev, &loop->deadline);
    }
    ev_run(loop->ev, EVRUN_ONCE);
}

void dk_loop_ev_run(struct dk_loop_ev *loop)
{
    while (!__atomic_exchange_n(&loop->stop, false, __ATOMIC_ACQ_REL)) {
        uint64_t now_us = dk_now_us();
        void *message;
        int taken = 0;
        bool fired;

        while (taken < BATCH && (message = dk_mailbox_pop(loop->mailbox))) {
            loop->handlers.on_message(loop->ctx, message, now_us);
            taken++;
        }
        fired = dk_timers_run(&loop->timers, now_us);
        if ((taken || fired) && loop->handlers.on_tick)
            loop->handlers.on_tick(loop->ctx, now_us);
        loop_sleep(loop, taken == BATCH);
    }
}

void dk_loop_ev_stop(struct dk_loop_ev *loop)
{
    __atomic_store_n(&loop->stop, true, __ATOMIC_RELEASE);
    ev_async_send(loop->ev, &loop->wake);
}

void dk_loop_ev_close(struct dk_loop_ev *loop)
{
    if (!loop)
        return;
    if (loop->signals_taken) {
        for (size_t i = 0; i < SIGNALS; i++)
            ev_signal_stop(loop->ev, &loop->signal[i]);
        __atomic_store_n(&signals_owned, false, __ATOMIC_RELEASE);
    }
    if (loop->ev)
        ev_loop_destroy(loop->ev);
    dk_mailbox_close(loop->mailbox);
    free(loop);
}
