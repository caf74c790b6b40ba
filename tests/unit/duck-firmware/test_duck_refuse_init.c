/* SPDX-License-Identifier: Apache-2.0 */
/* Inits with one thing wrong at a time: the right code, a text that helps, and nothing changed. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "refuse_bench.h"

/* ---- inits: one field wrong at a time */

enum field {
    F_LAYER,
    F_HIDDEN_0,
    F_HIDDEN_OTHER,
    F_HIDDEN_HUGE,
    F_INTERMEDIATE_SMALL,
    F_INTERMEDIATE_OTHER,
    F_INTERMEDIATE_HUGE,
    F_BEGIN_ODD,
    F_BEGIN_OTHER,
    F_BEGIN_PAST_END,
    F_END_OTHER,
    F_END_PAST_WIDTH,
    F_TYPE_OTHER,
    F_TYPE_UNKNOWN,
    F_SCALE_ABSENT,
    F_SCALE_64,
    F_PIECE_BEGIN_ODD,
    F_PIECE_EMPTY,
    F_PIECE_END_ODD,
    F_PIECE_PAST,
    F_PIECE_OTHER,
    F_EPOCH_0,
    F_EPOCH_OLD,
    F_MODEL,
    F_EXPERTS_0,
    F_EXPERTS_MANY,
    F_EXPERTS_OTHER,
    F_EXPERT_EMPTY,
    F_EXPERT_PAST,
    F_EXPERT_OTHER,
    F_KIND,
    FIELDS
};

struct wrong {
    Dk__Code code;
    const char *part;
    bool moe_only;
};

/* The message up to the wrong field is right, and the payload is the right one. */
static const struct wrong wrongs[FIELDS] = {
    [F_LAYER] = {DK__CODE__INVALID_ARGUMENT, "layer 512", false},
    [F_HIDDEN_0] = {DK__CODE__INVALID_ARGUMENT, "hidden 0", false},
    [F_HIDDEN_OTHER] = {DK__CODE__INVALID_ARGUMENT, "payload", false},
    [F_HIDDEN_HUGE] = {DK__CODE__INVALID_ARGUMENT, "hidden 4294967295", false},
    [F_INTERMEDIATE_SMALL] = {DK__CODE__INVALID_ARGUMENT, "of 200", false},
    [F_INTERMEDIATE_OTHER] = {DK__CODE__FAILED_PRECONDITION, "another shape", false},
    [F_INTERMEDIATE_HUGE] = {DK__CODE__INVALID_ARGUMENT, "not a shape", false},
    [F_BEGIN_ODD] = {DK__CODE__INVALID_ARGUMENT, "[33, 300)", false},
    [F_BEGIN_OTHER] = {DK__CODE__FAILED_PRECONDITION, "another shape", false},
    [F_BEGIN_PAST_END] = {DK__CODE__INVALID_ARGUMENT, "[320, 300)", false},
    [F_END_OTHER] = {DK__CODE__FAILED_PRECONDITION, "another shape", false},
    [F_END_PAST_WIDTH] = {DK__CODE__INVALID_ARGUMENT, "353", false},
    [F_TYPE_OTHER] = {DK__CODE__INVALID_ARGUMENT, "", false},
    [F_TYPE_UNKNOWN] = {DK__CODE__DATA_LOSS, "decoded", false},
    [F_SCALE_ABSENT] = {DK__CODE__INVALID_ARGUMENT, "scale block 0", true},
    [F_SCALE_64] = {DK__CODE__INVALID_ARGUMENT, "scale block 64", false},
    [F_PIECE_BEGIN_ODD] = {DK__CODE__INVALID_ARGUMENT, "piece [1, 64)", false},
    [F_PIECE_EMPTY] = {DK__CODE__INVALID_ARGUMENT, "piece [64, 64)", false},
    [F_PIECE_END_ODD] = {DK__CODE__INVALID_ARGUMENT, "piece [32, 65)", false},
    [F_PIECE_PAST] = {DK__CODE__INVALID_ARGUMENT, "piece [32, 288)", false},
    [F_PIECE_OTHER] = {DK__CODE__INVALID_ARGUMENT, "payload", false},
    [F_EPOCH_0] = {DK__CODE__FAILED_PRECONDITION, "epoch 0", false},
    [F_EPOCH_OLD] = {DK__CODE__FAILED_PRECONDITION, "serves 7", false},
    [F_MODEL] = {DK__CODE__FAILED_PRECONDITION, "model", false},
    [F_EXPERTS_0] = {DK__CODE__INVALID_ARGUMENT, "of 0", true},
    [F_EXPERTS_MANY] = {DK__CODE__INVALID_ARGUMENT, "of 1025", true},
    [F_EXPERTS_OTHER] = {DK__CODE__FAILED_PRECONDITION, "another shape", true},
    [F_EXPERT_EMPTY] = {DK__CODE__INVALID_ARGUMENT, "experts [3, 3)", true},
    [F_EXPERT_PAST] = {DK__CODE__INVALID_ARGUMENT, "experts [1, 5)", true},
    [F_EXPERT_OTHER] = {DK__CODE__INVALID_ARGUMENT, "payload", true},
    [F_KIND] = {DK__CODE__FAILED_PRECONDITION, "another shape", false},
};

static void set_piece(struct request *q, uint32_t begin, uint32_t end)
{
    q->mlp_init.piece_begin = q->moe_init.piece_begin = begin;
    q->mlp_init.piece_end = q->moe_init.piece_end = end;
}

