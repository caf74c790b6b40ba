/* SPDX-License-Identifier: Apache-2.0 */
#include "node/node_options.h"

#include <string.h>
#include <unistd.h>

/* Sockets in it must stay below what DPDK takes for a path (99 characters). */
#define RUN_DIR_MAX 80u

#define FIELD(f) offsetof(struct dk_node_options, f)
#define TEXT(Name, Field, Value, Help, Choices)                                                                     \
    {                                                                                                               \
        .name = Name, .type = DK_OPT_TEXT, .offset = FIELD(Field), .value = Value, .help = Help, .choices = Choices \
    }
#define NUMBER(Name, Field, Value, Help, Least, Most)                                                           \
    {                                                                                                           \
        .name = Name, .type = DK_OPT_U32, .offset = FIELD(Field), .value = Value, .help = Help, .least = Least, \
        .most = Most                                                                                            \
    }
#define FLAG(Name, Field, Help)                                                 \
    {                                                                           \
        .name = Name, .type = DK_OPT_FLAG, .offset = FIELD(Field), .help = Help \
    }

const struct dk_option dk_node_option_table[] = {
    TEXT("coordinator", coordinator, "URL", "where the coordinator listens", NULL),
    TEXT("name", name, "NAME", "this node's name in the cluster; the host name if absent", NULL),
    NUMBER("threads", threads, "N", "kernel threads; all CPUs if 0 or absent", 0, 256),
    FLAG("pin", pin, "keep each kernel thread on its own CPU"),
    TEXT("isa", isa_name, "NAME", "kernels to use", "auto|ref|avx2|avx512"),
    TEXT("port", port, "KIND", "data-plane port", "vhost|af_packet"),
    TEXT("interface", interface, "IF", "network interface for --port af_packet", NULL),
    NUMBER("udp-port", udp_port, "PORT", "first UDP port to try for the data plane", 1, 65000),
    TEXT("run-dir", run_dir, "DIR", "where run-time files may be made; with --port vhost one per cluster", NULL),
    NUMBER("dead-after-ms", dead_after_ms, "MS", "silence after which a peer counts as dead", 100, 600000),
    FLAG("busy-poll", busy_poll, "never sleep while waiting for frames (dedicated cores)"),
    TEXT("net-fault", net_fault, "SPEC", "inject faults on sending, as drop=0.01,dup=0.01,seed=1", NULL),
    TEXT("log-level", log_level, "LEVEL", "how much to log", "error|warn|info|debug"),
    FLAG("version", version, "print the version and end"),
    FLAG("help", help, "print this and end"),
    {.name = NULL},
};

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
