/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_NET_SIM_CLOCK_H
#define DK_NET_SIM_CLOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* The clock that both sim back ends use. Serves this folder only. */

uint64_t sim_now_us(void);
bool sim_clock_is_own(void);
void sim_cond_init(pthread_cond_t *cond);
/* Waits on a cond of sim_cond_init until it is signalled or the monotonic clock shows deadline_us. */
void sim_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t deadline_us);

#endif
