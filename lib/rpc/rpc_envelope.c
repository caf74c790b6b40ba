/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/rpc_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int rpc_envelope_read(const uint8_t *data, size_t bytes, Dk__RpcRequest **envelope, struct dk_err *err)
{
    int rc;

    *envelope = dk__rpc_request__unpack(NULL, bytes, data);
    if (!*envelope)
        return dk_err_set(err, -EBADMSG, "the message is no RpcRequest (%zu bytes)", bytes);
    if ((*envelope)->protocol_version != DK_PROTOCOL_VERSION)
        return dk_err_set(err, -EPROTONOSUPPORT,
                          "the caller speaks protocol version %u, this server %u: install the same release on both",
                          (*envelope)->protocol_version, DK_PROTOCOL_VERSION);
    rc = dk_message_check(&(*envelope)->base, err);
    if (rc < 0 && err)
        dk_err_prefix(err, "RpcRequest");
    return rc;
}

static int method_unknown(const char *name, const ProtobufCServiceDescriptor *const *services, struct dk_err *err)
{
    char list[360] = "";
    size_t used = 0;

    for (size_t i = 0; services[i]; i++)
        for (unsigned j = 0; j < services[i]->n_methods && used < sizeof list; j++)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%s/%s", used ? ", " : "",
                                     services[i]->short_name, services[i]->methods[j].name);
    return dk_err_set(err, -ENOSYS, "this server has no method %.60s; it has %s", name, *list ? list : "none");
}

int rpc_target_read(const Dk__RpcRequest *envelope, const ProtobufCServiceDescriptor *const *services,
                    struct rpc_target *out, struct dk_err *err)
{
    const ProtobufCServiceDescriptor *service = NULL;
    const ProtobufCMethodDescriptor *method = dk_method_find(envelope->method, &service);
    int rc;

    for (size_t i = 0; method && services[i]; i++) {
        if (services[i] != service)
            continue;
        out->service = service;
        out->method = method;
        out->request = protobuf_c_message_unpack(method->input, NULL, envelope->body.len,
                                                 envelope->has_body ? envelope->body.data : NULL);
        if (!out->request)
            return dk_err_set(err, -EBADMSG, "%s: the body is no %s (%zu bytes)", envelope->method,
                              method->input->short_name, envelope->body.len);
        rc = dk_message_check(out->request, err);
        if (rc < 0) {
            if (err)
                dk_err_prefix(err, "%s", envelope->method);
            protobuf_c_message_free_unpacked(out->request, NULL);
            out->request = NULL;
        }
        return rc;
    }
    return method_unknown(envelope->method, services, err);
}

struct rpc_bytes *rpc_bytes_hold(struct rpc_bytes *b)
{
    __atomic_fetch_add(&b->holders, 1, __ATOMIC_RELAXED);
    return b;
}

void rpc_bytes_drop(struct rpc_bytes *b)
{
    if (b && __atomic_fetch_sub(&b->holders, 1, __ATOMIC_ACQ_REL) == 1)
        free(b);
}

static struct rpc_bytes *bytes_alloc(size_t bytes)
{
    struct rpc_bytes *b = malloc(sizeof *b + bytes);

    if (b) {
        b->holders = 1;
        b->bytes = bytes;
    }
    return b;
}

/* A message inside a bytes field; false: no memory. */
static bool body_pack(const ProtobufCMessage *m, ProtobufCBinaryData *out)
{
    out->len = protobuf_c_message_get_packed_size(m);
    out->data = malloc(out->len ? out->len : 1);
    if (out->data)
        protobuf_c_message_pack(m, out->data);
    return out->data != NULL;
}

struct rpc_bytes *rpc_reply_pack(uint64_t request_id, Dk__Code code, const char *text, const ProtobufCMessage *body)
{
    Dk__RpcReply reply = DK__RPC_REPLY__INIT;
    Dk__Status status = DK__STATUS__INIT;
    struct rpc_bytes *b;

    status.code = code;
    status.text = (char *)text;
    reply.request_id = request_id;
    reply.status = &status;
    if (body) {
        reply.has_body = 1;
        if (!body_pack(body, &reply.body))
            return NULL;
    }
    b = bytes_alloc(dk__rpc_reply__get_packed_size(&reply));
    if (b)
        dk__rpc_reply__pack(&reply, b->data);
    free(reply.body.data);
    return b;
}

struct rpc_bytes *rpc_request_pack(uint64_t client_id, uint64_t request_id, const char *method,
                                   const ProtobufCMessage *body)
{
    Dk__RpcRequest request = DK__RPC_REQUEST__INIT;
    struct rpc_bytes *b;

    request.protocol_version = DK_PROTOCOL_VERSION;
    request.client_id = client_id;
    request.request_id = request_id;
    request.method = (char *)method;
    request.has_body = 1;
    if (!body_pack(body, &request.body))
        return NULL;
    b = bytes_alloc(dk__rpc_request__get_packed_size(&request));
    if (b)
        dk__rpc_request__pack(&request, b->data);
    free(request.body.data);
    return b;
}
