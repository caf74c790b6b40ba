/* SPDX-License-Identifier: Apache-2.0 */
#include "duck-firmware/heartbeat.h"
#include "duck-firmware/options.h"
#include "duck-firmware/poll.h"

static int engine_open(void *ctx, struct dk_mailbox *news, struct dk_err *err)
{
    struct duck_engine *e = ctx;

    return duck_engine_open(e, e->options, &dk_net_dpdk, news, err);
}

int main(int argc, char **argv)
{
    static struct duck_options options;
    static struct duck_engine engine = {.options = &options};
    static struct duck_heartbeat heartbeat = {.engine = &engine};
    struct dk_node_engine ops = duck_engine_ops;
    struct dk_err err = {0};
    int rc = duck_options_parse(argc, argv, &options, &err);

    rc = dk_node_begin("duck-firmware", &options.node, rc, &err, duck_options_help);
    if (rc >= 0)
        return rc;
    ops.open = engine_open;
    rc = dk_node_run(&heartbeat.node, &dk_control_nng, &options.node, &ops, &engine, &duck_control, &heartbeat, &err);
    if (rc < 0)
        fprintf(stderr, "duck-firmware: %s\n", err.text);
    return rc < 0 ? 1 : 0;
}
