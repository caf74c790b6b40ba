/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/options.h"

static const struct worker_options defaults = {.node = DK_NODE_DEFAULTS};

static const struct dk_option table[] = {
    DK_NODE_OPTIONS(struct worker_options),
    {.name = "cache-mib",
     .type = DK_OPT_U64,
     .offset = offsetof(struct worker_options, cache_mib),
     .value = "MIB",
     .help = "memory for keys, values, latents and states; 0 or absent: at most half of what weights leave",
     .most = 1 << 24},
    {.name = NULL},
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
    int extra, rc;

    *o = defaults;
    rc = dk_options_parse(table, o, argc - 1, argv + 1, NULL, 0, &extra, err);
    if (rc < 0 || o->node.help || o->node.version)
        return rc;
    return dk_node_options_check(&o->node, DK_PORT_VHOST, err);
}
