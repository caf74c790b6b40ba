/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <string.h>

#include "attention-worker/links.h"
#include "base/log.h"
#include "cluster_rig.h"

static void quiet(void *ctx, enum dk_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    (void)line;
}

static void open_cluster(struct cluster *c, uint32_t ducks)
{
    struct dk_err err = {0};

    dk_log_setup(quiet, NULL, DK_LOG_ERROR, "test");
    cr_assert_eq(cluster_open(c, ducks, NULL, &err), 0, "%s", err.text);
}

static struct worker_link_order order_of(const struct cluster *c, uint32_t duck)
{
    struct worker_link_order o = {.member_index = duck, .addr = c->ducks[duck].own};

    memcpy(o.name, c->ducks[duck].name, sizeof c->ducks[duck].name);
    return o;
}

Test(worker_links, ducks_appear_and_disappear)
{
    struct worker_link_order orders[3];
    struct worker_links *l;
    struct cluster c;
    char path[100];

    open_cluster(&c, 3);
    l = &c.worker.links;
    for (uint32_t i = 0; i < 3; i++) {
        orders[i] = order_of(&c, i);
        cr_assert_not_null(worker_links_find(l, i, c.ducks[i].own.instance));
        cr_assert_null(worker_links_find(l, i, c.ducks[i].own.instance + 1));
    }
    cr_assert_null(worker_links_find(l, 3, 1));
    cr_assert_null(worker_links_find(l, WORKER_LINKS_MAX, 1));
    cr_assert_eq(worker_links_follow(l, orders, 3), 0, "the same order changed something");
    cr_assert_eq(worker_links_follow(l, orders, 3), 0);

    cr_assert_eq(worker_links_follow(l, orders, 2), 1u << 2);
    cr_assert_null(worker_links_find(l, 2, orders[2].addr.instance));
    cr_assert_not(l->link[2].port_up);
    cr_assert_eq(worker_links_follow(l, orders, 2), 0);

    memcpy(path, l->link[1].socket_path, sizeof path);
    orders[1].addr.instance++;
    cr_assert_eq(worker_links_follow(l, orders, 3), 1u << 1 | 1u << 2);
    cr_assert_null(worker_links_find(l, 1, c.ducks[1].own.instance), "the old life is still there");
    cr_assert_not_null(worker_links_find(l, 1, orders[1].addr.instance));
    cr_assert_str_eq(l->link[1].socket_path, path, "the port must stay");

    cr_assert_eq(worker_links_follow(l, NULL, 0), 7);
    for (uint32_t i = 0; i < WORKER_LINKS_MAX; i++)
        cr_assert(!l->link[i].peer_up && !l->link[i].port_up && !l->link[i].wanted);
    cluster_close(&c);
}

Test(worker_links, foreign_indexes_are_refused)
{
    struct worker_link_order o;
    struct cluster c;

    open_cluster(&c, 1);
    o = order_of(&c, 0);
    o.member_index = WORKER_LINKS_MAX;
    cr_assert_eq(worker_links_follow(&c.worker.links, &o, 1), 1, "only the known duck may go");
    cr_assert_eq(worker_links_peer_lost(&c.worker.links, 0), -ENOENT);
    cluster_close(&c);
}

/* ---- a request after a peer was made anew */

struct echo {
    uint32_t asked; /* requests that reached the duck */
    bool mute;
};

/* Answers with the request's last byte. */
static enum cluster_verdict echo(void *ctx, struct cluster *c, uint32_t duck, const uint8_t *data, size_t bytes,
                                 struct duck_answer *answer)
{
    struct echo *e = ctx;

    (void)c;
    (void)duck;
    e->asked++;
    answer->header[0] = data[bytes - 1];
    answer->header_bytes = 1;
    return e->mute ? CLUSTER_NEVER : CLUSTER_MINE;
}

/* The answer's byte; -1: none came. */
static int wait_answer(struct cluster *c, uint64_t request_id)
{
    struct dk_transport *t = c->worker.endpoint.transport;
    struct dk_transport_event event;
    int answer = -1;

    for (int i = 0; i < 5000 && answer < 0; i++) {
        dk_endpoint_poll(&c->worker.endpoint, c->now_us);
        cluster_poll_ducks(c);
        while (dk_transport_event(t, &event), event.type != DK_EVENT_NONE) {
            cr_assert_eq(event.type, DK_EVENT_RESPONSE);
            cr_assert_eq(event.request_id, request_id, "the answer to another request");
            cr_assert_eq(event.bytes, 1);
            answer = event.data[0];
            dk_transport_event_done(t, &event);
        }
    }
    return answer;
}

static uint64_t ask(struct cluster *c, uint8_t *byte)
{
    struct iovec part = {byte, 1};
    uint64_t id;

    cr_assert_eq(
        dk_transport_request(c->worker.endpoint.transport, c->worker.links.link[0].peer, &part, 1, c->now_us, &id), 0);
    return id;
}

/* The duck keeps its last answers for repeats. A peer made anew begins at the first slot again, as the old one did: its
 * requests must be computed, not answered from what the duck kept for the earlier peer. */
Test(worker_links, a_new_peer_gets_no_kept_answer)
{
    struct dk_net_faults faults = {.drop = 0.1, .dup = 0.3, .reorder = 0.2, .delay = 0.1, .delay_us = 3000, .seed = 9};
    struct echo e = {.asked = 0};
    struct dk_err err = {0};
    uint64_t id, last = 0;
    struct cluster c;

    dk_log_setup(quiet, NULL, DK_LOG_ERROR, "test");
    cr_assert_eq(cluster_open(&c, 1, &faults, &err), 0, "%s", err.text);
    c.on_request = echo;
    c.ctx = &e;
    for (int round = 0; round < 40; round++) {
        uint8_t kept = (uint8_t)round, lost = (uint8_t)(100 + round);

        id = ask(&c, &kept);
        cr_assert_gt(id, last, "a request id came again");
        cr_assert_eq(wait_answer(&c, id), kept);
        cr_assert_eq(e.asked, 2u * (uint32_t)round + 1);
        e.mute = true;
        last = ask(&c, &lost);
        cr_assert_gt(last, id);
        for (int i = 0; i < 5000 && e.asked < 2u * (uint32_t)round + 2; i++) {
            dk_endpoint_poll(&c.worker.endpoint, c.now_us);
            cluster_poll_ducks(&c);
        }
        e.mute = false;
        cr_assert_eq(worker_links_peer_lost(&c.worker.links, c.worker.links.link[0].peer), 0);
    }
    cr_assert_eq(e.asked, 80);
    cr_assert_eq(dk_transport_counters(c.worker.endpoint.transport)->peers_dead, 0);
    cluster_close(&c);
}
