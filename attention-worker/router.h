/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_ROUTER_H
#define DK_ROUTER_H

#include <stdbool.h>
#include <stdint.h>

/* Which experts each row activates. softmax over all experts in f32, the top_k largest (ties: the lower id), weights
 * divided by their sum when norm_topk. Output per row: ids and weights in ascending expert id.
 * logits [rows][experts]. Source: modelling code of Qwen3-MoE, card of Qwen3-30B-A3B.
 * row_ok[i] (may be NULL) is set false for rows with a NaN or infinite logit, whose ids and weights are 0..k-1 and
 * 0. */
void dk_router_softmax(const float *logits, uint32_t rows, uint32_t experts, uint32_t top_k, bool norm_topk,
                       int32_t *ids, float *weights, bool *row_ok);

#endif
