/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/transport.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "transport/transport_internal.h"

enum { MESSAGE_BYTES_MOST = 64 << 20, PEERS_MOST = 4096, EXPECTED_FIRST = 16 };

void dk_transport_defaults(struct dk_transport_config *c)
{
    *c = (struct dk_transport_config){
        .requests_max = 4,
        .message_bytes_max = MESSAGE_BYTES_MOST,
        .dead_after_us = 2000000,
        .rto_first_us = 10000,
        .window_frames = 64,  /* a quarter of a usual device queue of 256 */
        .credit_frames = 192, /* three quarters of it: requests and acks need some too */
    };
}

int dk_transport_open(const struct dk_transport_config *config, struct dk_transport **out)
{
    const struct dk_transport_config *c = config;
    struct dk_transport *t;
    int rc = -ENOMEM;

    if (c->own.instance == 0 || c->mtu < DK_MTU_MIN || c->mtu > DK_MTU_MAX || c->peers_max == 0 ||
        c->peers_max > PEERS_MOST || c->requests_max == 0 || c->requests_max > DK_SLOTS || c->message_bytes_max == 0 ||
        c->message_bytes_max > MESSAGE_BYTES_MOST || c->rto_first_us == 0 || c->window_frames == 0 ||
        c->window_frames > DK_RANGE_FRAGMENTS / 2 || c->credit_frames == 0)
        return -EINVAL;
    t = calloc(1, sizeof *t);
    if (!t)
        return -ENOMEM;
    t->config = *c;
    t->ids = (uint64_t)c->own.instance << 32;
    t->timeouts_us = UINT64_MAX;
    /* Each slot can hold a request, a response being received and one being kept; and the caller as many events. */
    rc = dk_buffers_init(&t->buffers, c->message_bytes_max, c->peers_max * DK_SLOTS * 4);
    if (rc < 0)
        goto fail;
    t->events_max = 2 * t->buffers.most + c->peers_max * (DK_SLOTS + 1);
    t->peers = calloc(c->peers_max, sizeof *t->peers);
    t->keys = calloc(c->peers_max, sizeof *t->keys);
    t->ready = calloc((c->peers_max + 63) / 64, sizeof *t->ready);
    t->events = calloc(t->events_max, sizeof *t->events);
    rc = t->peers && t->keys && t->ready && t->events ? 0 : -ENOMEM;
    if (rc < 0)
        goto fail;
    *out = t;
    return 0;
fail:
    dk_transport_close(t);
    return rc;
}

void dk_transport_close(struct dk_transport *t)
{
    if (!t)
        return;
    dk_buffers_fini(&t->buffers);
    free(t->peers);
    free(t->keys);
    free(t->ready);
    free(t->events);
    free(t);
}

int dk_transport_peer_add(struct dk_transport *t, const struct dk_addr *remote, uint32_t port, uint32_t *peer)
{
    struct peer *p = NULL;
    uint32_t mtu = remote->mtu && remote->mtu < t->config.mtu ? remote->mtu : t->config.mtu;

    if (remote->instance == 0 || mtu < DK_MTU_MIN)
        return -EINVAL;
    if (peer_find(t, remote->ipv4, remote->udp_port))
        return -EEXIST;
    for (uint32_t i = 0; i < t->config.peers_max && !p; i++)
        if (t->peers[i].state == PEER_UNUSED)
            p = &t->peers[i];
    if (!p)
        return -ENOSPC;
    memset(p, 0, sizeof *p);
    p->state = PEER_ALIVE;
    p->remote = *remote;
    p->port = port;
    p->fragment_bytes = (mtu - DK_IPV4_BYTES - DK_UDP_BYTES - DK_DATAGRAM_BYTES) & ~7u; /* aligned copies */
    p->session = ++t->sessions;
    p->expected = EXPECTED_FIRST;
    for (int i = 0; i < DK_SLOTS; i++) {
        p->calls[i].in.buffer = DK_BUFFER_NONE;
        p->answers[i].in.buffer = p->answers[i].buffer = DK_BUFFER_NONE;
    }
    *peer = peer_index(t, p);
    t->keys[*peer] = peer_key(remote->ipv4, remote->udp_port);
    return 0;
}

static struct peer *peer_at(struct dk_transport *t, uint32_t peer)
{
    return peer < t->config.peers_max && t->peers[peer].state != PEER_UNUSED ? &t->peers[peer] : NULL;
}

