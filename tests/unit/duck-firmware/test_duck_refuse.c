/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that a duck must not take: the right code, a text that helps, and nothing changed. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "refuse_bench.h"

/* ---- what is not even a request */

Test(duck_refuse, bytes_that_are_no_request)
{
    struct refuse_bench b;
    struct request q;
    uint8_t *message, *part = NULL;
    size_t bytes;

    refuse_open(&b);
    request_forward(&q, &b.dense, false, EPOCH, DENSE_LAYER, ROWS, 0);
    message = message_make(&q.data.base, b.x, ROWS * HIDDEN * sizeof(float), &bytes);
    for (size_t n = 0; n <= bytes; n += n < 80 ? 1 : 97) { /* cut anywhere */
        const Dk__DataReply *r;

        cr_assert_eq(posix_memalign((void **)&part, 64, n + 1), 0);
        memcpy(part, message, n);
        r = duck_rig_ask_bytes(&b.rig, part, n);
        cr_assert_eq(r->result_case, DK__DATA_REPLY__RESULT_ERROR);
        cr_assert_eq(r->error->code, n < 64 ? DK__CODE__DATA_LOSS : DK__CODE__INVALID_ARGUMENT, "%zu bytes: %s", n,
                     r->error->text);
        free(part);
    }
    for (int byte = 0; byte < 4; byte++) { /* another length of the header */
        message[byte] ^= 0x80;
        cr_assert_eq(duck_rig_ask_bytes(&b.rig, message, bytes)->result_case, DK__DATA_REPLY__RESULT_ERROR);
        message[byte] ^= 0x80;
    }
    free(message);
    q.data.op_case = DK__DATA_REQUEST__OP__NOT_SET;
    refuse_check(&b, duck_rig_ask(&b.rig, &q.data.base, NULL, 0), DK__CODE__UNIMPLEMENTED, "kind");
    refuse_check_unchanged(&b);
    refuse_close(&b);
}

/* The header need not be padded as ours is: the rows would then lie where no float may. */
Test(duck_refuse, rows_at_an_odd_address)
{
    struct refuse_bench b;

    refuse_open(&b);
    for (int moe = 0; moe < 2; moe++) {
        size_t rows = (ROWS * HIDDEN + (moe ? 2 * ROWS * TOP_K : 0)) * sizeof(float), header;
        uint8_t *message = NULL;
        struct request q;

        request_forward(&q, moe ? &b.moe : &b.dense, moe, EPOCH, moe ? MOE_LAYER : DENSE_LAYER, ROWS, TOP_K);
        header = protobuf_c_message_get_packed_size(&q.data.base);
        cr_assert_eq(posix_memalign((void **)&message, 64, 4 + header + 8 + rows), 0);
        for (size_t pad = 2; pad <= 8; pad++) {
            const Dk__DataReply *r;

            memcpy(message, (uint32_t[]){(uint32_t)(header + pad)}, 4);
            protobuf_c_message_pack(&q.data.base, message + 4);
            memset(message + 4 + header, 0, pad);
            message[4 + header] = 15 << 3 | 2; /* an unknown field, as dk_data_pack does */
            message[4 + header + 1] = (uint8_t)(pad - 2);
            memcpy(message + 4 + header + pad, b.x, rows);
            r = duck_rig_ask_bytes(&b.rig, message, 4 + header + pad + rows);
            if ((4 + header + pad) % 4) {
                refuse_check(&b, r, DK__CODE__DATA_LOSS, "aligned");
            } else {
                cr_assert_eq(r->result_case, DK__DATA_REPLY__RESULT_FORWARD);
                cr_assert_eq(memcmp(b.bits[moe], b.rig.answer.payload, sizeof b.bits[moe]), 0);
            }
        }
        free(message);
    }
    refuse_close(&b);
}

/* ---- forwards */

