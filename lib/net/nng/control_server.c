/* SPDX-License-Identifier: Apache-2.0 */
/* The server of the control plane. Its clients are NNG's (or any other of the scalability protocols), but it listens by
 * itself: in NNG 1.5 one client that leaves before the greetings are exchanged stops a listener for good, on ipc by
 * closing at once, on tcp by half closing and resetting (the write of NNG's greeting ends with EPIPE, which its core
 * takes for the closing of the listener itself; github.com/nanomsg/nng/issues/1518). Here a connection that fails is
 * closed and nothing else happens.
 *
 * One thread accepts, reads and calls on_request. A request takes one of `parallel` slots until its reply; when none is
 * free, complete requests wait in their connections, which are not read meanwhile. reply() writes by itself, on
 * whatever thread it is called, and leaves to the server's thread what the kernel does not take at once. The mutex
 * guards slots, the writing half of connections, and the flags; it is not held while on_request runs. Only the
 * server's thread opens and closes descriptors. Connections and the server stay in memory until the last request that
 * names them has its reply. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "control_connection.h"
#include "control_listener.h"
#include "control_nng.h"

#define GREETING_MS     10000 /* a connection that is silent for so long at its start is closed */
#define SWEEP_MS        1000
#define ACCEPT_BURST    64
#define COMPLAINT_MS    1000 /* no more often is a bad client reported */
#define ACCEPT_PAUSE_MS 100  /* when there is no descriptor or memory for another connection */

struct dk_control_request {
    struct dk_control_server *server;
    struct dk_control_request *next_free;
    struct connection *connection;
    struct frame_request frame;
};

struct dk_control_server {
    struct control_listener listener;
    dk_control_on_request *on_request;
    void *ctx;
    int wake_fd;
    pthread_t thread;

    pthread_mutex_t lock;
    struct dk_control_request *free_slots;
    uint32_t held;    /* slots in use */
    uint32_t waiting; /* connections with a request for which no slot is free */
    bool closing, closed;

    /* The server's thread only. */
    struct connection **connections;
    struct pollfd *polled; /* [2 + connection_room]: wake_fd, the listener, the connections in their order */
    size_t connection_count, connection_room;
    uint64_t waiting_count; /* ever */
    uint64_t accept_from_us, complain_from_us;
    struct dk_control_request slots[];
};

static void server_free(struct dk_control_server *s)
{
    control_listener_close(&s->listener);
    if (s->wake_fd >= 0)
        close(s->wake_fd);
    pthread_mutex_destroy(&s->lock);
    free(s->connections);
    free(s->polled);
    free(s);
}

static void server_wake(struct dk_control_server *s)
{
    uint64_t one = 1;

    if (write(s->wake_fd, &one, sizeof one) < 0)
        dk_log(DK_LOG_DEBUG, "control.wake", "errno=%d", errno); /* it is full: the thread is awake anyway */
}

/* Gives the request a slot and hands it over, or lets it wait in its connection. */
static void request_start(struct dk_control_server *s, struct connection *c, const struct frame_request *frame)
{
    struct dk_control_request *slot;

    pthread_mutex_lock(&s->lock);
    slot = s->free_slots;
    if (slot) {
        s->free_slots = slot->next_free;
        slot->connection = c;
        slot->frame = *frame;
        c->held++;
        s->held++;
    } else {
        c->waiting = *frame;
        c->waiting_since = ++s->waiting_count;
        s->waiting++;
    }
    pthread_mutex_unlock(&s->lock);
    if (slot)
        s->on_request(s->ctx, slot, frame->body + frame->trace_bytes, frame->bytes - frame->trace_bytes);
}

/* Starts waiting requests, the oldest first, while there are free slots. */
static void waiting_start(struct dk_control_server *s)
{
    for (;;) {
        struct connection *oldest = NULL;
        struct frame_request frame;

        pthread_mutex_lock(&s->lock);
        if (s->waiting && s->free_slots)
            for (size_t i = 0; i < s->connection_count; i++) {
                struct connection *c = s->connections[i];

                if (c->waiting.body && (!oldest || c->waiting_since < oldest->waiting_since))
                    oldest = c;
            }
        if (oldest) {
            frame = oldest->waiting;
            oldest->waiting.body = NULL;
            s->waiting--;
        }
        pthread_mutex_unlock(&s->lock);
        if (!oldest)
            return;
        request_start(s, oldest, &frame);
    }
}

