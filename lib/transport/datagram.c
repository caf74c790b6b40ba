/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/datagram.h"

#include <string.h>

#include "base/crc32c.h"

enum {
    MAGIC = 0x4b44, /* "DK" */
    VERSION = 1,
    ETHERTYPE_IPV4 = 0x0800,
    PROTOCOL_UDP = 17,
    AT_IPV4 = DK_ETHERNET_BYTES,
    AT_UDP = AT_IPV4 + DK_IPV4_BYTES,
    AT_HEADER = AT_UDP + DK_UDP_BYTES,
    CRC_OFFSET = 4,
};

static void put_be16(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

static void put_be32(uint8_t *p, uint32_t v)
{
    put_be16(p, v >> 16);
    put_be16(p + 2, v);
}

static uint32_t get_be16(const uint8_t *p)
{
    return (uint32_t)p[0] << 8 | p[1];
}

static uint32_t get_be32(const uint8_t *p)
{
    return get_be16(p) << 16 | get_be16(p + 2);
}

static void put_le16(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static void put_le32(uint8_t *p, uint32_t v)
{
    put_le16(p, v);
    put_le16(p + 2, v >> 16);
}

static void put_le64(uint8_t *p, uint64_t v)
{
    put_le32(p, (uint32_t)v);
    put_le32(p + 4, (uint32_t)(v >> 32));
}

static uint32_t get_le16(const uint8_t *p)
{
    return (uint32_t)p[1] << 8 | p[0];
}

static uint32_t get_le32(const uint8_t *p)
{
    return get_le16(p + 2) << 16 | get_le16(p);
}

static uint64_t get_le64(const uint8_t *p)
{
    return (uint64_t)get_le32(p + 4) << 32 | get_le32(p);
}

/* The Internet checksum (RFC 1071) of a header of whole 16-bit words; 0 over a header whose checksum is right. */
static uint32_t ipv4_checksum(const uint8_t *header, size_t bytes)
{
    uint32_t sum = 0;

    for (size_t i = 0; i < bytes; i += 2)
        sum += get_be16(header + i);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return ~sum & 0xffff;
}

static uint32_t datagram_crc(const uint8_t *header, size_t bytes)
{
    static const uint8_t no_crc[4];
    uint32_t crc = dk_crc32c(0, header, CRC_OFFSET);

    crc = dk_crc32c(crc, no_crc, sizeof no_crc);
    return dk_crc32c(crc, header + CRC_OFFSET + 4, bytes - CRC_OFFSET - 4);
}

size_t dk_datagram_encode(uint8_t *frame, const struct dk_addr *source, const struct dk_addr *target, uint16_t ipv4_id,
                          const struct dk_datagram *d, uint32_t payload_bytes)
{
    uint8_t *ip = frame + AT_IPV4, *udp = frame + AT_UDP, *h = frame + AT_HEADER;
    uint32_t datagram_bytes = DK_DATAGRAM_BYTES + payload_bytes;

    memcpy(frame, target->mac, 6);
    memcpy(frame + 6, source->mac, 6);
    put_be16(frame + 12, ETHERTYPE_IPV4);

    ip[0] = 0x45; /* version 4, no options */
    ip[1] = 0;
    put_be16(ip + 2, DK_IPV4_BYTES + DK_UDP_BYTES + datagram_bytes);
    put_be16(ip + 4, ipv4_id);
    put_be16(ip + 6, 0x4000); /* must not be cut: a lost piece would cost the whole */
    ip[8] = 64;
    ip[9] = PROTOCOL_UDP;
    put_be16(ip + 10, 0);
    put_be32(ip + 12, source->ipv4);
    put_be32(ip + 16, target->ipv4);
    put_be16(ip + 10, ipv4_checksum(ip, DK_IPV4_BYTES));

    put_be16(udp, source->udp_port);
    put_be16(udp + 2, target->udp_port);
    put_be16(udp + 4, DK_UDP_BYTES + datagram_bytes);
    put_be16(udp + 6, 0); /* RFC 768: none; the CRC is stronger */

    put_le16(h, MAGIC);
    h[2] = VERSION;
    h[3] = d->type;
    put_le32(h + CRC_OFFSET, 0);
    put_le32(h + 8, d->source_instance);
    put_le32(h + 12, d->target_instance);
    put_le32(h + 16, d->source_session);
    put_le32(h + 20, d->target_session);
    put_le64(h + 24, d->request_id);
    h[32] = d->slot;
    h[33] = d->flags;
    put_le16(h + 34, d->fragment_bytes);
    put_le32(h + 36, d->message_bytes);
    put_le32(h + 40, d->fragment);
    put_le32(h + 44, d->grant);
    put_le32(h + 48, 0);
    put_le32(h + CRC_OFFSET, dk_crc32c(0, h, datagram_bytes));
    return DK_FRAME_HEAD_BYTES + payload_bytes;
}

uint8_t *dk_datagram_encode_ack(uint8_t *payload, const struct dk_datagram *d)
{
    put_le32(payload, d->cumulative);
    put_le32(payload + 4, d->highest);
    put_le32(payload + 8, d->nack_from);
    put_le32(payload + 12, d->nack_below);
    return payload + DK_ACK_FIXED_BYTES;
}

static bool ack_decode(struct dk_datagram *d)
{
    const uint8_t *p = d->payload;
    uint32_t bits;

    if (d->payload_bytes < DK_ACK_FIXED_BYTES || d->message_bytes || d->fragment || d->fragment_bytes)
        return false;
    d->cumulative = get_le32(p);
    d->highest = get_le32(p + 4);
    d->nack_from = get_le32(p + 8);
    d->nack_below = get_le32(p + 12);
    d->bitmap = p + DK_ACK_FIXED_BYTES;
    if (d->highest < d->cumulative || d->nack_below < d->nack_from)
        return false;
    bits = d->highest - d->cumulative;
    return bits <= DK_RANGE_FRAGMENTS && d->payload_bytes == DK_ACK_FIXED_BYTES + (bits + 7) / 8;
}

static bool fragment_check(const struct dk_datagram *d)
{
    uint32_t offset;

    if (d->message_bytes == 0 || d->fragment_bytes == 0 || d->fragment_bytes > DK_FRAGMENT_BYTES_MAX ||
        d->fragment >= dk_fragment_count(d->message_bytes, d->fragment_bytes))
        return false;
    offset = d->fragment * d->fragment_bytes;
    return d->payload_bytes ==
           (d->message_bytes - offset < d->fragment_bytes ? d->message_bytes - offset : d->fragment_bytes);
}

static bool header_decode(const uint8_t *h, size_t bytes, struct dk_datagram *d)
{
    if (get_le16(h) != MAGIC || h[2] != VERSION || get_le32(h + 48) != 0 ||
        get_le32(h + CRC_OFFSET) != datagram_crc(h, bytes))
        return false;
    *d = (struct dk_datagram){
        .type = h[3],
        .slot = h[32],
        .flags = h[33],
        .source_instance = get_le32(h + 8),
        .target_instance = get_le32(h + 12),
        .source_session = get_le32(h + 16),
        .target_session = get_le32(h + 20),
        .request_id = get_le64(h + 24),
        .fragment_bytes = get_le16(h + 34),
        .message_bytes = get_le32(h + 36),
        .fragment = get_le32(h + 40),
        .grant = get_le32(h + 44),
        .payload = h + DK_DATAGRAM_BYTES,
        .payload_bytes = (uint32_t)(bytes - DK_DATAGRAM_BYTES),
    };
    if (d->slot >= DK_SLOTS || d->flags & ~DK_FLAGS_KNOWN || d->source_session == 0)
        return false;
    switch (d->type) {
    case DK_DATAGRAM_REQUEST:
    case DK_DATAGRAM_RESPONSE:
        return fragment_check(d);
    case DK_DATAGRAM_REQUEST_ACK:
    case DK_DATAGRAM_RESPONSE_ACK:
        return ack_decode(d);
    case DK_DATAGRAM_REFUSE:
    case DK_DATAGRAM_HELLO:
        return d->payload_bytes == 0;
    default:
        return false;
    }
}

enum dk_datagram_verdict dk_datagram_decode(const uint8_t *frame, size_t bytes, const struct dk_addr *own,
                                            uint32_t *ipv4, uint16_t *udp_port, struct dk_datagram *d)
{
    const uint8_t *ip = frame + AT_IPV4, *udp;
    size_t ip_bytes, header_bytes, udp_bytes;

    if (bytes < AT_IPV4 + DK_IPV4_BYTES || get_be16(frame + 12) != ETHERTYPE_IPV4)
        return DK_DATAGRAM_FOREIGN;
    /* Multicast and broadcast frames are for everybody; a switch also floods what it has not learnt. */
    if (!(frame[0] & 1) && memcmp(frame, own->mac, 6) != 0)
        return DK_DATAGRAM_FOREIGN;
    header_bytes = (size_t)(ip[0] & 15) * 4;
    if (ip[0] >> 4 != 4 || header_bytes < DK_IPV4_BYTES || header_bytes > bytes - AT_IPV4)
        return DK_DATAGRAM_CORRUPT;
    if (ipv4_checksum(ip, header_bytes) != 0)
        return DK_DATAGRAM_CORRUPT;
    if (ip[9] != PROTOCOL_UDP || get_be32(ip + 16) != own->ipv4)
        return DK_DATAGRAM_FOREIGN;
    ip_bytes = get_be16(ip + 2);
    if (ip_bytes > bytes - AT_IPV4 || ip_bytes < header_bytes + DK_UDP_BYTES)
        return DK_DATAGRAM_CORRUPT; /* what lies beyond ip_bytes is padding */
    if (get_be16(ip + 6) & 0x3fff)
        return DK_DATAGRAM_FOREIGN; /* a piece of a cut packet: nobody here sends any */
    udp = ip + header_bytes;
    if (get_be16(udp + 2) != own->udp_port)
        return DK_DATAGRAM_FOREIGN;
    udp_bytes = get_be16(udp + 4);
    if (udp_bytes != ip_bytes - header_bytes || udp_bytes < DK_UDP_BYTES + DK_DATAGRAM_BYTES)
        return DK_DATAGRAM_CORRUPT;
    if (!header_decode(udp + DK_UDP_BYTES, udp_bytes - DK_UDP_BYTES, d))
        return DK_DATAGRAM_CORRUPT;
    *ipv4 = get_be32(ip + 12);
    *udp_port = (uint16_t)get_be16(udp);
    return DK_DATAGRAM_GOOD;
}
