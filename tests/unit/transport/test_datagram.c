/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "transport/datagram.h"

static const struct dk_addr here = {{2, 0, 0, 0, 0, 1}, 0x0a000001, 7001, 11, 0};
static const struct dk_addr there = {{2, 0, 0, 0, 0, 2}, 0x0a000002, 7002, 22, 0};

static uint32_t from_ipv4;
static uint16_t from_port;

/* Decodes an exact-size copy, so that a sanitizer sees every read beyond the frame. */
static enum dk_datagram_verdict decode(const uint8_t *frame, size_t bytes, struct dk_datagram *d)
{
    uint8_t *copy = malloc(bytes ? bytes : 1);
    enum dk_datagram_verdict verdict;

    memcpy(copy, frame, bytes);
    verdict = dk_datagram_decode(copy, bytes, &there, &from_ipv4, &from_port, d);
    free(copy);
    return verdict;
}

static struct dk_datagram fragment_of(uint32_t message_bytes, uint32_t fragment_bytes, uint32_t fragment)
{
    return (struct dk_datagram){.type = DK_DATAGRAM_REQUEST,
                                .slot = 3,
                                .flags = DK_FLAG_ACK_ME,
                                .source_instance = 11,
                                .target_instance = 22,
                                .source_session = 5,
                                .target_session = 6,
                                .request_id = 0x1122334455667788,
                                .grant = 77,
                                .message_bytes = message_bytes,
                                .fragment_bytes = fragment_bytes,
                                .fragment = fragment};
}

static size_t write_frame(uint8_t *frame, const struct dk_datagram *d, uint32_t payload_bytes)
{
    for (uint32_t i = 0; i < payload_bytes; i++)
        frame[DK_FRAME_HEAD_BYTES + i] = (uint8_t)(i * 7 + 1);
    return dk_datagram_encode(frame, &here, &there, 9, d, payload_bytes);
}

Test(datagram, a_fragment_survives_the_way)
{
    uint8_t frame[DK_MTU_MAX + DK_ETHERNET_BYTES];
    struct dk_datagram d = fragment_of(1000, 600, 1), got;
    size_t bytes = write_frame(frame, &d, 400);

    cr_assert_eq(bytes, DK_FRAME_HEAD_BYTES + 400);
    cr_assert_eq(dk_datagram_decode(frame, bytes, &there, &from_ipv4, &from_port, &got), DK_DATAGRAM_GOOD);
    cr_assert_eq(from_ipv4, here.ipv4);
    cr_assert_eq(from_port, here.udp_port);
    cr_assert(got.type == d.type && got.slot == 3 && got.flags == DK_FLAG_ACK_ME && got.source_instance == 11 &&
              got.target_instance == 22 && got.source_session == 5 && got.target_session == 6 &&
              got.request_id == d.request_id && got.grant == 77 && got.message_bytes == 1000 &&
              got.fragment_bytes == 600 && got.fragment == 1 && got.payload_bytes == 400);
    cr_assert_eq(got.payload[399], (uint8_t)(399 * 7 + 1));
}

Test(datagram, the_largest_fragment_fills_the_mtu)
{
    uint8_t frame[DK_MTU_MAX + DK_ETHERNET_BYTES];
    struct dk_datagram d = fragment_of(DK_FRAGMENT_BYTES_MAX, DK_FRAGMENT_BYTES_MAX, 0), got;

    cr_assert_eq(write_frame(frame, &d, DK_FRAGMENT_BYTES_MAX), sizeof frame);
    cr_assert_eq(decode(frame, sizeof frame, &got), DK_DATAGRAM_GOOD);
}

Test(datagram, the_bytes_are_those_of_the_document)
{
    uint8_t frame[200];
    struct dk_datagram d = fragment_of(4, 600, 0);
    static const uint8_t head[] = {2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 84, 0, 9, 0x40, 0, 64, 17};
    static const uint8_t body[] = {0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 3, 1, 0x58, 2, 4, 0, 0,  0,
                                   0,    0,    0,    0,    77,   0,    0,    0,    0, 0, 0,    0, 1, 8, 15, 22};

    cr_assert_eq(write_frame(frame, &d, 4), 98);
    cr_assert(!memcmp(frame, head, sizeof head));
    cr_assert(!memcmp(frame + 42, "DK\1\1", 4));
    cr_assert(!memcmp(frame + 42 + 24, body, sizeof body));
}

