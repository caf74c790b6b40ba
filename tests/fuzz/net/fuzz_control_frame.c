/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of a client of the control plane, in pieces: the first byte chooses ipc or tcp and the longest piece. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "net_nng/control_frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct frame_reader reader;
    size_t most, read = 0, requests_bytes = 0;
    uint8_t *copy;
    int rc = 0;

    if (size == 0)
        return 0;
    most = 1 + (data[0] >> 1);
    frame_reader_init(&reader, data[0] & 1);
    size--;
    copy = malloc(size + 1);
    memcpy(copy, data + 1, size);
    while (read < size && rc >= 0) {
        struct frame_request request;
        uint8_t *at;
        size_t room, bytes = size - read < most ? size - read : most;

        rc = frame_reader_room(&reader, &at, &room);
        assert(rc == 0 && room > 0);
        assert(reader.body_room <= 2 * reader.body_have + (64u << 10)); /* a length alone takes no memory */
        bytes = bytes < room ? bytes : room;
        memcpy(at, copy + read, bytes);
        read += bytes;
        rc = frame_reader_took(&reader, bytes, &request);
        assert(rc == 0 || rc == 1 || rc == -EPROTO || rc == -EMSGSIZE);
        if (rc != 1)
            continue;
        assert(request.trace_bytes >= 4 && request.trace_bytes <= FRAME_TRACE_MAX && request.trace_bytes % 4 == 0);
        assert(request.trace_bytes <= request.bytes);
        assert(request.body[request.trace_bytes - 4] & 0x80);
        requests_bytes += request.bytes;
        assert(requests_bytes <= read);
        assert(!memcmp(request.body, copy + read - request.bytes, request.bytes));
        free(request.body);
    }
    frame_reader_fini(&reader);
    free(copy);
    return 0;
}
