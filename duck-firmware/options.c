/* SPDX-License-Identifier: Apache-2.0 */
#include "duck-firmware/options.h"

static const struct duck_options defaults = {.node = DK_NODE_DEFAULTS, .reserve_mib = 512};

static const struct dk_option table[] = {
    DK_NODE_OPTIONS(struct duck_options),
    {.name = "reserve-mib",
     .type = DK_OPT_U64,
     .offset = offsetof(struct duck_options, reserve_mib),
     .value = "MIB",
     .help = "RAM to leave free when taking weights",
     .most = 1 << 20},
    {.name = NULL},
};

void duck_options_help(void)
{
    printf("usage: duck-firmware [OPTION ...]\n\n"
           "Keeps a slice of a model's feed-forward weights in RAM and multiplies them for the attention-worker.\n"
           "Joins the coordinator by itself and serves until it gets SIGINT or SIGTERM. Start one per machine;\n"
           "start more to hold larger models or to go faster.\n\noptions [default]:\n");
    dk_options_help(table, &defaults, stdout);
    printf("\nexit codes: 0 ended on request, 1 cannot start, 2 wrong usage\n");
}

int duck_options_parse(int argc, char **argv, struct duck_options *o, struct dk_err *err)
{
    int extra, rc;

    *o = defaults;
    rc = dk_options_parse(table, o, argc - 1, argv + 1, NULL, 0, &extra, err);
    if (rc < 0 || o->node.help || o->node.version)
        return rc;
    return dk_node_options_check(&o->node, DK_PORT_VIRTIO_USER, err);
}
