/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "actor/actor.h"
#include "base/clock.h"

/* ---- loop_ev */

struct actor {
    struct dk_loop_ev *loop;
    uint64_t messages, sum, ticks, signals[2], fired;
    uint64_t stop_after;
    uint64_t fired_at_us;
    struct dk_timer timer;
    uint64_t period_us;
    bool stop_on_signal;
};

static void on_message(void *ctx, void *message, uint64_t now_us)
{
    struct actor *a = ctx;

    (void)now_us;
    a->messages++;
    a->sum += (uint64_t)(uintptr_t)message;
    if (a->messages == a->stop_after)
        dk_loop_ev_stop(a->loop);
}

static void on_tick(void *ctx, uint64_t now_us)
{
    (void)now_us;
    ((struct actor *)ctx)->ticks++;
}

static void on_signal(void *ctx, int signum)
{
    struct actor *a = ctx;

    a->signals[signum == SIGTERM]++;
    if (a->stop_on_signal)
        dk_loop_ev_stop(a->loop);
}

static const struct dk_loop_ev_handlers plain = {on_message, on_tick, NULL};
static const struct dk_loop_ev_handlers with_signals = {on_message, on_tick, on_signal};

static void *push_thousands(void *arg)
{
    struct actor *a = arg;

    for (uintptr_t i = 1; i <= 5000; i++)
        while (dk_mailbox_push(dk_loop_ev_mailbox(a->loop), (void *)i) == -EAGAIN)
            sched_yield();
    return NULL;
}

Test(loop_ev, messages_of_four_threads_arrive, .timeout = 120)
{
    struct actor a = {.stop_after = 20000};
    pthread_t threads[4];

    cr_assert_eq(dk_loop_ev_open(&plain, &a, 128, &a.loop), 0);
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, push_thousands, &a);
    dk_loop_ev_run(a.loop);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    cr_assert_eq(a.messages, 20000);
    cr_assert_eq(a.sum, 4 * (5000ull * 5001 / 2));
    cr_assert_gt(a.ticks, 0);
    cr_assert_leq(a.ticks, a.messages);
    dk_loop_ev_close(a.loop);
}

/* One message at a time, each sent when the last one was taken: a lost wake-up would hang here. */
static void *ping(void *arg)
{
    struct actor *a = arg;

    for (uintptr_t i = 1; i <= 2000; i++) {
        cr_assert_eq(dk_mailbox_push(dk_loop_ev_mailbox(a->loop), (void *)i), 0);
        while (__atomic_load_n(&a->ticks, __ATOMIC_ACQUIRE) < i)
            sched_yield();
    }
    return NULL;
}

static void on_tick_shared(void *ctx, uint64_t now_us)
{
    (void)now_us;
    __atomic_fetch_add(&((struct actor *)ctx)->ticks, 1, __ATOMIC_RELEASE);
}

Test(loop_ev, no_wake_up_is_lost, .timeout = 120)
{
    static const struct dk_loop_ev_handlers h = {on_message, on_tick_shared, NULL};
    struct actor a = {.stop_after = 2000};
    pthread_t thread;

    cr_assert_eq(dk_loop_ev_open(&h, &a, 2, &a.loop), 0);
    pthread_create(&thread, NULL, ping, &a);
    dk_loop_ev_run(a.loop);
    pthread_join(thread, NULL);
    cr_assert_eq(a.messages, 2000);
    dk_loop_ev_close(a.loop);
}

static void on_timer(void *ctx, uint64_t now_us)
{
    struct actor *a = ctx;

    a->fired++;
    cr_assert_geq(now_us, a->timer.deadline_us);
    if (a->fired == 5)
        dk_loop_ev_stop(a->loop);
    else
        dk_timer_arm(dk_loop_ev_timers(a->loop), &a->timer, now_us + a->period_us);
}

Test(loop_ev, timers_fire_not_before_their_deadline, .timeout = 120)
{
    struct actor a = {.period_us = 2000, .timer = {.fire = on_timer}};
    uint64_t begin_us = dk_now_us();

    a.timer.ctx = &a;
    cr_assert_eq(dk_loop_ev_open(&plain, &a, 16, &a.loop), 0);
    dk_timer_arm(dk_loop_ev_timers(a.loop), &a.timer, begin_us + 2000);
    dk_loop_ev_run(a.loop);
    cr_assert_eq(a.fired, 5);
    cr_assert_geq(a.ticks, 5);
    cr_assert_geq(dk_now_us() - begin_us, 10000);
    dk_loop_ev_close(a.loop);
}

