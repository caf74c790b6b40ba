/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKER_OPTIONS_H
#define WORKER_OPTIONS_H

#include "node/node_options.h"

struct worker_options {
    struct dk_node_options node;
    uint64_t cache_mib; /* for keys, values, latents and states; 0: see memory_budget.h */
};

int worker_options_parse(int argc, char **argv, struct worker_options *o, struct dk_err *err);
void worker_options_help(void);

#endif
