/* SPDX-License-Identifier: Apache-2.0 */
/* Received data-plane messages: every input is read as each of the two kinds; what is accepted must pack again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "wire/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void one(const ProtobufCMessageDescriptor *type, const uint8_t *data, size_t size, size_t arena_size)
{
    const uint8_t *payload;
    ProtobufCMessage *m;
    struct dk_arena a;
    size_t bytes;

    if (dk_arena_init(&a, arena_size) < 0)
        return;
    if (dk_data_unpack(type, data, size, &a, &m, &payload, &bytes) == 0) {
        uint8_t out[DK_DATA_HEADER_MAX];
        uint64_t sum = 0;
        int n;

        if (payload < data || payload + bytes != data + size || !protobuf_c_message_check(m))
            abort();
        for (size_t i = 0; i < bytes; i++)
            sum += payload[i];
        n = dk_data_pack(m, out, sizeof out);
        if ((n < 0 && n != -ENOBUFS) || (n > 0 && n % 64) || sum > 255 * (uint64_t)bytes)
            abort();
    }
    dk_arena_fini(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);

    if (!copy)
        return 0;
    if (size)
        memcpy(copy, data, size);
    one(&dk__data_request__descriptor, copy, size, 65536);
    one(&dk__data_reply__descriptor, copy, size, 65536);
    one(&dk__data_request__descriptor, copy, size, size % 512); /* a full arena */
    free(copy);
    return 0;
}
