/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_CONTROL_CONNECTION_H
#define DK_CONTROL_CONNECTION_H

#include "control_frame.h"

/* One accepted connection of control_server.c. The reading half belongs to the server's thread; the writing half
 * (`first_out`, `broken`) and `held` are guarded by the server's lock. */

struct outgoing; /* the rest of a reply that the kernel did not take at once */

struct connection {
    int fd; /* -1: closed, and only kept for the requests that name it */
    uint64_t since_us;
    struct frame_reader reader;
    struct frame_request waiting; /* body not NULL: a complete request, for which no slot is free */
    uint64_t waiting_since;       /* the order in which they came */
    struct outgoing *first_out, *last_out;
    bool broken;   /* a write failed: the server's thread will close it */
    uint32_t held; /* requests that wait for their replies and came this way */
};

/* Takes fd, which does not block. NULL: no memory, and fd is closed. Sends the greeting. */
struct connection *connection_new(int fd, bool ipc, uint64_t now_us);
void connection_shut(struct connection *c); /* closes; what was to be sent is dropped */
void connection_free(struct connection *c); /* after connection_shut */

/* Takes bytes in until a request is complete (1: it is in *out), nothing more is there or it is another
 * connection's turn (0), or the connection has
 * ended or must end (a negative errno). */
int connection_read(struct connection *c, struct frame_request *out);
/* Sends a reply or queues what does not fit now. Copies. */
void connection_send(struct connection *c, const uint8_t *trace, size_t trace_bytes, const uint8_t *data, size_t bytes);
/* Sends of the queue what fits. */
void connection_flush(struct connection *c);

#endif
