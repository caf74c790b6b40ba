/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCKCTL_CLUSTER_DIR_H
#define DUCKCTL_CLUSTER_DIR_H

#include <jansson.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/error.h"

/* The folder of a local cluster: sockets, logs, and cluster.json, which lists its processes. It exists only while the
 * cluster does. $XDG_RUNTIME_DIR/duckllm/NAME, or /tmp/duckllm-UID/NAME. */
struct cluster_dir {
    char name[32];
    char path[64]; /* short: socket paths in it must stay below 108 characters */
    char base[48];
};

#define CLUSTER_PROCESSES_MAX 40u
#define CLUSTER_NETWORK_BYTES 33 /* "dk-", 20, "-", 8, 0 */

struct cluster_process {
    char name[32];
    pid_t pid;
    unsigned long long started; /* field 22 of /proc/PID/stat: tells a recycled pid */
};

struct cluster_record {
    char url[160];
    struct cluster_process processes[CLUSTER_PROCESSES_MAX];
    unsigned process_count;
    unsigned namespaces;                 /* network namespaces made for its nodes; 0: none */
    char network[CLUSTER_NETWORK_BYTES]; /* what their names begin with; see namespaces.h */
};

/* Makes up the path; nothing is created. USAGE_ERROR: a name may have 1 to 20 letters, digits, '-' and '_'. */
int cluster_dir_name(struct cluster_dir *d, const char *name, struct dk_err *err);
/* Creates the folder for a new cluster and locks it against another `up` (*lock: a descriptor, close it when the
 * cluster is recorded or has failed). What a crashed cluster of that name left is removed, namespaces too. -EEXIST: it
 * is running; -EINVAL: its record is damaged, so that nobody knows what still runs. */
int cluster_dir_create(struct cluster_dir *d, int *lock, struct dk_err *err);
void cluster_dir_remove(const struct cluster_dir *d);

int cluster_record_write(const struct cluster_dir *d, const struct cluster_record *r, struct dk_err *err);
/* -ENOENT: no such cluster; -EINVAL: the file is damaged. */
int cluster_record_read(const struct cluster_dir *d, struct cluster_record *r, struct dk_err *err);

/* Whether that very process still runs. */
bool cluster_process_alive(const struct cluster_process *p);
/* Start time of a running process, 0 if there is none. */
unsigned long long cluster_process_started(pid_t pid);

#endif
