/* SPDX-License-Identifier: Apache-2.0 */
#include "duck_rig.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"

static uint32_t blocks(uint32_t n)
{
    return (n + 127) / 128;
}

static size_t part_scales(const struct ffn_source *s)
{
    return (size_t)blocks(s->width) * blocks(s->hidden);
}

void ffn_source_make(struct ffn_source *s, enum dk_dtype type, uint32_t hidden, uint32_t width, uint32_t experts,
                     uint64_t seed)
{
    size_t elements = (size_t)experts * 3 * width * hidden;
    struct dk_rng rng = {seed};

    *s = (struct ffn_source){.type = type, .hidden = hidden, .width = width, .experts = experts};
    s->weights = malloc(elements * dk_dtype_bytes(type));
    s->scales = malloc(experts * 3 * part_scales(s) * sizeof(float));
    for (size_t i = 0; i < elements; i++) {
        float f = (float)(dk_rng_unit(&rng) - 0.5) / 4;
        uint32_t bits;

        memcpy(&bits, &f, sizeof bits);
        if (type == DK_F32) {
            memcpy(s->weights + 4 * i, &f, 4);
        } else if (type == DK_BF16) {
            s->weights[2 * i] = (uint8_t)(bits >> 16);
            s->weights[2 * i + 1] = (uint8_t)(bits >> 24);
        } else {
            do
                s->weights[i] = (uint8_t)dk_rng_next(&rng);
            while ((s->weights[i] & 0x7f) == 0x7f);
        }
    }
    for (size_t i = 0; i < experts * 3 * part_scales(s); i++)
        s->scales[i] = (float)(0.0002 + 0.001 * dk_rng_unit(&rng));
}

void ffn_source_free(struct ffn_source *s)
{
    free(s->weights);
    free(s->scales);
}

uint8_t *ffn_source_at(const struct ffn_source *s, uint32_t expert, int part, uint32_t row, uint32_t col)
{
    size_t matrix = (size_t)s->width * s->hidden, stride = part == 2 ? s->width : s->hidden;

    return s->weights + ((3 * (size_t)expert + (size_t)part) * matrix + row * stride + col) * dk_dtype_bytes(s->type);
}

float *ffn_source_scale(const struct ffn_source *s, uint32_t expert, int part, uint32_t row_block, uint32_t col_block)
{
    size_t stride = part == 2 ? blocks(s->width) : blocks(s->hidden);

    return s->scales + (3 * (size_t)expert + (size_t)part) * part_scales(s) + row_block * stride + col_block;
}

double ffn_source_weight(const struct ffn_source *s, uint32_t expert, int part, uint32_t row, uint32_t col)
{
    float f;

    dk_widen(&f, ffn_source_at(s, expert, part, row, col), s->type, 1);
    return s->type == DK_F8_E4M3 ? (double)f * *ffn_source_scale(s, expert, part, row / 128, col / 128) : f;
}

/* Adds weight * expert(x) to y. */
static void expert_forward(const struct ffn_source *s, uint32_t expert, uint32_t begin, uint32_t end, const float *x,
                           double weight, double *y, double *bound)
{
    for (uint32_t r = begin; r < end; r++) {
        double gate = 0, up = 0, gate_sum = 0, up_sum = 0, hidden, loose;

        for (uint32_t c = 0; c < s->hidden; c++) {
            double g = ffn_source_weight(s, expert, 0, r, c) * x[c], u = ffn_source_weight(s, expert, 1, r, c) * x[c];

            gate += g;
            up += u;
            gate_sum += fabs(g);
            up_sum += fabs(u);
        }
        hidden = gate / (1 + exp(-gate)) * up;
        loose = (gate_sum * fabs(up) + up_sum * fabs(gate)) * 1.2 + gate_sum * up_sum * 1e-6;
        for (uint32_t h = 0; h < s->hidden; h++) {
            double d = ffn_source_weight(s, expert, 2, h, r) * weight;

            y[h] += d * hidden;
            bound[h] += fabs(d) * (loose + fabs(hidden)) * 1e-6;
        }
    }
}

