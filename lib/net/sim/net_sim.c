/* SPDX-License-Identifier: Apache-2.0 */
/* The data plane inside one process. Ports with the same path are on one wire, which is a small switch: a frame goes
 * to the ports with its target address, or to all others when it is a multicast or nobody has the address. One lock
 * guards all wires and queues, so that nets may be on different threads. Frames lie in pools made by open: a frame
 * that is sent is copied into the receiver's pool, and dropped when that is empty, as a device would. */
#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "net/faults.h"
#include "net/net.h"
#include "net/sim/sim.h"
#include "net/sim/sim_clock.h"

enum { POOL_FRAMES = 2048, ETHERNET_BYTES = 14 };

struct sim_port {
    bool used;
    enum dk_port_kind kind;
    char path[sizeof((struct dk_port_spec *)0)->path];
    uint8_t mac[6];
};

struct dk_net {
    struct dk_net *next; /* all nets of the process */
    uint32_t ports_max, frame_bytes;
    struct sim_port *ports;
    uint8_t *pool;              /* [POOL_FRAMES][frame_bytes] */
    uint32_t free[POOL_FRAMES]; /* stack */
    uint32_t free_count;
    struct dk_frame waiting[POOL_FRAMES]; /* ring of received frames */
    uint32_t waiting_at, waiting_count;
    bool woken;
    pthread_cond_t cond;
    struct dk_net_counters counters;
    struct dk_fault_injector injector;
};

static pthread_mutex_t nets_lock = PTHREAD_MUTEX_INITIALIZER;
static struct dk_net *nets;

/* ---- frames; nets_lock is held ------------------------------------------------------------------------------- */

static int frame_take(struct dk_net *net, struct dk_frame *f)
{
    uint32_t i;

    if (net->free_count == 0)
        return -EAGAIN;
    i = net->free[--net->free_count];
    *f = (struct dk_frame){
        .data = net->pool + (size_t)i * net->frame_bytes, .bytes = net->frame_bytes, .handle = (void *)(uintptr_t)i};
    return 0;
}

static void frame_give(struct dk_net *net, struct dk_frame *f)
{
    assert(net->free_count < POOL_FRAMES);
    net->free[net->free_count++] = (uint32_t)(uintptr_t)f->handle;
}

static void frame_deliver(struct dk_net *to, uint32_t port, const struct dk_frame *f)
{
    struct dk_frame copy;

    if (f->bytes > to->frame_bytes || frame_take(to, &copy) < 0) {
        to->counters.no_buffer++;
        return;
    }
    memcpy(copy.data, f->data, f->bytes);
    copy.bytes = f->bytes;
    copy.port = port;
    to->waiting[(to->waiting_at + to->waiting_count++) % POOL_FRAMES] = copy;
    to->counters.frames_in++;
    to->counters.bytes_in += f->bytes;
    pthread_cond_signal(&to->cond);
}

/* Puts the frame on the other ports of the wire; owned: only those that have its target address. */
static uint32_t wire_deliver(struct dk_net *from, const struct sim_port *port, const struct dk_frame *f, bool owned)
{
    uint32_t delivered = 0;

    for (struct dk_net *net = nets; net; net = net->next)
        for (uint32_t i = 0; i < net->ports_max; i++) {
            const struct sim_port *other = &net->ports[i];

            if (!other->used || other == port || strcmp(other->path, port->path) != 0 ||
                (owned && memcmp(other->mac, f->data, 6) != 0))
                continue;
            frame_deliver(net, i, f);
            delivered++;
        }
    return delivered;
}

static void wire_pass(void *ctx, struct dk_frame *f)
{
    struct dk_net *net = ctx;
    const struct sim_port *port = &net->ports[f->port];

    if (port->used && f->bytes >= ETHERNET_BYTES) {
        if (f->data[0] & 1 || wire_deliver(net, port, f, true) == 0)
            wire_deliver(net, port, f, false);
        net->counters.frames_out++;
        net->counters.bytes_out += f->bytes;
    }
    frame_give(net, f);
}

static void wire_drop(void *ctx, struct dk_frame *f)
{
    frame_give(ctx, f);
}

static int wire_copy(void *ctx, const struct dk_frame *from, struct dk_frame *to)
{
    if (frame_take(ctx, to) < 0)
        return -EAGAIN;
    memcpy(to->data, from->data, from->bytes);
    to->bytes = from->bytes;
    to->port = from->port;
    return 0;
}

