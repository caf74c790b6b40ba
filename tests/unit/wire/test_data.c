/* SPDX-License-Identifier: Apache-2.0 */
/* Data-plane messages: alignment of the payload, limits, and damage at every byte. Received bytes always lie in a heap
 * block of exactly their length, so that a sanitizer sees each byte read too many. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "wire/wire.h"

static void forward_request(Dk__DataRequest *q, Dk__MoeForwardRequest *f, uint64_t epoch)
{
    *q = (Dk__DataRequest)DK__DATA_REQUEST__INIT;
    *f = (Dk__MoeForwardRequest)DK__MOE_FORWARD_REQUEST__INIT;
    f->layer = 3;
    f->rows = 7;
    f->hidden_size = 2048;
    f->num_activated = 8;
    q->plan_epoch = epoch;
    q->model_id = 0xfedcba9876543210u;
    q->op_case = DK__DATA_REQUEST__OP_MOE_FORWARD;
    q->moe_forward = f;
}

static int unpack_copy(const ProtobufCMessageDescriptor *type, const uint8_t *data, size_t bytes, struct dk_arena *a,
                       size_t *payload_offset, size_t *payload_bytes, ProtobufCMessage **m)
{
    uint8_t *copy = malloc(bytes ? bytes : 1);
    const uint8_t *payload = NULL;
    int rc;

    memcpy(copy, data, bytes);
    rc = dk_data_unpack(type, copy, bytes, a, m, &payload, payload_bytes);
    if (rc == 0) {
        cr_assert_leq((size_t)(payload - copy) + *payload_bytes, bytes);
        *payload_offset = (size_t)(payload - copy);
    }
    free(copy);
    return rc;
}

Test(data, header_comes_back_and_payload_is_aligned)
{
    struct dk_arena a;

    cr_assert_eq(dk_arena_init(&a, 4096), 0);
    for (unsigned bit = 0; bit < 64; bit++) { /* headers of many lengths */
        Dk__DataRequest q;
        Dk__MoeForwardRequest f;
        uint8_t message[DK_DATA_HEADER_MAX + 100];
        ProtobufCMessage *m;
        size_t offset, payload_bytes;
        int n;

        forward_request(&q, &f, 1ull << bit);
        f.rows = (uint32_t)(1ull << (bit / 2));
        n = dk_data_pack(&q.base, message, sizeof message);
        cr_assert_gt(n, 0);
        cr_assert_eq(n % 64, 0);
        memset(message + n, 0xa5, 100);
        cr_assert_eq(
            unpack_copy(&dk__data_request__descriptor, message, (size_t)n + 100, &a, &offset, &payload_bytes, &m), 0);
        cr_assert_eq(offset, (size_t)n);
        cr_assert_eq(payload_bytes, 100);
        cr_assert_eq(((Dk__DataRequest *)m)->plan_epoch, 1ull << bit);
        cr_assert_eq(((Dk__DataRequest *)m)->model_id, 0xfedcba9876543210u);
        cr_assert_eq(((Dk__DataRequest *)m)->op_case, DK__DATA_REQUEST__OP_MOE_FORWARD);
        cr_assert_eq(((Dk__DataRequest *)m)->moe_forward->rows, f.rows);
        cr_assert_eq(((Dk__DataRequest *)m)->moe_forward->num_activated, 8);
    }
    dk_arena_fini(&a);
}

/* An error's text makes the header any length: padding of every size, 1 byte short of fitting included. */
Test(data, every_header_length_is_padded_or_refused)
{
    struct dk_arena a;
    size_t padded = 0, refused = 0;

    cr_assert_eq(dk_arena_init(&a, 8192), 0);
    for (size_t length = 0; length <= 1100; length++) {
        Dk__DataReply r = DK__DATA_REPLY__INIT;
        Dk__Status status = DK__STATUS__INIT;
        uint8_t *message = malloc(DK_DATA_HEADER_MAX);
        char text[1200] = "";
        ProtobufCMessage *m;
        size_t offset, payload_bytes;
        int n;

        memset(text, 'x', length);
        text[length] = 0;
        status.code = DK__CODE__DATA_LOSS;
        status.text = text;
        r.plan_epoch = 9;
        r.result_case = DK__DATA_REPLY__RESULT_ERROR;
        r.error = &status;
        n = dk_data_pack(&r.base, message, DK_DATA_HEADER_MAX);
        if (n > 0) {
            cr_assert_eq(n % 64, 0);
            cr_assert_eq(unpack_copy(&dk__data_reply__descriptor, message, (size_t)n, &a, &offset, &payload_bytes, &m),
                         0);
            cr_assert_eq(payload_bytes, 0);
            cr_assert_str_eq(((Dk__DataReply *)m)->error->text, text);
            padded++;
        } else {
            cr_assert_eq(n, -ENOBUFS);
            cr_assert_gt(length, sizeof(struct dk_err), "the longest error text fits");
            refused++;
        }
        free(message);
    }
    cr_assert_gt(padded, 900);
    cr_assert_gt(refused, 50);
    dk_arena_fini(&a);
}

Test(data, pack_needs_its_room)
{
    Dk__DataRequest q;
    Dk__MoeForwardRequest f;
    uint8_t message[128];
    int n;

    forward_request(&q, &f, 5);
    n = dk_data_pack(&q.base, message, sizeof message);
    cr_assert_eq(n, 64);
    for (size_t room = 0; room < 64; room++)
        cr_assert_eq(dk_data_pack(&q.base, message, room), -ENOBUFS);
    cr_assert_eq(dk_data_pack(&q.base, message, 64), 64);
}

