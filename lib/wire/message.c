/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "wire/wire.h"

void *dk_message_new(const ProtobufCMessageDescriptor *type)
{
    ProtobufCMessage *m = malloc(type->sizeof_message);

    if (m)
        protobuf_c_message_init(type, m);
    return m;
}

void *dk_message_clone(const void *message)
{
    const ProtobufCMessage *m = message;
    size_t bytes;
    uint8_t *packed = dk_message_pack(m, &bytes);
    void *copy = packed ? dk_message_unpack(m->descriptor, packed, bytes) : NULL;

    free(packed);
    return copy;
}

void dk_message_free(void *message)
{
    if (message)
        protobuf_c_message_free_unpacked(message, NULL);
}

uint8_t *dk_message_pack(const void *message, size_t *bytes)
{
    uint8_t *packed;

    *bytes = protobuf_c_message_get_packed_size(message);
    packed = malloc(*bytes ? *bytes : 1);
    if (packed)
        protobuf_c_message_pack(message, packed);
    return packed;
}

void *dk_message_unpack(const ProtobufCMessageDescriptor *type, const uint8_t *packed, size_t bytes)
{
    return protobuf_c_message_unpack(type, NULL, bytes, packed);
}
