/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "actor/actor.h"

static struct dk_timers timers;
static char trace[100];

struct named {
    struct dk_timer timer;
    char name;
    uint64_t again_us;     /* arms itself for then */
    struct named *disarms; /* another one */
};

static void fire(void *ctx, uint64_t now_us)
{
    struct named *n = ctx;

    (void)now_us;
    strncat(trace, &n->name, 1);
    if (n->again_us)
        dk_timer_arm(&timers, &n->timer, n->again_us);
    if (n->disarms)
        dk_timer_disarm(&timers, &n->disarms->timer);
}

static void arm(struct named *n, char name, uint64_t deadline_us)
{
    n->timer.fire = fire;
    n->timer.ctx = n;
    n->name = name;
    dk_timer_arm(&timers, &n->timer, deadline_us);
}

/* What a run at now_us fires. */
static const char *run(uint64_t now_us)
{
    bool fired;

    *trace = 0;
    fired = dk_timers_run(&timers, now_us);
    cr_assert_eq(fired, *trace != 0);
    return trace;
}

Test(timers, fire_in_order_of_their_deadlines)
{
    struct named a = {0}, b = {0}, c = {0}, d = {0};

    cr_assert_eq(dk_timers_deadline(&timers), UINT64_MAX);
    cr_assert_str_eq(run(UINT64_MAX), "");
    arm(&a, 'a', 30);
    arm(&b, 'b', 10);
    arm(&c, 'c', 20);
    arm(&d, 'd', 10);
    cr_assert_eq(dk_timers_deadline(&timers), 10);
    cr_assert_str_eq(run(9), "");
    cr_assert_str_eq(run(20), "bdc");
    cr_assert(!b.timer.armed && a.timer.armed);
    cr_assert_eq(dk_timers_deadline(&timers), 30);
    cr_assert_str_eq(run(30), "a");
    cr_assert_eq(dk_timers_deadline(&timers), UINT64_MAX);
}

Test(timers, arming_again_moves_and_disarming_forgets)
{
    struct named a = {0}, b = {0};

    arm(&a, 'a', 10);
    arm(&b, 'b', 20);
    arm(&a, 'a', 30);
    cr_assert_eq(dk_timers_deadline(&timers), 20);
    dk_timer_disarm(&timers, &b.timer);
    dk_timer_disarm(&timers, &b.timer);
    cr_assert_str_eq(run(100), "a");
}

Test(timers, one_that_arms_itself_for_the_past_fires_once_a_run)
{
    struct named a = {.again_us = 1}, b = {0}, c = {0};

    arm(&a, 'a', 1);
    arm(&b, 'b', 2);
    arm(&c, 'c', 3);
    cr_assert_str_eq(run(5), "abc");
    cr_assert_str_eq(run(5), "a");
    cr_assert_eq(dk_timers_deadline(&timers), 1);
}

Test(timers, one_may_disarm_another_that_is_due)
{
    struct named a = {0}, b = {0}, c = {0};

    arm(&a, 'a', 1);
    arm(&b, 'b', 2);
    arm(&c, 'c', 3);
    a.disarms = &b;
    cr_assert_str_eq(run(5), "ac");
    cr_assert_eq(dk_timers_deadline(&timers), UINT64_MAX);
}