Test(data, cut_messages_are_refused)
{
    Dk__DataRequest q;
    Dk__MoeForwardRequest f;
    uint8_t message[64];
    ProtobufCMessage *m;
    size_t offset, payload_bytes;
    struct dk_arena a;

    cr_assert_eq(dk_arena_init(&a, 4096), 0);
    forward_request(&q, &f, 5);
    cr_assert_eq(dk_data_pack(&q.base, message, sizeof message), 64);
    for (size_t bytes = 0; bytes < 64; bytes++)
        cr_assert_eq(unpack_copy(&dk__data_request__descriptor, message, bytes, &a, &offset, &payload_bytes, &m),
                     -EBADMSG);
    dk_arena_fini(&a);
}

Test(data, wrong_lengths_are_refused)
{
    static const uint32_t lengths[] = {61, 64, 1020, 1021, 0x7fffffff, 0x80000000, 0xfffffffc, 0xffffffff};
    Dk__DataRequest q;
    Dk__MoeForwardRequest f;
    uint8_t message[64];
    ProtobufCMessage *m;
    size_t offset, payload_bytes;
    struct dk_arena a;

    cr_assert_eq(dk_arena_init(&a, 4096), 0);
    forward_request(&q, &f, 5);
    cr_assert_eq(dk_data_pack(&q.base, message, sizeof message), 64);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        memcpy(message, &lengths[i], 4);
        cr_assert_eq(unpack_copy(&dk__data_request__descriptor, message, 64, &a, &offset, &payload_bytes, &m),
                     -EBADMSG);
    }
    /* A length within the message, but more than a header may have. */
    {
        uint8_t *large = calloc(1, 4096);
        uint32_t length = DK_DATA_HEADER_MAX - 4 + 1;

        memcpy(large, &length, 4);
        cr_assert_eq(unpack_copy(&dk__data_request__descriptor, large, 4096, &a, &offset, &payload_bytes, &m),
                     -EBADMSG);
        free(large);
    }
    dk_arena_fini(&a);
}

Test(data, missing_fields_and_unknown_enum_values_are_refused)
{
    static const uint8_t no_epoch[] = {9, 0, 0, 0, 0x11, 1, 2, 3, 4, 5, 6, 7, 8};
    Dk__DataRequest q = DK__DATA_REQUEST__INIT;
    Dk__MlpInitRequest init = DK__MLP_INIT_REQUEST__INIT;
    Dk__SliceShape shape = DK__SLICE_SHAPE__INIT;
    uint8_t message[128];
    ProtobufCMessage *m;
    size_t offset, payload_bytes;
    struct dk_arena a;
    int n;

    cr_assert_eq(dk_arena_init(&a, 4096), 0);
    cr_assert_eq(unpack_copy(&dk__data_request__descriptor, no_epoch, sizeof no_epoch, &a, &offset, &payload_bytes, &m),
                 -EBADMSG);
    init.shape = &shape;
    q.op_case = DK__DATA_REQUEST__OP_MLP_INIT;
    q.mlp_init = &init;
    shape.type = DK__WEIGHT_TYPE__BF16;
    n = dk_data_pack(&q.base, message, sizeof message);
    cr_assert_eq(unpack_copy(&dk__data_request__descriptor, message, (size_t)n, &a, &offset, &payload_bytes, &m), 0);
    shape.type = (Dk__WeightType)77;
    n = dk_data_pack(&q.base, message, sizeof message);
    cr_assert_eq(unpack_copy(&dk__data_request__descriptor, message, (size_t)n, &a, &offset, &payload_bytes, &m),
                 -EBADMSG);
    dk_arena_fini(&a);
}

Test(data, small_arena_is_no_memory)
{
    Dk__DataRequest q;
    Dk__MoeForwardRequest f;
    uint8_t message[64];
    ProtobufCMessage *m;
    size_t offset, payload_bytes, size = 0;
    int rc;

    forward_request(&q, &f, 5);
    cr_assert_eq(dk_data_pack(&q.base, message, sizeof message), 64);
    do {
        struct dk_arena a;

        cr_assert_eq(dk_arena_init(&a, size), 0);
        rc = unpack_copy(&dk__data_request__descriptor, message, 64, &a, &offset, &payload_bytes, &m);
        cr_assert(rc == 0 || rc == -ENOMEM, "%d", rc);
        dk_arena_fini(&a);
        size += 8;
    } while (rc != 0 && size < 4096);
    cr_assert_eq(rc, 0);
    cr_assert_gt(size, sizeof q);
}

/* Any one bit changed: an error or a message, never more. */
Test(data, each_flipped_bit_is_survived)
{
    Dk__DataRequest q;
    Dk__MoeForwardRequest f;
    uint8_t message[80];
    ProtobufCMessage *m;
    size_t offset, payload_bytes;
    struct dk_arena a;
    unsigned refused = 0;

    cr_assert_eq(dk_arena_init(&a, 65536), 0);
    forward_request(&q, &f, 5);
    cr_assert_eq(dk_data_pack(&q.base, message, sizeof message), 64);
    memset(message + 64, 0xff, 16);
    for (unsigned bit = 0; bit < 80 * 8; bit++) {
        int rc;

        message[bit / 8] ^= (uint8_t)(1u << bit % 8);
        rc = unpack_copy(&dk__data_request__descriptor, message, sizeof message, &a, &offset, &payload_bytes, &m);
        cr_assert(rc == 0 || rc == -EBADMSG, "bit %u: %d", bit, rc);
        refused += rc != 0;
        message[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    cr_assert_gt(refused, 30);
    dk_arena_fini(&a);
}
