/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that die, come back as others, are removed, or are forgotten by the other side. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "transport/transport_internal.h"
#include "transport_rig.h"

enum { SECOND = 1000000 };

struct couple {
    struct rig rig;
    struct dk_transport *asker, *answerer;
    struct dk_transport_config config;
    uint32_t to, back;
    bool cut;          /* no frame passes */
    bool cut_requests; /* no fragment of a request passes */
    bool hold;         /* requests are not answered */
    bool done;
    enum dk_transport_event_type seen[64]; /* events of both but requests */
    uint32_t seen_count, requests, responses, frames;
    struct dk_transport_event held;
};

static uint8_t content[200000];

static void on_event(void *ctx, struct rig *rig, uint32_t at, struct dk_transport_event *event)
{
    struct couple *c = ctx;
    struct iovec part = {content, 50000};

    if (event->type == DK_EVENT_REQUEST) {
        c->requests++;
        if (c->hold) {
            c->held = *event;
            return;
        }
        dk_transport_respond(rig->ends[at], event->peer, event->request_id, &part, 1, rig->now_us);
    } else {
        cr_assert_lt(c->seen_count, 64);
        c->seen[c->seen_count++] = event->type;
        c->responses += event->type == DK_EVENT_RESPONSE;
        c->done = true;
        if (event->type == DK_EVENT_FAILED)
            cr_assert_eq(event->rc, -EHOSTDOWN);
    }
    dk_transport_event_done(rig->ends[at], event);
}

static bool filter(void *ctx, uint32_t from, uint32_t to, const uint8_t *frame, uint32_t bytes)
{
    struct couple *c = ctx;

    c->frames++;
    return !c->cut && !(c->cut_requests && frame[45] == DK_DATAGRAM_REQUEST);
}

static struct couple *couple_open(void)
{
    struct couple *c = calloc(1, sizeof *c);

    cr_assert(c);
    dk_transport_defaults(&c->config);
    c->config.mtu = 1500;
    c->config.peers_max = 2;
    c->config.message_bytes_max = sizeof content;
    rig_init(&c->rig, NULL);
    rig_add(&c->rig, &c->config);
    rig_add(&c->rig, &c->config);
    rig_join(&c->rig, 0, 1, &c->to, &c->back);
    c->asker = c->rig.ends[0];
    c->answerer = c->rig.ends[1];
    c->rig.ctx = c;
    c->rig.on_event = on_event;
    c->rig.filter = filter;
    return c;
}

static void couple_close(struct couple *c)
{
    rig_fini(&c->rig);
    free(c);
}

static uint64_t ask(struct couple *c, uint32_t bytes)
{
    struct iovec part = {content, bytes};
    uint64_t id = 0;

    c->done = false;
    cr_assert_eq(dk_transport_request(c->asker, c->to, &part, 1, c->rig.now_us, &id), 0);
    return id;
}

static void run_until_done(struct couple *c)
{
    rig_run(&c->rig, &c->done, 100 * SECOND);
    cr_assert(c->done);
}

Test(transport_peers, adding_checks)
{
    struct couple *c = couple_open();
    struct dk_addr other = rig_address(1);
    uint32_t peer;

    cr_assert_eq(dk_transport_peer_add(c->asker, &other, 0, &peer), -EEXIST);
    other.udp_port++;
    other.instance = 0;
    cr_assert_eq(dk_transport_peer_add(c->asker, &other, 0, &peer), -EINVAL);
    other.instance = 5;
    cr_assert_eq(dk_transport_peer_add(c->asker, &other, 0, &peer), 0);
    other.udp_port++;
    cr_assert_eq(dk_transport_peer_add(c->asker, &other, 0, &peer), -ENOSPC);
    dk_transport_peer_remove(c->asker, 99);
    couple_close(c);
}