static void make_wrong(struct request *q, enum field field, bool moe)
{
    Dk__SliceShape *s = &q->shape;

    switch (field) {
    case F_LAYER:
        s->layer = 512;
        break;
    case F_HIDDEN_0:
        s->hidden_size = 0;
        break;
    case F_HIDDEN_OTHER:
        s->hidden_size = HIDDEN - 1;
        break;
    case F_HIDDEN_HUGE:
        s->hidden_size = UINT32_MAX;
        break;
    case F_INTERMEDIATE_SMALL:
        s->intermediate_size = 200;
        break;
    case F_INTERMEDIATE_OTHER:
        s->intermediate_size = WIDTH + 32;
        break;
    case F_INTERMEDIATE_HUGE:
        s->intermediate_size = UINT32_MAX;
        break;
    case F_BEGIN_ODD:
        s->begin++;
        break;
    case F_BEGIN_OTHER:
        s->begin = 0;
        break;
    case F_BEGIN_PAST_END:
        s->begin = 320;
        break;
    case F_END_OTHER:
        s->end = 301;
        break;
    case F_END_PAST_WIDTH:
        s->end = WIDTH + 1;
        break;
    case F_TYPE_OTHER:
        s->type = moe ? DK__WEIGHT_TYPE__BF16 : DK__WEIGHT_TYPE__F32;
        break;
    case F_TYPE_UNKNOWN:
        s->type = (Dk__WeightType)9;
        break;
    case F_SCALE_ABSENT:
        s->has_scale_block = false;
        break;
    case F_SCALE_64:
        s->has_scale_block = true;
        s->scale_block = 64;
        break;
    case F_PIECE_BEGIN_ODD:
        set_piece(q, 1, 64);
        break;
    case F_PIECE_EMPTY:
        set_piece(q, 64, 64);
        break;
    case F_PIECE_END_ODD:
        set_piece(q, 32, 65);
        break;
    case F_PIECE_PAST:
        set_piece(q, 32, 288);
        break;
    case F_PIECE_OTHER:
        set_piece(q, 32, 96);
        break;
    case F_EPOCH_0:
        q->data.plan_epoch = 0;
        break;
    case F_EPOCH_OLD:
        q->data.plan_epoch = EPOCH - 1;
        break;
    case F_MODEL:
        q->data.model_id++;
        break;
    case F_EXPERTS_0:
        q->moe_init.experts = 0;
        break;
    case F_EXPERTS_MANY:
        q->moe_init.experts = 1025;
        break;
    case F_EXPERTS_OTHER:
        q->moe_init.experts = EXPERTS + 1;
        break;
    case F_EXPERT_EMPTY:
        q->moe_init.expert_begin = 3;
        break;
    case F_EXPERT_PAST:
        q->moe_init.expert_end = EXPERTS + 1;
        break;
    case F_EXPERT_OTHER:
        q->moe_init.expert_begin--;
        break;
    case F_KIND:
        s->layer = moe ? DENSE_LAYER : MOE_LAYER;
        break;
    case FIELDS:
        break;
    }
}

Test(duck_refuse_init, every_field_of_an_init)
{
    struct refuse_bench b;

    refuse_open(&b);
    for (int moe = 0; moe < 2; moe++)
        for (enum field field = 0; field < FIELDS; field++) {
            const struct ffn_source *s = moe ? &b.moe : &b.dense;
            uint64_t bytes_before = b.rig.duck.shards.bytes;
            const Dk__DataReply *r;
            struct request q;
            uint8_t *payload;
            size_t bytes;

            if (wrongs[field].moe_only && !moe)
                continue;
            request_init(&q, s, moe, EPOCH, moe ? MOE_LAYER : DENSE_LAYER, BEGIN, END, 32, 64, moe ? 1 : 0,
                         moe ? 3 : 1);
            payload = request_payload(&q, s, &bytes);
            memset(payload, 1, bytes / 2); /* taking it would show */
            make_wrong(&q, field, moe);
            r = duck_rig_ask(&b.rig, &q.data.base, payload, bytes);
            refuse_check(&b, r, wrongs[field].code, wrongs[field].part);
            cr_assert_eq(r->plan_epoch, field == F_TYPE_UNKNOWN ? 0 : q.data.plan_epoch);
            cr_assert_eq(b.rig.duck.shards.bytes, bytes_before, "field %d", (int)field);
            refuse_check_unchanged(&b);
            free(payload);
        }
    refuse_close(&b);
}

Test(duck_refuse_init, every_other_length_of_an_init)
{
    static const int deltas[] = {-1, 1, -4, 4, -10000};
    struct refuse_bench b;

    refuse_open(&b);
    for (int moe = 0; moe < 2; moe++)
        for (int d = 0; d < 6; d++) {
            const struct ffn_source *s = moe ? &b.moe : &b.dense;
            struct request q;
            uint8_t *payload;
            size_t bytes;

            request_init(&q, s, moe, EPOCH, moe ? MOE_LAYER : DENSE_LAYER, BEGIN, END, 32, 64, moe ? 1 : 0,
                         moe ? 3 : 1);
            payload = request_payload(&q, s, &bytes);
            payload = realloc(payload, bytes + 4);
            memset(payload, 0, bytes + 4);
            bytes = d == 5 ? 0 : bytes + (size_t)deltas[d];
            refuse_check(&b, duck_rig_ask(&b.rig, &q.data.base, payload, bytes), DK__CODE__INVALID_ARGUMENT, "payload");
            refuse_check_unchanged(&b);
            free(payload);
        }
    refuse_close(&b);
}