static void *kill_own_process(void *arg)
{
    kill(getpid(), *(int *)arg);
    return NULL;
}

Test(loop_ev, ctrl_c_and_term_reach_the_actor, .timeout = 120)
{
    static int numbers[] = {SIGINT, SIGTERM};
    struct actor a = {.stop_on_signal = true};

    cr_assert_eq(dk_loop_ev_open(&with_signals, &a, 16, &a.loop), 0);
    for (int i = 0; i < 2; i++) {
        pthread_t thread;

        pthread_create(&thread, NULL, kill_own_process, &numbers[i]);
        dk_loop_ev_run(a.loop);
        pthread_join(thread, NULL);
        cr_assert_eq(a.signals[i], 1);
    }
    dk_loop_ev_close(a.loop);
}

Test(loop_ev, signals_belong_to_one_loop)
{
    struct actor a = {0}, b = {0};

    cr_assert_eq(dk_loop_ev_open(&with_signals, &a, 16, &a.loop), 0);
    cr_assert_eq(dk_loop_ev_open(&with_signals, &b, 16, &b.loop), -EBUSY);
    cr_assert_eq(dk_loop_ev_open(&plain, &b, 16, &b.loop), 0);
    dk_loop_ev_close(b.loop);
    dk_loop_ev_close(a.loop);
    cr_assert_eq(dk_loop_ev_open(&with_signals, &b, 16, &b.loop), 0, "given back by the close");
    dk_loop_ev_close(b.loop);
    cr_assert_eq(dk_loop_ev_open(&plain, &b, 3, &b.loop), -EINVAL);
}

Test(loop_ev, stop_before_run_ends_it_at_once, .timeout = 120)
{
    struct actor a = {0};

    cr_assert_eq(dk_loop_ev_open(&plain, &a, 16, &a.loop), 0);
    dk_loop_ev_stop(a.loop);
    dk_loop_ev_run(a.loop);
    dk_loop_ev_close(a.loop);
}

/* ---- loop_poll */

struct poller {
    struct dk_loop_poll loop;
    char trace[64];
    uint64_t polls, last_now_us;
};

static bool poll_thrice(void *ctx, uint64_t now_us)
{
    struct poller *p = ctx;

    strcat(p->trace, "p");
    cr_assert_geq(now_us, p->last_now_us);
    p->last_now_us = now_us;
    if (++p->polls == 3)
        dk_loop_poll_stop(&p->loop);
    return p->polls == 2;
}

static void wait_trace(void *ctx, bool worked, uint64_t now_us, uint64_t deadline_us)
{
    struct poller *p = ctx;

    strcat(p->trace, worked ? "W" : "w");
    cr_assert_eq(now_us, p->last_now_us);
    cr_assert_eq(deadline_us, 77 + p->polls);
}

static uint64_t deadline(void *ctx)
{
    return 77 + ((struct poller *)ctx)->polls;
}

Test(loop_poll, waits_after_each_poll_with_what_it_found)
{
    struct poller p = {.loop = {poll_thrice, wait_trace, deadline, &p, false}};

    dk_loop_poll_run(&p.loop);
    cr_assert_str_eq(p.trace, "pwpWpw");
}

static bool poll_nothing(void *ctx, uint64_t now_us)
{
    (void)now_us;
    __atomic_fetch_add(&((struct poller *)ctx)->polls, 1, __ATOMIC_RELAXED);
    return false;
}

static void wait_yield(void *ctx, bool worked, uint64_t now_us, uint64_t deadline_us)
{
    (void)ctx, (void)worked, (void)now_us;
    cr_assert_eq(deadline_us, UINT64_MAX);
    sched_yield();
}

static void *run_poll(void *arg)
{
    dk_loop_poll_run(arg);
    return NULL;
}

Test(loop_poll, another_thread_stops_it, .timeout = 120)
{
    struct poller p = {.loop = {poll_nothing, wait_yield, NULL, &p, false}};
    pthread_t thread;

    pthread_create(&thread, NULL, run_poll, &p.loop);
    while (__atomic_load_n(&p.polls, __ATOMIC_RELAXED) < 3)
        sched_yield();
    dk_loop_poll_stop(&p.loop);
    pthread_join(thread, NULL);
}
