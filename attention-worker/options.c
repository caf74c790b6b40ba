/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/options.h"

#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/options.h"

static const struct worker_options defaults = {
    .coordinator = "tcp://127.0.0.1:7717",
    .port = "af_packet",
    .run_dir = "/tmp",
    .isa_name = "auto",
    .log_level = "info",
    .udp_port = 7717,
    .dead_after_ms = 5000,
};

#define FIELD(f) offsetof(struct worker_options, f)
static const struct dk_option table[] = {
    {"coordinator", DK_OPT_TEXT, FIELD(coordinator), "URL", "where the coordinator listens", 0, 0, NULL, NULL},
    {"name", DK_OPT_TEXT, FIELD(name), "NAME", "this worker's name in the cluster; host name if absent", 0, 0, NULL,
     NULL},
    {"threads", DK_OPT_U32, FIELD(threads), "N", "kernel threads; all CPUs if 0 or absent", 0, 256, NULL, NULL},
    {"pin", DK_OPT_FLAG, FIELD(pin), NULL, "keep each kernel thread on its own CPU", 0, 0, NULL, NULL},
    {"isa", DK_OPT_TEXT, FIELD(isa_name), "NAME", "kernels to use", 0, 0, "auto|ref|avx2|avx512", NULL},
    {"port", DK_OPT_TEXT, FIELD(port), "KIND", "data-plane port", 0, 0, "vhost|af_packet", NULL},
    {"interface", DK_OPT_TEXT, FIELD(interface), "IF", "network interface for --port af_packet", 0, 0, NULL, NULL},
    {"udp-port", DK_OPT_U32, FIELD(udp_port), "PORT", "first UDP port to try for the data plane", 1, 65000, NULL, NULL},
    {"run-dir", DK_OPT_TEXT, FIELD(run_dir), "DIR", "where run-time files may be made", 0, 0, NULL, NULL},
    {"cache-mib", DK_OPT_U64, FIELD(cache_mib), "MIB",
     "memory for keys and values; 0 or absent: all sequences at full context", 0, 1 << 24, NULL, NULL},
    {"dead-after-ms", DK_OPT_U32, FIELD(dead_after_ms), "MS", "silence after which a peer counts as dead", 100, 600000,
     NULL, NULL},
    {"busy-poll", DK_OPT_FLAG, FIELD(busy_poll), NULL, "never sleep while waiting for frames (dedicated cores)", 0, 0,
     NULL, NULL},
    {"net-fault", DK_OPT_TEXT, FIELD(net_fault), "SPEC", "inject faults on sending, as drop=0.01,dup=0.01,seed=1", 0, 0,
     NULL, NULL},
    {"log-level", DK_OPT_TEXT, FIELD(log_level), "LEVEL", "how much to log", 0, 0, "error|warn|info|debug", NULL},
    {"version", DK_OPT_FLAG, FIELD(version), NULL, "print the version and end", 0, 0, NULL, NULL},
    {"help", DK_OPT_FLAG, FIELD(help), NULL, "print this and end", 0, 0, NULL, NULL},
    {0},
};

void worker_options_help(void)
{
    printf("usage: attention-worker [OPTION ...]\n\n"
           "Runs attention, router, head and sampler of a model, and feeds the ducks with the rest. Joins the\n"
           "coordinator by itself and serves until it gets SIGINT or SIGTERM.\n\noptions [default]:\n");
    dk_options_help(table, &defaults, stdout);
    printf("\nexit codes: 0 ended on request, 1 cannot start, 2 wrong usage\n");
}

int worker_options_parse(int argc, char **argv, struct worker_options *o, struct dk_err *err)
{
    static char host[64];
    int extra, rc;

    *o = defaults;
    rc = dk_options_parse(table, o, argc - 1, argv + 1, NULL, 0, &extra, err);
    if (rc < 0 || o->help || o->version)
        return rc;
    if (!o->name) {
        gethostname(host, sizeof host - 1);
        o->name = host;
    }
    if (!*o->name || strlen(o->name) > 63)
        return dk_err_set(err, -EINVAL, "--name: must have 1 to 63 characters");
    rc = dk_isa_parse(o->isa_name, &o->isa);
    if (rc < 0)
        return dk_err_set(err, -EINVAL, "--isa %s: this CPU runs %s at most", o->isa_name, dk_isa_name(dk_isa_best()));
    o->port_kind = strcmp(o->port, "vhost") ? DK_PORT_AF_PACKET : DK_PORT_VHOST;
    if (o->port_kind == DK_PORT_AF_PACKET && !o->interface)
        return dk_err_set(err, -EINVAL, "--port af_packet needs --interface IF, the interface that reaches the ducks");
    if (!o->threads)
        o->threads = dk_cpu_count();
    return dk_net_faults_parse(o->net_fault ? o->net_fault : "", &o->faults, err);
}
