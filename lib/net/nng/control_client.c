/* SPDX-License-Identifier: Apache-2.0 */
/* The client of the control plane: one NNG REQ socket whose dialer connects in the background, and a context with its
 * aio for each outstanding call. NNG sends a request again by itself when its connection is lost.
 *
 * In NNG 1.5 a dialer gives up for good when the server leaves before the greetings are exchanged, as one that ends or
 * is killed does to the connections in its backlog (github.com/nanomsg/nng/issues/1518; the write ends with EPIPE,
 * which the dialer takes for its own closing). So a watch looks at it, and a dialer that has no connection for two
 * looks in a row is replaced. Calls do not notice: they belong to the socket.
 *
 * A call is sending (until a connection takes the request), then receiving, then done; its aio's callback moves it on.
 * Finished calls go to a pool and are used again, because an aio cannot be freed inside its own callback. The mutex
 * guards the lists and `closing`, and is held while an operation is started: so close() either forbids it or finds
 * it to cancel. */
#include "control_nng.h"

#include <nng/protocol/reqrep0/req.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"

#define RECONNECT_LEAST_MS 10
#define RECONNECT_MOST_MS  250
/* A request goes out again at once when its connection is lost. This timer only serves requests that were lost on a
 * living connection, which does not happen with our server: it is long, because each repeat takes a slot there. */
#define RESEND_MS 60000
#define WATCH_MS  1000

struct call {
    struct dk_control_client *client;
    struct call *next, *previous; /* in `active`; only next in `idle` */
    nng_ctx ctx;
    nng_aio *aio;
    bool sending;
    uint64_t deadline_us;
    dk_control_on_reply *on_reply;
    void *on_reply_ctx;
};

struct dk_control_client {
    nng_socket socket;
    nng_dialer dialer; /* the watch's, once that runs */
    nng_aio *watch;
    bool was_connected; /* at the watch's last look */
    pthread_mutex_t lock;
    pthread_cond_t none_active;
    struct call *active, *idle;
    bool closing;
    int connected; /* atomic: the id of the connection that stands now; 0: none */
    char url[];
};

