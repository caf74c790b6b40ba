/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCK_DISPATCH_H
#define DUCK_DISPATCH_H

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/error.h"
#include "duck-firmware/shard.h"
#include "kernel/kernel.h"
#include "wire/wire.h"

struct duck_counters {
    uint64_t requests, rows, expert_rows, refused, weight_bytes, compute_us;
};

/* Everything a duck is, without threads, ports or clock: a request goes in, its answer comes out. */
struct duck {
    struct duck_shards shards;
    struct duck_counters counters;
    const struct dk_kernels *kernels;
    struct dk_exec *exec;
    uint64_t (*clock_us)(void); /* only to tell how long a kernel took */
    size_t message_bytes_max;   /* of an answer */
    struct dk_arena arena;      /* headers of the request in hand */
    float *sums;                /* the answer's payload; grows to the largest seen */
    size_t sums_bytes;
    void *scratch; /* of the kernels; grows likewise */
    size_t scratch_bytes;
};

struct duck_answer {
    uint8_t header[DK_DATA_HEADER_MAX + 512];
    size_t header_bytes;
    const void *payload; /* valid until the next request */
    size_t payload_bytes;
};

/* -ENOMEM. */
int duck_open(struct duck *d, const struct dk_kernels *kernels, struct dk_exec *exec, uint64_t (*clock_us)(void),
              size_t message_bytes_max, uint64_t reserve_bytes);
void duck_close(struct duck *d);

/* Answers one request, whatever is in it: a wrong one gets an error that says what is wrong. */
void duck_handle(struct duck *d, const uint8_t *data, size_t bytes, struct duck_answer *answer);

/* ---- the two paths, called by duck_handle; rows in, partial sums of the slice out */

/* What a forward request computed. */
struct duck_sums {
    uint32_t rows, hidden, compute_us;
    uint64_t weight_bytes;
};
int duck_dense_forward(struct duck *d, const Dk__DataRequest *r, const uint8_t *payload, size_t payload_bytes,
                       struct duck_sums *out, struct dk_err *err);
int duck_moe_forward(struct duck *d, const Dk__DataRequest *r, const uint8_t *payload, size_t payload_bytes,
                     struct duck_sums *out, struct dk_err *err);

/* Makes room for the sums of rows x hidden and for scratch. -EMSGSIZE: no answer could carry them; -ENOMEM. */
int duck_room(struct duck *d, uint32_t rows, uint32_t hidden, size_t scratch_bytes, struct dk_err *err);

#endif
