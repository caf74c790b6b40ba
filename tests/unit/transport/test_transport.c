/* SPDX-License-Identifier: Apache-2.0 */
/* Requests and responses between two engines. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "transport/transport_internal.h"
#include "transport_rig.h"

enum { SECOND = 1000000 };

/* Endpoint 0 asks, endpoint 1 answers with `answer_bytes` bytes, at once unless it holds the events. */
struct pair {
    struct rig rig;
    struct dk_transport *asker, *answerer;
    uint32_t to, back; /* peer indexes */
    uint32_t answer_bytes;
    bool hold, done;
    struct dk_transport_event held[16];
    uint32_t held_count, requests, responses, failures;
    int failure;
    uint32_t drop_requests, drop_responses; /* so many frames of each kind are lost */
    uint32_t kinds[DK_DATAGRAM_TYPES];      /* frames seen */
    uint32_t longest;
    uint8_t last[RIG_FRAME_BYTES];  /* the last request frame */
    uint8_t first[RIG_FRAME_BYTES]; /* the last one with the first fragment */
    uint32_t last_bytes, first_bytes;
};

static uint8_t bytes_of_message[1 << 20];

static void answer(struct pair *p, struct dk_transport_event *event)
{
    struct iovec parts[2] = {{bytes_of_message + 100, 0}, {bytes_of_message + 100, p->answer_bytes}};

    cr_assert_eq(dk_transport_respond(p->answerer, event->peer, event->request_id, parts, 2, p->rig.now_us), 0);
}

static void on_event(void *ctx, struct rig *rig, uint32_t at, struct dk_transport_event *event)
{
    struct pair *p = ctx;

    switch (event->type) {
    case DK_EVENT_REQUEST:
        p->requests++;
        cr_assert_eq(at, 1);
        cr_assert_eq((uintptr_t)event->data % 64, 0);
        cr_assert(!memcmp(event->data, bytes_of_message, event->bytes));
        if (p->hold) {
            p->held[p->held_count++] = *event;
            return;
        }
        answer(p, event);
        break;
    case DK_EVENT_RESPONSE:
        p->responses++;
        p->done = true;
        cr_assert_eq(event->bytes, p->answer_bytes);
        cr_assert(!memcmp(event->data, bytes_of_message + 100, event->bytes));
        break;
    case DK_EVENT_FAILED:
        p->failures++;
        p->failure = event->rc;
        p->done = true;
        break;
    default:
        break;
    }
    dk_transport_event_done(rig->ends[at], event);
}

static bool filter(void *ctx, uint32_t from, uint32_t to, const uint8_t *frame, uint32_t bytes)
{
    struct pair *p = ctx;
    uint8_t kind = frame[45];

    p->kinds[kind]++;
    p->longest = bytes > p->longest ? bytes : p->longest;
    if (kind == DK_DATAGRAM_REQUEST) {
        memcpy(p->last, frame, bytes);
        p->last_bytes = bytes;
        if (frame[42 + 40] == 0) {
            memcpy(p->first, frame, bytes);
            p->first_bytes = bytes;
        }
    }
    if (kind == DK_DATAGRAM_REQUEST && p->drop_requests > 0) {
        p->drop_requests--;
        return false;
    }
    if (kind == DK_DATAGRAM_RESPONSE && p->drop_responses > 0) {
        p->drop_responses--;
        return false;
    }
    return true;
}

static struct dk_transport_config config_of(uint32_t mtu)
{
    struct dk_transport_config c;

    dk_transport_defaults(&c);
    c.mtu = mtu;
    c.peers_max = 2;
    c.message_bytes_max = 1 << 20;
    return c;
}

static struct pair *pair_open_as(struct dk_transport_config asker, struct dk_transport_config answerer,
                                 const struct dk_net_faults *faults)
{
    struct pair *p = calloc(1, sizeof *p);

    cr_assert(p);
    for (size_t i = 0; i < sizeof bytes_of_message; i++)
        bytes_of_message[i] = (uint8_t)(i * 31 >> 3);
    rig_init(&p->rig, faults);
    rig_add(&p->rig, &asker);
    rig_add(&p->rig, &answerer);
    rig_join(&p->rig, 0, 1, &p->to, &p->back);
    p->asker = p->rig.ends[0];
    p->answerer = p->rig.ends[1];
    p->rig.ctx = p;
    p->rig.on_event = on_event;
    p->rig.filter = filter;
    p->answer_bytes = 8192;
    return p;
}

