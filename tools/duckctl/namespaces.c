/* SPDX-License-Identifier: Apache-2.0 */
#include "duckctl/namespaces.h"

#include <stdint.h>
#include <stdio.h>

#include "duckctl/processes.h"

#define IP(err, ...) command_run(err, (const char *const[]){"ip", __VA_ARGS__, NULL})

/* FNV-1a, 32 bits (Fowler, Noll, Vo). */
static uint32_t hash(const char *text)
{
    uint32_t h = 2166136261u;

    while (*text)
        h = (h ^ (unsigned char)*text++) * 16777619u;
    return h;
}

void namespaces_network(const struct cluster_dir *d, char out[CLUSTER_NETWORK_BYTES])
{
    snprintf(out, CLUSTER_NETWORK_BYTES, "dk-%.20s-%08x", d->name, hash(d->path));
}

void namespace_name(const char *network, unsigned node, char *out, size_t size)
{
    if (node == 0)
        snprintf(out, size, "%s-worker", network);
    else
        snprintf(out, size, "%s-duck%u", network, node - 1);
}

static int node_create(const char *sw, const char *network, unsigned node, struct dk_err *err)
{
    char ns[64], port[16], address[32];
    int rc;

    namespace_name(network, node, ns, sizeof ns);
    snprintf(port, sizeof port, "p%u", node);
    snprintf(address, sizeof address, "10.78.0.%u/24", node + 1);
    rc = IP(err, "netns", "add", ns);
    if (rc == 0)
        rc = IP(err, "-n", sw, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", ns);
    if (rc == 0)
        rc = IP(err, "-n", sw, "link", "set", port, "master", "br0", "up");
    if (rc == 0)
        rc = IP(err, "-n", ns, "link", "set", "lo", "up");
    if (rc == 0)
        rc = IP(err, "-n", ns, "addr", "add", address, "dev", "eth0");
    if (rc == 0)
        rc = IP(err, "-n", ns, "link", "set", "eth0", "up");
    return rc;
}

int namespaces_create(const char *network, unsigned nodes, struct dk_err *err)
{
    char sw[64];
    int rc;

    snprintf(sw, sizeof sw, "%s-switch", network);
    namespaces_remove(network, nodes);
    rc = IP(err, "netns", "add", sw);
    if (rc == 0)
        rc = IP(err, "-n", sw, "link", "add", "br0", "type", "bridge");
    if (rc == 0)
        rc = IP(err, "-n", sw, "link", "set", "br0", "up");
    for (unsigned i = 0; rc == 0 && i < nodes; i++)
        rc = node_create(sw, network, i, err);
    if (rc < 0) {
        namespaces_remove(network, nodes);
        dk_err_prefix(err, "--port af_packet makes network namespaces, which needs root and the package iproute2");
    }
    return rc;
}

void namespaces_remove(const char *network, unsigned nodes)
{
    char ns[64];

    for (unsigned i = 0; i < nodes; i++) {
        namespace_name(network, i, ns, sizeof ns);
        IP(NULL, "netns", "del", ns);
    }
    snprintf(ns, sizeof ns, "%s-switch", network);
    IP(NULL, "netns", "del", ns);
}