/* Closes and takes it out of the list; the last connection takes its place. */
static void connection_end(struct dk_control_server *s, size_t i)
{
    struct connection *c = s->connections[i];
    bool unused;

    pthread_mutex_lock(&s->lock);
    if (c->waiting.body)
        s->waiting--;
    connection_shut(c);
    unused = c->held == 0;
    s->connections[i] = s->connections[--s->connection_count];
    pthread_mutex_unlock(&s->lock);
    if (unused)
        connection_free(c);
}

static int connection_add(struct dk_control_server *s, int fd)
{
    struct connection *c;

    if (s->connection_count == s->connection_room) {
        size_t room = s->connection_room ? 2 * s->connection_room : 16;
        struct connection **connections = realloc(s->connections, room * sizeof *connections);
        struct pollfd *polled;

        if (connections)
            s->connections = connections;
        polled = connections ? realloc(s->polled, (2 + room) * sizeof *polled) : NULL;
        if (!polled) {
            close(fd);
            return -ENOMEM;
        }
        s->polled = polled;
        s->connection_room = room;
    }
    c = connection_new(fd, s->listener.ipc, dk_now_us());
    if (!c)
        return -ENOMEM;
    s->connections[s->connection_count++] = c;
    return 0;
}

static void server_accept(struct dk_control_server *s)
{
    for (int i = 0; i < ACCEPT_BURST; i++) {
        int fd = accept4(s->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        int rc = fd < 0 ? -errno : connection_add(s, fd);

        if (rc == -EAGAIN || rc == -EWOULDBLOCK)
            return;
        if (rc == -EMFILE || rc == -ENFILE || rc == -ENOMEM || rc == -ENOBUFS) {
            dk_log(DK_LOG_WARN, "control.accept", "reason=\"%s\"", strerror(-rc));
            s->accept_from_us = dk_now_us() + ACCEPT_PAUSE_MS * 1000ull;
            return;
        }
    }
}

/* What each descriptor is waited for. Returns the longest wait in ms; -1: no limit. */
static int poll_prepare(struct dk_control_server *s)
{
    bool paused = s->accept_from_us > dk_now_us();
    int timeout_ms = paused ? ACCEPT_PAUSE_MS : -1;

    s->polled[0] = (struct pollfd){.fd = s->wake_fd, .events = POLLIN};
    s->polled[1] = (struct pollfd){.fd = paused ? -1 : s->listener.fd, .events = POLLIN};
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->connection_count; i++) {
        struct connection *c = s->connections[i];
        short events = 0;

        /* Who does not take replies is not asked for more requests. */
        if (c->first_out)
            events = POLLOUT;
        else if (!c->waiting.body)
            events = POLLIN;
        s->polled[2 + i] = (struct pollfd){.fd = c->fd, .events = events};
        if (!c->reader.greeted && !paused)
            timeout_ms = SWEEP_MS;
        if (c->broken)
            timeout_ms = 0;
    }
    pthread_mutex_unlock(&s->lock);
    return timeout_ms;
}

/* Deals with what poll() said of a connection. Whether it must be closed. */
static bool connection_serve(struct dk_control_server *s, struct connection *c, const struct pollfd *p, uint64_t now_us)
{
    struct frame_request frame;
    bool broken;
    int rc;

    pthread_mutex_lock(&s->lock);
    if (p->revents & POLLOUT)
        connection_flush(c);
    broken = c->broken;
    pthread_mutex_unlock(&s->lock);
    if (broken || p->revents & POLLNVAL)
        return true;
    if (!(p->events & POLLIN))
        return p->revents & (POLLHUP | POLLERR); /* nobody is there any more for whom to go on */
    if (p->revents) {
        rc = connection_read(c, &frame);
        if ((rc == -EPROTO || rc == -EMSGSIZE || rc == -ENOMEM) && now_us >= s->complain_from_us) {
            s->complain_from_us = now_us + COMPLAINT_MS * 1000ull;
            dk_log(DK_LOG_WARN, "control.bad_client", "reason=\"%s\"", strerror(-rc));
        }
        if (rc < 0)
            return true;
        if (rc)
            request_start(s, c, &frame);
    }
    return !c->reader.greeted && now_us - c->since_us > GREETING_MS * 1000ull;
}