static struct pair *pair_open(uint32_t mtu)
{
    return pair_open_as(config_of(mtu), config_of(mtu), NULL);
}

static void pair_close(struct pair *p)
{
    cr_assert_eq(p->rig.overflow, 0);
    rig_fini(&p->rig);
    free(p);
}

static uint64_t ask(struct pair *p, uint32_t bytes)
{
    struct iovec part = {bytes_of_message, bytes};
    uint64_t id = 0;

    p->done = false;
    cr_assert_eq(dk_transport_request(p->asker, p->to, &part, 1, p->rig.now_us, &id), 0);
    return id;
}

/* Asks and waits for the end. */
static void exchange(struct pair *p, uint32_t bytes)
{
    ask(p, bytes);
    rig_run(&p->rig, &p->done, 100 * SECOND);
    cr_assert(p->done);
}

Test(transport, open_checks_its_config)
{
    struct dk_transport_config good = config_of(1500), bad;
    struct dk_transport *t = NULL;

    good.own = rig_address(0);
    cr_assert_eq(dk_transport_open(&good, &t), 0);
    cr_assert_eq(dk_transport_deadline(t), UINT64_MAX);
    dk_transport_close(t);
    dk_transport_close(NULL);
#define REFUSES(field, value)                                                  \
    do {                                                                       \
        bad = good;                                                            \
        bad.field = value;                                                     \
        cr_assert_eq(dk_transport_open(&bad, &t), -EINVAL, #field " " #value); \
    } while (0)
    REFUSES(own.instance, 0);
    REFUSES(mtu, 575);
    REFUSES(mtu, 9001);
    REFUSES(peers_max, 0);
    REFUSES(requests_max, 0);
    REFUSES(requests_max, 17);
    REFUSES(message_bytes_max, 0);
    REFUSES(message_bytes_max, (64 << 20) + 1);
    REFUSES(window_frames, 0);
    REFUSES(window_frames, 513);
    REFUSES(credit_frames, 0);
    REFUSES(rto_first_us, 0);
}

Test(transport, the_common_case_costs_no_further_frame)
{
    static const uint32_t mtus[] = {576, 1500, 9000};
    static const uint32_t lengths[] = {1, 488, 489, 1416, 1417, 8192, 8920, 8921, 14160};

    for (size_t m = 0; m < 3; m++)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            struct pair *p = pair_open(mtus[m]);
            uint32_t fragment = (mtus[m] - 80) & ~7u, frames;

            p->answer_bytes = lengths[i];
            frames = (lengths[i] + fragment - 1) / fragment;
            exchange(p, lengths[i]);
            if (frames > 16) { /* beyond the first guess of how long responses are */
                pair_close(p);
                continue;
            }
            cr_assert_eq(p->kinds[DK_DATAGRAM_REQUEST], frames, "%u bytes in mtu %u", lengths[i], mtus[m]);
            cr_assert_eq(p->kinds[DK_DATAGRAM_RESPONSE], frames);
            cr_assert_eq(p->rig.frames, 2 * frames);
            cr_assert_leq(p->longest, mtus[m] + 14);
            rig_run(&p->rig, NULL, SECOND);
            cr_assert_eq(p->rig.frames, 2 * frames, "nothing follows");
            cr_assert_eq(dk_transport_deadline(p->asker), UINT64_MAX);
            cr_assert_eq(dk_transport_deadline(p->answerer), UINT64_MAX);
            pair_close(p);
        }
}

Test(transport, the_second_long_response_is_expected)
{
    struct pair *p = pair_open(1500);
    uint64_t frames;

    p->answer_bytes = 40 * 1416;
    exchange(p, 100);
    cr_assert_gt(p->kinds[DK_DATAGRAM_RESPONSE_ACK], 0, "the first needs a grant");
    frames = p->rig.frames;
    exchange(p, 100);
    cr_assert_eq(p->rig.frames - frames, 41);
    pair_close(p);
}

Test(transport, long_messages_keep_to_the_window)
{
    struct dk_transport_config c = config_of(1500);
    struct pair *p;

    c.window_frames = 8;
    p = pair_open_as(c, c, NULL);
    p->answer_bytes = 900000;
    ask(p, 1000000);
    while (!p->done && rig_step(&p->rig)) {
        cr_assert_leq(p->asker->peers[p->to].in_flight, 8);
        cr_assert_leq(p->asker->credits, 8);
    }
    cr_assert(p->done);
    cr_assert_eq(dk_transport_counters(p->asker)->retransmitted, 0);
    cr_assert_eq(dk_transport_counters(p->answerer)->retransmitted, 0);
    pair_close(p);
}

