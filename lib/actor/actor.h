/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_ACTOR_H
#define DK_ACTOR_H

#include <stdbool.h>
#include <stdint.h>

/* Actors own their state, run on one thread and exchange messages. A mailbox is the only way in. */

/* ---- mailbox.c: bounded queue, many producers, one consumer (a Concurrency Kit ring) */
struct dk_mailbox;

/* capacity: a power of two; at least so many messages fit. wake (may be NULL) runs on the producer's thread after each
 * push. -ENOMEM, -EINVAL. */
int dk_mailbox_open(uint32_t capacity, void (*wake)(void *ctx), void *ctx, struct dk_mailbox **out);
void dk_mailbox_close(struct dk_mailbox *m);              /* messages still in it are the caller's to drain before */
int dk_mailbox_push(struct dk_mailbox *m, void *message); /* any thread. -EAGAIN: full; message is still yours */
void *dk_mailbox_pop(struct dk_mailbox *m);               /* the actor's thread. NULL: empty */

/* ---- timers.c: deadlines of one actor; no clock inside */
struct dk_timers {
    struct dk_timer *first; /* by deadline */
    uint64_t round;         /* counts dk_timers_run */
};
struct dk_timer {
    uint64_t deadline_us;
    void (*fire)(void *ctx, uint64_t now_us);
    void *ctx;
    struct dk_timer *next;
    uint64_t round; /* that it fired in last */
    bool armed;
};
void dk_timer_arm(struct dk_timers *timers, struct dk_timer *t, uint64_t deadline_us); /* re-arms too */
void dk_timer_disarm(struct dk_timers *timers, struct dk_timer *t);
bool dk_timers_run(struct dk_timers *timers, uint64_t now_us); /* fires what is due, each once. true: some */
uint64_t dk_timers_deadline(const struct dk_timers *timers);   /* UINT64_MAX: none */

/* ---- loop_ev.c: the shell of a control actor, on libev. Sleeps until a message, a timer or a signal. */
struct dk_loop_ev;
struct dk_loop_ev_handlers {
    void (*on_message)(void *ctx, void *message, uint64_t now_us);
    void (*on_tick)(void *ctx, uint64_t now_us); /* after each batch of messages and each timer; may be NULL */
    void (*on_signal)(void *ctx, int signal);    /* SIGINT or SIGTERM, on the loop's thread; may be NULL */
};
/* The loop makes its own mailbox (dk_loop_ev_mailbox), whose pushes wake it, and its own timers. -ENOMEM; -EINVAL: the
 * capacity; -EBUSY: another loop of this process has taken the signals. */
int dk_loop_ev_open(const struct dk_loop_ev_handlers *h, void *ctx, uint32_t mailbox_capacity, struct dk_loop_ev **out);
struct dk_mailbox *dk_loop_ev_mailbox(struct dk_loop_ev *loop);
struct dk_timers *dk_loop_ev_timers(struct dk_loop_ev *loop);
void dk_loop_ev_run(struct dk_loop_ev *loop);  /* until stop */
void dk_loop_ev_stop(struct dk_loop_ev *loop); /* any thread */
void dk_loop_ev_close(struct dk_loop_ev *loop);

/* ---- loop_poll.c: the shell of a data-plane actor. Polls; waits only through `wait` (lib/net's wait strategy). */
struct dk_loop_poll {
    bool (*poll)(void *ctx, uint64_t now_us);                                    /* true: found work */
    void (*wait)(void *ctx, bool worked, uint64_t now_us, uint64_t deadline_us); /* called after each poll */
    uint64_t (*deadline)(void *ctx);                                             /* of the actor's own timers */
    void *ctx;
    bool stop; /* set by any thread through dk_loop_poll_stop */
};
void dk_loop_poll_run(struct dk_loop_poll *loop); /* until stop */
/* Does not end a wait in progress: wake that one too (dk_net_ops.wake), after this. */
void dk_loop_poll_stop(struct dk_loop_poll *loop);

#endif
