/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_RPC_INTERNAL_H
#define DK_RPC_INTERNAL_H

#include <stdbool.h>

#include "rpc/rpc.h"
#include "wire/wire.h"

/* ---- rpc_envelope.c: RpcRequest and RpcReply <-> bytes */

/* Reads the envelope and checks version; *envelope is set whenever it could be decoded (also when the version is
 * another one), and freed by dk__rpc_request__free_unpacked. -EBADMSG, -EPROTONOSUPPORT. */
int rpc_envelope_read(const uint8_t *data, size_t bytes, Dk__RpcRequest **envelope, struct dk_err *err);

struct rpc_target {
    const ProtobufCServiceDescriptor *service;
    const ProtobufCMethodDescriptor *method;
    ProtobufCMessage *request; /* owned by the caller */
};
/* Finds the method among services and decodes the body. -ENOSYS: no such method; -EBADMSG: undecodable body. */
int rpc_target_read(const Dk__RpcRequest *envelope, const ProtobufCServiceDescriptor *const *services,
                    struct rpc_target *out, struct dk_err *err);

/* Bytes that several may hold: a reply is sent and kept at the same time. */
struct rpc_bytes {
    uint32_t holders; /* atomic */
    size_t bytes;
    uint8_t data[];
};
struct rpc_bytes *rpc_bytes_hold(struct rpc_bytes *b);
void rpc_bytes_drop(struct rpc_bytes *b); /* NULL is fine */

/* The packed envelope of a reply (body NULL: none) or of a request. NULL: no memory. */
struct rpc_bytes *rpc_reply_pack(uint64_t request_id, Dk__Code code, const char *text, const ProtobufCMessage *body);
struct rpc_bytes *rpc_request_pack(uint64_t client_id, uint64_t request_id, const char *method,
                                   const ProtobufCMessage *body);

/* ---- rpc_kept.c: the last replies, for requests that come again. The caller locks. */

#define RPC_KEPT_MOST        256
#define RPC_KEPT_LARGE_BYTES (1u << 20)  /* longer ones go with their client's next request */
#define RPC_KEPT_BYTES_MOST  (64u << 20) /* of all; the newest is kept whatever its length */

struct rpc_kept {
    struct rpc_kept_row {
        uint64_t client_id, request_id;
        struct rpc_bytes *reply; /* NULL: free row */
    } rows[RPC_KEPT_MOST];
    uint32_t next; /* the row to fill: after a full round the oldest */
    size_t bytes;
};
/* The reply to this request, if it is kept; the caller must hold it to use it beyond the lock. */
struct rpc_bytes *rpc_kept_find(const struct rpc_kept *k, uint64_t client_id, uint64_t request_id);
void rpc_kept_add(struct rpc_kept *k, uint64_t client_id, uint64_t request_id, struct rpc_bytes *reply);
void rpc_kept_next_request(struct rpc_kept *k, uint64_t client_id); /* drops the client's large replies */
void rpc_kept_fini(struct rpc_kept *k);

#endif
