/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_NET_SIM_H
#define DK_NET_SIM_H

#include <stdint.h>

/* What a simulation needs beside dk_net_sim and dk_control_sim: its own clock. */

typedef uint64_t dk_sim_now(void *ctx); /* microseconds, never going back */

/* Makes both sim back ends take the time from now; NULL: the monotonic clock again. With a clock of its own,
 * net.wait returns at once and calls time out in dk_control_sim_expire() only: no threads, no real time.
 * Set it before anything is opened. */
void dk_sim_clock_set(dk_sim_now *now, void *ctx);

/* Ends calls whose time is over with -ETIMEDOUT, inside this call. */
void dk_control_sim_expire(void);
/* When the next call's time is over; UINT64_MAX: none is outstanding. */
uint64_t dk_control_sim_deadline(void);

#endif