static const struct dk_fault_ops fault_ops = {wire_pass, wire_drop, wire_copy};

/* ---- ports ----------------------------------------------------------------------------------------------------- */

/* Addresses come from the path and the port's place on the wire: the same set-up has the same addresses. */
static void port_address(const char *path, uint32_t place, uint8_t mac[6])
{
    uint32_t hash = 2166136261u; /* FNV-1a */

    for (const char *c = path; *c; c++)
        hash = (hash ^ (uint8_t)*c) * 16777619u;
    mac[0] = 2; /* locally administered */
    mac[1] = (uint8_t)(hash >> 24);
    mac[2] = (uint8_t)(hash >> 16);
    mac[3] = (uint8_t)(hash >> 8);
    mac[4] = (uint8_t)hash;
    mac[5] = (uint8_t)place;
}

static bool wire_has(const char *path, const uint8_t *mac, bool vhost)
{
    for (struct dk_net *net = nets; net; net = net->next)
        for (uint32_t i = 0; i < net->ports_max; i++) {
            const struct sim_port *p = &net->ports[i];

            if (p->used && !strcmp(p->path, path) && (!mac || !memcmp(p->mac, mac, 6)) &&
                (!vhost || p->kind == DK_PORT_VHOST))
                return true;
        }
    return false;
}

static int port_add_locked(struct dk_net *net, const struct dk_port_spec *spec, uint32_t *port, struct dk_err *err)
{
    uint32_t i = 0, place = 0;
    uint8_t mac[6];

    /* The kinds of the real back end keep their order of coming up. */
    if (spec->kind == DK_PORT_VIRTIO_USER && !wire_has(spec->path, NULL, true))
        return dk_err_set(err, -ENOENT, "simulated wire %s is not there yet", spec->path);
    while (i < net->ports_max && net->ports[i].used)
        i++;
    if (i == net->ports_max)
        return dk_err_set(err, -ENOSPC, "all %u ports are in use", net->ports_max);
    do {
        if (place > UINT8_MAX)
            return dk_err_set(err, -ENOSPC, "simulated wire %s has 256 ports", spec->path);
        port_address(spec->path, place++, mac);
    } while (wire_has(spec->path, mac, false));
    net->ports[i].kind = spec->kind;
    memcpy(net->ports[i].mac, mac, sizeof mac);
    memcpy(net->ports[i].path, spec->path, sizeof net->ports[i].path);
    net->ports[i].used = true;
    *port = i;
    return 0;
}

static int sim_port_add(struct dk_net *net, const struct dk_port_spec *spec, uint32_t *port, uint8_t mac[6],
                        uint32_t *mtu, struct dk_err *err)
{
    int rc;

    if (!memchr(spec->path, '\0', sizeof spec->path) || !spec->path[0])
        return dk_err_set(err, -EINVAL, "a simulated port needs the name of its wire");
    pthread_mutex_lock(&nets_lock);
    rc = port_add_locked(net, spec, port, err);
    if (rc == 0) {
        memcpy(mac, net->ports[*port].mac, 6);
        *mtu = net->frame_bytes - ETHERNET_BYTES;
    }
    pthread_mutex_unlock(&nets_lock);
    return rc;
}

static void sim_port_remove(struct dk_net *net, uint32_t port)
{
    pthread_mutex_lock(&nets_lock);
    if (port < net->ports_max && net->ports[port].used) {
        dk_faults_forget_port(&net->injector, port);
        net->ports[port].used = false;
    }
    pthread_mutex_unlock(&nets_lock);
}

/* ---- net ------------------------------------------------------------------------------------------------------- */

static void sim_close(struct dk_net *net)
{
    if (!net)
        return;
    pthread_mutex_lock(&nets_lock);
    for (struct dk_net **at = &nets; *at; at = &(*at)->next)
        if (*at == net) {
            *at = net->next;
            break;
        }
    pthread_mutex_unlock(&nets_lock);
    dk_faults_fini(&net->injector);
    pthread_cond_destroy(&net->cond);
    free(net->ports);
    free(net->pool);
    free(net);
}

