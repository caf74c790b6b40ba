/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "dpdk_internal.h"

/* How often flush tries a full device again, yielding the core to the reader in between. */
enum { FULL_TRIES = 16 };

/* ---- frames -------------------------------------------------------------------------------------------------- */

bool dk_dpdk_flatten(struct rte_mbuf *m)
{
    return m->nb_segs == 1 || rte_pktmbuf_linearize(m) == 0;
}

static void frame_make(struct dk_frame *f, struct rte_mbuf *m, uint32_t port)
{
    f->data = rte_pktmbuf_mtod(m, uint8_t *);
    f->bytes = rte_pktmbuf_data_len(m);
    f->port = port;
    f->handle = m;
}

static int net_frame_get(struct dk_net *net, struct dk_frame *f)
{
    struct rte_mbuf *m = rte_pktmbuf_alloc(net->pool);

    if (!m) {
        net->counters.no_buffer++;
        return -EAGAIN;
    }
    frame_make(f, m, 0);
    f->bytes = net->config.frame_bytes;
    return 0;
}

static void net_frame_put(struct dk_net *net, struct dk_frame *f)
{
    rte_pktmbuf_free(f->handle);
    f->handle = NULL;
}

/* ---- sending ------------------------------------------------------------------------------------------------- */

static void port_flush(struct dk_net *net, struct dk_port *p)
{
    const uint32_t tries_most = p->stuck ? 1 : FULL_TRIES;
    uint32_t done = 0, tries = 0;

    while (done < p->queued && tries < tries_most) {
        uint64_t bytes = 0;
        uint16_t sent;

        /* The driver frees what it sends, so count first. */
        for (uint32_t i = done; i < p->queued; i++)
            bytes += p->queue[i]->pkt_len;
        sent = rte_eth_tx_burst(p->eth, 0, &p->queue[done], (uint16_t)(p->queued - done));
        done += sent;
        for (uint32_t i = done; i < p->queued; i++)
            bytes -= p->queue[i]->pkt_len;
        net->counters.frames_out += sent;
        net->counters.bytes_out += bytes;
        if (sent > 0 && p->peer_word)
            dk_bell_ring(p->peer_word);
        if (done == p->queued)
            break;
        tries = sent > 0 ? 0 : tries + 1;
        if (tries > 0 && tries < tries_most) {
            if (p->peer_word)
                dk_bell_ring(p->peer_word);
            sched_yield();
        }
    }
    /* A peer that is dead or stopped is not waited for in every flush. */
    p->stuck = done < p->queued;
    net->counters.send_full += p->queued - done;
    for (; done < p->queued; done++)
        rte_pktmbuf_free(p->queue[done]);
    p->queued = 0;
}

static void flush_ports(struct dk_net *net)
{
    for (uint32_t i = 0; i < net->ports_max; i++)
        if (net->ports[i].queued > 0)
            port_flush(net, &net->ports[i]);
}

static void faults_pass(void *ctx, struct dk_frame *f)
{
    struct dk_net *net = ctx;
    struct rte_mbuf *m = f->handle;
    struct dk_port *p;

    if (f->port >= net->ports_max || !net->ports[f->port].used) {
        rte_pktmbuf_free(m);
        return;
    }
    p = &net->ports[f->port];
    if (p->queued == DK_DPDK_QUEUE_FRAMES)
        port_flush(net, p);
    p->queue[p->queued++] = m;
}

static void faults_drop(void *ctx, struct dk_frame *f)
{
    net_frame_put(ctx, f);
}

static int faults_copy(void *ctx, const struct dk_frame *from, struct dk_frame *to)
{
    struct dk_net *net = ctx;
    struct rte_mbuf *m = rte_pktmbuf_alloc(net->pool);

    if (!m) {
        net->counters.no_buffer++;
        return -EAGAIN;
    }
    frame_make(to, m, from->port);
    memcpy(to->data, from->data, from->bytes);
    to->bytes = from->bytes;
    m->data_len = (uint16_t)from->bytes;
    m->pkt_len = from->bytes;
    return 0;
}

static const struct dk_fault_ops fault_ops = {faults_pass, faults_drop, faults_copy};

static void net_send(struct dk_net *net, struct dk_frame *f)
{
    struct rte_mbuf *m = f->handle;

    assert(f->bytes <= DK_DPDK_FRAME_ROOM);
    m->data_len = (uint16_t)f->bytes;
    m->pkt_len = f->bytes;
    m->ol_flags = 0;
    if (dk_faults_active(&net->faults))
        dk_faults_send(&net->faults, f, dk_now_us());
    else
        faults_pass(net, f);
    f->handle = NULL;
}

