/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKER_EXPERT_SOURCE_H
#define WORKER_EXPERT_SOURCE_H

#include "model/ffn_tensors.h"

/* The order on the wire of the weights that go to the ducks (proto/attention_duck.proto). */

#define EXPERT_SCALE_BLOCK 128u /* rows and columns that share a scale */

/* Type on the wire: as stored, float16 widened to float32. */
enum dk_dtype expert_wire_type(const struct dk_ffn_tensors *t);
/* Bytes of the scales of rows [begin, end), all three matrices. */
size_t expert_scale_bytes(uint32_t hidden, uint32_t begin, uint32_t end);
/* Writes rows [begin, end) of the intermediate dimension in the order that proto/attention_duck.proto gives; returns
 * the end of what was written. */
uint8_t *expert_put(uint8_t *to, const struct dk_ffn_tensors *t, uint32_t hidden, uint32_t begin, uint32_t end);

#endif
