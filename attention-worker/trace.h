/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_TRACE_H
#define DK_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Values inside the layers of a step, for whoever compares a family with another implementation. T rows of one span,
 * under these names (N: layer):
 *   embed, layer.N.mixer_out, layer.N.out, final_norm       [T][hidden]
 *   layer.N.k, layer.N.v                                    [kv_heads][T][head_dim], k after norm and rotation
 *   layer.N.kv_latent [T][kv_rank], layer.N.k_pe [T][rope]  after norm, after rotation
 *   layer.N.index_k [T][index_dim], layer.N.selected i32 [T][index top_k]  positions rising, -1 behind the last
 *   layer.N.conv_state [channels][taps - 1], layer.N.recurrent_state [value_heads][key_dim][value_dim]  after the span
 *   layer.N.moe.in, layer.N.moe.out [T][hidden]             out: with the shared expert, before the residual
 *   layer.N.moe.router_logits [T][experts]
 *   layer.N.moe.expert_ids i32, layer.N.moe.expert_weights [T][top_k]  by falling weight */

enum dk_trace_type { DK_TRACE_F32, DK_TRACE_I32 };

/* Who wants the values, and of which rows. */
struct dk_trace {
    uint32_t row, count; /* of the step */
    uint32_t state;      /* the span's slot */
    const bool *layers; /* [layers of the model] those that are wanted, NULL: all; what belongs to no layer always is */
    /* data is host memory, valid during the call; NULL: there was no memory for it. */
    void (*put)(void *ctx, const char *name, enum dk_trace_type type, uint32_t rank, const uint32_t *shape,
                const void *data);
    void *ctx;
};

static inline bool dk_trace_wants(const struct dk_trace *t, uint32_t layer)
{
    return !t->layers || t->layers[layer];
}

/* Puts layer.N.moe.expert_ids and expert_weights if the layer is wanted; ids and weights [rows of the step][top_k] as
 * dk_route gives them. */
void dk_trace_experts(const struct dk_trace *t, uint32_t layer, uint32_t top_k, const int32_t *ids,
                      const float *weights);

/* A sink that keeps what comes, up to a limit. */
struct dk_trace_tensor {
    char name[64];
    enum dk_trace_type type;
    uint32_t rank, shape[4];
    void *data; /* owned */
    size_t bytes;
};

struct dk_trace_list {
    size_t bytes_max;                /* beyond it nothing more is kept; 0: no limit */
    struct dk_trace_tensor *tensors; /* in the order of their calls */
    size_t count, capacity;
    size_t bytes;              /* of all that came, kept or not */
    bool too_large, no_memory; /* something is missing */
};

void dk_trace_list_put(void *list, const char *name, enum dk_trace_type type, uint32_t rank, const uint32_t *shape,
                       const void *data);
const struct dk_trace_tensor *dk_trace_list_find(const struct dk_trace_list *l, const char *name); /* or NULL */
void dk_trace_list_fini(struct dk_trace_list *l); /* fine on a zeroed one; zeroed after */

#endif
