/* SPDX-License-Identifier: Apache-2.0 */
/* Server of the control plane's calls.
 *
 * A request is new, a repeat of a running call (the call then waits with the newest control request only, since a
 * repeat means that the connection of the older one is lost), or a repeat of a finished one (answered from
 * rpc_kept.c). The mutex guards both collections; no foreign code runs under it. A call holds the server, so that it
 * may be ended after the server was closed. */
#include "rpc/rpc_internal.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/log.h"

#define PARALLEL 256 /* requests that may wait for their replies: long polls of every node and client */

struct dk_rpc_call {
    struct dk_rpc_server *server;
    struct dk_rpc_call *next, *previous; /* running calls */
    struct dk_control_request *waiting;  /* NULL: nobody any more, the server is closed */
    uint64_t client_id, request_id;
    struct rpc_target target;
};

struct dk_rpc_server {
    const struct dk_control_ops *plane;
    struct dk_control_server *control;
    const ProtobufCServiceDescriptor *const *services;
    dk_rpc_on_call *on_call;
    void *ctx;
    uint32_t holders; /* atomic: the owner and each running call */
    pthread_mutex_t lock;
    struct dk_rpc_call *running;
    struct rpc_kept kept;
    bool closing;
};

static void server_drop(struct dk_rpc_server *s)
{
    if (__atomic_fetch_sub(&s->holders, 1, __ATOMIC_ACQ_REL) != 1)
        return;
    rpc_kept_fini(&s->kept);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static void call_free(struct dk_rpc_call *call)
{
    if (call->target.request)
        protobuf_c_message_free_unpacked(call->target.request, NULL);
    free(call);
}

static void call_unlink(struct dk_rpc_call *call)
{
    if (call->previous)
        call->previous->next = call->next;
    else
        call->server->running = call->next;
    if (call->next)
        call->next->previous = call->previous;
}

static void refuse(struct dk_rpc_server *s, struct dk_control_request *request, uint64_t request_id,
                   const struct dk_err *err)
{
    struct rpc_bytes *b = rpc_reply_pack(request_id, dk_code_from_errno(err->rc), err->text, NULL);

    dk_log(DK_LOG_WARN, "rpc.refused", "code=%s reason=\"%s\"", dk_code_name(dk_code_from_errno(err->rc)), err->text);
    s->plane->reply(request, b ? b->data : NULL, b ? b->bytes : 0);
    rpc_bytes_drop(b);
}

/* Lets the call run (fresh, which may be NULL to only look), unless it cannot: true when the request was a repeat, or
 * came while closing, and has been dealt with. */
static bool repeat_handled(struct dk_rpc_server *s, struct dk_control_request *request, uint64_t client_id,
                           uint64_t request_id, struct dk_rpc_call *fresh)
{
    struct dk_control_request *forgotten = NULL;
    struct rpc_bytes *kept = NULL;
    struct dk_rpc_call *call = NULL;

    pthread_mutex_lock(&s->lock);
    if (s->closing) {
        forgotten = request;
    } else if ((kept = rpc_kept_find(&s->kept, client_id, request_id))) {
        rpc_bytes_hold(kept);
    } else {
        for (call = s->running; call; call = call->next)
            if (call->client_id == client_id && call->request_id == request_id)
                break;
        if (call) {
            forgotten = call->waiting;
            call->waiting = request;
        } else if (fresh) {
            rpc_kept_next_request(&s->kept, client_id);
            fresh->next = s->running;
            if (fresh->next)
                fresh->next->previous = fresh;
            s->running = fresh;
            __atomic_fetch_add(&s->holders, 1, __ATOMIC_RELAXED);
        }
    }
    pthread_mutex_unlock(&s->lock);
    if (kept)
        s->plane->reply(request, kept->data, kept->bytes);
    rpc_bytes_drop(kept);
    if (forgotten)
        s->plane->reply(forgotten, NULL, 0);
    return kept || forgotten || call;
}

static void on_request(void *ctx, struct dk_control_request *request, const uint8_t *data, size_t bytes)
{
    struct dk_rpc_server *s = ctx;
    Dk__RpcRequest *e = NULL;
    struct dk_rpc_call *call = NULL;
    struct dk_err err = {0};
    bool handled = false;
    int rc;

    rc = rpc_envelope_read(data, bytes, &e, &err);
    if (rc < 0)
        goto out;
    handled = repeat_handled(s, request, e->client_id, e->request_id, NULL); /* before the body's decoding is paid */
    if (handled)
        goto out;
    call = calloc(1, sizeof *call);
    if (!call) {
        rc = dk_err_set(&err, -ENOMEM, "%s: the server has no memory for the call", e->method);
        goto out;
    }
    call->server = s;
    call->waiting = request;
    call->client_id = e->client_id;
    call->request_id = e->request_id;
    rc = rpc_target_read(e, s->services, &call->target, &err);
    if (rc < 0)
        goto out;
    handled = repeat_handled(s, request, e->client_id, e->request_id, call); /* again: two may have come at once */
    if (handled)
        goto out;
    s->on_call(s->ctx, call);
    call = NULL; /* the handler's, and perhaps ended already */
out:
    if (rc < 0)
        refuse(s, request, e ? e->request_id : 0, &err);
    if (call)
        call_free(call);
    if (e)
        dk__rpc_request__free_unpacked(e, NULL);
}

int dk_rpc_listen(const struct dk_control_ops *plane, const char *url,
                  const ProtobufCServiceDescriptor *const *services, dk_rpc_on_call *on_call, void *ctx,
                  struct dk_rpc_server **out, struct dk_err *err)
{
    struct dk_rpc_server *s = calloc(1, sizeof *s);
    int rc;

    if (!s)
        return dk_err_set(err, -ENOMEM, "%s: no memory for the server", url);
    s->plane = plane;
    s->services = services;
    s->on_call = on_call;
    s->ctx = ctx;
    s->holders = 1;
    pthread_mutex_init(&s->lock, NULL);
    rc = plane->listen(url, PARALLEL, on_request, s, &s->control, err);
    if (rc < 0) {
        server_drop(s);
        return rc;
    }
    *out = s;
    return 0;
}

void dk_rpc_server_close(struct dk_rpc_server *s)
{
    struct dk_control_request *forgotten;

    if (!s)
        return;
    /* Nothing new from here on; what waits is forgotten, one by one, as the lock must not be held while doing so. */
    do {
        forgotten = NULL;
        pthread_mutex_lock(&s->lock);
        s->closing = true;
        for (struct dk_rpc_call *call = s->running; call && !forgotten; call = call->next) {
            forgotten = call->waiting;
            call->waiting = NULL;
        }
        pthread_mutex_unlock(&s->lock);
        if (forgotten)
            s->plane->reply(forgotten, NULL, 0);
    } while (forgotten);
    s->plane->server_close(s->control);
    server_drop(s);
}

const ProtobufCMethodDescriptor *dk_rpc_method(const struct dk_rpc_call *call)
{
    return call->target.method;
}

const ProtobufCMessage *dk_rpc_request(const struct dk_rpc_call *call)
{
    return call->target.request;
}

/* Ends the call with these bytes, which it takes. NULL: no memory for them, and the caller runs into its timeout. */
static void call_end(struct dk_rpc_call *call, struct rpc_bytes *reply)
{
    struct dk_rpc_server *s = call->server;
    struct dk_control_request *waiting;

    if (!reply)
        dk_log(DK_LOG_ERROR, "rpc.reply_lost", "method=%s reason=\"no memory\"", call->target.method->name);
    pthread_mutex_lock(&s->lock);
    call_unlink(call);
    waiting = call->waiting;
    if (reply)
        rpc_kept_add(&s->kept, call->client_id, call->request_id, reply);
    pthread_mutex_unlock(&s->lock);
    if (waiting)
        s->plane->reply(waiting, reply ? reply->data : NULL, reply ? reply->bytes : 0);
    rpc_bytes_drop(reply);
    call_free(call);
    server_drop(s);
}

void dk_rpc_fail(struct dk_rpc_call *call, int rc, const char *text)
{
    assert(rc < 0);
    call_end(call, rpc_reply_pack(call->request_id, dk_code_from_errno(rc), text, NULL));
}

void dk_rpc_reply(struct dk_rpc_call *call, const ProtobufCMessage *reply)
{
    struct rpc_bytes *b;

    assert(reply->descriptor == call->target.method->output);
    if (!protobuf_c_message_check(reply)) {
        dk_rpc_fail(call, -EIO, "the server made an incomplete reply");
        return;
    }
    b = rpc_reply_pack(call->request_id, DK__CODE__OK, NULL, reply);
    if (b && b->bytes > DK_CONTROL_BYTES_MAX) {
        rpc_bytes_drop(b);
        dk_rpc_fail(call, -ENOBUFS, "the reply is longer than a message may be; ask for less at a time");
        return;
    }
    call_end(call, b);
}
