/* SPDX-License-Identifier: Apache-2.0 */
#include "duck-firmware/link.h"

#include <string.h>

#include "base/log.h"
#include "base/text.h"

static void peer_up(struct duck_link *l, struct dk_endpoint *e)
{
    l->peer_up = dk_transport_peer_add(e->transport, &l->order.worker, l->port, &l->peer) == 0;
}

void duck_link_peer_lost(struct duck_link *l, struct dk_endpoint *e)
{
    if (!l->peer_up)
        return;
    dk_log(DK_LOG_WARN, "link.lost", "worker_instance=%08x", l->order.worker.instance);
    dk_transport_peer_remove(e->transport, l->peer);
    peer_up(l, e);
}

static void down(struct duck_link *l, struct dk_endpoint *e, enum dk_port_kind kind)
{
    if (l->peer_up)
        dk_transport_peer_remove(e->transport, l->peer);
    l->peer_up = false;
    if (kind == DK_PORT_VIRTIO_USER && l->port_up) {
        e->ops->port_remove(e->net, l->port);
        l->port_up = false;
    }
}

static int port_up(struct duck_link *l, struct dk_endpoint *e)
{
    struct dk_port_spec spec = {.kind = DK_PORT_VIRTIO_USER, .bell_index = l->order.member_index};
    struct dk_err err = {0};
    uint8_t mac[6];
    uint32_t mtu;
    int rc;

    dk_text_copy(spec.path, sizeof spec.path, l->order.socket_path);
    dk_text_copy(spec.bell_path, sizeof spec.bell_path, l->order.bell_path);
    rc = e->ops->port_add(e->net, &spec, &l->port, mac, &mtu, &err);
    if (rc < 0)
        dk_log(DK_LOG_INFO, "link.port", "text=\"%s\" retry=yes", err.text);
    l->port_up = rc == 0;
    return rc;
}

static int transport_up(struct duck_link *l, struct dk_endpoint *e, uint32_t dead_after_ms)
{
    struct dk_transport_config c;
    struct dk_err err = {0};
    int rc;

    dk_transport_defaults(&c);
    c.own = l->order.own;
    c.mtu = l->order.mtu;
    c.peers_max = 2;
    c.dead_after_us = (uint64_t)dead_after_ms * 1000;
    rc = dk_endpoint_start(e, &c, &err);
    if (rc < 0)
        dk_log(DK_LOG_ERROR, "link.transport", "text=\"%s\"", err.text);
    return rc;
}

void duck_link_follow(struct duck_link *l, struct dk_endpoint *e, enum dk_port_kind kind, uint32_t dead_after_ms,
                      const struct duck_link_order *order)
{
    bool same = !memcmp(&l->order, order, sizeof *order);

    if (!order->present || (same && l->peer_up))
        return;
    if (!same) {
        down(l, e, kind);
        l->order = *order;
    }
    if (kind == DK_PORT_VIRTIO_USER && !l->port_up && port_up(l, e) < 0)
        return;
    if (transport_up(l, e, dead_after_ms) == 0)
        peer_up(l, e);
    if (l->peer_up)
        dk_log(DK_LOG_INFO, "link.up", "worker_instance=%08x mtu=%u", l->order.worker.instance, l->order.mtu);
}
