/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for the DPDK back end in builds without DPDK, so that the programs link and say what is missing. */
#include "net/net.h"

static int open_refused(const struct dk_net_config *config, struct dk_net **out, struct dk_err *err)
{
    *out = NULL;
    return dk_err_set(err, -ENOTSUP, "this build has no data plane: install libdpdk-dev and build again");
}

const struct dk_net_ops dk_net_dpdk = {.name = "none", .open = open_refused};
