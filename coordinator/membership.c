/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "coordinator/coordinator_internal.h"

/* Who is there. A member is its last heartbeat and the time when that came; everything else follows from those. */

/* The private network of the vhost links, which have no addresses of their own. */
#define VHOST_WORKER_IPV4 0x0a4d0001u /* 10.77.0.1; ducks follow it */
#define VHOST_UDP_PORT    7717u

static const char *kind_name(Dk__NodeKind kind)
{
    return kind == DK__NODE_KIND__WORKER ? "attention-worker" : "duck";
}

struct dk_member *dk_member_find(struct dk_coordinator *c, const char *name)
{
    for (uint32_t i = 0; i < c->member_count; i++)
        if (!strcmp(c->members[i].beat->node->name, name))
            return &c->members[i];
    return NULL;
}

struct dk_member *dk_member_worker(struct dk_coordinator *c)
{
    for (uint32_t i = 0; i < c->member_count; i++)
        if (c->members[i].beat->node->kind == DK__NODE_KIND__WORKER)
            return &c->members[i];
    return NULL;
}

bool dk_member_alive(const struct dk_coordinator *c, const struct dk_member *m)
{
    return c->now_us - m->last_us <= DK_SILENT_US;
}

static void forget(struct dk_coordinator *c, struct dk_member *m, const char *why)
{
    uint32_t i = (uint32_t)(m - c->members);

    dk_log(DK_LOG_INFO, "member.gone", "name=%s kind=%s why=\"%s\"", m->beat->node->name,
           kind_name(m->beat->node->kind), why);
    dk_message_free(m->beat);
    c->member_count--;
    memmove(c->members + i, c->members + i + 1, (c->member_count - i) * sizeof *c->members);
}

void dk_members_tick(struct dk_coordinator *c)
{
    for (uint32_t i = 0; i < c->member_count;) {
        struct dk_member *m = &c->members[i];

        if (c->now_us - m->last_us > DK_FORGET_US && !dk_cluster_needs(c, m))
            forget(c, m, "silent");
        else
            i++;
    }
}

void dk_members_fini(struct dk_coordinator *c)
{
    for (uint32_t i = 0; i < c->member_count; i++)
        dk_message_free(c->members[i].beat);
    c->member_count = 0;
}

/* ---- member indexes */

static uint32_t ducks_max(Dk__PortKind kind)
{
    return kind == DK__PORT_KIND__VHOST ? DK_VHOST_DUCKS_MAX : DK_PLAN_DUCKS_MAX;
}

static struct dk_member *member_at(struct dk_coordinator *c, Dk__NodeKind kind, uint32_t index)
{
    for (uint32_t i = 0; i < c->member_count; i++)
        if (c->members[i].beat->node->kind == kind && c->members[i].index == index)
            return &c->members[i];
    return NULL;
}

/* The plan has this index for a duck that is not there now. */
static bool index_reserved(struct dk_coordinator *c, uint32_t index)
{
    for (size_t i = 0; c->plan && i < c->plan->n_slots; i++)
        if (c->plan->slots[i]->member_index == index && !dk_member_find(c, c->plan->slots[i]->duck))
            return true;
    return false;
}

/* The index under which the worker, or the plan, knows this life of a duck. */
static bool index_known(struct dk_coordinator *c, const Dk__NodeInfo *n, uint32_t *index)
{
    const struct dk_member *worker = dk_member_worker(c);

    if (n->kind != DK__NODE_KIND__DUCK)
        return false;
    for (size_t i = 0; c->plan && i < c->plan->n_slots; i++)
        if (c->plan->slots[i]->duck_instance == n->address->instance && !strcmp(c->plan->slots[i]->duck, n->name)) {
            *index = c->plan->slots[i]->member_index;
            return *index < ducks_max(n->port_kind);
        }
    for (size_t i = 0; worker && i < worker->beat->n_links; i++)
        if (worker->beat->links[i]->duck_instance == n->address->instance) {
            *index = worker->beat->links[i]->member_index;
            return *index < ducks_max(n->port_kind);
        }
    return false;
}

/* The smallest number that no member of this kind has, and that no absent duck of the plan had if there is a choice;
 * false: all are taken. */
static bool index_free(struct dk_coordinator *c, const Dk__NodeInfo *n, uint32_t *index)
{
    uint32_t most = n->kind == DK__NODE_KIND__DUCK ? ducks_max(n->port_kind) : 1;

    if (index_known(c, n, index) && !member_at(c, n->kind, *index))
        return true;
    for (int any = 0; any < 2; any++)
        for (*index = 0; *index < most; ++*index)
            if (!member_at(c, n->kind, *index) && (any || n->kind != DK__NODE_KIND__DUCK || !index_reserved(c, *index)))
                return true;
    return false;
}

