/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a request to a duck that holds a dense layer and a mixture of experts. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/log.h"
#include "duck-firmware/dispatch.h"
#include "duck_messages.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define ROOM_BYTES ((uint64_t)32 << 20) /* that a request may make the duck take */

static void quiet(void *ctx, enum dk_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    (void)line;
}

static uint64_t still_clock(void)
{
    return 0;
}

#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                \
        }                                                                           \
    } while (0)

/* Asks with a copy in a block of exactly its size, aligned as the transport's messages are. */
static const Dk__DataReply *ask(struct duck *d, const uint8_t *data, size_t size, size_t *payload_bytes)
{
    static uint8_t block[65536];
    static struct duck_answer a;
    struct dk_arena arena = {block, sizeof block, 0};
    const uint8_t *rest;
    ProtobufCMessage *m;
    void *copy = NULL;
    size_t rest_bytes;

    CHECK(posix_memalign(&copy, 64, size ? size : 1) == 0);
    if (size)
        memcpy(copy, data, size);
    duck_handle(d, copy, size, &a);
    free(copy);
    CHECK(a.header_bytes > 0 &&
          dk_data_unpack(&dk__data_reply__descriptor, a.header, a.header_bytes, &arena, &m, &rest, &rest_bytes) == 0 &&
          rest_bytes == 0);
    *payload_bytes = a.payload_bytes;
    for (size_t i = 0; i < a.payload_bytes; i += 61) /* is really there */
        ((volatile const uint8_t *)a.payload)[i];
    return (const Dk__DataReply *)m;
}

static void feed(struct duck *d)
{
    static uint8_t message[DUCK_MESSAGES_BYTES_MAX];
    size_t payload_bytes;

    for (int moe = 0; moe < 2; moe++) {
        size_t n = duck_message_init(message, moe, DUCK_MESSAGES_EPOCH, 0, DUCK_MESSAGES_END - DUCK_MESSAGES_BEGIN, 0,
                                     DUCK_MESSAGES_EXPERTS);
        const Dk__DataReply *r = ask(d, message, n, &payload_bytes);

        CHECK(r->result_case == DK__DATA_REPLY__RESULT_INIT && r->init->complete);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct duck duck;
    static struct dk_exec *exec;
    const Dk__DataReply *r;
    size_t payload_bytes;
    uint64_t available;

    if (!exec) {
        dk_log_setup(quiet, NULL, DK_LOG_ERROR, "fuzz");
        CHECK(dk_exec_open(1, false, &exec) == 0);
        CHECK(duck_open(&duck, dk_kernels_get(dk_isa_best()), exec, still_clock, 1 << 20, 0) == 0);
    }
    if (duck.shards.plan_epoch != DUCK_MESSAGES_EPOCH || duck.shards.layers_complete != 2 ||
        duck.shards.bytes > 1 << 20) {
        duck_shards_drop(&duck.shards); /* an earlier input was a good init */
        duck.shards.reserve_bytes = 0;
        feed(&duck);
    }
    available = dk_ram_free_bytes();
    duck.shards.reserve_bytes = available > ROOM_BYTES ? available - ROOM_BYTES : 0;
    r = ask(&duck, data, size, &payload_bytes);
    switch (r->result_case) {
    case DK__DATA_REPLY__RESULT_ERROR:
        CHECK(r->error->code != DK__CODE__OK && r->error->text && *r->error->text && payload_bytes == 0);
        break;
    case DK__DATA_REPLY__RESULT_INIT:
        CHECK(payload_bytes == 0);
        break;
    case DK__DATA_REPLY__RESULT_FORWARD:
        CHECK(payload_bytes == (size_t)r->forward->rows * r->forward->hidden_size * sizeof(float) && payload_bytes > 0);
        break;
    default:
        abort();
    }
    return 0;
}
