/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include <sys/random.h>
#include <time.h>
#include <unistd.h>

uint64_t dk_now_us(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}

uint64_t dk_random_id(void)
{
    uint64_t id = 0;

    while (!id)
        if (getrandom(&id, sizeof id, 0) != sizeof id)
            id = dk_now_us() ^ (uint64_t)getpid() << 40;
    return id;
}

uint64_t dk_rng_next(struct dk_rng *rng)
{
    uint64_t z = rng->state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

double dk_rng_unit(struct dk_rng *rng)
{
    return (double)(dk_rng_next(rng) >> 11) * 0x1p-53;
}
