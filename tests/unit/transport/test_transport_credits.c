/* SPDX-License-Identifier: Apache-2.0 */
/* Many answers must not meet in one queue. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "transport/transport_internal.h"
#include "transport_rig.h"

enum { RESPONDERS = 31, SECOND = 1000000 };

struct fan {
    struct rig rig;
    uint32_t peers[RESPONDERS];
    uint32_t answer_bytes, responses, responses_wanted;
    uint32_t on_wire, on_wire_most; /* response fragments that left at one time, and so are on their way together */
    uint64_t left_us;
    bool done;
};

static uint8_t answer_bytes_of[1 << 20];

static void on_event(void *ctx, struct rig *rig, uint32_t at, struct dk_transport_event *event)
{
    struct fan *f = ctx;
    struct iovec part = {answer_bytes_of, f->answer_bytes};

    if (event->type == DK_EVENT_REQUEST)
        cr_assert_eq(dk_transport_respond(rig->ends[at], event->peer, event->request_id, &part, 1, rig->now_us), 0);
    else
        cr_assert_eq(event->type, DK_EVENT_RESPONSE);
    f->responses += event->type == DK_EVENT_RESPONSE;
    f->done = f->responses == f->responses_wanted;
    dk_transport_event_done(rig->ends[at], event);
}

static bool filter(void *ctx, uint32_t from, uint32_t to, const uint8_t *frame, uint32_t bytes)
{
    struct fan *f = ctx;

    if (f->left_us != f->rig.now_us)
        f->on_wire = 0;
    f->left_us = f->rig.now_us;
    f->on_wire += frame[45] == DK_DATAGRAM_RESPONSE;
    f->on_wire_most = f->on_wire > f->on_wire_most ? f->on_wire : f->on_wire_most;
    return true;
}

static struct fan *fan_open(uint32_t credit_frames, uint32_t answer_bytes, const struct dk_net_faults *faults)
{
    struct fan *f = calloc(1, sizeof *f);
    struct dk_transport_config c;

    cr_assert(f);
    rig_init(&f->rig, faults);
    f->rig.ctx = f;
    f->rig.on_event = on_event;
    f->rig.filter = filter;
    f->answer_bytes = answer_bytes;
    dk_transport_defaults(&c);
    c.mtu = 1500;
    c.peers_max = RESPONDERS;
    c.message_bytes_max = 1 << 20;
    c.credit_frames = credit_frames;
    for (uint32_t i = 0; i <= RESPONDERS; i++) {
        uint32_t unused;

        rig_add(&f->rig, &c);
        if (i > 0)
            rig_join(&f->rig, 0, i, &f->peers[i - 1], &unused);
    }
    return f;
}

static void fan_ask_all(struct fan *f)
{
    static uint8_t question[100];
    struct iovec part = {question, sizeof question};
    uint64_t id;

    for (int i = 0; i < RESPONDERS; i++)
        cr_assert_eq(dk_transport_request(f->rig.ends[0], f->peers[i], &part, 1, f->rig.now_us, &id), 0);
    f->responses_wanted += RESPONDERS;
    f->done = false;
    while (!f->done && rig_step(&f->rig))
        cr_assert_leq(f->rig.ends[0]->credits, f->rig.ends[0]->config.credit_frames + RESPONDERS);
    cr_assert(f->done);
}

static void fan_close(struct fan *f)
{
    cr_assert_eq(f->rig.ends[0]->credits, 0, "all credits came back");
    cr_assert_eq(f->rig.ends[0]->starved, 0);
    rig_fini(&f->rig);
    free(f);
}

Test(transport_credits, responses_in_flight_are_limited_over_all_peers)
{
    struct fan *f = fan_open(64, 300000, NULL);

    fan_ask_all(f);
    fan_ask_all(f);
    cr_assert_leq(f->on_wire_most, 64 + RESPONDERS);
    cr_assert_gt(f->on_wire_most, 32);
    fan_close(f);
    f = fan_open(100000, 300000, NULL);
    fan_ask_all(f);
    cr_assert_gt(f->on_wire_most, 400, "it is the credits that limit");
    fan_close(f);
}

Test(transport_credits, one_credit_starves_nobody)
{
    struct fan *f = fan_open(1, 30000, NULL);

    fan_ask_all(f);
    cr_assert_leq(f->on_wire_most, 1 + RESPONDERS);
    fan_close(f);
}

Test(transport_credits, credits_survive_loss)
{
    struct dk_net_faults faults = {.drop = 0.2, .dup = 0.1, .reorder = 0.1, .seed = 5};
    struct fan *f = fan_open(40, 100000, &faults);

    for (int i = 0; i < 5; i++)
        fan_ask_all(f);
    fan_close(f);
}

Test(transport_credits, a_layers_answers_need_no_grant)
{
    struct fan *f = fan_open(192, 8192, NULL);
    uint64_t frames;

    for (int i = 0; i < 12; i++) /* the guess comes down from its first value */
        fan_ask_all(f);
    frames = f->rig.frames;
    fan_ask_all(f);
    cr_assert_eq(f->rig.frames - frames, RESPONDERS * (1 + 6));
    fan_close(f);
}

Test(transport_credits, more_than_was_granted_is_refused)
{
    struct fan *f = fan_open(192, 8192, NULL);
    struct dk_transport *t = f->rig.ends[0];
    static uint8_t frame[RIG_FRAME_BYTES];
    struct iovec part = {frame, 10};
    struct dk_datagram d = {.type = DK_DATAGRAM_RESPONSE,
                            .source_instance = rig_address(1).instance,
                            .target_instance = rig_address(0).instance,
                            .source_session = 1,
                            .message_bytes = 1000000,
                            .fragment_bytes = 1000};
    struct dk_addr from = rig_address(1), to = rig_address(0);
    size_t bytes;

    cr_assert_eq(dk_transport_request(t, f->peers[0], &part, 1, f->rig.now_us, &d.request_id), 0);
    rig_send(&f->rig, 0);
    d.fragment = t->peers[f->peers[0]].calls[0].in.grant;
    bytes = dk_datagram_encode(frame, &from, &to, 0, &d, 1000);
    dk_transport_input(t, 0, frame, bytes, f->rig.now_us);
    cr_assert_eq(dk_transport_counters(t)->corrupt, 1);
    d.fragment--;
    bytes = dk_datagram_encode(frame, &from, &to, 0, &d, 1000);
    dk_transport_input(t, 0, frame, bytes, f->rig.now_us);
    cr_assert_eq(dk_transport_counters(t)->corrupt, 1);
    cr_assert_eq(t->peers[f->peers[0]].calls[0].in.received, 1);
    dk_transport_peer_remove(t, f->peers[0]);
    fan_close(f);
}
