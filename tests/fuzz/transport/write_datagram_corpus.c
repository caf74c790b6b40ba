/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the seeds of fuzz_datagram: usage: write_datagram_corpus FOLDER. Real exchanges between engines are recorded
 * as scripts (datagram_script.h) for the one with address 0. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "datagram_script.h"

struct recorder {
    struct dk_transport *self, *other;
    uint32_t to_other, to_self;
    uint64_t now_us;
    FILE *file;
    int fixed;           /* record frames as SCRIPT_FIXED */
    uint32_t lose_every; /* frames towards self */
    uint32_t frames;
};

static uint8_t content[SCRIPT_CONTENT_BYTES];

static void put(struct recorder *r, uint32_t n, int bytes)
{
    for (int i = 0; i < bytes; i++)
        fputc((int)(n >> 8 * i & 255), r->file);
}

static void start(struct recorder *r, const char *folder, const char *name)
{
    struct dk_transport_config a = script_config(0), b = script_config(1);
    char path[4096];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    memset(r, 0, sizeof *r);
    r->now_us = SCRIPT_START_US;
    r->fixed = 1;
    r->file = fopen(path, "wb");
    if (!r->file || dk_transport_open(&a, &r->self) || dk_transport_open(&b, &r->other) ||
        dk_transport_peer_add(r->self, &b.own, 0, &r->to_other) ||
        dk_transport_peer_add(r->other, &a.own, 0, &r->to_self)) {
        fprintf(stderr, "%s: cannot be written\n", path);
        exit(1);
    }
}

static void finish(struct recorder *r)
{
    dk_transport_close(r->self);
    dk_transport_close(r->other);
    fclose(r->file);
}

/* Carries all frames both ways once. */
static void carry(struct recorder *r)
{
    uint8_t frame[600];
    uint32_t port;
    size_t n;

    put(r, SCRIPT_OUTPUT, 1);
    while ((n = dk_transport_output(r->self, frame, sizeof frame, &port, r->now_us)) > 0)
        dk_transport_input(r->other, 0, frame, n, r->now_us);
    while ((n = dk_transport_output(r->other, frame, sizeof frame, &port, r->now_us)) > 0) {
        if (r->lose_every && ++r->frames % r->lose_every == 0)
            continue;
        put(r, r->fixed ? SCRIPT_FIXED : SCRIPT_FRAME, 1);
        put(r, (uint32_t)n, 2);
        fwrite(frame, 1, n, r->file);
        dk_transport_input(r->self, 0, frame, n, r->now_us);
    }
}

static void advance(struct recorder *r, uint32_t us)
{
    put(r, SCRIPT_ADVANCE, 1);
    put(r, us / 64, 2);
    r->now_us += us / 64 * 64;
}

static void self_asks(struct recorder *r, uint32_t bytes)
{
    struct iovec part = {content, bytes};
    uint64_t id;

    put(r, SCRIPT_REQUEST, 1);
    put(r, 0, 1);
    put(r, bytes, 2);
    dk_transport_request(r->self, r->to_other, &part, 1, r->now_us, &id);
}

static void other_asks(struct recorder *r, uint32_t bytes)
{
    struct iovec part = {content, bytes};
    uint64_t id;

    dk_transport_request(r->other, r->to_self, &part, 1, r->now_us, &id);
}

/* Answers what has come to either side. */
static void answer(struct recorder *r, uint32_t bytes)
{
    struct dk_transport_event event;
    struct iovec part = {content, bytes};

    for (dk_transport_event(r->other, &event); event.type; dk_transport_event(r->other, &event)) {
        if (event.type == DK_EVENT_REQUEST)
            dk_transport_respond(r->other, event.peer, event.request_id, &part, 1, r->now_us);
        dk_transport_event_done(r->other, &event);
    }
    for (dk_transport_event(r->self, &event); event.type; dk_transport_event(r->self, &event)) {
        if (event.type == DK_EVENT_REQUEST) {
            put(r, SCRIPT_RESPOND, 1);
            put(r, bytes, 2);
            put(r, SCRIPT_DONE, 1);
            dk_transport_respond(r->self, event.peer, event.request_id, &part, 1, r->now_us);
        }
        dk_transport_event_done(r->self, &event);
    }
}

int main(int argc, char **argv)
{
    struct recorder r;

    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    start(&r, argv[1], "ask_short");
    r.fixed = 0;
    self_asks(&r, 10);
    carry(&r);
    answer(&r, 20);
    carry(&r);
    finish(&r);

    start(&r, argv[1], "answer_short");
    other_asks(&r, 30);
    carry(&r);
    answer(&r, 900);
    carry(&r);
    finish(&r);

    start(&r, argv[1], "ask_long");
    self_asks(&r, 9000);
    for (int i = 0; i < 8; i++) {
        carry(&r);
        answer(&r, 12000);
    }
    finish(&r);

    start(&r, argv[1], "answer_long");
    other_asks(&r, 12000);
    for (int i = 0; i < 8; i++) {
        carry(&r);
        answer(&r, 5000);
    }
    finish(&r);

    start(&r, argv[1], "with_loss");
    r.lose_every = 3;
    self_asks(&r, 3000);
    other_asks(&r, 3000);
    for (int i = 0; i < 8; i++) {
        carry(&r);
        answer(&r, 2000);
        advance(&r, 12800);
    }
    finish(&r);

    start(&r, argv[1], "both_ways_and_rejoin");
    for (int i = 0; i < 3; i++) {
        self_asks(&r, 600);
        other_asks(&r, 100);
    }
    carry(&r);
    put(&r, SCRIPT_REJOIN, 1);
    put(&r, 0, 1);
    self_asks(&r, 10);
    answer(&r, 700);
    carry(&r);
    finish(&r);

    start(&r, argv[1], "too_long");
    other_asks(&r, 1000);
    self_asks(&r, 1000);
    carry(&r);
    answer(&r, 60000);
    carry(&r);
    for (int i = 0; i < 30; i++) {
        advance(&r, 128000);
        put(&r, SCRIPT_OUTPUT, 1);
    }
    finish(&r);
    return 0;
}