void dk_members_renumber(struct dk_coordinator *c)
{
    /* All out of the way first, so that nobody has a number that another one is to get. */
    for (uint32_t i = 0; i < c->member_count; i++)
        if (c->members[i].beat->node->kind == DK__NODE_KIND__DUCK)
            c->members[i].index = UINT32_MAX;
    for (int known = 1; known >= 0; known--)
        for (uint32_t i = 0; i < c->member_count; i++) {
            struct dk_member *m = &c->members[i];
            uint32_t index;

            if (m->index == UINT32_MAX && (!known || index_known(c, m->beat->node, &index)) &&
                index_free(c, m->beat->node, &index))
                m->index = index;
        }
}

/* ---- heartbeats */

static int check_address(const Dk__NodeInfo *n, struct dk_err *err)
{
    const Dk__DataAddress *a = n->address;
    bool given = n->port_kind == DK__PORT_KIND__VHOST; /* the coordinator gives addresses to vhost links */
    uint8_t any = 0;

    if (n->port_kind != DK__PORT_KIND__VHOST && n->port_kind != DK__PORT_KIND__AF_PACKET &&
        n->port_kind != DK__PORT_KIND__SIM)
        return dk_err_set(err, -EINVAL, "node.port_kind: %d is not one of VHOST, AF_PACKET and SIM", (int)n->port_kind);
    if (a->mac.len != 6)
        return dk_err_set(err, -EINVAL, "node.address.mac: has %zu bytes, not 6", a->mac.len);
    for (int i = 0; i < 6; i++)
        any |= a->mac.data[i];
    if (!any || a->mac.data[0] & 1)
        return dk_err_set(err, -EINVAL, "node.address.mac: is not the address of one port");
    if (!a->instance)
        return dk_err_set(err, -EINVAL, "node.address.instance: must not be 0");
    if (!a->ipv4 && !given)
        return dk_err_set(err, -EINVAL, "node.address.ipv4: is missing, and only vhost links get one from here");
    if (a->udp_port > UINT16_MAX || (!a->udp_port && !given))
        return dk_err_set(err, -EINVAL, "node.address.udp_port: %u is not from 1 to 65535", a->udp_port);
    if (a->mtu < DK_MTU_LEAST || a->mtu > DK_MTU_MOST)
        return dk_err_set(err, -EINVAL, "node.address.mtu: %u is not from %u to %u bytes", a->mtu, DK_MTU_LEAST,
                          DK_MTU_MOST);
    return 0;
}

static int check_node(const struct dk_coordinator *c, const Dk__HeartbeatRequest *q, struct dk_err *err)
{
    const Dk__NodeInfo *n = q->node;
    size_t length = strlen(n->name);
    int rc;
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

    if (!length || length >= DK_NODE_NAME_ROOM || strspn(n->name, allowed) != length)
        return dk_err_set(err, -EINVAL, "node.name: must have 1 to 63 letters, digits, '.', '_' or '-'");
    if (n->kind != DK__NODE_KIND__DUCK && n->kind != DK__NODE_KIND__WORKER)
        return dk_err_set(err, -EINVAL, "node.kind: %d is neither DUCK nor WORKER", (int)n->kind);
    rc = check_address(n, err);
    if (rc < 0)
        return rc;
    if (dk__heartbeat_request__get_packed_size(q) > DK_BEAT_BYTES_MAX)
        return dk_err_set(err, -EINVAL, "the heartbeat is larger than %u bytes", DK_BEAT_BYTES_MAX);
    if (q->n_links > DK_PLAN_DUCKS_MAX)
        return dk_err_set(err, -EINVAL, "links: %zu of them, more than there can be ducks", q->n_links);
    if (n->version && strcmp(n->version, c->options.version))
        return dk_err_set(err, dk_errno_from_code(DK__CODE__VERSION_MISMATCH),
                          "%s '%s' is version %s, the coordinator version %s: install the same on both",
                          kind_name(n->kind), n->name, n->version, c->options.version);
    return 0;
}

static unsigned long long silent_ms(const struct dk_coordinator *c, const struct dk_member *m)
{
    return (c->now_us - m->last_us) / 1000;
}

/* Finds or makes the place of a node. NULL: refused, the call is answered. */
static struct dk_member *admit(struct dk_coordinator *c, void *call, const Dk__NodeInfo *n, struct dk_outbox *out)
{
    struct dk_member *m = dk_member_find(c, n->name), *worker = dk_member_worker(c);
    uint32_t index;