Test(transport_peers, silence_with_something_outstanding_is_death)
{
    struct couple *c = couple_open();
    uint64_t start;
    struct iovec part = {content, 1};
    uint64_t id;

    ask(c, 100);
    run_until_done(c);
    c->seen_count = 0;
    c->cut = true;
    rig_run(&c->rig, NULL, 100 * SECOND);
    cr_assert_eq(c->seen_count, 0, "nobody is missed while nothing is wanted");
    start = c->rig.now_us;
    ask(c, 100);
    ask(c, 100000);
    while (c->seen_count < 3 && rig_step(&c->rig))
        ;
    cr_assert_eq(c->seen_count, 3);
    cr_assert(c->seen[0] == DK_EVENT_FAILED && c->seen[1] == DK_EVENT_FAILED && c->seen[2] == DK_EVENT_DEAD);
    cr_assert_geq(c->rig.now_us - start, 2 * SECOND);
    cr_assert_leq(c->rig.now_us - start, 2 * SECOND + 1000);
    cr_assert_eq(dk_transport_counters(c->asker)->peers_dead, 1);
    cr_assert_eq(dk_transport_request(c->asker, c->to, &part, 1, c->rig.now_us, &id), -EHOSTDOWN);
    cr_assert_eq(dk_transport_deadline(c->asker), UINT64_MAX);
    couple_close(c);
}

Test(transport_peers, a_dead_peer_can_be_added_again)
{
    struct couple *c = couple_open();

    c->cut = true;
    ask(c, 100000);
    while (c->seen_count < 2 && rig_step(&c->rig))
        ;
    cr_assert_eq(c->seen_count, 2);
    c->cut = false;
    dk_transport_peer_remove(c->asker, c->to);
    cr_assert_eq(dk_transport_peer_add(c->asker, &c->rig.addresses[1], 1, &c->to), 0);
    ask(c, 100000);
    run_until_done(c);
    cr_assert_eq(c->responses, 1);
    couple_close(c);
}

Test(transport_peers, a_peer_that_computes_for_long_is_not_dead)
{
    struct couple *c = couple_open();
    struct iovec part = {content, 50000};

    c->hold = true;
    ask(c, 100);
    rig_run(&c->rig, NULL, 60 * SECOND);
    cr_assert_eq(c->requests, 1);
    cr_assert_eq(c->seen_count, 0);
    cr_assert_lt(c->frames, 60 * 30, "and is not asked all the time");
    cr_assert_eq(dk_transport_respond(c->answerer, c->back, c->held.request_id, &part, 1, c->rig.now_us), 0);
    run_until_done(c);
    cr_assert_eq(c->responses, 1);
    couple_close(c);
}

Test(transport_peers, a_poll_loop_that_rests_below_the_limit_is_not_dead)
{
    struct couple *c = couple_open();

    c->hold = true;
    ask(c, 100);
    for (int i = 0; i < 20; i++) { /* the answerer looks at its frames every 900 ms only */
        uint64_t until = c->rig.now_us + 900000;

        c->cut = true;
        while (c->rig.now_us < until) {
            rig_send(&c->rig, 0);
            c->rig.now_us += 10000;
        }
        c->cut = false;
        rig_run(&c->rig, NULL, 300000);
    }
    cr_assert_eq(c->seen_count, 0);
    couple_close(c);
}

Test(transport_peers, this_sides_own_stall_is_not_the_peers_death)
{
    struct couple *c = couple_open();

    c->hold = true;
    ask(c, 100);
    rig_run(&c->rig, NULL, SECOND / 10);
    c->rig.now_us += 10 * SECOND;
    rig_run(&c->rig, NULL, 10 * SECOND);
    cr_assert_eq(c->seen_count, 0);
    couple_close(c);
}

Test(transport_peers, an_asker_that_falls_silent_in_mid_request_is_dead_too)
{
    struct couple *c = couple_open();

    ask(c, 150000);
    rig_step(&c->rig);
    cr_assert_neq(c->answerer->peers[c->back].answers_partial, 0);
    dk_transport_peer_remove(c->asker, c->to);
    while (c->seen_count < 1 && rig_step(&c->rig))
        ;
    cr_assert_eq(c->seen_count, 1);
    cr_assert_eq(c->seen[0], DK_EVENT_DEAD);
    cr_assert_eq(c->answerer->buffers.free_count, c->answerer->buffers.made);
    couple_close(c);
}

