/* SPDX-License-Identifier: Apache-2.0 */
/* The server of the control plane: one NNG REP socket with `parallel` slots, each an NNG context with its aio.
 *
 * A slot goes round: receiving -> held (its owner has the request) -> sending -> receiving. NNG's callbacks move it on
 * from receiving and sending, reply() from held; each state has one owner, so a slot needs no lock of its own. The
 * server's mutex guards `closing` and `inside`, the number of operations of NNG in progress and of callbacks running:
 * close() forbids new operations, cancels those in progress and waits until none is left. A held slot outlives the
 * close, and the last one's reply frees the server. */
#include "control_nng.h"

#include <nng/protocol/reqrep0/rep.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"

struct dk_control_request {
    struct dk_control_server *server;
    nng_ctx ctx;
    nng_aio *aio;
    nng_msg *msg; /* the request while held */
    bool sending;
};

struct dk_control_server {
    nng_socket socket;
    dk_control_on_request *on_request;
    void *ctx;
    pthread_mutex_t lock;
    pthread_cond_t left; /* signalled when `inside` falls */
    uint32_t inside, held;
    bool closing, closed;
    uint32_t slot_count;
    struct dk_control_request slots[];
};

static void server_free(struct dk_control_server *s)
{
    pthread_cond_destroy(&s->left);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* Starts receiving, or sending `reply`; takes the message. Under the lock: a close that began cannot miss it. */
static void slot_start_locked(struct dk_control_request *slot, nng_msg *reply)
{
    struct dk_control_server *s = slot->server;

    if (s->closing) {
        nng_msg_free(reply);
        return;
    }
    slot->sending = reply != NULL;
    s->inside++;
    if (reply) {
        nng_aio_set_msg(slot->aio, reply);
        nng_ctx_send(slot->ctx, slot->aio);
    } else {
        nng_ctx_recv(slot->ctx, slot->aio);
    }
}

static void slot_done(void *arg)
{
    struct dk_control_request *slot = arg;
    struct dk_control_server *s = slot->server;
    int rv = nng_aio_result(slot->aio);
    nng_msg *msg = NULL;
    bool received;

    if (slot->sending ? rv != 0 : rv == 0) {
        msg = nng_aio_get_msg(slot->aio);
        nng_aio_set_msg(slot->aio, NULL);
    }
    received = msg && !slot->sending;
    if (msg && !received)
        nng_msg_free(msg); /* a reply that could not be sent: its caller is gone */
    if (received) {
        slot->msg = msg;
        pthread_mutex_lock(&s->lock);
        s->held++;
        pthread_mutex_unlock(&s->lock);
        /* Before `inside` falls: close() must not return while this runs. The slot may be replied to, and be in use
         * again, before this returns; only the server is touched after it. */
        s->on_request(s->ctx, slot, nng_msg_body(msg), nng_msg_len(msg));
        pthread_mutex_lock(&s->lock);
    } else {
        pthread_mutex_lock(&s->lock);
        if (rv != NNG_ECLOSED && rv != NNG_ECANCELED)
            slot_start_locked(slot, NULL);
    }
    s->inside--;
    pthread_cond_signal(&s->left);
    pthread_mutex_unlock(&s->lock);
}

int control_listen(const char *url, uint32_t parallel, dk_control_on_request *on_request, void *ctx,
                   struct dk_control_server **out, struct dk_err *err)
{
    struct dk_control_server *s;
    nng_listener listener;
    int rc, rv;

    rc = control_url_check(url, err);
    if (rc == 0)
        rc = ipc_path_check(url, err);
    if (rc < 0)
        return rc;
    s = calloc(1, sizeof *s + parallel * sizeof *s->slots);
    if (!s)
        return dk_err_set(err, -ENOMEM, "%s: no memory for the server", url);
    s->on_request = on_request;
    s->ctx = ctx;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->left, NULL);
    rv = nng_rep0_open(&s->socket);
    if (rv) {
        server_free(s);
        return dk_err_set(err, control_errno(rv), "%s: %s", url, nng_strerror(rv));
    }
    if ((rv = nng_socket_set_size(s->socket, NNG_OPT_RECVMAXSZ, DK_CONTROL_BYTES_MAX + 64)) ||
        (rv = nng_listener_create(&listener, s->socket, url)))
        goto fail;
    if (!strncmp(url, "tcp://", 6) && ((rv = nng_listener_set_bool(listener, NNG_OPT_TCP_NODELAY, true)) ||
                                       (rv = nng_listener_set_bool(listener, NNG_OPT_TCP_KEEPALIVE, true))))
        goto fail;
    for (; s->slot_count < parallel; s->slot_count++) {
        struct dk_control_request *slot = &s->slots[s->slot_count];

        slot->server = s;
        if ((rv = nng_aio_alloc(&slot->aio, slot_done, slot)))
            goto fail;
        if ((rv = nng_ctx_open(&slot->ctx, s->socket))) {
            nng_aio_free(slot->aio);
            goto fail;
        }
    }
    if ((rv = nng_listener_start(listener, 0)))
        goto fail;
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < parallel; i++)
        slot_start_locked(&s->slots[i], NULL);
    pthread_mutex_unlock(&s->lock);
    *out = s;
    return 0;

fail:
    rc = control_errno(rv);
    control_server_close(s);
    if (rc == -EADDRINUSE)
        return dk_err_set(err, rc,
                          "%s is in use: another program answers there already. End it, or choose another "
                          "address",
                          url);
    if (rc == -EADDRNOTAVAIL)
        return dk_err_set(err, rc,
                          "%s: this host has no such address; use one of its own, or tcp://0.0.0.0:PORT for "
                          "all of them",
                          url);
    if (rc == -ENOENT || rc == -EACCES || rc == -EPERM)
        return dk_err_set(err, rc, "%s: %s; the folder must exist and this user be allowed to write in it", url,
                          strerror(-rc));
    return dk_err_set(err, rc, "%s: cannot listen: %s", url, nng_strerror(rv));
}

void control_server_close(struct dk_control_server *s)
{
    bool last;

    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    for (uint32_t i = 0; i < s->slot_count; i++)
        nng_aio_cancel(s->slots[i].aio); /* does nothing to an idle one */
    while (s->inside)
        pthread_cond_wait(&s->left, &s->lock);
    pthread_mutex_unlock(&s->lock);

    control_socket_close(s->socket);
    for (uint32_t i = 0; i < s->slot_count; i++)
        nng_aio_stop(s->slots[i].aio); /* its callback may still be on its last lines */
    for (uint32_t i = 0; i < s->slot_count; i++)
        nng_aio_free(s->slots[i].aio);

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
    nng_msg *reply = NULL, *request = slot->msg;
    bool last;
    int rv;

    if (data) {
        rv = bytes > DK_CONTROL_BYTES_MAX ? NNG_EMSGSIZE : nng_msg_alloc(&reply, bytes);
        if (rv)
            dk_log(DK_LOG_ERROR, "control.reply_lost", "bytes=%zu reason=\"%s\"", bytes, nng_strerror(rv));
        else if (bytes)
            memcpy(nng_msg_body(reply), data, bytes);
    }
    nng_msg_free(request);
    pthread_mutex_lock(&s->lock);
    s->held--;
    slot_start_locked(slot, reply);
    last = s->closed && s->held == 0;
    pthread_mutex_unlock(&s->lock);
    if (last)
        server_free(s);
}
