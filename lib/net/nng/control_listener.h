/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_CONTROL_LISTENER_H
#define DK_CONTROL_LISTENER_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/error.h"

/* The listening socket of a control plane's address, which control_url_check() found good. */
struct control_listener {
    int fd; /* does not block */
    bool ipc;
    char path[108];
    dev_t device; /* the socket file that is ours */
    ino_t inode;
};

/* A stale socket file of a dead process is replaced; one that is served is left in peace, also by the way of finding
 * that out. -EADDRINUSE, -EADDRNOTAVAIL, -ENOENT, -EACCES, -EBUSY and others of the kernel. */
int control_listener_open(struct control_listener *l, const char *url, struct dk_err *err);
/* Removes the socket file, if it is still ours, and closes. */
void control_listener_close(struct control_listener *l);

#endif