static void on_pipe(nng_pipe pipe, nng_pipe_ev event, void *arg)
{
    struct dk_control_client *c = arg;
    int id = nng_pipe_id(pipe);

    if (event == NNG_PIPE_EV_ADD_POST)
        __atomic_store_n(&c->connected, id, __ATOMIC_RELEASE);
    else
        __atomic_compare_exchange_n(&c->connected, &id, 0, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

/* A new dialer, which starts at once. NNG's error number. */
static int dialer_start(struct dk_control_client *c)
{
    int rv;

    rv = nng_dialer_create(&c->dialer, c->socket, c->url);
    if (rv)
        return rv;
    if (strncmp(c->url, "tcp://", 6) || (!(rv = nng_dialer_set_bool(c->dialer, NNG_OPT_TCP_NODELAY, true)) &&
                                         !(rv = nng_dialer_set_bool(c->dialer, NNG_OPT_TCP_KEEPALIVE, true))))
        rv = nng_dialer_start(c->dialer, NNG_FLAG_NONBLOCK);
    if (rv)
        nng_dialer_close(c->dialer);
    return rv;
}

static void watch_done(void *arg)
{
    struct dk_control_client *c = arg;
    bool connected = __atomic_load_n(&c->connected, __ATOMIC_ACQUIRE);
    int rv;

    if (nng_aio_result(c->watch))
        return; /* closing */
    if (!connected && !c->was_connected) {
        nng_dialer_close(c->dialer);
        rv = dialer_start(c); /* when it fails, the next look tries again */
        if (rv)
            dk_log(DK_LOG_WARN, "control.redial", "url=%s reason=\"%s\"", c->url, nng_strerror(rv));
        connected = true; /* two looks for this one, too */
    }
    c->was_connected = connected;
    nng_sleep_aio(WATCH_MS, c->watch);
}

/* Milliseconds until the deadline, as an aio takes them: 0 would mean "fail at once", less than 0 "never". */
static nng_duration left_ms(uint64_t deadline_us)
{
    uint64_t now_us = dk_now_us(), ms = deadline_us <= now_us ? 1 : (deadline_us - now_us + 999) / 1000;

    return ms > INT32_MAX ? INT32_MAX : (nng_duration)ms;
}

static void call_unlink(struct call *call)
{
    struct dk_control_client *c = call->client;

    if (call->previous)
        call->previous->next = call->next;
    else
        c->active = call->next;
    if (call->next)
        call->next->previous = call->previous;
}

static void call_done(void *arg)
{
    struct call *call = arg;
    struct dk_control_client *c = call->client;
    nng_msg *msg = NULL;
    int rv = nng_aio_result(call->aio), rc;

    if (call->sending ? rv != 0 : rv == 0) {
        msg = nng_aio_get_msg(call->aio);
        nng_aio_set_msg(call->aio, NULL);
    }
    if (call->sending && rv == 0) {
        bool started;

        pthread_mutex_lock(&c->lock);
        started = !c->closing;
        if (started) {
            call->sending = false;
            nng_aio_set_timeout(call->aio, left_ms(call->deadline_us));
            nng_ctx_recv(call->ctx, call->aio);
        }
        pthread_mutex_unlock(&c->lock);
        if (started)
            return;
        rv = NNG_ECANCELED;
    }
    rc = control_errno(rv);
    if (rc == -ETIMEDOUT && !__atomic_load_n(&c->connected, __ATOMIC_ACQUIRE))
        rc = -ECONNREFUSED;
    if (rc == 0)
        call->on_reply(call->on_reply_ctx, 0, nng_msg_body(msg), nng_msg_len(msg));
    else
        call->on_reply(call->on_reply_ctx, rc, NULL, 0);
    nng_msg_free(msg);

    pthread_mutex_lock(&c->lock);
    call_unlink(call);
    call->next = c->idle;
    c->idle = call;
    if (!c->active)
        pthread_cond_signal(&c->none_active);
    pthread_mutex_unlock(&c->lock);
}

static void call_free(struct call *call)
{
    if (call->aio) {
        nng_aio_stop(call->aio);
        nng_aio_free(call->aio);
    }
    free(call);
}

int control_dial(const char *url, struct dk_control_client **out, struct dk_err *err)
{
    struct dk_control_client *c;
    int rc, rv;

    rc = control_url_check(url, err);
    if (rc < 0)
        return rc;
    c = calloc(1, sizeof *c + strlen(url) + 1);
    if (!c)
        return dk_err_set(err, -ENOMEM, "%s: no memory for the client", url);
    memcpy(c->url, url, strlen(url) + 1);
    c->was_connected = true;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->none_active, NULL);
    rv = nng_req0_open(&c->socket);
    if (rv) {
        pthread_cond_destroy(&c->none_active);
        pthread_mutex_destroy(&c->lock);
        free(c);
        return dk_err_set(err, control_errno(rv), "%s: %s", url, nng_strerror(rv));
    }
    if ((rv = nng_socket_set_size(c->socket, NNG_OPT_RECVMAXSZ, DK_CONTROL_BYTES_MAX + 64)) ||
        (rv = nng_socket_set_ms(c->socket, NNG_OPT_REQ_RESENDTIME, RESEND_MS)) ||
        (rv = nng_socket_set_ms(c->socket, NNG_OPT_RECONNMINT, RECONNECT_LEAST_MS)) ||
        (rv = nng_socket_set_ms(c->socket, NNG_OPT_RECONNMAXT, RECONNECT_MOST_MS)) ||
        (rv = nng_pipe_notify(c->socket, NNG_PIPE_EV_ADD_POST, on_pipe, c)) ||
        (rv = nng_pipe_notify(c->socket, NNG_PIPE_EV_REM_POST, on_pipe, c)) ||
        (rv = nng_aio_alloc(&c->watch, watch_done, c)) || (rv = dialer_start(c)))
        goto fail;
    nng_sleep_aio(WATCH_MS, c->watch);
    *out = c;
    return 0;

fail:
    control_client_close(c);
    return dk_err_set(err, control_errno(rv), "%s: cannot dial: %s", url, nng_strerror(rv));
}

void control_client_close(struct dk_control_client *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->lock);
    c->closing = true;
    for (struct call *call = c->active; call; call = call->next)
        nng_aio_cancel(call->aio);
    while (c->active)
        pthread_cond_wait(&c->none_active, &c->lock);
    pthread_mutex_unlock(&c->lock);

    if (c->watch)
        nng_aio_stop(c->watch);
    nng_pipe_notify(c->socket, NNG_PIPE_EV_ADD_POST, NULL, NULL);
    nng_pipe_notify(c->socket, NNG_PIPE_EV_REM_POST, NULL, NULL);
    control_socket_close(c->socket);
    while (c->idle) {
        struct call *call = c->idle;

        c->idle = call->next;
        call_free(call);
    }
    if (c->watch)
        nng_aio_free(c->watch);
    pthread_cond_destroy(&c->none_active);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* An idle call or a new one. NULL: no memory. */
static struct call *call_take(struct dk_control_client *c)
{
    struct call *call;

    pthread_mutex_lock(&c->lock);
    call = c->idle;
    if (call)
        c->idle = call->next;
    pthread_mutex_unlock(&c->lock);
    if (call)
        return call;
    call = calloc(1, sizeof *call);
    if (!call)
        return NULL;
    call->client = c;
    if (nng_aio_alloc(&call->aio, call_done, call) || nng_ctx_open(&call->ctx, c->socket)) {
        call_free(call);
        return NULL;
    }
    return call;
}

int control_call(struct dk_control_client *c, const uint8_t *data, size_t bytes, uint32_t timeout_ms,
                 dk_control_on_reply *on_reply, void *ctx)
{
    struct call *call;
    nng_msg *msg;
    int rc = 0;

    if (bytes > DK_CONTROL_BYTES_MAX)
        return -EMSGSIZE;
    if (nng_msg_alloc(&msg, bytes))
        return -ENOMEM;
    if (bytes)
        memcpy(nng_msg_body(msg), data, bytes);
    call = call_take(c);
    if (!call) {
        nng_msg_free(msg);
        return -ENOMEM;
    }
    call->on_reply = on_reply;
    call->on_reply_ctx = ctx;
    call->deadline_us = dk_now_us() + timeout_ms * 1000ull;
    call->sending = true;
    nng_aio_set_msg(call->aio, msg);
    nng_aio_set_timeout(call->aio, left_ms(call->deadline_us));

    pthread_mutex_lock(&c->lock);
    if (c->closing) {
        nng_aio_set_msg(call->aio, NULL);
        nng_msg_free(msg);
        call->next = c->idle;
        c->idle = call;
        rc = -ECANCELED;
    } else {
        call->previous = NULL;
        call->next = c->active;
        if (call->next)
            call->next->previous = call;
        c->active = call;
        nng_ctx_send(call->ctx, call->aio);
    }
    pthread_mutex_unlock(&c->lock);
    return rc;
}