static int sim_open(const struct dk_net_config *config, struct dk_net **out, struct dk_err *err)
{
    struct dk_net *net;

    if (config->ports_max == 0 || config->frame_bytes <= ETHERNET_BYTES)
        return dk_err_set(err, -EINVAL, "a simulated net needs ports and frames of more than %d bytes", ETHERNET_BYTES);
    net = calloc(1, sizeof *net);
    if (!net)
        return dk_err_set(err, -ENOMEM, "no memory for a simulated net");
    sim_cond_init(&net->cond);
    net->ports_max = config->ports_max;
    net->frame_bytes = config->frame_bytes;
    net->ports = calloc(net->ports_max, sizeof *net->ports);
    net->pool = malloc((size_t)POOL_FRAMES * net->frame_bytes);
    if (!net->ports || !net->pool) {
        sim_close(net);
        return dk_err_set(err, -ENOMEM, "no memory for %d simulated frames", POOL_FRAMES);
    }
    while (net->free_count < POOL_FRAMES) {
        net->free[net->free_count] = POOL_FRAMES - 1 - net->free_count;
        net->free_count++;
    }
    dk_faults_init(&net->injector, &config->faults, &net->counters, &fault_ops, net);
    pthread_mutex_lock(&nets_lock);
    net->next = nets;
    nets = net;
    pthread_mutex_unlock(&nets_lock);
    *out = net;
    return 0;
}

static uint32_t sim_recv(struct dk_net *net, struct dk_frame *frames, uint32_t most)
{
    uint32_t count = 0;

    pthread_mutex_lock(&nets_lock);
    dk_faults_poll(&net->injector, sim_now_us());
    while (count < most && net->waiting_count > 0) {
        frames[count++] = net->waiting[net->waiting_at];
        net->waiting_at = (net->waiting_at + 1) % POOL_FRAMES;
        net->waiting_count--;
    }
    pthread_mutex_unlock(&nets_lock);
    return count;
}

static int sim_frame_get(struct dk_net *net, struct dk_frame *f)
{
    int rc;

    pthread_mutex_lock(&nets_lock);
    rc = frame_take(net, f);
    if (rc < 0)
        net->counters.no_buffer++;
    pthread_mutex_unlock(&nets_lock);
    return rc;
}

static void sim_frame_put(struct dk_net *net, struct dk_frame *f)
{
    pthread_mutex_lock(&nets_lock);
    frame_give(net, f);
    pthread_mutex_unlock(&nets_lock);
}

static void sim_send(struct dk_net *net, struct dk_frame *f)
{
    pthread_mutex_lock(&nets_lock);
    assert(f->port < net->ports_max && f->bytes <= net->frame_bytes);
    if (dk_faults_active(&net->injector))
        dk_faults_send(&net->injector, f, sim_now_us());
    else
        wire_pass(net, f);
    pthread_mutex_unlock(&nets_lock);
}

static void sim_flush(struct dk_net *net)
{
    pthread_mutex_lock(&nets_lock);
    dk_faults_poll(&net->injector, sim_now_us());
    pthread_mutex_unlock(&nets_lock);
}

static void sim_wait(struct dk_net *net, bool worked, uint64_t now_us, uint64_t deadline_us)
{
    pthread_mutex_lock(&nets_lock);
    if (!sim_clock_is_own() && !worked) {
        uint64_t held_us = dk_faults_deadline(&net->injector);

        if (held_us < deadline_us)
            deadline_us = held_us;
        if (net->waiting_count == 0 && !net->woken && deadline_us > now_us) {
            net->counters.parks++;
            sim_cond_wait_until(&net->cond, &nets_lock, deadline_us);
            net->counters.wakeups += net->waiting_count > 0 || net->woken;
        }
    }
    net->woken = false;
    pthread_mutex_unlock(&nets_lock);
}

static void sim_wake(struct dk_net *net)
{
    pthread_mutex_lock(&nets_lock);
    net->woken = true;
    pthread_cond_signal(&net->cond);
    pthread_mutex_unlock(&nets_lock);
}

static const struct dk_net_counters *sim_counters(const struct dk_net *net)
{
    return &net->counters;
}

const struct dk_net_ops dk_net_sim = {
    .name = "sim",
    .open = sim_open,
    .close = sim_close,
    .port_add = sim_port_add,
    .port_remove = sim_port_remove,
    .recv = sim_recv,
    .frame_get = sim_frame_get,
    .frame_put = sim_frame_put,
    .send = sim_send,
    .flush = sim_flush,
    .wait = sim_wait,
    .wake = sim_wake,
    .counters = sim_counters,
};
