/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_CONTROL_LISTENER_H
#define DK_CONTROL_LISTENER_H

#include <nng/nng.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/error.h"

/* The address of a server, kept answering: see control_listener.c. */
struct control_listener {
    nng_socket socket;
    char url[160];
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)]; /* of an ipc address; empty for others */
    struct stat file;       /* the socket's file at `path`, to remove none but our own */
    uint32_t generation;    /* counts the listeners of NNG that served this address */
    nng_listener current;
    nng_listener retired[8]; /* deaf, but still with connections */
    uint32_t retired_count;
    nng_aio *keeper;        /* the timer of the watch below */
    enum { KEEPER_WATCH, KEEPER_PROBE, KEEPER_JUDGE } state;
    uint64_t errors_seen, accepted_before;
    int probe;              /* fd of a connection to ourselves, or -1 */
};

/* Listens at url. -EADDRINUSE, -EADDRNOTAVAIL, -ENOENT, ...; *err says what to do. */
int control_listener_open(struct control_listener *l, nng_socket socket, const char *url, struct dk_err *err);
/* Ends the watch and removes the socket's file; NNG's listeners end with their socket. Fine on a zeroed one and on one
 * that could not be opened. */
void control_listener_close(struct control_listener *l);

#endif