static void net_flush(struct dk_net *net)
{
    if (dk_faults_active(&net->faults))
        dk_faults_poll(&net->faults, dk_now_us());
    flush_ports(net);
}

/* ---- receiving ----------------------------------------------------------------------------------------------- */

/* Receives up to `most` frames of all ports into m, with their ports' indices. */
static uint32_t burst(struct dk_net *net, struct rte_mbuf **m, uint32_t *ports, uint32_t most)
{
    uint32_t count = 0, at = net->next_port;

    for (uint32_t n = 0; n < net->ports_max && count < most; n++) {
        struct dk_port *p = &net->ports[at];
        uint16_t got = 0;

        if (p->used) {
            uint32_t room = most - count;

            got = rte_eth_rx_burst(p->eth, 0, m + count, (uint16_t)(room < DK_DPDK_BURST ? room : DK_DPDK_BURST));
        }
        for (uint32_t i = count, end = count + got; i < end; i++) {
            if (!dk_dpdk_flatten(m[i])) {
                net->counters.no_buffer++;
                rte_pktmbuf_free(m[i]);
                continue;
            }
            net->counters.frames_in++;
            net->counters.bytes_in += m[i]->pkt_len;
            ports[count] = at;
            m[count++] = m[i];
        }
        at = at + 1 < net->ports_max ? at + 1 : 0;
    }
    net->next_port = at;
    return count;
}

uint32_t dk_dpdk_look(struct dk_net *net)
{
    if (net->stash_count == 0) {
        net->stash_next = 0;
        net->stash_count = burst(net, net->stash, net->stash_port, DK_DPDK_BURST);
    }
    return net->stash_count;
}

static uint32_t net_recv(struct dk_net *net, struct dk_frame *frames, uint32_t most)
{
    struct rte_mbuf *m[DK_DPDK_BURST];
    uint32_t ports[DK_DPDK_BURST], count = 0, got;

    if (dk_faults_active(&net->faults)) {
        dk_faults_poll(&net->faults, dk_now_us());
        flush_ports(net);
    }
    for (; net->stash_count > 0 && count < most; net->stash_count--, net->stash_next++)
        frame_make(&frames[count++], net->stash[net->stash_next], net->stash_port[net->stash_next]);
    if (count > 0)
        return count;
    got = burst(net, m, ports, most < DK_DPDK_BURST ? most : DK_DPDK_BURST);
    for (; count < got; count++)
        frame_make(&frames[count], m[count], ports[count]);
    return count;
}

/* ---- ports --------------------------------------------------------------------------------------------------- */

bool dk_port_name_fits(const char *text, size_t most)
{
    const char *end = memchr(text, '\0', most);

    return end && end > text && !strpbrk(text, ",[]{}()\"'=; \t\n");
}

static int net_port_add(struct dk_net *net, const struct dk_port_spec *spec, uint32_t *port, uint8_t mac[6],
                        uint32_t *mtu, struct dk_err *err)
{
    struct dk_port *p = NULL;
    uint32_t at;
    int rc;

    for (at = 0; at < net->ports_max && !p; at++)
        if (!net->ports[at].used)
            p = &net->ports[at];
    if (!p)
        return dk_err_set(err, -ENOSPC, "all %u ports are in use", net->ports_max);
    at--;
    memset(p, 0, sizeof *p);
    p->kind = spec->kind;
    p->lock_fd = p->poll_fd = -1;
    memcpy(mac, net->mac, sizeof net->mac);
    switch (spec->kind) {
    case DK_PORT_VHOST:
        snprintf(p->vdev, sizeof p->vdev, "net_vhost%u", at);
        rc = dk_port_vhost_add(net, p, spec, err);
        break;
    case DK_PORT_VIRTIO_USER:
        snprintf(p->vdev, sizeof p->vdev, "net_virtio_user%u", at);
        rc = dk_port_virtio_user_add(net, p, spec, err);
        break;
    case DK_PORT_AF_PACKET:
        snprintf(p->vdev, sizeof p->vdev, "net_af_packet%u", at);
        rc = dk_port_af_packet_add(net, p, spec, mac, err);
        break;
    default:
        rc = dk_err_set(err, -EINVAL, "DPDK has no ports of kind %d", (int)spec->kind);
    }
    if (rc < 0)
        return rc;
    p->used = true;
    dk_park_ports_changed(net);
    *port = at;
    *mtu = p->mtu;
    return 0;
}

