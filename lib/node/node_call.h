/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_NODE_CALL_H
#define DK_NODE_CALL_H

#include <stdatomic.h>

#include "actor/actor.h"
#include "rpc/rpc.h"

/* One kind of call that a control actor makes again and again, one at a time. Its end is kept in here, never in a queue
 * that might be full, so it cannot be lost. */
struct dk_node_call {
    const ProtobufCServiceDescriptor *service;
    const char *method;
    uint32_t timeout_ms;
    /* On the actor's thread. *reply is NULL unless rc is 0; freed afterwards unless on_end keeps it and sets NULL. */
    void (*on_end)(void *ctx, int rc, ProtobufCMessage **reply, uint64_t now_us);
    void *ctx;

    /* private */
    struct dk_mailbox *wake; /* a push wakes the actor */
    bool in_flight;
    atomic_bool ended;
    int rc, rc_logged;
    ProtobufCMessage *reply;
    struct dk_err err;
};

/* Starts the call unless it is in flight. False: it could not be started now. */
bool dk_node_call_start(struct dk_node_call *c, struct dk_rpc_client *client, const ProtobufCMessage *request);
/* Runs on_end if the call has ended. Called in each turn of the actor's loop. Logs the first of equal failures. */
void dk_node_call_turn(struct dk_node_call *c, uint64_t now_us);
/* After the client was closed: frees a reply that nobody took. */
void dk_node_call_fini(struct dk_node_call *c);
/* Whether a mailbox message is only a call's wake-up. */
bool dk_node_call_is_wake(const void *message);

#endif
