/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_NAMESPACE_H
#define NET_NAMESPACE_H

#include <stdint.h>
#include <sys/types.h>

/* Networks of the test's own, for programs that use kernel interfaces: a bridge in one network namespace, and a
 * cable from it to the namespace of each process. All of it disappears with its processes. Root uses network
 * namespaces directly; an ordinary user gets a user namespace too, where the system allows that. Needs `ip`. */

/* The skipped test's exit status, as CMake's SKIP_RETURN_CODE wants it. */
enum { NET_NAMESPACE_SKIP = 77 };

/* Moves this process (which must have one thread) into a fresh network namespace and, unless it is root, into a user
 * namespace in which it is root. Negative errno: it may not; then the test is to be skipped. */
int net_namespace_enter(void);

/* As above for a child that is in the namespace of a parent who entered one: a network namespace of its own. */
int net_namespace_split(void);

/* Makes a bridge with this MTU and brings it up; and takes it away with all its cables. */
int net_namespace_bridge_add(const char *bridge, uint32_t mtu);
void net_namespace_bridge_remove(const char *bridge);

/* A cable from the bridge to a new interface `name` in the namespace of process pid, with an address that ends with
 * mac_end (02:00:00:00:00:xx). unique: a number below 1000 that no other cable has at the same time. The process
 * brings its end up with net_namespace_up(). */
int net_namespace_cable_add(const char *bridge, uint32_t unique, pid_t pid, const char *name, uint8_t mac_end,
                            uint32_t mtu);
int net_namespace_up(const char *name);

#endif