Test(transport, bad_lengths_are_refused)
{
    struct pair *p = pair_open(1500);
    struct iovec parts[5] = {{bytes_of_message, 1 << 20}, {bytes_of_message, 1}};
    uint64_t id = ask(p, 10), unused;

    cr_assert_eq(dk_transport_request(p->asker, p->to, parts, 2, 0, &unused), -EMSGSIZE);
    parts[1].iov_len = SIZE_MAX;
    cr_assert_eq(dk_transport_request(p->asker, p->to, parts, 2, 0, &unused), -EMSGSIZE);
    parts[0].iov_len = parts[1].iov_len = 0;
    cr_assert_eq(dk_transport_request(p->asker, p->to, parts, 2, 0, &unused), -EINVAL);
    cr_assert_eq(dk_transport_request(p->asker, p->to, parts, 0, 0, &unused), -EINVAL);
    parts[0].iov_len = 1;
    cr_assert_eq(dk_transport_request(p->asker, p->to, parts, 5, 0, &unused), -EINVAL);
    cr_assert_eq(dk_transport_request(p->asker, 7, parts, 1, 0, &unused), -EHOSTDOWN);

    p->hold = true;
    while (p->held_count == 0)
        cr_assert(rig_step(&p->rig));
    cr_assert_eq(p->held[0].request_id, id);
    parts[0].iov_len = (1 << 20) + 1;
    cr_assert_eq(dk_transport_respond(p->answerer, p->back, id, parts, 1, 0), -EMSGSIZE);
    parts[0].iov_len = 0;
    cr_assert_eq(dk_transport_respond(p->answerer, p->back, id, parts, 1, 0), -EINVAL);
    parts[0].iov_len = 1;
    cr_assert_eq(dk_transport_respond(p->answerer, p->back, id + 1, parts, 1, 0), -ENOENT);
    cr_assert_eq(dk_transport_respond(p->answerer, p->back + 1, id, parts, 1, 0), -ENOENT);
    answer(p, &p->held[0]);
    cr_assert_eq(dk_transport_respond(p->answerer, p->back, id, parts, 1, 0), -ENOENT, "answered already");
    pair_close(p);
}

Test(transport, requests_max_is_backpressure)
{
    struct pair *p = pair_open(1500);
    struct iovec part = {bytes_of_message, 5};
    uint64_t ids[5];

    for (int i = 0; i < 4; i++)
        ids[i] = ask(p, 5);
    for (int i = 1; i < 4; i++)
        cr_assert_gt(ids[i], ids[i - 1]);
    cr_assert_eq(dk_transport_request(p->asker, p->to, &part, 1, 0, &ids[4]), -EAGAIN);
    rig_run(&p->rig, &p->done, SECOND);
    cr_assert_eq(dk_transport_request(p->asker, p->to, &part, 1, p->rig.now_us, &ids[4]), 0);
    rig_run(&p->rig, NULL, SECOND);
    cr_assert_eq(p->responses, 5);
    pair_close(p);
}

Test(transport, requests_go_both_ways_at_once)
{
    struct pair *p = pair_open(1500);
    struct dk_transport_event event;
    struct iovec part = {bytes_of_message, 3000};
    uint64_t id, back;

    p->rig.on_event = NULL;
    cr_assert_eq(dk_transport_request(p->asker, p->to, &part, 1, p->rig.now_us, &id), 0);
    cr_assert_eq(dk_transport_request(p->answerer, p->back, &part, 1, p->rig.now_us, &back), 0);
    for (int at = 0; at < 2; at++) {
        rig_send(&p->rig, 0);
        rig_send(&p->rig, 1);
    }
    p->rig.now_us += RIG_DELAY_US;
    while (p->rig.wire_count > 0) {
        struct rig_wire *w = &p->rig.wire[p->rig.wire_at++];

        p->rig.wire_count--;
        dk_transport_input(p->rig.ends[w->to], 0, p->rig.pool + (size_t)w->frame * RIG_FRAME_BYTES, w->bytes,
                           p->rig.now_us);
        p->rig.free[p->rig.free_count++] = w->frame;
    }
    dk_transport_event(p->asker, &event);
    cr_assert_eq(event.type, DK_EVENT_REQUEST);
    cr_assert_eq(event.request_id, back);
    dk_transport_event_done(p->asker, &event);
    dk_transport_event(p->answerer, &event);
    cr_assert_eq(event.type, DK_EVENT_REQUEST);
    cr_assert_eq(event.request_id, id);
    dk_transport_event_done(p->answerer, &event);
    pair_close(p);
}

