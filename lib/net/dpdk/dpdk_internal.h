/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_NET_DPDK_INTERNAL_H
#define DK_NET_DPDK_INTERNAL_H

/* Shared by the files of this folder and its white-box tests. */

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>

#include "net/faults.h"
#include "net/net.h"

enum {
    DK_DPDK_MTU_MAX = 9000,
    DK_DPDK_FRAME_ROOM = 9216, /* of each buffer */
    DK_DPDK_QUEUE_FRAMES = 64, /* queued per port before a flush is forced */
    DK_DPDK_BURST = 32,
    DK_VIRTIO_RING_FRAMES = 256, /* buffers that a virtio_user port keeps in each direction */
};

/* ---- eal.c --------------------------------------------------------------------------------------------------- */

/* Starts DPDK, once per process, and makes the pool of frame buffers. run_dir: shared by the processes that compete
 * for hugepages; NULL: none are used. -EALREADY: it ran in this process before;
 * -EINVAL: ports_max; -ENOMEM; -EIO. */
int dk_eal_open(const char *name, const char *run_dir, uint32_t ports_max, struct rte_mempool **pool,
                struct dk_err *err);
/* Ends DPDK and removes what it left on disk. */
void dk_eal_close(struct rte_mempool *pool);
/* Adds a virtual device and finds its port. While it runs, DPDK's error lines are kept for *err and logged as debug
 * lines only: many failures are expected, as when a socket is not served yet. -EIO. */
int dk_eal_device_add(const char *vdev, const char *arguments, uint16_t *eth, struct dk_err *err);
/* Configures and starts a port with one queue each way. mtu 0: the device's own. -EIO. */
int dk_eal_port_start(uint16_t eth, uint32_t mtu, struct rte_mempool *pool, struct dk_err *err);
/* Stops the port and removes its device. Fine with a peer that is gone. */
void dk_eal_device_remove(const char *vdev, uint16_t eth);
/* The last error line that DPDK wrote, "" if there was none; for messages. */
void dk_eal_last_line(char *text, size_t bytes);

/* ---- bell.c -------------------------------------------------------------------------------------------------- */

enum { DK_BELL_PLACES = 256, DK_BELL_STRIDE = 64, DK_BELL_BYTES = DK_BELL_PLACES * DK_BELL_STRIDE };

/* The shared file in which each side says that it sleeps. Place 0 is the worker's, place 1 + bell_index a duck's;
 * a place is a cache line whose first word is 1 while its owner is parked on it (a futex) and 0 otherwise. The words
 * carry no data: whatever another process writes there costs at most a needless wake-up or a late one. */
struct dk_bell {
    unsigned char *map; /* NULL: none */
    bool made;          /* by this process, which removes the file */
    int lock_fd;        /* if made: holds its lock */
    uint32_t refs;
    uint64_t inode;
    char path[100];
};

/* Makes the file, in place of what a crashed process left there. -EADDRINUSE: its maker is alive. */
int dk_bell_make(struct dk_bell *b, const char *path, struct dk_err *err);
/* Maps the file that the other side made. -ENOENT: it is not there (yet). */
int dk_bell_join(struct dk_bell *b, const char *path, struct dk_err *err);
/* Unmaps; removes the file if it was made here. Fine on a zeroed one. */
void dk_bell_close(struct dk_bell *b);
_Atomic uint32_t *dk_bell_word(const struct dk_bell *b, uint32_t place);

/* Wakes whoever is parked on word. Everything written before the call is visible to it. */
void dk_bell_ring(_Atomic uint32_t *word);
/* Marks the caller as parked on word; then it must look for work once more before it sleeps. */
void dk_bell_arm(_Atomic uint32_t *word);
/* Sleeps while armed, at most timeout_us. Returns whether somebody rang. */
bool dk_bell_sleep(_Atomic uint32_t *word, uint64_t timeout_us);
/* Takes back the mark without sleeping. */
void dk_bell_disarm(_Atomic uint32_t *word);

/* ---- ports --------------------------------------------------------------------------------------------------- */

struct dk_port {
    bool used;
    enum dk_port_kind kind;
    uint16_t eth;
    char vdev[32];
    uint32_t mtu;
    char path[100]; /* of the socket (vhost) */
    int lock_fd;    /* vhost: flock on "<path>.lock" for as long as the socket is served; -1 */
    int poll_fd;    /* af_packet: the driver's own socket, not ours to close; -1 */
    struct dk_bell *bell;
    _Atomic uint32_t *own_word, *peer_word; /* NULL: no bell */
    bool stuck;                             /* the last flush found the device full and in vain waited for room */
    uint32_t queued;
    struct rte_mbuf *queue[DK_DPDK_QUEUE_FRAMES];
};

struct dk_net {
    struct dk_net_config config;
    struct rte_mempool *pool;
    uint32_t ports_max;
    uint32_t next_port; /* where recv goes on: no port starves the others */
    struct dk_port ports[RTE_MAX_ETHPORTS];
    struct dk_bell bells[RTE_MAX_ETHPORTS];
    uint8_t mac[6]; /* of all vhost and virtio_user ports */
    struct dk_net_counters counters;
    struct dk_fault_injector faults;

    /* Frames that wait() found when it looked once more; recv hands them out first. */
    uint32_t stash_count, stash_next;
    struct rte_mbuf *stash[DK_DPDK_BURST];
    uint32_t stash_port[DK_DPDK_BURST];

    /* park.c */
    uint64_t idle_since_us;    /* 0: the last poll found work */
    uint32_t no_spin;          /* so many more waits park at once */
    pthread_mutex_t wake_lock; /* own_word and poll_count may change while another thread is in wake() */
    _Atomic uint32_t *own_word;
    _Atomic uint32_t private_word; /* own_word when no port has a bell */
    uint32_t poll_count;           /* ports with a poll_fd */
    uint32_t park_most_us;
    int wake_fd;        /* eventfd */
    int timer_slack_ns; /* of the thread before, to be given back */
    atomic_bool woken;
};

/* port_vhost.c: fill in *p (kind, vdev and place in net->ports are set) and start it; on failure everything is
 * undone. */
int dk_port_vhost_add(struct dk_net *net, struct dk_port *p, const struct dk_port_spec *spec, struct dk_err *err);
int dk_port_virtio_user_add(struct dk_net *net, struct dk_port *p, const struct dk_port_spec *spec, struct dk_err *err);
void dk_port_vhost_remove(struct dk_net *net, struct dk_port *p); /* both kinds */

/* port_af_packet.c; mac: the interface's. */
int dk_port_af_packet_add(struct dk_net *net, struct dk_port *p, const struct dk_port_spec *spec, uint8_t mac[6],
                          struct dk_err *err);
void dk_port_af_packet_remove(struct dk_port *p);

/* A name or path that may stand in DPDK's device arguments. */
bool dk_port_name_fits(const char *text, size_t most);

/* park.c */
int dk_park_open(struct dk_net *net);
void dk_park_close(struct dk_net *net);
/* Chooses again how to sleep, after ports changed. */
void dk_park_ports_changed(struct dk_net *net);
void dk_park_wait(struct dk_net *net, bool worked, uint64_t now_us, uint64_t deadline_us);
void dk_park_wake(struct dk_net *net);

/* net_dpdk.c: receives into the empty stash. Returns the number of frames. */
uint32_t dk_dpdk_look(struct dk_net *net);
/* Makes m one piece. false: it does not fit in one buffer. */
bool dk_dpdk_flatten(struct rte_mbuf *m);

#endif
