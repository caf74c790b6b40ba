/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DPDK_PEER_H
#define DPDK_PEER_H

/* Processes for the tests of lib/net/dpdk. A test's own process never starts DPDK (it can be started once per process
 * and does not survive a fork): it forks workers and ducks, tells them by a pipe what to do and reads what they saw. */

#include <stdint.h>
#include <sys/types.h>

#include "net/net.h"

enum { PEER_PORTS_MAX = 8 };

struct peer_config {
    const char *dir;       /* sockets "<dir>/<index>" and the bell "<dir>/bell" */
    const char *name;      /* of the run-time files */
    const char *interface; /* af_packet instead of vhost and virtio_user; NULL */
    bool mixed;            /* worker: a vhost port beside the interface */
    uint32_t ports;        /* worker */
    uint32_t index;        /* duck */
    uint32_t frames;       /* to exchange */
    uint32_t pause_us;     /* duck: between its frames */
    bool mute;             /* worker: neither receives nor answers, but lives */
    struct dk_net_faults faults;
};

/* What a process reports when it ends. */
struct peer_report {
    int rc;
    uint32_t mtu;
    uint8_t mac[6];
    uint64_t frames, bad; /* received whole; with wrong bytes or length */
    struct dk_net_counters counters;
};

struct peer {
    pid_t pid;
    int to, from;
};

/* The body of a process: in and out are its ends of the pipes. Returns its exit status. */
typedef int peer_main(const struct peer_config *c, int in, int out);

/* Sends back every frame to where it came from, until told to stop. */
int peer_worker(const struct peer_config *c, int in, int out);
/* Exchanges c->frames frames of all sizes with the worker and then waits to be told to stop. */
int peer_duck(const struct peer_config *c, int in, int out);
/* Floods the worker with frames and ignores what comes back, until it is killed. */
int peer_flood(const struct peer_config *c, int in, int out);
/* Exchanges without end; when answers stay away, removes its port and adds it again until a worker is back. Ends
 * after c->frames frames with the second worker. */
int peer_faithful_duck(const struct peer_config *c, int in, int out);

struct peer peer_start(peer_main *main, const struct peer_config *c);
/* Waits for one byte from the process; 0 on success, -EPIPE when it ended. */
int peer_expect(struct peer *p, char byte);
/* Says stop, reads the report and the exit status: 0, or what went wrong. */
int peer_stop(struct peer *p, struct peer_report *r);
void peer_kill(struct peer *p);

/* For bodies of their own in a test. */
int peer_open(const struct peer_config *c, struct dk_net **net);
int peer_port_add(struct dk_net *net, const struct peer_config *c, bool worker, uint32_t index, uint32_t *port,
                  uint8_t mac[6], uint32_t *mtu);
/* Sends `count` frames of the sizes of number `first` and on, with a few under way at a time, and checks the answers.
 * -ETIMEDOUT: nothing came for quiet_us. */
int peer_exchange(struct dk_net *net, uint32_t port, uint32_t first, uint32_t count, uint32_t size_most,
                  uint32_t pause_us, uint64_t quiet_us, struct peer_report *r);
void peer_frame_fill(struct dk_frame *f, uint32_t number, uint32_t bytes);
bool peer_frame_good(const struct dk_frame *f);
bool peer_told(int in);
int peer_report_send(int out, const struct peer_report *r);

/* A fresh folder; path has room for 64 bytes. */
void peer_dir_make(char *path);
/* Removes the folder; the number of things that were left in it and in DPDK's run-time folder for `name`. */
int peer_dir_leftovers(const char *path, const char *name);

#endif
