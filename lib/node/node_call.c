/* SPDX-License-Identifier: Apache-2.0 */
#include "node/node_call.h"

#include "base/log.h"

static char wake_message;

bool dk_node_call_is_wake(const void *message)
{
    return message == &wake_message;
}

/* On a thread of the control plane. */
static void on_done(void *ctx, int rc, ProtobufCMessage *reply, const struct dk_err *err)
{
    struct dk_node_call *c = ctx;

    c->rc = rc;
    c->reply = reply;
    if (rc < 0 && err)
        c->err = *err;
    atomic_store_explicit(&c->ended, true, memory_order_release);
    dk_mailbox_push(c->wake, &wake_message); /* a full mailbox means that the actor is awake anyway */
}

bool dk_node_call_start(struct dk_node_call *c, struct dk_rpc_client *client, const ProtobufCMessage *request)
{
    struct dk_err err = {0};

    if (c->in_flight)
        return true;
    c->in_flight = dk_rpc_call_start(client, c->service, c->method, request, c->timeout_ms, on_done, c, &err) == 0;
    if (!c->in_flight)
        dk_log(DK_LOG_WARN, "call.start", "method=%s text=\"%s\"", c->method, err.text);
    return c->in_flight;
}

void dk_node_call_turn(struct dk_node_call *c, uint64_t now_us)
{
    ProtobufCMessage *reply;
    int rc;

    if (!atomic_load_explicit(&c->ended, memory_order_acquire))
        return;
    atomic_store_explicit(&c->ended, false, memory_order_relaxed);
    c->in_flight = false;
    rc = c->rc;
    reply = c->reply;
    c->reply = NULL;
    if (rc < 0 && c->rc_logged != rc)
        dk_log(DK_LOG_WARN, "call.failed", "method=%s text=\"%s\" retry=yes", c->method, c->err.text);
    else if (rc == 0 && c->rc_logged)
        dk_log(DK_LOG_INFO, "call.ok", "method=%s", c->method);
    c->rc_logged = rc;
    c->on_end(c->ctx, rc, &reply, now_us);
    if (reply)
        protobuf_c_message_free_unpacked(reply, NULL);
}

void dk_node_call_fini(struct dk_node_call *c)
{
    if (c->reply)
        protobuf_c_message_free_unpacked(c->reply, NULL);
    c->reply = NULL;
}
