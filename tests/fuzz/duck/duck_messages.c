/* SPDX-License-Identifier: Apache-2.0 */
#include "duck_messages.h"

#include <stdlib.h>
#include <string.h>

/* Packs the header and leaves the payload to the caller. */
static uint8_t *begin(uint8_t *out, const Dk__DataRequest *r)
{
    int n = dk_data_pack(&r->base, out, DK_DATA_HEADER_MAX);

    if (n < 0)
        abort();
    return out + n;
}

static uint8_t *put_float(uint8_t *to, float f)
{
    memcpy(to, &f, sizeof f);
    return to + sizeof f;
}

size_t duck_message_init(uint8_t *out, bool moe, uint64_t epoch, uint32_t piece_begin, uint32_t piece_end,
                         uint32_t expert_begin, uint32_t expert_end)
{
    Dk__DataRequest r = DK__DATA_REQUEST__INIT;
    Dk__SliceShape shape = DK__SLICE_SHAPE__INIT;
    Dk__MlpInitRequest mlp = DK__MLP_INIT_REQUEST__INIT;
    Dk__MoeInitRequest q = DK__MOE_INIT_REQUEST__INIT;
    uint32_t first = DUCK_MESSAGES_BEGIN + piece_begin, last = DUCK_MESSAGES_BEGIN + piece_end;
    uint32_t elements = 3 * (last - first) * DUCK_MESSAGES_HIDDEN, blocks = (last + 127) / 128 - first / 128;
    uint8_t *to;

    shape.layer = moe;
    shape.hidden_size = DUCK_MESSAGES_HIDDEN;
    shape.intermediate_size = DUCK_MESSAGES_WIDTH;
    shape.begin = DUCK_MESSAGES_BEGIN;
    shape.end = DUCK_MESSAGES_END;
    shape.type = moe ? DK__WEIGHT_TYPE__F8_E4M3 : DK__WEIGHT_TYPE__BF16;
    shape.has_scale_block = moe;
    shape.scale_block = 128;
    mlp.shape = q.shape = &shape;
    mlp.piece_begin = q.piece_begin = piece_begin;
    mlp.piece_end = q.piece_end = piece_end;
    q.experts = DUCK_MESSAGES_EXPERTS;
    q.expert_begin = expert_begin;
    q.expert_end = expert_end;
    r.plan_epoch = epoch;
    r.model_id = DUCK_MESSAGES_MODEL;
    r.op_case = moe ? DK__DATA_REQUEST__OP_MOE_INIT : DK__DATA_REQUEST__OP_MLP_INIT;
    if (moe)
        r.moe_init = &q;
    else
        r.mlp_init = &mlp;
    to = begin(out, &r);
    if (!moe) {
        for (uint32_t i = 0; i < elements; i++, to += 2)
            memcpy(to, &(uint16_t){(uint16_t)(0x3c00 + i % 61)}, 2);
        return (size_t)(to - out);
    }
    for (uint32_t e = expert_begin; e < expert_end; e++) {
        for (uint32_t i = 0; i < elements; i++)
            *to++ = (uint8_t)(0x20 + i % 23);
        for (uint32_t i = 0; i < 3 * blocks; i++)
            to = put_float(to, 0.01f * (float)(i + 1));
    }
    return (size_t)(to - out);
}

size_t duck_message_forward(uint8_t *out, bool moe, uint32_t rows)
{
    Dk__DataRequest r = DK__DATA_REQUEST__INIT;
    Dk__MlpForwardRequest mlp = DK__MLP_FORWARD_REQUEST__INIT;
    Dk__MoeForwardRequest q = DK__MOE_FORWARD_REQUEST__INIT;
    uint8_t *to;

    q.layer = moe;
    mlp.rows = q.rows = rows;
    mlp.hidden_size = q.hidden_size = DUCK_MESSAGES_HIDDEN;
    q.num_activated = DUCK_MESSAGES_TOP_K;
    r.plan_epoch = DUCK_MESSAGES_EPOCH;
    r.model_id = DUCK_MESSAGES_MODEL;
    r.op_case = moe ? DK__DATA_REQUEST__OP_MOE_FORWARD : DK__DATA_REQUEST__OP_MLP_FORWARD;
    if (moe)
        r.moe_forward = &q;
    else
        r.mlp_forward = &mlp;
    to = begin(out, &r);
    for (uint32_t i = 0; i < rows * DUCK_MESSAGES_HIDDEN; i++)
        to = put_float(to, (float)(i % 7) - 3);
    for (uint32_t i = 0; moe && i < rows * DUCK_MESSAGES_TOP_K; i++, to += 4)
        memcpy(to, &(int32_t){(int32_t)(i % DUCK_MESSAGES_EXPERTS)}, 4);
    for (uint32_t i = 0; moe && i < rows * DUCK_MESSAGES_TOP_K; i++)
        to = put_float(to, 0.5f);
    return (size_t)(to - out);
}
