/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCK_OPTIONS_H
#define DUCK_OPTIONS_H

#include "node/node_options.h"

struct duck_options {
    struct dk_node_options node;
    uint64_t reserve_mib; /* RAM that weights never take */
};

/* Reads the command line and checks it. -EINVAL: *err says which option and what it takes. */
int duck_options_parse(int argc, char **argv, struct duck_options *o, struct dk_err *err);
void duck_options_help(void);

#endif
