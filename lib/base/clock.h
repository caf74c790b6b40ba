/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_BASE_CLOCK_H
#define DK_BASE_CLOCK_H

#include <stdint.h>

/* Microseconds of the monotonic clock. Only the shells round handlers call this; handlers are given the time. */
uint64_t dk_now_us(void);

/* A random number that no other process on any host is likely to draw: instance and client ids. Never 0. */
uint64_t dk_random_id(void);

/* A small seeded generator (splitmix64) for simulation, faults and sampling: the same seed, the same numbers. */
struct dk_rng {
    uint64_t state;
};
uint64_t dk_rng_next(struct dk_rng *rng);
/* Uniform in [0, 1), 53 bits. */
double dk_rng_unit(struct dk_rng *rng);

#endif
