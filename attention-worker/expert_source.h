/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKER_EXPERT_SOURCE_H
#define WORKER_EXPERT_SOURCE_H

#include "attention-worker/model.h"

/* Where the weights that go to the ducks lie in the checkpoint, and their order on the wire. A dense layer is a layer
 * with one expert. */

#define EXPERT_SCALE_BLOCK 128u /* rows and columns that share a scale */

/* gate, up and down of one expert, and their scales (NULL without). */
struct expert_tensors {
    const struct dk_tensor *weight[3], *scale[3];
};

/* The intermediate size of a layer (of one expert), and how many experts it has. */
uint32_t expert_layer_width(const struct worker_model *m, uint32_t layer);
uint32_t expert_layer_count(const struct worker_model *m, uint32_t layer);

/* -ENOENT, -EINVAL, -ENOTSUP: err names tensor and file. */
int expert_tensors_find(const struct worker_model *m, uint32_t layer, uint32_t expert, struct expert_tensors *t,
                        struct dk_err *err);
/* Type on the wire: as stored, float16 widened to float32. */
enum dk_dtype expert_wire_type(const struct expert_tensors *t);
/* Bytes of the scales of rows [begin, end), all three matrices. */
size_t expert_scale_bytes(uint32_t hidden, uint32_t begin, uint32_t end);
/* Writes rows [begin, end) of the intermediate dimension in the order that proto/attention_duck.proto gives; returns
 * the end of what was written. */
uint8_t *expert_put(uint8_t *to, const struct expert_tensors *t, uint32_t hidden, uint32_t begin, uint32_t end);

#endif
