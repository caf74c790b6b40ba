/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/rpc_internal.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

struct dk_rpc_client {
    const struct dk_control_ops *plane;
    struct dk_control_client *control;
    uint64_t client_id;
    uint64_t next_request_id; /* atomic */
    char url[];
};

struct pending {
    struct dk_rpc_client *client;
    const ProtobufCMethodDescriptor *method;
    uint64_t request_id;
    uint32_t timeout_ms;
    dk_rpc_done *done;
    void *ctx;
    char name[]; /* "Client/Submit" */
};

/* What the control plane reports about a call without an answer, for a person. */
static int call_failed(const struct pending *p, int rc, struct dk_err *err)
{
    switch (rc) {
    case -ECONNREFUSED:
        return dk_err_set(err, rc,
                          "nobody answers at %s: is the coordinator running, and is this its address? (%s, tried for "
                          "%u ms)",
                          p->client->url, p->name, p->timeout_ms);
    case -ETIMEDOUT:
        return dk_err_set(err, rc, "%s: no answer from %s within %u ms: it is connected, but busy or stuck", p->name,
                          p->client->url, p->timeout_ms);
    case -ECANCELED:
        return dk_err_set(err, rc, "%s: the connection to %s was closed while waiting for the answer", p->name,
                          p->client->url);
    case -EMSGSIZE:
        return dk_err_set(err, rc, "%s: the request is longer than a message may be (%u MiB)", p->name,
                          DK_CONTROL_BYTES_MAX >> 20);
    default:
        return dk_err_set(err, rc, "%s at %s: %s", p->name, p->client->url, strerror(-rc));
    }
}

static int reply_read(const struct pending *p, const uint8_t *data, size_t bytes, ProtobufCMessage **reply,
                      struct dk_err *err)
{
    Dk__RpcReply *e = dk__rpc_reply__unpack(NULL, bytes, data);
    ProtobufCMessage *m;
    int rc = 0;

    if (!e)
        return dk_err_set(err, -EBADMSG, "%s: what %s answered is no RpcReply (%zu bytes)", p->name, p->client->url,
                          bytes);
    /* Number 0: the server could not even read whom it refuses. */
    if (e->request_id != p->request_id && (e->request_id || e->status->code == DK__CODE__OK)) {
        rc = dk_err_set(err, -EBADMSG, "%s: %s answered another request", p->name, p->client->url);
    } else if (e->status->code != DK__CODE__OK) {
        const char *text = e->status->text && *e->status->text ? e->status->text : dk_code_name(e->status->code);

        rc = dk_err_set(err, dk_errno_from_code(e->status->code), "%s", text);
    } else {
        m = protobuf_c_message_unpack(p->method->output, NULL, e->body.len, e->has_body ? e->body.data : NULL);
        if (m && (rc = dk_message_check(m, err)) < 0) {
            protobuf_c_message_free_unpacked(m, NULL);
            if (err)
                dk_err_prefix(err, "%s", p->name);
        } else if (m) {
            *reply = m;
        } else {
            rc = dk_err_set(err, -EBADMSG, "%s: the answer's body is no %s (%zu bytes)", p->name,
                            p->method->output->short_name, e->body.len);
        }
    }
    dk__rpc_reply__free_unpacked(e, NULL);
    return rc;
}

static void on_reply(void *ctx, int rc, const uint8_t *data, size_t bytes)
{
    struct pending *p = ctx;
    ProtobufCMessage *reply = NULL;
    struct dk_err err = {0};

    rc = rc < 0 ? call_failed(p, rc, &err) : reply_read(p, data, bytes, &reply, &err);
    p->done(p->ctx, rc, reply, &err);
    free(p);
}

int dk_rpc_dial(const struct dk_control_ops *plane, const char *url, struct dk_rpc_client **out, struct dk_err *err)
{
    struct dk_rpc_client *c = calloc(1, sizeof *c + strlen(url) + 1);
    int rc;

    if (!c)
        return dk_err_set(err, -ENOMEM, "%s: no memory for the client", url);
    c->plane = plane;
    c->client_id = dk_random_id();
    c->next_request_id = 1;
    memcpy(c->url, url, strlen(url) + 1);
    rc = plane->dial(url, &c->control, err);
    if (rc < 0) {
        free(c);
        return rc;
    }
    *out = c;
    return 0;
}

void dk_rpc_client_close(struct dk_rpc_client *c)
{
    if (!c)
        return;
    c->plane->client_close(c->control);
    free(c);
}

int dk_rpc_call_start(struct dk_rpc_client *c, const ProtobufCServiceDescriptor *service, const char *method,
                      const ProtobufCMessage *request, uint32_t timeout_ms, dk_rpc_done *done, void *ctx,
                      struct dk_err *err)
{
    const ProtobufCMethodDescriptor *m = protobuf_c_service_descriptor_get_method_by_name(service, method);
    size_t name_bytes = strlen(service->short_name) + strlen(method) + 2;
    struct rpc_bytes *packed;
    struct pending *p;
    int rc;

    if (!m)
        return dk_err_set(err, -EINVAL, "%s has no method \"%.60s\"", service->short_name, method);
    if (request->descriptor != m->input)
        return dk_err_set(err, -EINVAL, "%s/%s takes a %s, not a %s", service->short_name, method, m->input->short_name,
                          request->descriptor->short_name);
    if (!protobuf_c_message_check(request))
        return dk_err_set(err, -EINVAL, "%s/%s: a required field of the %s is not set", service->short_name, method,
                          m->input->short_name);
    p = calloc(1, sizeof *p + name_bytes);
    if (!p)
        return dk_err_set(err, -ENOMEM, "%s/%s: no memory for the call", service->short_name, method);
    snprintf(p->name, name_bytes, "%s/%s", service->short_name, method);
    p->client = c;
    p->method = m;
    p->request_id = __atomic_fetch_add(&c->next_request_id, 1, __ATOMIC_RELAXED);
    p->timeout_ms = timeout_ms;
    p->done = done;
    p->ctx = ctx;
    packed = rpc_request_pack(c->client_id, p->request_id, p->name, request);
    rc = packed ? c->plane->call(c->control, packed->data, packed->bytes, timeout_ms, on_reply, p) : -ENOMEM;
    rpc_bytes_drop(packed);
    if (rc < 0) {
        call_failed(p, rc, err);
        free(p);
    }
    return rc;
}

struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool end;
    int rc;
    ProtobufCMessage *reply;
    struct dk_err *err;
};

static void waiter_done(void *ctx, int rc, ProtobufCMessage *reply, const struct dk_err *err)
{
    struct waiter *w = ctx;

    pthread_mutex_lock(&w->lock);
    w->end = true;
    w->rc = rc;
    w->reply = reply;
    if (rc < 0 && w->err)
        *w->err = *err;
    pthread_cond_signal(&w->ended);
    pthread_mutex_unlock(&w->lock);
}

int dk_rpc_call(struct dk_rpc_client *c, const ProtobufCServiceDescriptor *service, const char *method,
                const ProtobufCMessage *request, uint32_t timeout_ms, ProtobufCMessage **reply, struct dk_err *err)
{
    struct waiter w = {.lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER, .err = err};
    int rc;

    *reply = NULL;
    rc = dk_rpc_call_start(c, service, method, request, timeout_ms, waiter_done, &w, err);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&w.lock);
    while (!w.end)
        pthread_cond_wait(&w.ended, &w.lock);
    pthread_mutex_unlock(&w.lock);
    pthread_cond_destroy(&w.ended);
    pthread_mutex_destroy(&w.lock);
    *reply = w.reply;
    return w.rc;
}