static void net_port_remove(struct dk_net *net, uint32_t port)
{
    struct dk_port *p;
    uint32_t kept = 0;

    if (port >= net->ports_max || !net->ports[port].used)
        return;
    p = &net->ports[port];
    dk_faults_forget_port(&net->faults, port);
    for (uint32_t i = 0; i < p->queued; i++)
        rte_pktmbuf_free(p->queue[i]);
    for (uint32_t i = 0; i < net->stash_count; i++) {
        uint32_t from = net->stash_next + i;

        if (net->stash_port[from] == port) {
            rte_pktmbuf_free(net->stash[from]);
            continue;
        }
        net->stash[net->stash_next + kept] = net->stash[from];
        net->stash_port[net->stash_next + kept++] = net->stash_port[from];
    }
    net->stash_count = kept;
    p->used = false;
    p->queued = 0;
    dk_park_ports_changed(net); /* before the bell is unmapped: another thread may be in wake() */
    if (p->kind == DK_PORT_AF_PACKET)
        dk_port_af_packet_remove(p);
    else
        dk_port_vhost_remove(net, p);
}

/* ---- life ---------------------------------------------------------------------------------------------------- */

/* virtio_user writes to its socket when it stops, also when the worker is gone. */
static void sigpipe_ignore(void)
{
    struct sigaction now;

    if (sigaction(SIGPIPE, NULL, &now) == 0 && !(now.sa_flags & SA_SIGINFO) && now.sa_handler == SIG_DFL)
        signal(SIGPIPE, SIG_IGN);
}

static int net_open(const struct dk_net_config *config, struct dk_net **out, struct dk_err *err)
{
    struct dk_net *net;
    uint64_t random;
    int rc;

    if (config->frame_bytes < 64 || config->frame_bytes > DK_DPDK_MTU_MAX + RTE_ETHER_HDR_LEN)
        return dk_err_set(err, -EINVAL, "frames of %u bytes are not between 64 and %d", config->frame_bytes,
                          DK_DPDK_MTU_MAX + RTE_ETHER_HDR_LEN);
    net = dk_alloc_aligned(1, sizeof *net);
    if (!net)
        return dk_err_set(err, -ENOMEM, "no memory for the data plane");
    net->config = *config;
    net->ports_max = config->ports_max;
    random = dk_random_id();
    memcpy(net->mac, &random, sizeof net->mac);
    net->mac[0] = (net->mac[0] & 0xfc) | 0x02; /* locally administered, unicast */
    sigpipe_ignore();
    rc = dk_park_open(net);
    if (rc < 0) {
        free(net);
        return dk_err_set(err, rc, "the data plane's wake-up cannot be made: %s", strerror(-rc));
    }
    rc = dk_eal_open(config->name, config->run_dir, config->ports_max, &net->pool, err);
    if (rc < 0) {
        dk_park_close(net);
        free(net);
        return rc;
    }
    dk_faults_init(&net->faults, &config->faults, &net->counters, &fault_ops, net);
    *out = net;
    return 0;
}

static void net_close(struct dk_net *net)
{
    if (!net)
        return;
    for (uint32_t i = 0; i < net->ports_max; i++)
        if (net->ports[i].used)
            net_port_remove(net, i);
    dk_faults_fini(&net->faults);
    dk_eal_close(net->pool);
    dk_park_close(net);
    free(net);
}

static void net_wait(struct dk_net *net, bool worked, uint64_t now_us, uint64_t deadline_us)
{
    if (dk_faults_active(&net->faults)) {
        uint64_t due_us;

        net_flush(net);
        due_us = dk_faults_deadline(&net->faults);
        if (due_us < deadline_us)
            deadline_us = due_us;
    }
    dk_park_wait(net, worked, now_us, deadline_us);
}

static const struct dk_net_counters *net_counters(const struct dk_net *net)
{
    return &net->counters;
}

const struct dk_net_ops dk_net_dpdk = {
    .name = "dpdk",
    .open = net_open,
    .close = net_close,
    .port_add = net_port_add,
    .port_remove = net_port_remove,
    .recv = net_recv,
    .frame_get = net_frame_get,
    .frame_put = net_frame_put,
    .send = net_send,
    .flush = net_flush,
    .wait = net_wait,
    .wake = dk_park_wake,
    .counters = net_counters,
};
