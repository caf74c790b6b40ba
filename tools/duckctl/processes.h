/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCKCTL_PROCESSES_H
#define DUCKCTL_PROCESSES_H

#include "duckctl/cluster_dir.h"

/* Starts one of the cluster's programs in a session of its own, output to <dir>/<name>.log. program: a file name beside
 * duckctl. netns: name of the network namespace to start it in, or NULL. argv: without the program, NULL-terminated.
 * The new process is added to the record, and begins only when that is written: a duckctl that is killed leaves none
 * behind that `local down` does not find. */
int process_start(const struct cluster_dir *d, struct cluster_record *r, const char *name, const char *program,
                  const char *netns, const char *const *argv, struct dk_err *err);
/* A process of the record has ended; err has the last line of its log. USAGE_ERROR: it did not take its options;
 * -EBUSY: it could not do its work; -ECHILD: a signal ended it. */
int processes_check(const struct cluster_dir *d, const struct cluster_record *r, struct dk_err *err);
/* SIGTERM to all, ducks and worker first, then SIGKILL to those that do not end. Returns how many had to be killed. */
int processes_stop(const struct cluster_record *r);

/* Runs a command and waits; its error output goes into err. */
int command_run(struct dk_err *err, const char *const *argv);

#endif