Test(datagram, every_flipped_bit_that_matters_is_noticed)
{
    uint8_t frame[DK_FRAME_HEAD_BYTES + 40];
    struct dk_datagram d = fragment_of(40, 600, 0), got;
    size_t bytes = write_frame(frame, &d, 40);

    for (size_t bit = 0; bit < bytes * 8; bit++) {
        size_t at = bit / 8;
        bool harmless = bit == 0                  /* makes it multicast */
                        || (at >= 6 && at < 12)   /* the sender's MAC is not used */
                        || (at >= 34 && at < 36)  /* another port: another sender, known or not by the engine */
                        || (at >= 40 && at < 42); /* the UDP checksum is not used */

        frame[at] ^= (uint8_t)(1u << bit % 8);
        cr_assert_eq(decode(frame, bytes, &got) == DK_DATAGRAM_GOOD, harmless, "bit %zu", bit);
        frame[at] ^= (uint8_t)(1u << bit % 8);
    }
    cr_assert_eq(decode(frame, bytes, &got), DK_DATAGRAM_GOOD);
}

Test(datagram, cut_frames_are_refused_and_padding_is_not)
{
    uint8_t frame[DK_FRAME_HEAD_BYTES + 40 + 20] = {0};
    struct dk_datagram d = fragment_of(40, 600, 0), got;
    size_t bytes = write_frame(frame, &d, 40);

    for (size_t n = 0; n < bytes; n++)
        cr_assert_neq(decode(frame, n, &got), DK_DATAGRAM_GOOD, "%zu bytes", n);
    cr_assert_eq(decode(frame, sizeof frame, &got), DK_DATAGRAM_GOOD);
    cr_assert_eq(got.payload_bytes, 40);
}

/* Repairs the IPv4 header's checksum after a change. */
static void checksum_repair(uint8_t *ip)
{
    uint32_t sum = 0;

    ip[10] = ip[11] = 0;
    for (int i = 0; i < (ip[0] & 15) * 4; i += 2)
        sum += (uint32_t)ip[i] << 8 | ip[i + 1];
    sum = (sum & 0xffff) + (sum >> 16);
    sum = ~(sum + (sum >> 16));
    ip[10] = (uint8_t)(sum >> 8);
    ip[11] = (uint8_t)sum;
}

Test(datagram, others_frames_are_foreign)
{
    uint8_t frame[DK_FRAME_HEAD_BYTES + 40], *ip = frame + 14;
    struct dk_datagram d = fragment_of(40, 600, 0), got;
    size_t bytes;

    bytes = write_frame(frame, &d, 40);
    memset(frame, 0xff, 6);
    cr_assert_eq(decode(frame, bytes, &got), DK_DATAGRAM_GOOD, "broadcast");
    memcpy(frame, here.mac, 6);
    cr_assert_eq(decode(frame, bytes, &got), DK_DATAGRAM_FOREIGN, "another MAC");
    bytes = write_frame(frame, &d, 40);
    frame[13] = 6;
    cr_assert_eq(decode(frame, bytes, &got), DK_DATAGRAM_FOREIGN, "ARP");
    bytes = write_frame(frame, &d, 40);
    ip[9] = 6;
    checksum_repair(ip);
    cr_assert_eq(decode(frame, bytes, &got), DK_DATAGRAM_FOREIGN, "TCP");
    bytes = write_frame(frame, &d, 40);
    ip[19] = 9;
    checksum_repair(ip);
    cr_assert_eq(decode(frame, bytes, &got), DK_DATAGRAM_FOREIGN, "another address");
    bytes = write_frame(frame, &d, 40);
    ip[6] |= 0x20;
    checksum_repair(ip);
    cr_assert_eq(decode(frame, bytes, &got), DK_DATAGRAM_FOREIGN, "a piece of a packet");
    bytes = write_frame(frame, &d, 40);
    frame[37] ^= 1;
    cr_assert_eq(decode(frame, bytes, &got), DK_DATAGRAM_FOREIGN, "another port");
}

Test(datagram, ipv4_options_are_skipped)
{
    uint8_t frame[DK_FRAME_HEAD_BYTES + 44], *ip = frame + 14;
    struct dk_datagram d = fragment_of(40, 600, 0), got;
    size_t bytes = write_frame(frame, &d, 40);

    memmove(ip + 24, ip + 20, bytes - 34);
    memset(ip + 20, 1, 4); /* no operation */
    ip[0] = 0x46;
    ip[3] = (uint8_t)(ip[3] + 4);
    checksum_repair(ip);
    cr_assert_eq(decode(frame, bytes + 4, &got), DK_DATAGRAM_GOOD);
    ip[0] = 0x44;
    checksum_repair(ip);
    cr_assert_eq(decode(frame, bytes + 4, &got), DK_DATAGRAM_CORRUPT);
    ip[0] = 0x4f;
    cr_assert_eq(decode(frame, 14 + 20, &got), DK_DATAGRAM_CORRUPT, "a header that ends beyond the frame");
}