static void *server_run(void *arg)
{
    struct dk_control_server *s = arg;

    for (;;) {
        int timeout_ms = poll_prepare(s);
        bool closing;
        uint64_t now_us, count;

        poll(s->polled, 2 + s->connection_count, timeout_ms);
        if (s->polled[0].revents && read(s->wake_fd, &count, sizeof count) < 0)
            dk_log(DK_LOG_DEBUG, "control.wake", "errno=%d", errno);
        pthread_mutex_lock(&s->lock);
        closing = s->closing;
        pthread_mutex_unlock(&s->lock);
        if (closing)
            return NULL;
        waiting_start(s);
        now_us = dk_now_us();
        /* From the last to the first: what connection_end() moves has been served. */
        for (size_t i = s->connection_count; i-- > 0;)
            if (connection_serve(s, s->connections[i], &s->polled[2 + i], now_us))
                connection_end(s, i);
        if (s->polled[1].revents)
            server_accept(s);
    }
}

static int server_start(struct dk_control_server *s)
{
    sigset_t all, before;
    int rc;

    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->wake_fd < 0)
        return -errno;
    s->polled = calloc(2, sizeof *s->polled);
    if (!s->polled)
        return -ENOMEM;
    sigfillset(&all); /* the program's own threads take the signals */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = -pthread_create(&s->thread, NULL, server_run, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

int control_listen(const char *url, uint32_t parallel, dk_control_on_request *on_request, void *ctx,
                   struct dk_control_server **out, struct dk_err *err)
{
    struct dk_control_server *s;
    int rc;

    rc = control_url_check(url, err);
    if (rc < 0)
        return rc;
    s = calloc(1, sizeof *s + parallel * sizeof *s->slots);
    if (!s)
        return dk_err_set(err, -ENOMEM, "%s: no memory for the server", url);
    s->on_request = on_request;
    s->ctx = ctx;
    s->wake_fd = -1;
    pthread_mutex_init(&s->lock, NULL);
    for (uint32_t i = parallel; i-- > 0;) {
        s->slots[i].server = s;
        s->slots[i].next_free = s->free_slots;
        s->free_slots = &s->slots[i];
    }
    rc = control_listener_open(&s->listener, url, err);
    if (rc == 0) {
        rc = server_start(s);
        if (rc < 0)
            dk_err_set(err, rc, "%s: cannot start the server's thread: %s", url, strerror(-rc));
    }
    if (rc < 0) {
        server_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

void control_server_close(struct dk_control_server *s)
{
    bool last;

    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    pthread_mutex_unlock(&s->lock);
    server_wake(s);
    pthread_join(s->thread, NULL);
    control_listener_close(&s->listener);
    while (s->connection_count)
        connection_end(s, s->connection_count - 1);

    pthread_mutex_lock(&s->lock);
    s->closed = true;
    last = s->held == 0;
    pthread_mutex_unlock(&s->lock);
    if (last)
        server_free(s);
}

void control_reply(struct dk_control_request *slot, const uint8_t *data, size_t bytes)
{
    struct dk_control_server *s = slot->server;
    struct connection *c = slot->connection, *unused = NULL;
    uint8_t *body = slot->frame.body; /* `data` may lie in it */
    bool last, wake = false;

    if (data && bytes > DK_CONTROL_BYTES_MAX) {
        dk_log(DK_LOG_ERROR, "control.reply_lost", "bytes=%zu reason=\"it is too long\"", bytes);
        data = NULL;
    }
    pthread_mutex_lock(&s->lock);
    if (data && c->fd >= 0) {
        connection_send(c, body, slot->frame.trace_bytes, data, bytes);
        wake = c->first_out || c->broken;
    }
    c->held--;
    if (c->fd < 0 && c->held == 0)
        unused = c;
    slot->next_free = s->free_slots;
    s->free_slots = slot;
    s->held--;
    wake = (wake || s->waiting) && !s->closing;
    last = s->closed && s->held == 0;
    if (wake)
        server_wake(s); /* under the lock: a close may free the server once it is released */
    pthread_mutex_unlock(&s->lock);
    free(body);
    if (unused)
        connection_free(unused);
    if (last)
        server_free(s);
}