Test(duck_refuse, every_field_of_a_forward)
{
    struct refuse_bench b;

    refuse_open(&b);
    for (int moe = 0; moe < 2; moe++)
        for (int wrong = 0; wrong < 13; wrong++) {
            size_t bytes = (ROWS * HIDDEN + (moe ? 2 * ROWS * TOP_K : 0)) * sizeof(float);
            Dk__Code code = DK__CODE__INVALID_ARGUMENT;
            const char *part = moe ? "moe_forward" : "mlp_forward";
            struct request q;

            request_forward(&q, moe ? &b.moe : &b.dense, moe, EPOCH, moe ? MOE_LAYER : DENSE_LAYER, ROWS, TOP_K);
            switch (wrong) {
            case 0:
                q.data.plan_epoch--;
                code = DK__CODE__FAILED_PRECONDITION;
                part = "epoch 6";
                break;
            case 1:
                q.data.plan_epoch++;
                code = DK__CODE__FAILED_PRECONDITION;
                part = "epoch 8";
                break;
            case 2:
                q.data.model_id++;
                code = DK__CODE__FAILED_PRECONDITION;
                part = "model";
                break;
            case 3:
                q.mlp_forward.layer = q.moe_forward.layer = 4;
                code = DK__CODE__NOT_FOUND;
                part = "layer 4";
                break;
            case 4:
                q.mlp_forward.layer = q.moe_forward.layer = UINT32_MAX;
                code = DK__CODE__NOT_FOUND;
                part = "layer";
                break;
            case 5:
                q.mlp_forward.layer = q.moe_forward.layer = moe ? DENSE_LAYER : MOE_LAYER;
                part = moe ? "is dense" : "is a mixture";
                break;
            case 6:
                q.mlp_forward.rows = q.moe_forward.rows = 0;
                break;
            case 7:
                q.mlp_forward.rows = q.moe_forward.rows = ROWS + 1;
                break;
            case 8:
                q.mlp_forward.rows = q.moe_forward.rows = UINT32_MAX;
                break;
            case 9:
                q.mlp_forward.hidden_size = q.moe_forward.hidden_size = HIDDEN / 2;
                break;
            case 10:
                bytes -= 4;
                break;
            case 11:
                bytes = 0;
                break;
            default:
                bytes -= 1;
                break;
            }
            refuse_check(&b, duck_rig_ask(&b.rig, &q.data.base, b.x, bytes), code, part);
            refuse_check_unchanged(&b);
        }
    refuse_close(&b);
}

Test(duck_refuse, routing_that_cannot_be)
{
    static const struct {
        int32_t ids[ROWS * TOP_K];
        float weights[ROWS * TOP_K];
        const char *part;
    } cases[] = {
        {{0, EXPERTS, 1, 2}, {1, 1, 1, 1}, "row 0: expert 4 of 4"},
        {{0, 1, -1, 2}, {1, 1, 1, 1}, "row 1: expert -1"},
        {{INT32_MIN, 1, 1, 2}, {1, 1, 1, 1}, "row 0: expert"},
        {{0, 1, INT32_MAX, 2}, {1, 1, 1, 1}, "row 1: expert"},
        {{0, 1, 2, 2}, {1, 1, 1, 1}, "row 1: expert 2 twice"},
        {{0, 1, 2, 3}, {1, NAN, 1, 1}, "row 0: weight of expert 1"},
        {{0, 1, 2, 3}, {1, 1, 1, INFINITY}, "row 1: weight of expert 3"},
        {{0, 1, 2, 3}, {1, 1, -INFINITY, 1}, "row 1: weight of expert 2"},
    };
    static const uint32_t activated[] = {0, 1, 3, EXPERTS + 1, 65, UINT32_MAX};
    struct refuse_bench b;

    refuse_open(&b);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        refuse_set_routing(&b, cases[i].ids, cases[i].weights);
        refuse_check(&b, refuse_ask_forward(&b, true), DK__CODE__INVALID_ARGUMENT, cases[i].part);
        refuse_set_routing(&b, refuse_good_ids, refuse_good_weights);
        refuse_check_unchanged(&b);
    }
    for (size_t i = 0; i < sizeof activated / sizeof *activated; i++) {
        struct request q;

        request_forward(&q, &b.moe, true, EPOCH, MOE_LAYER, ROWS, activated[i]);
        refuse_check(&b, duck_rig_ask(&b.rig, &q.data.base, b.x, sizeof b.x), DK__CODE__INVALID_ARGUMENT,
                     "moe_forward");
        refuse_check_unchanged(&b);
    }
    refuse_close(&b);
}

Test(duck_refuse, an_answer_that_would_be_too_long)
{
    enum { MANY = 2000 };
    struct refuse_bench b;
    struct request q;
    float *x = calloc((size_t)MANY * HIDDEN, sizeof *x);

    refuse_open(&b); /* answers of at most 1 MiB */
    request_forward(&q, &b.dense, false, EPOCH, DENSE_LAYER, MANY, 0);
    refuse_check(&b, duck_rig_ask(&b.rig, &q.data.base, x, (size_t)MANY * HIDDEN * sizeof *x),
                 DK__CODE__INVALID_ARGUMENT, "2000 rows");
    refuse_check_unchanged(&b);
    free(x);
    refuse_close(&b);
}