Test(transport, doubled_frames_are_one_message)
{
    struct dk_net_faults faults = {.dup = 1};
    struct pair *p = pair_open_as(config_of(1500), config_of(1500), &faults);

    for (int i = 0; i < 20; i++)
        exchange(p, 8192);
    rig_run(&p->rig, NULL, SECOND);
    cr_assert_eq(p->requests, 20);
    cr_assert_eq(p->responses, 20);
    cr_assert_eq(dk_transport_counters(p->answerer)->duplicates, 20 * 6);
    cr_assert_eq(dk_transport_counters(p->asker)->duplicates, 20 * 6);
    cr_assert_eq(dk_transport_counters(p->answerer)->replayed, 0, "a copy is no wish for the response");
    pair_close(p);
}

Test(transport, a_lost_response_is_replayed_and_not_computed_again)
{
    struct pair *p = pair_open(1500);

    p->drop_responses = 6;
    exchange(p, 100);
    cr_assert_eq(p->requests, 1);
    cr_assert_eq(p->responses, 1);
    cr_assert_eq(dk_transport_counters(p->answerer)->replayed, 1);
    cr_assert_eq(dk_transport_counters(p->answerer)->retransmitted, 6);
    pair_close(p);
}

Test(transport, only_the_lost_fragment_is_sent_again_and_at_once)
{
    struct pair *p = pair_open(1500);
    uint64_t start_us = p->rig.now_us;

    p->drop_requests = 1;
    exchange(p, 20 * 1416);
    cr_assert_leq(p->rig.now_us - start_us, 4 * RIG_DELAY_US, "a gap is seen without a time-out");
    cr_assert_eq(dk_transport_counters(p->asker)->retransmitted, 1);
    start_us = p->rig.now_us;
    p->drop_responses = 1;
    p->answer_bytes = 10 * 1416;
    exchange(p, 1);
    cr_assert_leq(p->rig.now_us - start_us, 4 * RIG_DELAY_US);
    cr_assert_eq(dk_transport_counters(p->answerer)->retransmitted, 1);
    cr_assert_gt(dk_transport_counters(p->asker)->reordered, 0);
    pair_close(p);
}

Test(transport, a_late_copy_of_an_earlier_request_is_no_request)
{
    struct pair *p = pair_open(1500);
    uint8_t early[RIG_FRAME_BYTES];
    uint32_t early_bytes;

    exchange(p, 100);
    memcpy(early, p->last, p->last_bytes);
    early_bytes = p->last_bytes;
    exchange(p, 200);
    dk_transport_input(p->answerer, 0, early, early_bytes, p->rig.now_us);
    rig_run(&p->rig, NULL, SECOND);
    cr_assert_eq(p->requests, 2);
    cr_assert_eq(dk_transport_counters(p->answerer)->duplicates, 1);
    pair_close(p);
}

Test(transport, a_late_copy_does_not_mix_with_the_slots_next_request)
{
    struct pair *p = pair_open(1500);
    uint8_t early[RIG_FRAME_BYTES];
    uint32_t early_bytes;

    exchange(p, 2000);
    memcpy(early, p->first, p->first_bytes);
    early_bytes = p->first_bytes;
    bytes_of_message[100] ^= 1;
    ask(p, 2000);
    p->drop_requests = 1;
    while (p->answerer->peers[p->back].answers_partial == 0)
        cr_assert(rig_step(&p->rig));
    dk_transport_input(p->answerer, 0, early, early_bytes, p->rig.now_us);
    rig_run(&p->rig, &p->done, SECOND);
    cr_assert_eq(p->requests, 2);
    cr_assert_gt(dk_transport_counters(p->answerer)->duplicates, 0);
    cr_assert_eq(dk_transport_counters(p->answerer)->corrupt, 0);
    pair_close(p);
}