void ffn_source_forward(const struct ffn_source *s, uint32_t begin, uint32_t end, uint32_t rows, uint32_t top_k,
                        const float *x, const int32_t *ids, const float *weights, double *y, double *bound)
{
    memset(y, 0, (size_t)rows * s->hidden * sizeof *y);
    memset(bound, 0, (size_t)rows * s->hidden * sizeof *bound);
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t k = 0; k < (ids ? top_k : 1); k++)
            expert_forward(s, ids ? (uint32_t)ids[i * top_k + k] : 0, begin, end, x + (size_t)i * s->hidden,
                           ids ? (double)weights[i * top_k + k] : 1, y + (size_t)i * s->hidden,
                           bound + (size_t)i * s->hidden);
}

/* ---- requests */

void request_init(struct request *q, const struct ffn_source *s, bool moe, uint64_t epoch, uint32_t layer,
                  uint32_t begin, uint32_t end, uint32_t piece_begin, uint32_t piece_end, uint32_t expert_begin,
                  uint32_t expert_end)
{
    dk__data_request__init(&q->data);
    dk__slice_shape__init(&q->shape);
    dk__mlp_init_request__init(&q->mlp_init);
    dk__moe_init_request__init(&q->moe_init);
    q->data.plan_epoch = epoch;
    q->data.model_id = DUCK_RIG_MODEL;
    q->shape.layer = layer;
    q->shape.hidden_size = s->hidden;
    q->shape.intermediate_size = s->width;
    q->shape.begin = begin;
    q->shape.end = end;
    q->shape.type = s->type == DK_F32    ? DK__WEIGHT_TYPE__F32
                    : s->type == DK_BF16 ? DK__WEIGHT_TYPE__BF16
                                         : DK__WEIGHT_TYPE__F8_E4M3;
    q->shape.has_scale_block = s->type == DK_F8_E4M3;
    q->shape.scale_block = q->shape.has_scale_block ? 128 : 0;
    q->mlp_init.shape = q->moe_init.shape = &q->shape;
    q->mlp_init.piece_begin = q->moe_init.piece_begin = piece_begin;
    q->mlp_init.piece_end = q->moe_init.piece_end = piece_end;
    q->moe_init.experts = s->experts;
    q->moe_init.expert_begin = expert_begin;
    q->moe_init.expert_end = expert_end;
    q->data.op_case = moe ? DK__DATA_REQUEST__OP_MOE_INIT : DK__DATA_REQUEST__OP_MLP_INIT;
    if (moe)
        q->data.moe_init = &q->moe_init;
    else
        q->data.mlp_init = &q->mlp_init;
}

void request_forward(struct request *q, const struct ffn_source *s, bool moe, uint64_t epoch, uint32_t layer,
                     uint32_t rows, uint32_t top_k)
{
    dk__data_request__init(&q->data);
    dk__mlp_forward_request__init(&q->mlp_forward);
    dk__moe_forward_request__init(&q->moe_forward);
    q->data.plan_epoch = epoch;
    q->data.model_id = DUCK_RIG_MODEL;
    q->mlp_forward.layer = q->moe_forward.layer = layer;
    q->mlp_forward.rows = q->moe_forward.rows = rows;
    q->mlp_forward.hidden_size = q->moe_forward.hidden_size = s->hidden;
    q->moe_forward.num_activated = top_k;
    q->data.op_case = moe ? DK__DATA_REQUEST__OP_MOE_FORWARD : DK__DATA_REQUEST__OP_MLP_FORWARD;
    if (moe)
        q->data.moe_forward = &q->moe_forward;
    else
        q->data.mlp_forward = &q->mlp_forward;
}

static uint8_t *put_part(uint8_t *to, const struct ffn_source *s, uint32_t e, int part, uint32_t first, uint32_t last)
{
    uint32_t rows = part == 2 ? s->hidden : last - first, cols = part == 2 ? last - first : s->hidden;
    size_t bytes = cols * dk_dtype_bytes(s->type);

    for (uint32_t r = 0; r < rows; r++, to += bytes)
        memcpy(to, part == 2 ? ffn_source_at(s, e, 2, r, first) : ffn_source_at(s, e, part, first + r, 0), bytes);
    return to;
}