/* The checksum is right, what it protects is not. */
static void expect_corrupt(const struct dk_datagram *d, uint32_t payload_bytes, const char *what)
{
    uint8_t frame[DK_MTU_MAX + DK_ETHERNET_BYTES];
    struct dk_datagram got;
    size_t bytes = write_frame(frame, d, payload_bytes);

    cr_assert_eq(decode(frame, bytes, &got), DK_DATAGRAM_CORRUPT, "%s", what);
}

Test(datagram, senseless_fragments_are_corrupt)
{
    struct dk_datagram d = fragment_of(1000, 600, 1);

    expect_corrupt(&d, 399, "short payload");
    expect_corrupt(&d, 401, "long payload");
    d.fragment = 2;
    expect_corrupt(&d, 400, "fragment beyond the message");
    d.fragment = UINT32_MAX;
    expect_corrupt(&d, 400, "fragment far beyond the message");
    d = fragment_of(0, 600, 0);
    expect_corrupt(&d, 0, "empty message");
    d = fragment_of(1000, 0, 0);
    expect_corrupt(&d, 100, "fragments of no bytes");
    d = fragment_of(1000, DK_FRAGMENT_BYTES_MAX + 1, 0);
    expect_corrupt(&d, 1000, "fragments beyond any MTU");
    d = fragment_of(40, 600, 0);
    d.slot = DK_SLOTS;
    expect_corrupt(&d, 40, "slot");
    d.slot = 0;
    d.flags = 4;
    expect_corrupt(&d, 40, "unknown flag");
    d.flags = 0;
    d.source_session = 0;
    expect_corrupt(&d, 40, "no session");
    d.source_session = 1;
    d.type = 0;
    expect_corrupt(&d, 40, "type 0");
    d.type = DK_DATAGRAM_TYPES;
    expect_corrupt(&d, 40, "unknown type");
    d.type = DK_DATAGRAM_HELLO;
    expect_corrupt(&d, 40, "hello with a payload");
}

static size_t write_ack(uint8_t *frame, struct dk_datagram *ack, uint32_t bitmap_bytes)
{
    ack->type = DK_DATAGRAM_RESPONSE_ACK;
    ack->source_session = 1;
    memset(dk_datagram_encode_ack(frame + DK_FRAME_HEAD_BYTES, ack), 0xa5, bitmap_bytes);
    return dk_datagram_encode(frame, &here, &there, 0, ack, DK_ACK_FIXED_BYTES + bitmap_bytes);
}

Test(datagram, acks_carry_a_bitmap_of_the_right_length)
{
    static const struct {
        struct dk_datagram ack;
        uint32_t bitmap_bytes;
        bool good;
    } cases[] = {
        {{.cumulative = 5, .highest = 5}, 0, true},
        {{.cumulative = 5, .highest = 6, .nack_from = 1, .nack_below = 6}, 1, true},
        {{.cumulative = 5, .highest = 13}, 1, true},
        {{.cumulative = 5, .highest = 14}, 2, true},
        {{.cumulative = 5, .highest = 14}, 1, false},
        {{.cumulative = 5, .highest = 14}, 3, false},
        {{.cumulative = 5, .highest = 4}, 0, false},
        {{.cumulative = 5, .highest = 5, .nack_from = 3, .nack_below = 2}, 0, false},
        {{.cumulative = 1, .highest = 1 + DK_RANGE_FRAGMENTS}, DK_RANGE_FRAGMENTS / 8, true},
        {{.cumulative = 1, .highest = 2 + DK_RANGE_FRAGMENTS}, DK_RANGE_FRAGMENTS / 8 + 1, false},
        {{.cumulative = 0, .highest = UINT32_MAX}, 0, false},
        {{.cumulative = 1, .highest = 1, .message_bytes = 1}, 0, false},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t frame[DK_FRAME_HEAD_BYTES + DK_ACK_BYTES_MAX + 1];
        struct dk_datagram ack = cases[i].ack, got;
        size_t bytes = write_ack(frame, &ack, cases[i].bitmap_bytes);

        cr_assert_eq(dk_datagram_decode(frame, bytes, &there, &from_ipv4, &from_port, &got) == DK_DATAGRAM_GOOD,
                     cases[i].good, "case %zu", i);
        if (cases[i].good)
            cr_assert(got.cumulative == ack.cumulative && got.highest == ack.highest &&
                      got.nack_from == ack.nack_from && got.nack_below == ack.nack_below);
    }
}

Test(datagram, an_ack_without_its_fixed_part_is_corrupt)
{
    uint8_t frame[DK_FRAME_HEAD_BYTES + 16] = {0};
    struct dk_datagram d = {.type = DK_DATAGRAM_REQUEST_ACK, .source_session = 1}, got;
    size_t bytes = dk_datagram_encode(frame, &here, &there, 0, &d, 15);

    cr_assert_eq(decode(frame, bytes, &got), DK_DATAGRAM_CORRUPT);
}
