/* SPDX-License-Identifier: Apache-2.0 */
#include "control_connection.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define READS_MAX 64 /* then the other connections have their turn */

struct outgoing {
    struct outgoing *next;
    size_t bytes, sent;
    uint8_t data[];
};

struct connection *connection_new(int fd, bool ipc, uint64_t now_us)
{
    struct connection *c = calloc(1, sizeof *c);
    int one = 1;

    if (!c) {
        close(fd);
        return NULL;
    }
    c->fd = fd;
    c->since_us = now_us;
    frame_reader_init(&c->reader, ipc);
    if (!ipc) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    }
    /* The buffer of a fresh socket holds it, or the peer has left already. */
    if (send(fd, frame_greeting, FRAME_GREETING_BYTES, MSG_NOSIGNAL) != FRAME_GREETING_BYTES)
        c->broken = true;
    return c;
}

void connection_shut(struct connection *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    frame_reader_fini(&c->reader);
    free(c->waiting.body);
    c->waiting.body = NULL;
    while (c->first_out) {
        struct outgoing *o = c->first_out;

        c->first_out = o->next;
        free(o);
    }
    c->last_out = NULL;
}

void connection_free(struct connection *c)
{
    free(c);
}

int connection_read(struct connection *c, struct frame_request *out)
{
    for (int i = 0; i < READS_MAX; i++) {
        uint8_t *at;
        size_t room;
        ssize_t n;
        int rc;

        rc = frame_reader_room(&c->reader, &at, &room);
        if (rc < 0)
            return rc;
        n = recv(c->fd, at, room, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -errno;
        if (n == 0)
            return -EPIPE;
        rc = frame_reader_took(&c->reader, (size_t)n, out);
        if (rc)
            return rc;
    }
    return 0;
}

void connection_send(struct connection *c, const uint8_t *trace, size_t trace_bytes, const uint8_t *data, size_t bytes)
{
    uint8_t head[FRAME_HEAD_MAX + FRAME_TRACE_MAX];
    size_t head_bytes = frame_head(c->reader.ipc, trace_bytes + bytes, head), sent = 0;
    struct outgoing *o;

    if (c->broken)
        return;
    memcpy(head + head_bytes, trace, trace_bytes);
    head_bytes += trace_bytes;
    if (!c->first_out) {
        struct iovec parts[2] = {{head, head_bytes}, {(void *)(uintptr_t)data, bytes}};
        struct msghdr msg = {.msg_iov = parts, .msg_iovlen = bytes ? 2 : 1};
        ssize_t n;

        do
            n = sendmsg(c->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
        while (n < 0 && errno == EINTR);
        if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
            c->broken = true;
            return;
        }
        sent = n < 0 ? 0 : (size_t)n;
        if (sent == head_bytes + bytes)
            return;
    }
    o = malloc(sizeof *o + head_bytes + bytes - sent);
    if (!o) {
        c->broken = true; /* its client asks again on another one */
        return;
    }
    o->next = NULL;
    o->sent = 0;
    o->bytes = 0;
    if (sent < head_bytes) {
        memcpy(o->data, head + sent, head_bytes - sent);
        o->bytes = head_bytes - sent;
        sent = head_bytes;
    }
    if (bytes > sent - head_bytes)
        memcpy(o->data + o->bytes, data + (sent - head_bytes), bytes - (sent - head_bytes));
    o->bytes += bytes - (sent - head_bytes);
    if (c->last_out)
        c->last_out->next = o;
    else
        c->first_out = o;
    c->last_out = o;
}

void connection_flush(struct connection *c)
{
    while (c->first_out && !c->broken) {
        struct outgoing *o = c->first_out;
        ssize_t n = send(c->fd, o->data + o->sent, o->bytes - o->sent, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            if (errno != EAGAIN && errno != EWOULDBLOCK)
                c->broken = true;
            return;
        }
        o->sent += (size_t)n;
        if (o->sent < o->bytes)
            continue;
        c->first_out = o->next;
        if (!c->first_out)
            c->last_out = NULL;
        free(o);
    }
}
