/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "duckctl/cluster_dir.h"
#include "duckctl/duckctl.h"

int target_open(const struct common_settings *c, struct dk_rpc_client **client, struct dk_err *err)
{
    struct cluster_dir dir;
    struct cluster_record record;
    int rc;

    if (c->coordinator)
        return dk_rpc_dial(&dk_control_nng, c->coordinator, client, err);
    rc = cluster_dir_name(&dir, c->name, err);
    if (rc == 0)
        rc = cluster_record_read(&dir, &record, err);
    if (rc == -ENOENT)
        err->rc = rc = -ECONNREFUSED; /* nobody to talk to */
    return rc < 0 ? rc : dk_rpc_dial(&dk_control_nng, record.url, client, err);
}

int client_call(struct dk_rpc_client *c, const char *method, const ProtobufCMessage *request, uint32_t timeout_ms,
                ProtobufCMessage **reply, struct dk_err *err)
{
    return dk_rpc_call(c, &dk__client__descriptor, method, request, timeout_ms, reply, err);
}
