/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/links.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"

void worker_links_init(struct worker_links *l, struct dk_endpoint *e, const struct worker_options *o,
                       const struct dk_identity *id)
{
    memset(l, 0, sizeof *l);
    l->endpoint = e;
    l->kind = o->node.port_kind;
    l->shared_port = id->port;
    dk_text_copy(l->run_dir, sizeof l->run_dir, o->node.run_dir);
    snprintf(l->bell_path, sizeof l->bell_path, "%s/bell", l->run_dir);
}

static int port_open(struct worker_links *l, uint32_t index)
{
    struct worker_link *k = &l->link[index];
    struct dk_port_spec spec = {.kind = DK_PORT_VHOST, .bell_index = index};
    struct dk_err err = {0};
    uint8_t mac[6];
    uint32_t mtu;
    int rc;

    if (l->kind == DK_PORT_AF_PACKET) {
        k->port = l->shared_port;
        k->port_up = true;
        return 0;
    }
    /* A new name for each port: a duck that was connected to an earlier one sees by it that it must connect again. */
    snprintf(k->socket_path, sizeof k->socket_path, "%s/duck%u-%03x", l->run_dir, index, l->ports_opened++ & 0xfff);
    dk_text_copy(spec.path, sizeof spec.path, k->socket_path);
    dk_text_copy(spec.bell_path, sizeof spec.bell_path, l->bell_path);
    rc = l->endpoint->ops->port_add(l->endpoint->net, &spec, &k->port, mac, &mtu, &err);
    if (rc < 0)
        dk_log(DK_LOG_ERROR, "link.port", "duck=%s text=\"%s\"", k->name, err.text);
    k->port_up = rc == 0;
    return rc;
}

static void peer_open(struct worker_links *l, struct worker_link *k)
{
    int rc = dk_transport_peer_add(l->endpoint->transport, &k->addr, k->port, &k->peer);

    k->peer_up = rc == 0;
    k->heard = false;
    if (rc < 0)
        dk_log(DK_LOG_ERROR, "link.peer", "duck=%s error=%d", k->name, -rc);
}

static void link_close(struct worker_links *l, struct worker_link *k)
{
    if (k->peer_up)
        dk_transport_peer_remove(l->endpoint->transport, k->peer);
    if (k->port_up && l->kind != DK_PORT_AF_PACKET)
        l->endpoint->ops->port_remove(l->endpoint->net, k->port);
    memset(k, 0, sizeof *k);
}

/* The port stays when a duck comes back with a new instance: its device connects to the same socket again. */
static bool link_follow(struct worker_links *l, uint32_t index, const struct worker_link_order *o)
{
    struct worker_link *k = &l->link[index];

    if (k->peer_up && !memcmp(&k->addr, &o->addr, sizeof o->addr) && !strcmp(k->name, o->name))
        return false;
    if (k->peer_up)
        dk_transport_peer_remove(l->endpoint->transport, k->peer);
    k->peer_up = false;
    k->wanted = true;
    k->addr = o->addr;
    dk_text_copy(k->name, sizeof k->name, o->name);
    if (!k->port_up && port_open(l, index) < 0)
        return false;
    peer_open(l, k);
    dk_log(DK_LOG_INFO, "link.up", "duck=%s index=%u instance=%08x", k->name, index, k->addr.instance);
    return true;
}

uint64_t worker_links_follow(struct worker_links *l, const struct worker_link_order *orders, uint32_t count)
{
    uint64_t wanted = 0, changed = 0;

    _Static_assert(WORKER_LINKS_MAX <= 64, "member indexes are bits of one word");
    for (uint32_t i = 0; i < count; i++)
        if (orders[i].member_index < WORKER_LINKS_MAX)
            wanted |= (uint64_t)1 << orders[i].member_index;
    for (uint32_t i = 0; i < WORKER_LINKS_MAX; i++)
        if (l->link[i].wanted && !(wanted >> i & 1)) {
            dk_log(DK_LOG_INFO, "link.down", "duck=%s index=%u", l->link[i].name, i);
            link_close(l, &l->link[i]);
            changed |= (uint64_t)1 << i;
        }
    for (uint32_t i = 0; i < count; i++)
        if (orders[i].member_index < WORKER_LINKS_MAX && link_follow(l, orders[i].member_index, &orders[i]))
            changed |= (uint64_t)1 << orders[i].member_index;
    return changed;
}

int worker_links_peer_lost(struct worker_links *l, uint32_t peer)
{
    for (uint32_t i = 0; i < WORKER_LINKS_MAX; i++) {
        struct worker_link *k = &l->link[i];

        if (!k->peer_up || k->peer != peer)
            continue;
        dk_log(DK_LOG_WARN, "link.lost", "duck=%s", k->name);
        dk_transport_peer_remove(l->endpoint->transport, peer);
        peer_open(l, k);
        return (int)i;
    }
    return -ENOENT;
}

const struct worker_link *worker_links_find(const struct worker_links *l, uint32_t member_index, uint32_t instance)
{
    const struct worker_link *k;

    if (member_index >= WORKER_LINKS_MAX)
        return NULL;
    k = &l->link[member_index];
    return k->peer_up && k->addr.instance == instance ? k : NULL;
}
