/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCKCTL_NAMESPACES_H
#define DUCKCTL_NAMESPACES_H

#include <stddef.h>

#include "base/error.h"

/* Network namespaces for a local cluster over af_packet: one for the worker (node 0), one per duck (node 1 + i), joined
 * by a bridge in a namespace of its own. Nothing of the host's network is touched. The interface is called eth0 in
 * each. */
int namespaces_create(const char *cluster, unsigned nodes, struct dk_err *err);
/* Removes what is there; fine if nothing is. */
void namespaces_remove(const char *cluster, unsigned nodes);
void namespace_name(const char *cluster, unsigned node, char *out, size_t size);

#endif