Test(transport_peers, an_asker_that_answers_hellos_is_alive)
{
    struct couple *c = couple_open();

    ask(c, 150000);
    rig_step(&c->rig);
    cr_assert_neq(c->answerer->peers[c->back].answers_partial, 0);
    c->cut_requests = true;
    rig_run(&c->rig, NULL, 20 * SECOND);
    cr_assert_eq(c->seen_count, 0);
    c->cut_requests = false;
    run_until_done(c);
    cr_assert_eq(c->responses, 1);
    couple_close(c);
}

Test(transport_peers, frames_of_an_earlier_life_are_refused)
{
    struct couple *c = couple_open();
    struct dk_addr reborn = c->rig.addresses[1];
    struct iovec part = {content, 1};
    uint32_t asked;
    uint64_t id;

    ask(c, 100);
    run_until_done(c);
    /* The answerer starts again as another instance, and knows the asker. */
    dk_transport_close(c->answerer);
    c->config.own = reborn;
    c->config.own.instance = 999;
    cr_assert_eq(dk_transport_open(&c->config, &c->rig.ends[1]), 0);
    c->answerer = c->rig.ends[1];
    cr_assert_eq(dk_transport_peer_add(c->answerer, &c->rig.addresses[0], 0, &c->back), 0);
    asked = c->requests;
    ask(c, 100);
    rig_run(&c->rig, &c->done, SECOND);
    cr_assert_not(c->done);
    cr_assert_eq(c->requests, asked);
    cr_assert_gt(dk_transport_counters(c->answerer)->stale_instance, 0);
    cr_assert_eq(dk_transport_request(c->answerer, c->back, &part, 1, c->rig.now_us, &id), 0);
    rig_run(&c->rig, NULL, SECOND / 10);
    cr_assert_eq(c->requests, asked);
    cr_assert_gt(dk_transport_counters(c->asker)->stale_instance, 0, "the new one is not the peer that was added");
    dk_transport_peer_remove(c->answerer, c->back);
    cr_assert_eq(dk_transport_peer_add(c->answerer, &c->rig.addresses[0], 0, &c->back), 0);
    dk_transport_peer_remove(c->asker, c->to);
    reborn.instance = 999;
    cr_assert_eq(dk_transport_peer_add(c->asker, &reborn, 1, &c->to), 0);
    ask(c, 100);
    run_until_done(c);
    cr_assert_eq(c->responses, 2);
    couple_close(c);
}

Test(transport_peers, a_frame_of_an_unknown_peer_is_foreign)
{
    struct couple *c = couple_open();

    ask(c, 100);
    dk_transport_peer_remove(c->answerer, c->back);
    rig_run(&c->rig, NULL, SECOND);
    cr_assert_gt(dk_transport_counters(c->answerer)->foreign, 0);
    cr_assert_eq(c->requests, 0);
    couple_close(c);
}

