/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCKCTL_NAMESPACES_H
#define DUCKCTL_NAMESPACES_H

#include <stddef.h>

#include "duckctl/cluster_dir.h"

/* Network namespaces for a local cluster over af_packet: one for the worker (node 0), one per duck (node 1 + i), joined
 * by a bridge in a namespace of its own. Nothing of the host's network is touched. The interface is called eth0 in
 * each.
 *
 * network: what their names begin with, "dk-NAME-HASH". Clusters of one name but of different folders (another
 * XDG_RUNTIME_DIR, another user) have the host's namespaces in common: the hash of the folder keeps them apart. */
void namespaces_network(const struct cluster_dir *d, char out[CLUSTER_NETWORK_BYTES]);
int namespaces_create(const char *network, unsigned nodes, struct dk_err *err);
/* Removes what is there; fine if nothing is. */
void namespaces_remove(const char *network, unsigned nodes);
void namespace_name(const char *network, unsigned node, char *out, size_t size);

#endif