/* ---- plans */

Test(duck_refuse, nothing_before_it_is_complete)
{
    struct ffn_source s;
    struct duck_rig rig;
    struct request q;
    struct refuse_bench b = {.x = {0}};
    const Dk__DataReply *r;

    duck_rig_open(&b.rig, 0);
    ffn_source_make(&s, DK_F8_E4M3, HIDDEN, WIDTH, EXPERTS, 1);
    refuse_set_routing(&b, refuse_good_ids, refuse_good_weights);
    request_forward(&q, &s, true, EPOCH, 0, ROWS, TOP_K);
    refuse_check(&b, duck_rig_ask(&b.rig, &q.data.base, b.x, sizeof b.x), DK__CODE__FAILED_PRECONDITION, "epoch");
    request_init(&q, &s, true, EPOCH, 0, 0, WIDTH, 0, WIDTH, 0, EXPERTS - 1);
    cr_assert_not(duck_rig_init(&b.rig, &q, &s)->init->complete);
    request_init(&q, &s, true, EPOCH, 0, 0, WIDTH, 0, 320, EXPERTS - 1, EXPERTS);
    cr_assert_not(duck_rig_init(&b.rig, &q, &s)->init->complete);
    request_forward(&q, &s, true, EPOCH, 0, ROWS, TOP_K);
    refuse_check(&b, duck_rig_ask(&b.rig, &q.data.base, b.x, sizeof b.x), DK__CODE__NOT_FOUND, "43 of 44");
    cr_assert_eq(b.rig.duck.shards.layers_complete, 0);
    request_init(&q, &s, true, EPOCH, 0, 0, WIDTH, 320, WIDTH, EXPERTS - 1, EXPERTS);
    cr_assert(duck_rig_init(&b.rig, &q, &s)->init->complete);
    request_forward(&q, &s, true, EPOCH, 0, ROWS, TOP_K);
    r = duck_rig_ask(&b.rig, &q.data.base, b.x, sizeof b.x);
    cr_assert_eq(r->result_case, DK__DATA_REPLY__RESULT_FORWARD);
    ffn_source_free(&s);
    rig = b.rig;
    duck_rig_close(&rig);
}

Test(duck_refuse, a_newer_epoch_drops_what_was_held)
{
    struct ffn_source other;
    struct refuse_bench b;
    struct request q;
    uint64_t bytes;

    refuse_open(&b);
    bytes = b.rig.duck.shards.bytes;
    ffn_source_make(&other, DK_F32, HIDDEN, 64, 1, 9);
    request_init(&q, &other, false, EPOCH + 1, DENSE_LAYER, 0, 64, 0, 64, 0, 1);
    q.data.model_id = 1; /* another model in the new epoch is fine, and another shape */
    cr_assert(duck_rig_init(&b.rig, &q, &other)->init->complete);
    cr_assert_eq(b.rig.duck.shards.plan_epoch, EPOCH + 1);
    cr_assert_eq(b.rig.duck.shards.layers_complete, 1);
    cr_assert_lt(b.rig.duck.shards.bytes, bytes);
    refuse_check(&b, refuse_ask_forward(&b, false), DK__CODE__FAILED_PRECONDITION, "serves 8");
    refuse_check(&b, refuse_ask_forward(&b, true), DK__CODE__FAILED_PRECONDITION, "serves 8");
    request_forward(&q, &b.moe, true, EPOCH + 1, MOE_LAYER, ROWS, TOP_K);
    q.data.model_id = 1;
    refuse_check(&b, duck_rig_ask(&b.rig, &q.data.base, b.x, sizeof b.x), DK__CODE__NOT_FOUND, "not held");
    request_init(&q, &b.dense, false, EPOCH, DENSE_LAYER, BEGIN, END, 0, END - BEGIN, 0, 1);
    refuse_check(&b, duck_rig_init(&b.rig, &q, &b.dense), DK__CODE__FAILED_PRECONDITION, "serves 8");
    ffn_source_free(&other);
    refuse_close(&b);
}

/* ---- damaged weights */