Test(transport, while_it_computes_the_answerer_answers_polls)
{
    struct pair *p = pair_open(1500);

    p->hold = true;
    ask(p, 100);
    rig_run(&p->rig, NULL, SECOND);
    cr_assert_gt(p->kinds[DK_DATAGRAM_RESPONSE_ACK], 2);
    cr_assert_eq(p->kinds[DK_DATAGRAM_REQUEST_ACK], p->kinds[DK_DATAGRAM_RESPONSE_ACK] + 1, "one is for the repeat");
    cr_assert_eq(p->kinds[DK_DATAGRAM_HELLO], 0);
    pair_close(p);
}

Test(transport, events_may_be_kept_beyond_the_response)
{
    struct pair *p = pair_open(1500);

    p->hold = true;
    ask(p, 5000);
    while (p->held_count == 0)
        cr_assert(rig_step(&p->rig));
    answer(p, &p->held[0]);
    rig_run(&p->rig, &p->done, SECOND);
    cr_assert(p->done);
    for (int i = 0; i < 10; i++) { /* its slot serves others meanwhile */
        ask(p, 6000);
        while (p->held_count == 1)
            cr_assert(rig_step(&p->rig));
        answer(p, &p->held[1]);
        rig_run(&p->rig, &p->done, SECOND);
        dk_transport_event_done(p->answerer, &p->held[1]);
        p->held_count = 1;
    }
    cr_assert(!memcmp(p->held[0].data, bytes_of_message, 5000));
    dk_transport_event_done(p->answerer, &p->held[0]);
    dk_transport_event_done(p->answerer, &p->held[0]); /* once more does no harm */
    cr_assert_eq(p->answerer->buffers.free_count + 1, p->answerer->buffers.made, "only the kept response is in use");
    cr_assert_eq(p->asker->buffers.free_count, p->asker->buffers.made);
    pair_close(p);
}

Test(transport, buffers_are_used_again)
{
    struct pair *p = pair_open(1500);

    for (int i = 0; i < 1000; i++)
        exchange(p, 3000);
    cr_assert_leq(p->asker->buffers.made, 2);
    cr_assert_leq(p->answerer->buffers.made, 3);
    pair_close(p);
}

Test(transport, a_request_too_long_for_the_other_side_fails)
{
    struct dk_transport_config small = config_of(1500);
    struct pair *p;

    small.message_bytes_max = 10000;
    p = pair_open_as(config_of(1500), small, NULL);
    exchange(p, 10001);
    cr_assert_eq(p->failures, 1);
    cr_assert_eq(p->failure, -EMSGSIZE);
    exchange(p, 10000);
    cr_assert_eq(p->responses, 1);
    pair_close(p);
}

Test(transport, a_response_too_long_for_this_side_fails)
{
    struct dk_transport_config small = config_of(1500);
    struct pair *p;

    small.message_bytes_max = 10000;
    p = pair_open_as(small, config_of(1500), NULL);
    p->answer_bytes = 10001;
    exchange(p, 10);
    cr_assert_eq(p->failure, -EMSGSIZE);
    p->answer_bytes = 10000;
    exchange(p, 10);
    cr_assert_eq(p->responses, 1);
    cr_assert_eq(p->asker->credits, 0);
    pair_close(p);
}

Test(transport, the_time_out_follows_what_is_measured)
{
    struct pair *p = pair_open(1500);
    struct peer *peer = &p->asker->peers[p->to];

    cr_assert_eq(peer_rto_us(p->asker, peer, 0), 10000);
    cr_assert_eq(peer_rto_us(p->asker, peer, 1), 20000);
    for (int i = 0; i < 50; i++)
        exchange(p, 100);
    cr_assert_eq(peer->srtt_us, 2 * RIG_DELAY_US);
    cr_assert_eq(peer_rto_us(p->asker, peer, 0), 1000, "but never too nervous");
    cr_assert_eq(peer_rto_us(p->asker, peer, 20), 125001, "a sixteenth of dead_after_us");
    pair_close(p);
}

Test(transport, without_retransmission_a_lost_frame_is_the_end)
{
    struct dk_transport_config c = config_of(1500);
    struct pair *p;

    c.no_retransmit = true;
    c.dead_after_us = 0;
    p = pair_open_as(c, c, NULL);
    p->drop_responses = 1;
    ask(p, 100);
    rig_run(&p->rig, &p->done, 100 * SECOND);
    cr_assert_not(p->done);
    pair_close(p);
}
