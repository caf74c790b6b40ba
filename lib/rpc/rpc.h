/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_RPC_H
#define DK_RPC_H

#include <protobuf-c/protobuf-c.h>
#include <stdint.h>

#include "base/error.h"
#include "net/net.h"

/* Services declared in proto/, called over a control plane of lib/net. A method is named "Service/Method".
 * Every call carries (client_id, request_id), so a repeated request runs once: while the first is running the
 * repeat waits for its reply, afterwards it gets the kept one (the last 256 replies a server made). */

struct dk_rpc_server;
struct dk_rpc_call; /* one request that waits for its reply */

/* A new request, on some thread of the control plane: usually pushed into an actor's mailbox. The handler owns the
 * call and ends it exactly once with dk_rpc_reply or dk_rpc_fail, from any thread, now or later. */
typedef void dk_rpc_on_call(void *ctx, struct dk_rpc_call *call);

/* services: NULL-terminated list of the descriptors that are answered; others get UNIMPLEMENTED. */
int dk_rpc_listen(const struct dk_control_ops *plane, const char *url,
                  const ProtobufCServiceDescriptor *const *services, dk_rpc_on_call *on_call, void *ctx,
                  struct dk_rpc_server **out, struct dk_err *err);
/* Waits for no call: the owner must have ended them all, or ends them after (they are then dropped). */
void dk_rpc_server_close(struct dk_rpc_server *s);

const ProtobufCMethodDescriptor *dk_rpc_method(const struct dk_rpc_call *call); /* ->name, ->input, ->output */
const ProtobufCMessage *dk_rpc_request(const struct dk_rpc_call *call);         /* decoded and checked; until the end */
void dk_rpc_reply(struct dk_rpc_call *call, const ProtobufCMessage *reply);
/* rc: negative errno, mapped to a Code (wire/status.h). */
void dk_rpc_fail(struct dk_rpc_call *call, int rc, const char *text);

struct dk_rpc_client;

int dk_rpc_dial(const struct dk_control_ops *plane, const char *url, struct dk_rpc_client **out, struct dk_err *err);
void dk_rpc_client_close(struct dk_rpc_client *c);

/* Waits for the reply: *reply is freed by protobuf_c_message_free_unpacked(*reply, NULL).
 * 0; -ETIMEDOUT, -ECONNREFUSED: nobody answered in time, err says at which address; otherwise the server's Status as an
 * errno, its text in err. From any thread but those of the control plane. */
int dk_rpc_call(struct dk_rpc_client *c, const ProtobufCServiceDescriptor *service, const char *method,
                const ProtobufCMessage *request, uint32_t timeout_ms, ProtobufCMessage **reply, struct dk_err *err);

/* The same without waiting: `done` gets the reply (its own to free; NULL unless rc is 0) on some thread of the
 * control plane. */
typedef void dk_rpc_done(void *ctx, int rc, ProtobufCMessage *reply, const struct dk_err *err);
int dk_rpc_call_start(struct dk_rpc_client *c, const ProtobufCServiceDescriptor *service, const char *method,
                      const ProtobufCMessage *request, uint32_t timeout_ms, dk_rpc_done *done, void *ctx,
                      struct dk_err *err);

#endif