void dk_transport_peer_remove(struct dk_transport *t, uint32_t peer)
{
    struct peer *p = peer_at(t, peer);
    uint32_t kept = 0;

    if (!p)
        return;
    for (uint32_t i = 0; i < t->events_count; i++) {
        struct dk_transport_event event = t->events[(t->events_at + i) % t->events_max];

        if (event.peer == peer)
            dk_buffer_put(&t->buffers, event.buffer);
        else
            t->events[(t->events_at + kept++) % t->events_max] = event;
    }
    t->events_count = kept;
    peer_clear(t, p);
    t->keys[peer] = 0;
    p->state = PEER_UNUSED;
    credits_distribute(t);
}

/* -EINVAL: nothing in it; -EMSGSIZE. */
static int parts_measure(const struct dk_transport *t, const struct iovec *parts, int part_count, uint32_t *bytes)
{
    size_t sum = 0;

    if (part_count < 1 || part_count > DK_PARTS_MAX)
        return -EINVAL;
    for (int i = 0; i < part_count; i++) {
        if (parts[i].iov_len > t->config.message_bytes_max - sum)
            return -EMSGSIZE;
        sum += parts[i].iov_len;
    }
    *bytes = (uint32_t)sum;
    return sum > 0 ? 0 : -EINVAL;
}

int dk_transport_request(struct dk_transport *t, uint32_t peer, const struct iovec *parts, int part_count,
                         uint64_t now_us, uint64_t *request_id)
{
    struct peer *p = peer_at(t, peer);
    struct call *c;
    uint32_t bytes, slot;
    int rc = parts_measure(t, parts, part_count, &bytes);

    if (rc < 0)
        return rc;
    if (!p || p->state == PEER_DEAD)
        return -EHOSTDOWN;
    slot = (uint32_t)__builtin_ctz(~p->calls_active);
    if (slot >= t->config.requests_max || t->events_count >= t->buffers.most)
        return -EAGAIN; /* or the caller does not fetch its events */
    peer_watch(t, p, now_us);
    c = &p->calls[slot];
    c->id = ++t->ids;
    dk_outgoing_init(&c->out, parts, part_count, bytes, p->fragment_bytes);
    call_start(t, p, c);
    t->counters.messages_sent++;
    *request_id = c->id;
    return 0;
}

int dk_transport_respond(struct dk_transport *t, uint32_t peer, uint64_t request_id, const struct iovec *parts,
                         int part_count, uint64_t now_us)
{
    struct peer *p = peer_at(t, peer);
    struct answer *a = NULL;
    struct iovec whole;
    uint32_t bytes;
    uint8_t *to;
    int rc = parts_measure(t, parts, part_count, &bytes);

    if (rc < 0)
        return rc;
    for (int i = 0; p && i < DK_SLOTS && !a; i++)
        if (p->answers[i].id == request_id && p->answers[i].state == ANSWER_COMPUTING)
            a = &p->answers[i];
    if (!a)
        return -ENOENT;
    a->buffer = dk_buffer_take(&t->buffers, bytes);
    if (a->buffer == DK_BUFFER_NONE)
        return -ENOMEM;
    whole = (struct iovec){dk_buffer_data(&t->buffers, a->buffer), bytes};
    to = whole.iov_base;
    for (int i = 0; i < part_count; i++) {
        if (parts[i].iov_len > 0)
            memcpy(to, parts[i].iov_base, parts[i].iov_len);
        to += parts[i].iov_len;
    }
    dk_outgoing_init(&a->out, &whole, 1, bytes, p->fragment_bytes);
    a->state = ANSWER_KEPT;
    p->answers_to_send |= 1u << (a - p->answers);
    peer_ready(t, p);
    t->counters.messages_sent++;
    return 0;
}

void transport_event_push(struct dk_transport *t, const struct dk_transport_event *event)
{
    /* Events with data each hold a buffer; those without number less than buffers.most when a request starts, and
     * what has started adds at most one a slot and one a peer. */
    assert(t->events_count < t->events_max);
    t->events[(t->events_at + t->events_count++) % t->events_max] = *event;
}

void dk_transport_event(struct dk_transport *t, struct dk_transport_event *event)
{
    if (t->events_count == 0) {
        *event = (struct dk_transport_event){.type = DK_EVENT_NONE, .buffer = DK_BUFFER_NONE};
        return;
    }
    *event = t->events[t->events_at];
    t->events_at = (t->events_at + 1) % t->events_max;
    t->events_count--;
}

void dk_transport_event_done(struct dk_transport *t, struct dk_transport_event *event)
{
    dk_buffer_put(&t->buffers, event->buffer);
    event->buffer = DK_BUFFER_NONE;
    event->data = NULL;
    event->bytes = 0;
}

const struct dk_transport_counters *dk_transport_counters(const struct dk_transport *t)
{
    return &t->counters;
}
