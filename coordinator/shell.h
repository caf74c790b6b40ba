/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_COORDINATOR_SHELL_H
#define DK_COORDINATOR_SHELL_H

#include "coordinator/core.h"
#include "net/net.h"

/* Clock, control plane and signals round the core: listens at url and runs until SIGINT or SIGTERM. Calls that wait
 * then are answered UNAVAILABLE. 0: ended by a signal; -EADDRINUSE and other errors of listening, -EINVAL of the
 * options. */
int dk_coordinator_run(const struct dk_control_ops *plane, const char *url, const struct dk_coordinator_options *o,
                       struct dk_err *err);

#endif
