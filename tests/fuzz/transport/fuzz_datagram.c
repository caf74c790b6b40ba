/* SPDX-License-Identifier: Apache-2.0 */
/* Any frames, in any order, into an engine that is in the middle of something (see datagram_script.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "datagram_script.h"

enum { HELD_MAX = 32, FRAME_BYTES = 576 + 14, FRAMES_PER_FETCH_MAX = 4096 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct script {
    const uint8_t *at, *end;
    struct dk_transport *t;
    uint64_t now_us;
    uint32_t peers[SCRIPT_PEERS];
    struct dk_transport_event held[HELD_MAX]; /* oldest first */
    uint32_t held_count;
};

static uint8_t content[SCRIPT_CONTENT_BYTES];

static void require(int condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "fuzz_datagram: %s\n", what);
    abort();
}

static uint32_t number(struct script *s, int bytes)
{
    uint32_t n = 0;

    for (int i = 0; i < bytes && s->at < s->end; i++)
        n |= (uint32_t)*s->at++ << 8 * i;
    return n;
}

/* Makes the IPv4 header's checksum and the datagram's CRC right, where there is room for them. */
static void checksums_fix(uint8_t *frame, size_t bytes)
{
    uint8_t *ip = frame + 14, *datagram;
    size_t header_bytes, udp_bytes;
    uint32_t sum = 0, crc;

    if (bytes < 34)
        return;
    header_bytes = (size_t)(ip[0] & 15) * 4;
    if (header_bytes < 20 || bytes < 14 + header_bytes + 8)
        return;
    ip[10] = ip[11] = 0;
    for (size_t i = 0; i < header_bytes; i += 2)
        sum += (uint32_t)ip[i] << 8 | ip[i + 1];
    sum = (sum & 0xffff) + (sum >> 16);
    sum = ~(sum + (sum >> 16));
    ip[10] = (uint8_t)(sum >> 8);
    ip[11] = (uint8_t)sum;
    udp_bytes = (size_t)ip[header_bytes + 4] << 8 | ip[header_bytes + 5];
    if (udp_bytes < 16 || udp_bytes > bytes - 14 - header_bytes)
        return;
    datagram = ip + header_bytes + 8;
    memset(datagram + 4, 0, 4);
    crc = dk_crc32c(0, datagram, udp_bytes - 8);
    for (int i = 0; i < 4; i++)
        datagram[4 + i] = (uint8_t)(crc >> 8 * i);
}

static void frame_in(struct script *s, int fix)
{
    size_t length = number(s, 2);
    uint8_t *frame;

    if (length > (size_t)(s->end - s->at))
        length = (size_t)(s->end - s->at);
    frame = malloc(length ? length : 1);
    require(frame != NULL, "no memory");
    memcpy(frame, s->at, length);
    s->at += length;
    if (fix)
        checksums_fix(frame, length);
    dk_transport_input(s->t, 0, frame, length, s->now_us);
    free(frame);
}

static void held_drop(struct script *s)
{
    dk_transport_event_done(s->t, &s->held[0]);
    memmove(&s->held[0], &s->held[1], --s->held_count * sizeof s->held[0]);
}

static void events_fetch(struct script *s)
{
    struct dk_transport_event event;

    for (dk_transport_event(s->t, &event); event.type != DK_EVENT_NONE; dk_transport_event(s->t, &event)) {
        uint32_t sum = 0;

        require(event.peer < SCRIPT_PEERS, "an event of a peer that does not exist");
        for (size_t i = 0; i < event.bytes; i++)
            sum += event.data[i]; /* all of it can be read */
        require(sum < UINT32_MAX, "never");
        if (event.type == DK_EVENT_REQUEST) {
            if (s->held_count == HELD_MAX)
                held_drop(s);
            s->held[s->held_count++] = event;
        } else {
            dk_transport_event_done(s->t, &event);
        }
    }
}

static void output_fetch(struct script *s)
{
    uint8_t frame[FRAME_BYTES];
    uint32_t port, frames = 0;
    size_t bytes;

    while ((bytes = dk_transport_output(s->t, frame, sizeof frame, &port, s->now_us)) > 0) {
        require(bytes <= sizeof frame && port < SCRIPT_PEERS, "a frame too long or to nowhere");
        require(++frames < FRAMES_PER_FETCH_MAX, "output without end");
    }
    require(dk_transport_deadline(s->t) > s->now_us, "a deadline that has passed, right after output");
}

static void rejoin(struct script *s, uint32_t i)
{
    struct dk_addr remote = script_address(1 + i);

    dk_transport_peer_remove(s->t, s->peers[i]);
    require(dk_transport_peer_add(s->t, &remote, i, &s->peers[i]) == 0, "a removed peer cannot be added");
}

static void step(struct script *s)
{
    struct iovec part = {content, 0};
    uint64_t id;
    uint32_t peer;

    switch (number(s, 1) % SCRIPT_OPS) {
    case SCRIPT_FRAME:
        frame_in(s, 0);
        break;
    case SCRIPT_FIXED:
        frame_in(s, 1);
        break;
    case SCRIPT_REQUEST:
        peer = s->peers[number(s, 1) % SCRIPT_PEERS];
        part.iov_len = number(s, 2);
        dk_transport_request(s->t, peer, &part, 1, s->now_us, &id);
        break;
    case SCRIPT_RESPOND:
        part.iov_len = number(s, 2);
        if (s->held_count > 0)
            dk_transport_respond(s->t, s->held[0].peer, s->held[0].request_id, &part, 1, s->now_us);
        break;
    case SCRIPT_DONE:
        if (s->held_count > 0)
            held_drop(s);
        break;
    case SCRIPT_ADVANCE:
        s->now_us += (uint64_t)number(s, 2) * 64;
        break;
    case SCRIPT_OUTPUT:
        output_fetch(s);
        break;
    case SCRIPT_REJOIN:
        rejoin(s, number(s, 1) % SCRIPT_PEERS);
        break;
    }
    events_fetch(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dk_transport_config config = script_config(0);
    struct script s = {.at = data, .end = data + size, .now_us = SCRIPT_START_US};

    require(dk_transport_open(&config, &s.t) == 0, "open");
    for (uint32_t i = 0; i < SCRIPT_PEERS; i++) {
        struct dk_addr remote = script_address(1 + i);

        require(dk_transport_peer_add(s.t, &remote, i, &s.peers[i]) == 0, "peer_add");
    }
    while (s.at < s.end)
        step(&s);
    output_fetch(&s);
    while (s.held_count > 0)
        held_drop(&s);
    /* Whatever happened, both peers can be had anew. */
    for (uint32_t i = 0; i < SCRIPT_PEERS; i++)
        rejoin(&s, i);
    dk_transport_close(s.t);
    return 0;
}