    if (m && m->beat->node->kind == n->kind && m->beat->node->address->instance == n->address->instance)
        return m;
    if (m && c->now_us - m->last_us <= DK_NAME_FREE_US) {
        dk_outbox_fail(out, call, DK__CODE__FAILED_PRECONDITION,
                       "another %s is called '%s' (host %s, pid %u, heard of %llu ms ago): give one of them another "
                       "name, or wait until the other has been silent for %llu ms",
                       kind_name(m->beat->node->kind), n->name, m->beat->node->host ? m->beat->node->host : "unknown",
                       m->beat->node->pid, silent_ms(c, m), DK_NAME_FREE_US / 1000);
        return NULL;
    }
    if (n->kind == DK__NODE_KIND__WORKER && worker && worker != m) {
        if (dk_member_alive(c, worker)) {
            dk_outbox_fail(out, call, DK__CODE__FAILED_PRECONDITION,
                           "the cluster has an attention-worker already: '%s' (host %s, heard of %llu ms ago); it must "
                           "end, or be silent for %llu ms, before another one is taken",
                           worker->beat->node->name, worker->beat->node->host ? worker->beat->node->host : "unknown",
                           silent_ms(c, worker), DK_SILENT_US / 1000);
            return NULL;
        }
        forget(c, worker, "replaced by another attention-worker");
        m = dk_member_find(c, n->name);
    }
    if (m && m->beat->node->kind == n->kind) {
        dk_log(DK_LOG_INFO, "member.restart", "name=%s kind=%s index=%u instance=%08x", n->name, kind_name(n->kind),
               m->index, n->address->instance);
        return m;
    }
    if (m)
        forget(c, m, "its name is now another kind of node");
    if (!index_free(c, n, &index) || c->member_count == DK_MEMBERS_MAX) {
        if (n->port_kind == DK__PORT_KIND__VHOST)
            dk_outbox_fail(out, call, DK__CODE__RESOURCE_EXHAUSTED,
                           "the cluster is full: with --port vhost it has at most %u ducks, with --port af_packet %u",
                           DK_VHOST_DUCKS_MAX, DK_PLAN_DUCKS_MAX);
        else
            dk_outbox_fail(out, call, DK__CODE__RESOURCE_EXHAUSTED, "the cluster is full: it has at most %u ducks",
                           DK_PLAN_DUCKS_MAX);
        return NULL;
    }
    m = &c->members[c->member_count];
    *m = (struct dk_member){.index = index};
    return m;
}

/* The vhost links are point to point, so the addresses are only names that the frames carry: the coordinator gives them
 * out. The MAC address is the duck's own. */
static void address_assign(const struct dk_member *m, Dk__DataAddress *a)
{
    bool duck = m->beat->node->kind == DK__NODE_KIND__DUCK;

    if (m->beat->node->port_kind != DK__PORT_KIND__VHOST)
        return;
    if (duck || !a->ipv4)
        a->ipv4 = duck ? VHOST_WORKER_IPV4 + 1 + m->index : VHOST_WORKER_IPV4;
    if (duck || !a->udp_port)
        a->udp_port = duck ? VHOST_UDP_PORT + 1 + m->index : VHOST_UDP_PORT;
}

Dk__NodeInfo *dk_member_info(const struct dk_member *m)
{
    Dk__NodeInfo *n = dk_message_clone(m->beat->node);

    if (n)
        address_assign(m, n->address);
    return n;
}

static Dk__DataAddress *address_of(const struct dk_member *m)
{
    Dk__DataAddress *a = dk_message_clone(m->beat->node->address);

    if (a)
        address_assign(m, a);
    return a;
}

const Dk__DuckLink *dk_member_link(const struct dk_member *worker, const struct dk_member *duck)
{
    const Dk__DuckLink *link = NULL;

    for (size_t i = 0; i < worker->beat->n_links; i++) {
        const Dk__DuckLink *l = worker->beat->links[i];

        if (l->member_index == duck->index && l->duck_instance == duck->beat->node->address->instance)
            link = l;
    }
    return link;
}

/* A duck may connect when the worker has said, for this life of the duck, that its port is open. */
static Dk__WorkerLink *worker_link(struct dk_coordinator *c, const struct dk_member *duck)
{
    struct dk_member *worker = dk_member_worker(c);
    const Dk__DuckLink *link = worker && dk_member_alive(c, worker) ? dk_member_link(worker, duck) : NULL;
    Dk__WorkerLink *w = link && link->port_ready ? dk_message_new(&dk__worker_link__descriptor) : NULL;

    if (!w)
        return NULL;
    w->member_index = duck->index;
    w->worker = address_of(worker);
    w->own = address_of(duck);
    w->socket_path = link->socket_path ? strdup(link->socket_path) : NULL;
    w->bell_path = link->bell_path ? strdup(link->bell_path) : NULL;
    if (!w->worker || !w->own) {
        dk_message_free(w);
        return NULL;
    }
    return w;
}

