/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_STATES_CPU_H
#define DK_STATES_CPU_H

#include "attention-worker/backend/cpu/backend_cpu_internal.h"
#include "attention-worker/backend/cpu/delta_kernels.h"

/* Limits of what cpu_states_open takes: those of a config.json. */
#define STATES_DIM_MAX  1024u
#define STATES_TAPS_MIN 2u
#define STATES_TAPS_MAX 16u

/* Of one row and key head, of the convolution's output. */
struct delta_norms {
    float q; /* key_dim^-0.5 * rsqrt(q . q + 1e-6) */
    float k; /* rsqrt(k . k + 1e-6) */
    float qk;
};

/* Of one row and value head. */
struct delta_scalars {
    float decay, beta;
};

/* A slot's states of all layers follow each other. They are untouched memory until a span at position 0 begins there.
 */
struct dk_states {
    struct dk_states_shape shape;
    uint32_t channels, blocks; /* blocks of DELTA_COLUMNS of a value head */
    const struct delta_kernels *kernels;
    float *inputs;    /* [slots][layers][taps - 1][channels], oldest first */
    float *recurrent; /* [slots][layers][value_heads][blocks][key_dim][DELTA_COLUMNS] */
    /* Of the layer under way. */
    struct delta_norms *norms;     /* [rows_max][key_heads] */
    struct delta_scalars *scalars; /* [rows_max][value_heads] */
    /* In which call a slot was last used: two spans of one call never share a slot. */
    uint64_t call, *used; /* [slots] */
};

static inline size_t states_inputs_floats(const struct dk_states *s) /* of one slot and layer */
{
    return (size_t)(s->shape.taps - 1) * s->channels;
}

static inline size_t states_head_floats(const struct dk_states *s)
{
    return (size_t)s->blocks * s->shape.key_dim * DELTA_COLUMNS;
}

static inline float *states_inputs(const struct dk_states *s, uint32_t slot, uint32_t layer)
{
    return s->inputs + ((size_t)slot * s->shape.layers + layer) * states_inputs_floats(s);
}

static inline float *states_head(const struct dk_states *s, uint32_t slot, uint32_t layer, uint32_t head)
{
    size_t place = ((size_t)slot * s->shape.layers + layer) * s->shape.value_heads + head;

    return s->recurrent + place * states_head_floats(s);
}

#endif
