/* SPDX-License-Identifier: Apache-2.0 */
/* What a server of the control plane does with received bytes: envelope, method, body. An accepted request is also
 * written as JSON. The same bytes are then read as a reply's envelope, as a client does. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/rpc_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    Dk__RpcRequest *e = NULL;
    struct dk_err err = {0};
    Dk__RpcReply *reply;

    if (!copy)
        return 0;
    if (size)
        memcpy(copy, data, size);
    if (rpc_envelope_read(copy, size, &e, &err) == 0) {
        struct rpc_target t = {NULL, NULL, NULL};

        if (rpc_target_read(e, dk_services, &t, &err) == 0) {
            char *json = dk_json_from_message(t.request, 2);

            if (!json || t.request->descriptor != t.method->input)
                abort();
            free(json);
            protobuf_c_message_free_unpacked(t.request, NULL);
        } else if (!err.text[0] || t.request) {
            abort();
        }
    } else if (!err.text[0]) {
        abort();
    }
    if (e)
        dk__rpc_request__free_unpacked(e, NULL);
    reply = dk__rpc_reply__unpack(NULL, size, copy);
    if (reply) {
        dk_message_check(&reply->base, &err);
        dk__rpc_reply__free_unpacked(reply, NULL);
    }
    free(copy);
    return 0;
}
