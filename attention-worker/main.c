/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/control.h"
#include "attention-worker/engine.h"
#include "attention-worker/options.h"

static int engine_open(void *ctx, struct dk_mailbox *news, struct dk_err *err)
{
    struct worker_engine *e = ctx;

    return worker_engine_open(e, e->options, &dk_net_dpdk, news, err);
}

int main(int argc, char **argv)
{
    static struct worker_options options;
    static struct worker_engine engine = {.options = &options};
    static struct worker_control control = {.engine = &engine};
    struct dk_node_engine ops = worker_engine_ops;
    struct dk_err err = {0};
    int rc = worker_options_parse(argc, argv, &options, &err);

    rc = dk_node_begin("attention-worker", &options.node, rc, &err, worker_options_help);
    if (rc >= 0)
        return rc;
    ops.open = engine_open;
    rc = dk_node_run(&control.node, &dk_control_nng, &options.node, &ops, &engine, &worker_control_ops, &control, &err);
    worker_control_fini(&control);
    if (rc < 0)
        fprintf(stderr, "attention-worker: %s\n", err.text);
    return rc < 0 ? 1 : 0;
}
