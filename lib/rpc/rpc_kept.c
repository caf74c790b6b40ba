/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/rpc_internal.h"

static void row_clear(struct rpc_kept *k, struct rpc_kept_row *row)
{
    if (!row->reply)
        return;
    k->bytes -= row->reply->bytes;
    rpc_bytes_drop(row->reply);
    row->reply = NULL;
}

struct rpc_bytes *rpc_kept_find(const struct rpc_kept *k, uint64_t client_id, uint64_t request_id)
{
    for (uint32_t i = 0; i < RPC_KEPT_MOST; i++)
        if (k->rows[i].reply && k->rows[i].client_id == client_id && k->rows[i].request_id == request_id)
            return k->rows[i].reply;
    return NULL;
}

void rpc_kept_add(struct rpc_kept *k, uint64_t client_id, uint64_t request_id, struct rpc_bytes *reply)
{
    struct rpc_kept_row *row = &k->rows[k->next];

    row_clear(k, row);
    /* From the oldest on, until the new one fits. */
    for (uint32_t i = 1; i < RPC_KEPT_MOST && k->bytes + reply->bytes > RPC_KEPT_BYTES_MOST; i++)
        row_clear(k, &k->rows[(k->next + i) % RPC_KEPT_MOST]);
    row->client_id = client_id;
    row->request_id = request_id;
    row->reply = rpc_bytes_hold(reply);
    k->bytes += reply->bytes;
    k->next = (k->next + 1) % RPC_KEPT_MOST;
}

void rpc_kept_next_request(struct rpc_kept *k, uint64_t client_id)
{
    for (uint32_t i = 0; i < RPC_KEPT_MOST; i++)
        if (k->rows[i].reply && k->rows[i].client_id == client_id && k->rows[i].reply->bytes > RPC_KEPT_LARGE_BYTES)
            row_clear(k, &k->rows[i]);
}

void rpc_kept_fini(struct rpc_kept *k)
{
    for (uint32_t i = 0; i < RPC_KEPT_MOST; i++)
        row_clear(k, &k->rows[i]);
}
