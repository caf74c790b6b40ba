/* SPDX-License-Identifier: Apache-2.0 */
#include "net/sim/sim_clock.h"

#include <stddef.h>
#include <time.h>

#include "base/clock.h"
#include "net/sim/sim.h"

static dk_sim_now *clock_now;
static void *clock_ctx;

void dk_sim_clock_set(dk_sim_now *now, void *ctx)
{
    clock_now = now;
    clock_ctx = ctx;
}

uint64_t sim_now_us(void)
{
    return clock_now ? clock_now(clock_ctx) : dk_now_us();
}

bool sim_clock_is_own(void)
{
    return clock_now != NULL;
}

void sim_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

void sim_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t deadline_us)
{
    struct timespec at = {.tv_sec = (time_t)(deadline_us / 1000000), .tv_nsec = (long)(deadline_us % 1000000 * 1000)};

    if (deadline_us == UINT64_MAX)
        pthread_cond_wait(cond, mutex);
    else
        pthread_cond_timedwait(cond, mutex, &at);
}
