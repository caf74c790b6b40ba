/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_FFN_TENSORS_H
#define DK_FFN_TENSORS_H

#include "model/checkpoint.h"
#include "model/config.h"

/* gate_proj, up_proj and down_proj of a dense layer or of one expert, wherever the checkpoint has them: a tensor each,
 * or parts of fused ones (bf16 releases of Qwen3.5-MoE: experts.gate_up_proj [experts][2 * intermediate][hidden], gate
 * first; experts.down_proj [experts][hidden][intermediate]). */

struct dk_ffn_tensors {
    struct dk_tensor weight[3];       /* gate and up [intermediate][hidden], down [hidden][intermediate]; names and data
                                       * are the checkpoint's; all of one type */
    const struct dk_tensor *scale[3]; /* NULL: not FP8 */
};

/* expert: 0 in a dense layer. Marks what it finds used. Errors of dk_checkpoint_get_weight; -ENOTSUP: gate, up and down
 * of different types. */
int dk_ffn_tensors_find(struct dk_checkpoint *ck, const struct dk_model_config *c, uint32_t layer, uint32_t expert,
                        struct dk_ffn_tensors *out, struct dk_err *err);

/* The intermediate size of a layer's feed-forward on the ducks (of one expert), and how many experts it has (dense:
 * 1). */
uint32_t dk_ffn_width(const struct dk_model_config *c, uint32_t layer);
uint32_t dk_ffn_experts(const struct dk_model_config *c, uint32_t layer);

#endif