/* Steps of an exchange of 106 and 36 frames, at each of which somebody is removed. */
static void remove_at(uint32_t step, bool at_asker, bool hold)
{
    struct couple *c = couple_open();
    struct dk_transport *t;
    uint32_t peer, i;

    c->hold = hold;
    ask(c, 150000);
    for (i = 0; i < step; i++)
        rig_step(&c->rig);
    t = at_asker ? c->asker : c->answerer;
    peer = at_asker ? c->to : c->back;
    dk_transport_peer_remove(t, peer);
    cr_assert_eq(t->credits, 0);
    cr_assert_eq(t->events_count, 0);
    cr_assert_eq(t->buffers.free_count + (c->held.data && !at_asker), t->buffers.made, "step %u", step);
    c->seen_count = 0;
    rig_run(&c->rig, NULL, SECOND);
    if (at_asker)
        cr_assert_eq(c->seen_count, 0, "a removed peer's requests end without an event");
    if (c->held.data && !at_asker) {
        struct iovec part = {content, 1};

        cr_assert(!memcmp(c->held.data, content, 150000), "the event's data outlives the peer");
        cr_assert_eq(dk_transport_respond(t, peer, c->held.request_id, &part, 1, c->rig.now_us), -ENOENT);
        dk_transport_event_done(t, &c->held);
        cr_assert_eq(t->buffers.free_count, t->buffers.made);
    }
    /* Added again, the same two understand each other. */
    c->hold = false;
    if (c->held.data)
        dk_transport_event_done(c->answerer, &c->held);
    if (at_asker) {
        cr_assert_eq(dk_transport_peer_add(t, &c->rig.addresses[1], 1, &c->to), 0);
        if (c->answerer->peers[c->back].state == PEER_DEAD) {
            dk_transport_peer_remove(c->answerer, c->back);
            cr_assert_eq(dk_transport_peer_add(c->answerer, &c->rig.addresses[0], 0, &c->back), 0);
        }
        c->responses = 0;
        ask(c, 100000);
    } else {
        cr_assert_eq(dk_transport_peer_add(t, &c->rig.addresses[0], 0, &c->back), 0);
        if (c->responses == 0 && !c->asker->peers[c->to].calls_active)
            ask(c, 100000);
    }
    while (c->responses == 0)
        cr_assert(rig_step(&c->rig), "step %u", step);
    couple_close(c);
}

Test(transport_peers, removal_in_every_state)
{
    for (uint32_t step = 0; step < 24; step++)
        for (int i = 0; i < 4; i++)
            remove_at(step, i & 1, i & 2);
}

Test(transport_peers, removal_drops_waiting_events_of_that_peer_only)
{
    struct couple *c = couple_open();
    struct dk_transport_event event;
    struct dk_addr other = rig_address(9);
    uint32_t peer;

    cr_assert_eq(dk_transport_peer_add(c->asker, &other, 9, &peer), 0);
    for (uint32_t i = 0; i < 6; i++) {
        struct dk_transport_event push = {
            .type = DK_EVENT_DEAD, .peer = i % 2 ? peer : c->to, .request_id = i, .buffer = DK_BUFFER_NONE};

        transport_event_push(c->asker, &push);
    }
    dk_transport_peer_remove(c->asker, c->to);
    for (uint32_t i = 1; i < 6; i += 2) {
        dk_transport_event(c->asker, &event);
        cr_assert_eq(event.request_id, i);
    }
    dk_transport_event(c->asker, &event);
    cr_assert_eq(event.type, DK_EVENT_NONE);
    couple_close(c);
}

/* Neither side sends frames that the other does not take. */
Test(peers, the_smaller_mtu_of_both_sides_holds)
{
    static uint8_t frame[9014];
    struct dk_transport_config config;
    struct dk_transport *t;
    struct dk_addr remote = rig_address(1);
    struct iovec part = {content, 50000};
    uint32_t peer, port, frames = 0;
    uint64_t id;
    size_t bytes;

    dk_transport_defaults(&config);
    config.own = rig_address(0);
    config.peers_max = 2;
    config.mtu = 9000;
    cr_assert_eq(dk_transport_open(&config, &t), 0);
    remote.mtu = 500;
    cr_assert_eq(dk_transport_peer_add(t, &remote, 0, &peer), -EINVAL, "smaller than any network's");
    remote.mtu = 1500;
    cr_assert_eq(dk_transport_peer_add(t, &remote, 0, &peer), 0);
    cr_assert_eq(dk_transport_request(t, peer, &part, 1, 1, &id), 0);
    while ((bytes = dk_transport_output(t, frame, sizeof frame, &port, 1)) > 0) {
        frames++;
        cr_assert_leq(bytes, 1514);
    }
    cr_assert_gt(frames, 3);
    dk_transport_close(t);
}
