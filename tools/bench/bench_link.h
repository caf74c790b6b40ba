/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_LINK_H
#define BENCH_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/transport.h"

/* The two kinds of process that bench_rtt measures: a worker that asks, and ducks that answer with as many bytes. */

enum { BENCH_DUCKS_MAX = 8 };

/* One measurement. */
struct bench_case {
    const char *dir;       /* sockets "<dir>/<duck>", bell "<dir>/bell" */
    const char *interface; /* af_packet port; NULL: vhost and virtio_user */
    uint32_t ducks;
    uint32_t bytes;    /* of each request and each response */
    uint32_t rounds;   /* measured; a tenth of them is run before, unmeasured */
    uint32_t pause_us; /* between rounds, in which everybody falls asleep */
    bool busy;         /* never park */
    bool raw;          /* single frames without the transport */
};

struct bench_result {
    int rc; /* 0, or what failed */
    double median_us, p99_us, least_us;
    uint64_t parks, retransmitted, send_full;
};

/* Bodies of the processes. Each first writes its address to `out` and then reads those of the other side from `in`:
 * the worker one per duck, a duck the worker's. The worker ends with a struct bench_result. They return an exit
 * status. */
int bench_worker(const struct bench_case *c, int in, int out);
int bench_duck(const struct bench_case *c, uint32_t index, int in, int out);

#endif
