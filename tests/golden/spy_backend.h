/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SPY_BACKEND_H
#define SPY_BACKEND_H

#include "attention-worker/backend/backend.h"

#define SPY_LAYERS_MAX 64

/* What passed through a back end in the last step, copied to the heap: [rows][width of each]. */
struct spy_record {
    uint32_t rows, layers;
    float *embed, *final_norm;                    /* final_norm: of the rows that the head was asked for */
    float *k[SPY_LAYERS_MAX], *v[SPY_LAYERS_MAX]; /* as they go into the cache */
    float *mixer_out[SPY_LAYERS_MAX];
    float *out[SPY_LAYERS_MAX]; /* the residual stream after the layer */
};

/* A back end that does what `inner` does and records it. There is one record in a process. */
const struct dk_backend_ops *spy_backend(const struct dk_backend_ops *inner);
struct spy_record *spy_record(void);
void spy_reset(void);

#endif
