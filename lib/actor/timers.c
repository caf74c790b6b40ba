/* SPDX-License-Identifier: Apache-2.0 */
/* A list sorted by deadline: an actor has a handful of timers. Equal deadlines fire in the order of arming. */
#include "actor/actor.h"

#include <stddef.h>

void dk_timer_arm(struct dk_timers *timers, struct dk_timer *t, uint64_t deadline_us)
{
    struct dk_timer **at = &timers->first;

    dk_timer_disarm(timers, t);
    t->deadline_us = deadline_us;
    while (*at && (*at)->deadline_us <= deadline_us)
        at = &(*at)->next;
    t->next = *at;
    *at = t;
    t->armed = true;
}

void dk_timer_disarm(struct dk_timers *timers, struct dk_timer *t)
{
    struct dk_timer **at = &timers->first;

    if (!t->armed)
        return;
    while (*at != t)
        at = &(*at)->next;
    *at = t->next;
    t->next = NULL;
    t->armed = false;
}

/* The first timer that is due and has not fired in this round: one that arms itself again for the past must not keep
 * the others waiting. */
static struct dk_timer *due_find(const struct dk_timers *timers, uint64_t now_us)
{
    for (struct dk_timer *t = timers->first; t && t->deadline_us <= now_us; t = t->next)
        if (t->round != timers->round)
            return t;
    return NULL;
}

bool dk_timers_run(struct dk_timers *timers, uint64_t now_us)
{
    struct dk_timer *t;
    bool fired = false;

    timers->round++;
    while ((t = due_find(timers, now_us))) {
        dk_timer_disarm(timers, t);
        t->round = timers->round;
        t->fire(t->ctx, now_us);
        fired = true;
    }
    return fired;
}

uint64_t dk_timers_deadline(const struct dk_timers *timers)
{
    return timers->first ? timers->first->deadline_us : UINT64_MAX;
}
