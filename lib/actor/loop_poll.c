/* SPDX-License-Identifier: Apache-2.0 */
#include "actor/actor.h"

#include "base/clock.h"

void dk_loop_poll_run(struct dk_loop_poll *loop)
{
    while (!__atomic_load_n(&loop->stop, __ATOMIC_ACQUIRE)) {
        uint64_t now_us = dk_now_us();
        bool worked = loop->poll(loop->ctx, now_us);

        if (loop->wait)
            loop->wait(loop->ctx, worked, now_us, loop->deadline ? loop->deadline(loop->ctx) : UINT64_MAX);
    }
}

void dk_loop_poll_stop(struct dk_loop_poll *loop)
{
    __atomic_store_n(&loop->stop, true, __ATOMIC_RELEASE);
}