Test(duck_refuse, damaged_weights_name_their_place)
{
    static const char *const parts[] = {"gate", "up", "down"};

    for (int part = 0; part < 3; part++)
        for (int how = 0; how < 3; how++) {
            struct refuse_bench b;
            struct request q;
            const Dk__DataReply *r;

            refuse_open(&b);
            /* The piece is [64, 96) of the slice: rows 96 to 127 of the whole. */
            if (how == 0)
                *ffn_source_at(&b.moe, 2, part, part == 2 ? 10 : 100, part == 2 ? 100 : 10) = 0xff;
            else
                *ffn_source_scale(&b.moe, 2, part, 0, 0) = how == 1 ? NAN : -1;
            /* The rest of the piece differs from what is held: nobody may compute with a mixture of both. */
            *ffn_source_at(&b.moe, 2, 0, 96, 0) ^= 1;
            request_init(&q, &b.moe, true, EPOCH, MOE_LAYER, BEGIN, END, 64, 96, 1, 3);
            r = duck_rig_init(&b.rig, &q, &b.moe);
            refuse_check(&b, r, DK__CODE__INVALID_ARGUMENT, "layer 5 expert 2");
            cr_assert(strstr(r->error->text, parts[part]), "%s", r->error->text);
            refuse_check(&b, refuse_ask_forward(&b, true), DK__CODE__NOT_FOUND, "not complete");
            cr_assert_eq(b.rig.duck.shards.layers_complete, 1);
            cr_assert_eq(refuse_ask_forward(&b, false)->result_case, DK__DATA_REPLY__RESULT_FORWARD);

            ffn_source_free(&b.moe); /* the right piece heals it */
            ffn_source_make(&b.moe, DK_F8_E4M3, HIDDEN, WIDTH, EXPERTS, 2);
            request_init(&q, &b.moe, true, EPOCH, MOE_LAYER, BEGIN, END, 64, 96, 2, 3);
            cr_assert(duck_rig_init(&b.rig, &q, &b.moe)->init->complete);
            refuse_check_unchanged(&b);
            refuse_close(&b);
        }
}

/* ---- memory */

Test(duck_refuse, no_memory_beyond_the_reserve)
{
    struct ffn_source s;
    struct refuse_bench b = {.x = {0}};
    const Dk__DataReply *r;
    struct request q;

    duck_rig_open(&b.rig, (uint64_t)1 << 60);
    ffn_source_make(&s, DK_BF16, HIDDEN, WIDTH, 1, 1);
    request_init(&q, &s, false, EPOCH, 0, 0, WIDTH, 0, WIDTH, 0, 1);
    r = duck_rig_init(&b.rig, &q, &s);
    refuse_check(&b, r, DK__CODE__RESOURCE_EXHAUSTED, "use more ducks");
    cr_assert(strstr(r->error->text, "MiB") && strstr(r->error->text, "layer 0"), "%s", r->error->text);
    cr_assert_eq(b.rig.duck.shards.bytes, 0);
    b.rig.duck.shards.reserve_bytes = UINT64_MAX; /* sums must not wrap */
    refuse_check(&b, duck_rig_init(&b.rig, &q, &s), DK__CODE__RESOURCE_EXHAUSTED, "use more ducks");
    b.rig.duck.shards.reserve_bytes = 0;
    cr_assert(duck_rig_init(&b.rig, &q, &s)->init->complete);
    ffn_source_free(&s);
    duck_rig_close(&b.rig);
}

/* Packing rounds up to panels: a narrow layer of many experts needs far more than its weights, and is refused before
 * the memory is taken. */
Test(duck_refuse, padding_counts_as_memory)
{
    enum { NARROW = 1, LONG = 1 << 20 };
    struct ffn_source s = {.type = DK_BF16, .hidden = NARROW, .width = LONG, .experts = 1024};
    uint8_t payload[3 * 32 * NARROW * 2] = {0};
    struct refuse_bench b = {.x = {0}};
    struct request q;

    duck_rig_open(&b.rig, 0);
    /* 6 GiB of weights, 132 GiB packed. */
    request_init(&q, &s, true, EPOCH, 0, 0, LONG, 0, 32, 0, 1);
    b.rig.duck.shards.reserve_bytes = dk_ram_free_bytes() > ((uint64_t)12 << 30)
                                          ? dk_ram_free_bytes() - ((uint64_t)12 << 30)
                                          : 0;
    refuse_check(&b, duck_rig_ask(&b.rig, &q.data.base, payload, sizeof payload), DK__CODE__RESOURCE_EXHAUSTED,
                 "use more ducks");
    cr_assert_eq(b.rig.duck.shards.bytes, 0);
    duck_rig_close(&b.rig);
}
