/* SPDX-License-Identifier: Apache-2.0 */
#include "node/node_options.h"

#include <string.h>
#include <unistd.h>

/* Sockets in it must stay below what DPDK takes for a path (99 characters). */
#define RUN_DIR_MAX 80u

int dk_node_options_check(struct dk_node_options *o, enum dk_port_kind vhost_kind, struct dk_err *err)
{
    static char host[64];

    if (!o->name) {
        gethostname(host, sizeof host - 1);
        o->name = host;
    }
    if (!*o->name || strlen(o->name) > 63)
        return dk_err_set(err, -EINVAL, "--name: must have 1 to 63 characters");
    if (strlen(o->run_dir) > RUN_DIR_MAX)
        return dk_err_set(err, -EINVAL, "--run-dir: at most %u characters, because socket paths are short",
                          RUN_DIR_MAX);
    if (dk_isa_parse(o->isa_name, &o->isa) < 0)
        return dk_err_set(err, -EINVAL, "--isa %s: this CPU runs %s at most", o->isa_name, dk_isa_name(dk_isa_best()));
    o->port_kind = strcmp(o->port, "vhost") ? DK_PORT_AF_PACKET : vhost_kind;
    if (o->port_kind == DK_PORT_AF_PACKET && !o->interface)
        return dk_err_set(err, -EINVAL,
                          "--port af_packet needs --interface IF, the network interface that reaches the other nodes");
    if (!o->threads)
        o->threads = dk_cpu_count();
    dk_log_level_parse(o->log_level, &o->log); /* one of the table's choices */
    return dk_net_faults_parse(o->net_fault ? o->net_fault : "", &o->faults, err);
}
