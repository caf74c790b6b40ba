/* SPDX-License-Identifier: Apache-2.0 */
#include "refuse_bench.h"

#include <criterion/criterion.h>
#include <string.h>

const int32_t refuse_good_ids[ROWS * TOP_K] = {0, 3, 2, 1};
const float refuse_good_weights[ROWS * TOP_K] = {0.5f, 0.25f, 1, 2};

void refuse_set_routing(struct refuse_bench *b, const int32_t *ids, const float *weights)
{
    memcpy(b->x + ROWS * HIDDEN, ids, ROWS * TOP_K * 4);
    memcpy(b->x + ROWS * HIDDEN + ROWS * TOP_K, weights, ROWS * TOP_K * 4);
}

const Dk__DataReply *refuse_ask_forward(struct refuse_bench *b, bool moe)
{
    struct request q;

    request_forward(&q, moe ? &b->moe : &b->dense, moe, EPOCH, moe ? MOE_LAYER : DENSE_LAYER, ROWS, TOP_K);
    return duck_rig_ask(&b->rig, &q.data.base, b->x, (ROWS * HIDDEN + (moe ? 2 * ROWS * TOP_K : 0)) * sizeof(float));
}

void refuse_open(struct refuse_bench *b)
{
    memset(b, 0, sizeof *b);
    duck_rig_open(&b->rig, 0);
    ffn_source_make(&b->dense, DK_BF16, HIDDEN, WIDTH, 1, 1);
    ffn_source_make(&b->moe, DK_F8_E4M3, HIDDEN, WIDTH, EXPERTS, 2);
    duck_rig_feed(&b->rig, &b->dense, false, EPOCH, DENSE_LAYER, BEGIN, END);
    duck_rig_feed(&b->rig, &b->moe, true, EPOCH, MOE_LAYER, BEGIN, END);
    for (int i = 0; i < ROWS * HIDDEN; i++)
        b->x[i] = (float)(i % 13) - 6;
    refuse_set_routing(b, refuse_good_ids, refuse_good_weights);
    for (int moe = 0; moe < 2; moe++) {
        cr_assert_eq(refuse_ask_forward(b, moe)->result_case, DK__DATA_REPLY__RESULT_FORWARD);
        memcpy(b->bits[moe], b->rig.answer.payload, sizeof b->bits[moe]);
    }
}

void refuse_close(struct refuse_bench *b)
{
    ffn_source_free(&b->dense);
    ffn_source_free(&b->moe);
    duck_rig_close(&b->rig);
}

void refuse_check(struct refuse_bench *b, const Dk__DataReply *r, Dk__Code code, const char *part)
{
    cr_assert_eq(r->result_case, DK__DATA_REPLY__RESULT_ERROR, "taken; wanted an error with '%s'", part);
    cr_assert_eq(r->error->code, code, "%s: %s", dk_code_name(r->error->code), r->error->text);
    cr_assert(strstr(r->error->text, part), "'%s' is not in: %s", part, r->error->text);
    cr_assert_eq(b->rig.answer.payload_bytes, 0);
}

void refuse_check_unchanged(struct refuse_bench *b)
{
    cr_assert_eq(b->rig.duck.shards.plan_epoch, EPOCH);
    cr_assert_eq(b->rig.duck.shards.layers_complete, 2);
    for (int moe = 0; moe < 2; moe++) {
        const Dk__DataReply *r = refuse_ask_forward(b, moe);

        cr_assert_eq(r->result_case, DK__DATA_REPLY__RESULT_FORWARD);
        cr_assert_eq(memcmp(b->bits[moe], b->rig.answer.payload, sizeof b->bits[moe]), 0);
    }
}