uint8_t *request_payload(const struct request *q, const struct ffn_source *s, size_t *bytes)
{
    bool moe = q->data.op_case == DK__DATA_REQUEST__OP_MOE_INIT;
    uint32_t first = q->shape.begin + q->mlp_init.piece_begin, last = q->shape.begin + q->mlp_init.piece_end;
    uint32_t expert = moe ? q->moe_init.expert_begin : 0, expert_end = moe ? q->moe_init.expert_end : 1;
    size_t most = (size_t)(expert_end - expert) * 3 *
                  ((size_t)(last - first) * s->hidden * dk_dtype_bytes(s->type) + part_scales(s) * sizeof(float));
    uint8_t *payload = malloc(most), *to = payload;

    for (; expert < expert_end; expert++) {
        for (int part = 0; part < 3; part++)
            to = put_part(to, s, expert, part, first, last);
        for (int part = 0; part < 3 && s->type == DK_F8_E4M3; part++) {
            uint32_t rb = blocks(last), cb = blocks(s->hidden);

            for (uint32_t r = part == 2 ? 0 : first / 128; r < (part == 2 ? cb : rb); r++)
                for (uint32_t c = part == 2 ? first / 128 : 0; c < (part == 2 ? rb : cb); c++, to += sizeof(float))
                    memcpy(to, ffn_source_scale(s, expert, part, r, c), sizeof(float));
        }
    }
    *bytes = (size_t)(to - payload);
    return payload;
}

/* ---- the duck */

static uint64_t counting_clock(void)
{
    static uint64_t us;

    return us += 7;
}

static void quiet(void *ctx, enum dk_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    (void)line;
}

void duck_rig_open(struct duck_rig *r, uint64_t reserve_bytes)
{
    dk_log_setup(quiet, NULL, DK_LOG_ERROR, "test");
    memset(r, 0, sizeof *r);
    cr_assert_eq(dk_exec_open(1, false, &r->exec), 0);
    cr_assert_eq(dk_arena_init(&r->arena, 65536), 0);
    cr_assert_eq(duck_open(&r->duck, dk_kernels_get(dk_isa_best()), r->exec, counting_clock, 1 << 20, reserve_bytes),
                 0);
}

void duck_rig_close(struct duck_rig *r)
{
    duck_close(&r->duck);
    dk_exec_close(r->exec);
    dk_arena_fini(&r->arena);
}

uint8_t *message_make(const ProtobufCMessage *header, const void *payload, size_t payload_bytes, size_t *bytes)
{
    uint8_t packed[DK_DATA_HEADER_MAX];
    int n = dk_data_pack(header, packed, sizeof packed);
    void *message = NULL;

    cr_assert_gt(n, 0);
    *bytes = (size_t)n + payload_bytes;
    cr_assert_eq(posix_memalign(&message, 64, *bytes), 0);
    memcpy(message, packed, (size_t)n);
    if (payload_bytes)
        memcpy((uint8_t *)message + n, payload, payload_bytes);
    return message;
}

const Dk__DataReply *duck_rig_ask_bytes(struct duck_rig *r, const uint8_t *message, size_t bytes)
{
    ProtobufCMessage *m;
    const uint8_t *payload;
    size_t payload_bytes;

    duck_handle(&r->duck, message, bytes, &r->answer);
    cr_assert_eq(dk_data_unpack(&dk__data_reply__descriptor, r->answer.header, r->answer.header_bytes, &r->arena, &m,
                                &payload, &payload_bytes),
                 0);
    cr_assert_eq(payload_bytes, 0);
    return (const Dk__DataReply *)m;
}

const Dk__DataReply *duck_rig_ask(struct duck_rig *r, const ProtobufCMessage *header, const void *payload,
                                  size_t payload_bytes)
{
    size_t bytes;
    uint8_t *message = message_make(header, payload, payload_bytes, &bytes);
    const Dk__DataReply *reply = duck_rig_ask_bytes(r, message, bytes);

    free(message);
    return reply;
}

const Dk__DataReply *duck_rig_init(struct duck_rig *r, const struct request *q, const struct ffn_source *s)
{
    size_t bytes;
    uint8_t *payload = request_payload(q, s, &bytes);
    const Dk__DataReply *reply = duck_rig_ask(r, &q->data.base, payload, bytes);

    free(payload);
    return reply;
}

void duck_rig_feed(struct duck_rig *r, const struct ffn_source *s, bool moe, uint64_t epoch, uint32_t layer,
                   uint32_t begin, uint32_t end)
{
    const Dk__DataReply *reply;
    struct request q;

    request_init(&q, s, moe, epoch, layer, begin, end, 0, end - begin, 0, s->experts);
    reply = duck_rig_init(r, &q, s);
    cr_assert_eq(reply->result_case, DK__DATA_REPLY__RESULT_INIT, "%s",
                 reply->result_case == DK__DATA_REPLY__RESULT_ERROR ? reply->error->text : "");
    cr_assert(reply->init->complete);
}
