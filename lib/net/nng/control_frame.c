/* SPDX-License-Identifier: Apache-2.0 */
#include "control_frame.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "net/net.h"

#define BODY_MAX  (DK_CONTROL_BYTES_MAX + FRAME_TRACE_MAX)
#define BODY_STEP (64u << 10)

/* Zero, "SP", version 0, the type of the sender's socket (REQ 0x30, REP 0x31), two reserved bytes. */
const uint8_t frame_greeting[FRAME_GREETING_BYTES] = {0, 'S', 'P', 0, 0, 0x31, 0, 0};
static const uint8_t client_greeting[FRAME_GREETING_BYTES] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};

void frame_reader_init(struct frame_reader *r, bool ipc)
{
    memset(r, 0, sizeof *r);
    r->ipc = ipc;
}

void frame_reader_fini(struct frame_reader *r)
{
    free(r->body);
    r->body = NULL;
}

static size_t head_bytes(const struct frame_reader *r)
{
    return r->greeted && r->ipc ? 9 : 8;
}

int frame_reader_room(struct frame_reader *r, uint8_t **at, size_t *room)
{
    if (r->head_have < head_bytes(r)) {
        *at = r->head + r->head_have;
        *room = head_bytes(r) - r->head_have;
        return 0;
    }
    if (r->body_have == r->body_room) {
        size_t next = r->body_room ? 2 * r->body_room : BODY_STEP;
        uint8_t *body;

        if (next > r->body_bytes)
            next = r->body_bytes;
        body = realloc(r->body, next);
        if (!body)
            return -ENOMEM;
        r->body = body;
        r->body_room = next;
    }
    *at = r->body + r->body_have;
    *room = r->body_room - r->body_have;
    return 0;
}

/* The head is complete: a greeting, or the length of the body that comes. */
static int head_took(struct frame_reader *r)
{
    const uint8_t *p = r->head;
    uint64_t bytes = 0;

    if (!r->greeted) {
        if (memcmp(r->head, client_greeting, FRAME_GREETING_BYTES))
            return -EPROTO;
        r->greeted = true;
        r->head_have = 0;
        return 0;
    }
    if (r->ipc && *p++ != 1)
        return -EPROTO;
    for (int i = 0; i < 8; i++)
        bytes = bytes << 8 | p[i];
    if (bytes > BODY_MAX)
        return -EMSGSIZE;
    if (bytes < 4)
        return -EPROTO;
    r->body_bytes = bytes;
    return 0;
}

static int body_took(struct frame_reader *r, struct frame_request *out)
{
    size_t trace = 0;

    do {
        if (trace == FRAME_TRACE_MAX || r->body_bytes - trace < 4)
            return -EPROTO;
        trace += 4;
    } while (!(r->body[trace - 4] & 0x80));
    out->body = r->body;
    out->trace_bytes = trace;
    out->bytes = r->body_bytes;
    r->body = NULL;
    r->body_bytes = r->body_have = r->body_room = 0;
    r->head_have = 0;
    return 1;
}

int frame_reader_took(struct frame_reader *r, size_t bytes, struct frame_request *out)
{
    if (r->head_have < head_bytes(r)) {
        assert(bytes <= head_bytes(r) - r->head_have);
        r->head_have += bytes;
        return r->head_have == head_bytes(r) ? head_took(r) : 0;
    }
    assert(bytes <= r->body_room - r->body_have);
    r->body_have += bytes;
    return r->body_have == r->body_bytes ? body_took(r, out) : 0;
}

size_t frame_head(bool ipc, uint64_t bytes, uint8_t head[FRAME_HEAD_MAX])
{
    uint8_t *p = head;

    if (ipc)
        *p++ = 1;
    for (int i = 0; i < 8; i++)
        *p++ = (uint8_t)(bytes >> (56 - 8 * i));
    return (size_t)(p - head);
}
