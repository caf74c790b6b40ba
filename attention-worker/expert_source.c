/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/expert_source.h"

#include <string.h>

size_t expert_scale_bytes(uint32_t hidden, uint32_t begin, uint32_t end)
{
    uint32_t blocks = (end + EXPERT_SCALE_BLOCK - 1) / EXPERT_SCALE_BLOCK - begin / EXPERT_SCALE_BLOCK;

    return (size_t)3 * blocks * ((hidden + EXPERT_SCALE_BLOCK - 1) / EXPERT_SCALE_BLOCK) * sizeof(float);
}

enum dk_dtype expert_wire_type(const struct dk_ffn_tensors *t)
{
    return t->weight[0].type == DK_F16 ? DK_F32 : t->weight[0].type;
}

/* Copies `count` elements, widening float16; returns the end of what was written. */
static uint8_t *put(uint8_t *to, const struct dk_tensor *t, uint64_t first, uint64_t count)
{
    size_t each = dk_dtype_bytes(t->type);

    if (t->type != DK_F16) {
        memcpy(to, t->data + first * each, count * each);
        return to + count * each;
    }
    for (uint64_t i = 0; i < count; i++) {
        float f;

        dk_widen(&f, t->data + (first + i) * each, DK_F16, 1);
        memcpy(to + i * sizeof f, &f, sizeof f);
    }
    return to + count * sizeof(float);
}

static uint8_t *put_scales(uint8_t *to, const struct dk_tensor *t, uint32_t row, uint32_t rows, uint32_t col,
                           uint32_t cols)
{
    size_t each = dk_dtype_bytes(t->type);

    for (uint32_t r = row; r < row + rows; r++)
        for (uint32_t c = col; c < col + cols; c++) {
            float f;

            dk_widen(&f, t->data + (r * t->shape[1] + c) * each, t->type, 1);
            memcpy(to, &f, sizeof f);
            to += sizeof f;
        }
    return to;
}

uint8_t *expert_put(uint8_t *to, const struct dk_ffn_tensors *t, uint32_t hidden, uint32_t begin, uint32_t end)
{
    uint64_t width = t->weight[2].shape[1];
    uint32_t block = begin / EXPERT_SCALE_BLOCK, blocks = (end + EXPERT_SCALE_BLOCK - 1) / EXPERT_SCALE_BLOCK - block;
    uint32_t hidden_blocks = (hidden + EXPERT_SCALE_BLOCK - 1) / EXPERT_SCALE_BLOCK;

    for (int i = 0; i < 2; i++)
        to = put(to, &t->weight[i], (uint64_t)begin * hidden, (uint64_t)(end - begin) * hidden);
    for (uint32_t r = 0; r < hidden; r++)
        to = put(to, &t->weight[2], r * width + begin, end - begin);
    if (!t->scale[0])
        return to;
    for (int i = 0; i < 2; i++)
        to = put_scales(to, t->scale[i], block, blocks, 0, hidden_blocks);
    return put_scales(to, t->scale[2], 0, hidden_blocks, block, blocks);
}
