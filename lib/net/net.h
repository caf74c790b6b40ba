/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_NET_H
#define DK_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Moves bytes between processes, knows no message. Two planes:
 *
 * data plane: Ethernet frames through ports. Back ends: dpdk (vhost, virtio_user, af_packet), sim (in process).
 * control plane: whole request and reply messages. Back ends: nng (tcp, ipc), sim. */

/* ---- data plane ---------------------------------------------------------------------------------------------- */

struct dk_net;

struct dk_frame {
    uint8_t *data;
    uint32_t bytes;
    uint32_t port; /* that it came through or goes out of */
    void *handle;  /* the back end's own */
};

enum dk_port_kind {
    DK_PORT_VHOST,       /* worker's side: serves a vhost-user socket, one port a duck */
    DK_PORT_VIRTIO_USER, /* duck's side: connects to that socket */
    DK_PORT_AF_PACKET,   /* a kernel network interface */
    DK_PORT_SIM,
};

struct dk_port_spec {
    enum dk_port_kind kind;
    char path[100];      /* vhost, virtio_user: socket path; af_packet: interface name; sim: wire name */
    char bell_path[100]; /* vhost, virtio_user: file shared by both sides, with the parking flags. The vhost side
                          * makes it; one file serves all ports of a worker. Empty: none, waiting costs CPU. */
    uint32_t bell_index; /* vhost, virtio_user: the duck's place in that file, the same on both sides and another for
                          * each duck of a worker (its member index, say); below 255 */
};

/* Faults injected on sending, from one seed. Probabilities in [0, 1]. */
struct dk_net_faults {
    double drop, dup, reorder, corrupt;
    double delay; /* probability that a frame is held back for delay_us */
    uint32_t delay_us;
    uint64_t seed;
};

/* "drop=0.01,dup=0.01,reorder=0.02,corrupt=0.001,delay=0.1,delay_us=500,seed=7"; empty text: none. -EINVAL. */
int dk_net_faults_parse(const char *text, struct dk_net_faults *out, struct dk_err *err);

struct dk_net_config {
    const char *name;     /* unique on this host: names the run-time files (DPDK's file prefix) */
    const char *run_dir;  /* where they may be made */
    uint32_t ports_max;   /* most ports at one time */
    uint32_t frame_bytes; /* largest Ethernet frame: mtu + 14 */
    bool busy_poll;       /* never park: for dedicated cores */
    struct dk_net_faults faults;
};

struct dk_net_counters {
    uint64_t frames_in, frames_out, bytes_in, bytes_out;
    uint64_t no_buffer; /* no frame to be had */
    uint64_t send_full; /* the device queue took no more; the frame was dropped and the transport repeats it */
    uint64_t fault_dropped, fault_duplicated, fault_reordered, fault_corrupted, fault_delayed;
    uint64_t parks, wakeups;
};

/* A back end; each exports one of these. All calls from the one thread that opened it, unless said otherwise. */
struct dk_net_ops {
    const char *name;
    int (*open)(const struct dk_net_config *config, struct dk_net **out, struct dk_err *err);
    void (*close)(struct dk_net *net);
    /* *port: index below ports_max. mac and mtu: what the port has or takes (mtu: largest IPv4 packet).
     * -ENOENT: virtio_user and its socket is not there or not served (try again later); -EADDRINUSE: vhost, and
     * another living process serves the socket or owns the bell; -ENODEV: no such interface; -EPERM; -ENOSPC;
     * -EINVAL. */
    int (*port_add)(struct dk_net *net, const struct dk_port_spec *spec, uint32_t *port, uint8_t mac[6], uint32_t *mtu,
                    struct dk_err *err);
    void (*port_remove)(struct dk_net *net, uint32_t port);
    /* Up to `most` waiting frames of all ports; each must be given back with frame_put. Never blocks. */
    uint32_t (*recv)(struct dk_net *net, struct dk_frame *frames, uint32_t most);
    /* A frame to fill in; -EAGAIN: none to be had now. f->bytes is the room in it. */
    int (*frame_get)(struct dk_net *net, struct dk_frame *f);
    void (*frame_put)(struct dk_net *net, struct dk_frame *f);
    /* Queues the frame for f->port; it is no longer the caller's whatever happens. flush sends what is queued. */
    void (*send)(struct dk_net *net, struct dk_frame *f);
    void (*flush)(struct dk_net *net);
    /* Called when a poll found no work: yields for about 50 us in all, then parks until a frame may have come,
     * wake() was called, or deadline_us (monotonic; a millisecond late at most). May return early for no reason.
     * worked: the poll before this call found work (resets the spinning time). */
    void (*wait)(struct dk_net *net, bool worked, uint64_t now_us, uint64_t deadline_us);
    void (*wake)(struct dk_net *net); /* any thread: ends a wait in progress or the next one */
    const struct dk_net_counters *(*counters)(const struct dk_net *net);
};

extern const struct dk_net_ops dk_net_dpdk; /* without DPDK its open refuses */
extern const struct dk_net_ops dk_net_sim;

/* ---- control plane ------------------------------------------------------------------------------------------- */

struct dk_control_server;
struct dk_control_client;
struct dk_control_request; /* one received request that waits for its reply */

/* Largest request or reply; call() refuses longer ones with -EMSGSIZE, reply() must not be given one. */
#define DK_CONTROL_BYTES_MAX ((256u << 20) - 64)

/* Called on some thread of the back end for each request; data is valid until the reply. The reply may be sent
 * from any thread, later, exactly once. */
typedef void dk_control_on_request(void *ctx, struct dk_control_request *request, const uint8_t *data, size_t bytes);
/* The end of a call: rc 0 and the reply, or -ETIMEDOUT, -ECONNREFUSED, -ECANCELED (closing). Some thread of the
 * back end; data only valid inside. */
typedef void dk_control_on_reply(void *ctx, int rc, const uint8_t *data, size_t bytes);

struct dk_control_ops {
    const char *name;
    /* url: "tcp://127.0.0.1:7717", "ipc:///run/x". parallel: requests that may wait for their replies at a time.
     * -EADDRINUSE: the port is busy; a stale ipc socket of a dead process is replaced. -EBUSY: another process has held
     * the lock on the socket's folder for two seconds. */
    int (*listen)(const char *url, uint32_t parallel, dk_control_on_request *on_request, void *ctx,
                  struct dk_control_server **out, struct dk_err *err);
    /* No callback runs or comes after this. A request that still waits stays valid until its reply(), which is then
     * dropped; its caller asks the next server by itself. */
    void (*server_close)(struct dk_control_server *s);
    /* Any thread. Copies data. data NULL: nothing is sent and the request is forgotten, because its caller gets the
     * answer through a later repeat of it. */
    void (*reply)(struct dk_control_request *request, const uint8_t *data, size_t bytes);
    int (*dial)(const char *url, struct dk_control_client **out, struct dk_err *err); /* does not wait */
    void (*client_close)(struct dk_control_client *c); /* outstanding calls end with -ECANCELED */
    /* Starts a call; any thread. Copies data. Sent again by itself when the connection was lost. Several may be
     * outstanding. on_reply comes exactly once, but not when this returns an error: -EMSGSIZE, -ENOMEM, -ECANCELED. */
    int (*call)(struct dk_control_client *c, const uint8_t *data, size_t bytes, uint32_t timeout_ms,
                dk_control_on_reply *on_reply, void *ctx);
};

extern const struct dk_control_ops dk_control_nng;
extern const struct dk_control_ops dk_control_sim;

#endif