static bool list_ducks(const struct dk_coordinator *c, Dk__HeartbeatReply *r)
{
    r->ducks = calloc(c->member_count, sizeof(Dk__DuckMember *));
    for (uint32_t i = 0; r->ducks && i < c->member_count; i++) {
        Dk__DuckMember *d;

        if (c->members[i].beat->node->kind != DK__NODE_KIND__DUCK)
            continue;
        d = dk_message_new(&dk__duck_member__descriptor);
        if (!d)
            return false;
        r->ducks[r->n_ducks++] = d;
        d->member_index = c->members[i].index;
        d->node = dk_member_info(&c->members[i]);
        if (!d->node)
            return false;
    }
    return r->ducks != NULL;
}

static Dk__HeartbeatReply *heartbeat_reply(struct dk_coordinator *c, const struct dk_member *m)
{
    Dk__HeartbeatReply *r = dk_message_new(&dk__heartbeat_reply__descriptor);
    bool ok = r != NULL;

    if (!ok)
        return NULL;
    r->interval_ms = DK_HEARTBEAT_MS;
    r->member_index = m->index;
    if (c->plan) {
        r->plan = dk_message_clone(c->plan);
        ok = r->plan != NULL; /* a reply without a plan would mean that nothing is wanted */
    }
    if (m->beat->node->kind == DK__NODE_KIND__DUCK)
        r->worker = worker_link(c, m);
    else
        ok = ok && list_ducks(c, r);
    if (!ok) {
        dk_message_free(r);
        return NULL;
    }
    return r;
}

/* A coordinator that was restarted must not reuse an epoch that some node still knows. */
static void learn_epoch(struct dk_coordinator *c, bool has, uint64_t epoch)
{
    if (has && epoch > c->epoch_last && epoch < UINT64_MAX / 4)
        c->epoch_last = epoch;
}

void dk_heartbeat_handle(struct dk_coordinator *c, void *call, const Dk__HeartbeatRequest *q, struct dk_outbox *out)
{
    Dk__HeartbeatRequest *beat;
    struct dk_err err = {0};
    struct dk_member *m;

    if (check_node(c, q, &err) < 0) {
        dk_outbox_fail_err(out, call, &err);
        return;
    }
    if (q->node->kind == DK__NODE_KIND__DUCK && dk_settling(c, q)) {
        dk_outbox_fail(out, call, DK__CODE__UNAVAILABLE,
                       "the coordinator was started a moment ago and waits for the attention-worker to say what the "
                       "cluster runs");
        return;
    }
    m = admit(c, call, q->node, out);
    if (!m)
        return;
    beat = dk_message_clone(q);
    if (!beat) {
        dk_outbox_reply(out, call, NULL);
        return;
    }
    if (!m->beat) {
        c->member_count++;
        dk_log(DK_LOG_INFO, "member.join", "name=%s kind=%s index=%u instance=%08x", q->node->name,
               kind_name(q->node->kind), m->index, q->node->address->instance);
    }
    dk_message_free(m->beat);
    m->beat = beat;
    m->last_us = c->now_us;
    if (q->holding)
        learn_epoch(c, q->holding->has_plan_epoch, q->holding->plan_epoch);
    if (q->load)
        learn_epoch(c, q->load->has_plan_epoch, q->load->plan_epoch);
    if (q->node->kind == DK__NODE_KIND__WORKER)
        dk_plan_adopt(c, m);
    dk_cluster_update(c);
    if (q->node->kind == DK__NODE_KIND__WORKER && dk_settling(c, q))
        dk_outbox_fail(out, call, DK__CODE__UNAVAILABLE,
                       "the coordinator was started a moment ago and waits for the ducks that it knows of from this "
                       "worker");
    else
        dk_outbox_reply(out, call, heartbeat_reply(c, m));
}

void dk_leave_handle(struct dk_coordinator *c, void *call, const Dk__LeaveRequest *q, struct dk_outbox *out)
{
    struct dk_member *m = dk_member_find(c, q->name);

    if (m && m->beat->node->address->instance != q->instance) {
        dk_outbox_fail(out, call, DK__CODE__FAILED_PRECONDITION,
                       "'%s' is another instance by now; this one is not a member", q->name);
        return;
    }
    if (m)
        forget(c, m, "left");
    dk_cluster_update(c);
    dk_outbox_reply(out, call, dk_message_new(&dk__leave_reply__descriptor));
}
