/* SPDX-License-Identifier: Apache-2.0 */
/* Framing of data-plane messages: u32 little-endian header length | header | payload.
 *
 * The header ends with an unknown field of number 15 that every decoder skips, as long as is needed for the payload
 * to start at a multiple of 64: kernels then read rows in place with aligned loads. */
#include "wire/wire.h"

#include <string.h>

#define LENGTH_BYTES  4
#define PAYLOAD_ALIGN 64
#define PAD_TAG       ((15 << 3) | 2) /* field 15, length-delimited: one byte */

_Static_assert(PAYLOAD_ALIGN < 128, "the length of the padding must fit one varint byte");
_Static_assert(DK_DATA_HEADER_MAX % PAYLOAD_ALIGN == 0, "a full header still aligns its payload");

int dk_data_pack(const ProtobufCMessage *header, uint8_t *out, size_t capacity)
{
    size_t packed = protobuf_c_message_get_packed_size(header), total, pad;

    if (packed > DK_DATA_HEADER_MAX)
        return -ENOBUFS;
    total = (LENGTH_BYTES + packed + PAYLOAD_ALIGN - 1) / PAYLOAD_ALIGN * PAYLOAD_ALIGN;
    if (total - LENGTH_BYTES - packed == 1) /* the padding field takes two bytes or more */
        total += PAYLOAD_ALIGN;
    if (total > capacity || total > DK_DATA_HEADER_MAX)
        return -ENOBUFS;
    pad = total - LENGTH_BYTES - packed;
    for (int i = 0; i < LENGTH_BYTES; i++)
        out[i] = (uint8_t)((total - LENGTH_BYTES) >> 8 * i);
    protobuf_c_message_pack(header, out + LENGTH_BYTES);
    if (pad) {
        uint8_t *p = out + LENGTH_BYTES + packed;

        p[0] = PAD_TAG;
        p[1] = (uint8_t)(pad - 2);
        memset(p + 2, 0, pad - 2);
    }
    return (int)total;
}

struct arena_allocator {
    ProtobufCAllocator base;
    struct dk_arena *arena;
    int full;
};

static void *arena_alloc(void *data, size_t size)
{
    struct arena_allocator *a = data;
    void *p = dk_arena_take(a->arena, size, _Alignof(max_align_t));

    if (!p)
        a->full = 1;
    return p;
}

static void arena_free(void *data, void *p)
{
    (void)data; /* the pieces of an arena go back all at once */
    (void)p;
}

int dk_data_unpack(const ProtobufCMessageDescriptor *type, const uint8_t *data, size_t bytes, struct dk_arena *arena,
                   ProtobufCMessage **header, const uint8_t **payload, size_t *payload_bytes)
{
    struct arena_allocator a = {{arena_alloc, arena_free, &a}, arena, 0};
    ProtobufCMessage *m;
    size_t length;

    dk_arena_reset(arena);
    if (bytes < LENGTH_BYTES)
        return -EBADMSG;
    length = (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
    if (length > bytes - LENGTH_BYTES || length > DK_DATA_HEADER_MAX - LENGTH_BYTES)
        return -EBADMSG;
    m = protobuf_c_message_unpack(type, &a.base, length, data + LENGTH_BYTES);
    if (!m)
        return a.full ? -ENOMEM : -EBADMSG;
    if (dk_message_check(m, NULL) < 0)
        return -EBADMSG;
    *header = m;
    *payload = data + LENGTH_BYTES + length;
    *payload_bytes = bytes - LENGTH_BYTES - length;
    return 0;
}
