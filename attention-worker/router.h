/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_ROUTER_H
#define DK_ROUTER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "model/config.h"

/* Which experts each row activates, from the router's logits, in f32.
 *
 * SOFTMAX: softmax over all experts, the top_k largest; weights are divided by their sum when norm_topk. Source:
 * modelling code of Qwen3-MoE, card of Qwen3-30B-A3B.
 * GROUPS: s = sigmoid(logits), c = s + bias; a group's score is the sum of its two largest c (one, if it has one
 * expert); the groups_kept best groups stay; among their experts the top_k largest c; weights are s of the chosen,
 * divided by (their sum + 1e-20) when norm_topk. Source: DeepSeek-V3, arXiv 2412.19437, section 2.1.2, and its released
 * model code.
 * Both: ties go to the lower id; then times scale. */
#define DK_ROUTER_EXPERTS_MAX 4096u /* as many as config.c takes */

struct dk_router {
    enum dk_router_kind kind;
    uint32_t experts, top_k;
    bool norm_topk;
    float scale;
    uint32_t groups, groups_kept; /* GROUPS: groups divides experts */
    const float *bias;            /* GROUPS: [experts] e_score_correction_bias, finite; any sign */
};

/* -EINVAL: a bias that is NaN or infinite. Whoever knows tensor and file puts them before err's text. */
int dk_router_check_bias(const float *bias, uint32_t experts, struct dk_err *err);
/* From a model's config; bias [experts] must outlive it (NULL: zeros are not assumed, SOFTMAX only). -EINVAL: top_k is
 * more than the kept groups' experts, groups do not divide the experts, a bias is not finite. */
int dk_router_init(struct dk_router *r, const struct dk_model_config *c, const float *bias, struct dk_err *err);

/* logits [rows][experts]. Per row: ids and weights [top_k] in ascending expert id. row_ok[i] (may be NULL) is set false
 * for rows with a NaN or infinite logit, whose ids and weights are 0..top_k-1 and 0. */
void dk_route(const struct dk_router *r, const float *logits, uint32_t rows, int32_t *ids, float *weights,
              bool *row_ok);

#endif
