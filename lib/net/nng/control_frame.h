/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_CONTROL_FRAME_H
#define DK_CONTROL_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The bytes of one connection of the scalability protocols (SP), as a server of requests reads and writes them: pure,
 * no sockets. Each side first sends a greeting of 8 bytes. Then come messages: over ipc the byte 1, everywhere the
 * length in 8 bytes, most significant first, and the body. A request's body starts with its trace: words of 4 bytes,
 * the last of which has its top bit set; the reply starts with the same trace, by which the client finds the call.
 * (RFC drafts of SP: sp-tcp-mapping-01, sp-ipc-mapping, sp-request-reply-01.) */

enum {
    FRAME_GREETING_BYTES = 8,
    FRAME_HEAD_MAX = 9,      /* of a message: what stands before its body */
    FRAME_TRACE_MAX = 4 * 8, /* one word for the client and seven for devices between, as in NNG */
};

extern const uint8_t frame_greeting[FRAME_GREETING_BYTES]; /* the server's own */

struct frame_request {
    uint8_t *body;      /* from malloc: the trace, then the data */
    size_t trace_bytes; /* 4..FRAME_TRACE_MAX */
    size_t bytes;       /* all of the body */
};

struct frame_reader {
    bool ipc;
    bool greeted; /* the peer's greeting came and was good */
    uint8_t head[FRAME_HEAD_MAX];
    size_t head_have;
    uint8_t *body; /* [body_room], grown as bytes arrive: a length alone takes no memory */
    size_t body_bytes, body_have, body_room;
};

void frame_reader_init(struct frame_reader *r, bool ipc);
void frame_reader_fini(struct frame_reader *r); /* fine on a zeroed one */

/* Where the next bytes of the stream must be put, at most *room of them, which is never 0. -ENOMEM. */
int frame_reader_room(struct frame_reader *r, uint8_t **at, size_t *room);

/* So many bytes were put there. 1: a request is complete and is in *out, which is the caller's; 0: more is needed;
 * -EPROTO: these are no bytes of a client of ours; -EMSGSIZE: a longer message than there may be. */
int frame_reader_took(struct frame_reader *r, size_t bytes, struct frame_request *out);

/* Writes what stands before a body of so many bytes; returns its length. */
size_t frame_head(bool ipc, uint64_t bytes, uint8_t head[FRAME_HEAD_MAX]);

#endif
