/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "duckctl/cluster_dir.h"
#include "duckctl/duckctl.h"

#define PROBE_MS       5000u
#define PROBE_ENDED_MS 1000u /* where the process that listened is known to have ended */

/* A first short call, so that a verb whose own call may take long learns soon that nobody is there. */
static int probe(struct dk_rpc_client *c, uint32_t timeout_ms, struct dk_err *err)
{
    Dk__StatusRequest q = DK__STATUS_REQUEST__INIT;
    ProtobufCMessage *m;
    int rc = client_call(c, "GetStatus", &q.base, timeout_ms, &m, err);

    if (rc == 0)
        protobuf_c_message_free_unpacked(m, NULL);
    return rc;
}

static int dial(const char *url, uint32_t timeout_ms, struct dk_rpc_client **client, struct dk_err *err)
{
    int rc = dk_rpc_dial(&dk_control_nng, url, client, err);

    if (rc == 0)
        rc = probe(*client, timeout_ms, err);
    if (rc < 0) {
        dk_rpc_client_close(*client);
        *client = NULL;
    }
    return rc;
}

static int local_open(const char *name, struct dk_rpc_client **client, struct dk_err *err)
{
    struct cluster_dir dir;
    struct cluster_record record;
    bool ended;
    int rc = cluster_dir_name(&dir, name, err);

    if (rc == 0)
        rc = cluster_record_read(&dir, &record, err);
    if (rc == -ENOENT)
        err->rc = rc = -ECONNREFUSED; /* nobody to talk to */
    if (rc < 0)
        return rc;
    /* It may have been started again by hand. */
    ended = !record.process_count || !cluster_process_alive(&record.processes[0]);
    rc = dial(record.url, ended ? PROBE_ENDED_MS : PROBE_MS, client, err);
    ended = !record.process_count || !cluster_process_alive(&record.processes[0]);
    if (ended && (rc == -ECONNREFUSED || rc == -ETIMEDOUT))
        dk_err_set(err, rc,
                   "the coordinator of cluster '%s' has ended; %s/coordinator.log tells why, and `duckctl local down "
                   "--name %s` ends the rest of the cluster",
                   dir.name, dir.path, dir.name);
    return rc;
}

int target_open(const struct common_settings *c, struct dk_rpc_client **client, struct dk_err *err)
{
    int rc;

    *client = NULL;
    catch_interrupts();
    if (!c->coordinator)
        return local_open(c->name, client, err);
    rc = dial(c->coordinator, PROBE_MS, client, err);
    if (rc == -EINVAL) {
        dk_err_prefix(err, "--coordinator");
        err->rc = rc = USAGE_ERROR;
    }
    return rc;
}
