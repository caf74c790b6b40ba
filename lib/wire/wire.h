/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_WIRE_H
#define DK_WIRE_H

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/error.h"
#include "proto/attention_duck.pb-c.h"
#include "proto/client_coordinator.pb-c.h"
#include "proto/coordinator_attention.pb-c.h"
#include "proto/membership.pb-c.h"
#include "proto/rpc.pb-c.h"

/* Version of the control messages; another one is refused with VERSION_MISMATCH. */
#define DK_PROTOCOL_VERSION 1u

/* errno <-> Code. Unknown errnos are INTERNAL, unknown codes -EIO. OK is 0. From codes: INVALID_ARGUMENT -EINVAL,
 * NOT_FOUND -ENOENT, FAILED_PRECONDITION -EBUSY, RESOURCE_EXHAUSTED -ENOSPC, UNAVAILABLE -EHOSTUNREACH,
 * DEADLINE_EXCEEDED -ETIME, CANCELLED -ECANCELED, UNIMPLEMENTED -ENOSYS, DATA_LOSS -EBADMSG, INTERNAL -EIO,
 * VERSION_MISMATCH -EPROTONOSUPPORT. Other errnos of the same meaning go to the same code (status.c). */
Dk__Code dk_code_from_errno(int rc);
int dk_errno_from_code(Dk__Code code);
const char *dk_code_name(Dk__Code code); /* "INVALID_ARGUMENT" */

/* What protobuf-c's decoder leaves unchecked: enum values that this build does not know and texts that are not UTF-8,
 * at any depth. 0; -EBADMSG with the field's name. */
int dk_message_check(const ProtobufCMessage *m, struct dk_err *err);

/* Messages on the heap, freed by dk_message_free(). NULL: no memory. */
void *dk_message_new(const ProtobufCMessageDescriptor *type); /* with its defaults */
void *dk_message_clone(const void *message);
void dk_message_free(void *message); /* fine with NULL */

/* The bytes of a message, malloc'ed (NULL: no memory), and back (NULL: damaged, or no memory). */
uint8_t *dk_message_pack(const void *message, size_t *bytes);
void *dk_message_unpack(const ProtobufCMessageDescriptor *type, const uint8_t *packed, size_t bytes);

/* A data-plane message: u32 header length, protobuf header, raw payload.
 * Packs `header` in front of a payload of its own: writes length and header into out (capacity bytes).
 * Returns the bytes written, at most DK_DATA_HEADER_MAX, or -ENOBUFS. The payload follows as the next part of the
 * transport's message; the header is padded (field 15, which no header may use) so that the payload starts at a
 * multiple of 64. The longest dk_err text fits. */
#define DK_DATA_HEADER_MAX 1024
int dk_data_pack(const ProtobufCMessage *header, uint8_t *out, size_t capacity);

/* Splits a received message and decodes its header into the arena (reset first). *payload points into data.
 * -EBADMSG: damaged; -ENOMEM: the header is larger than the arena. */
int dk_data_unpack(const ProtobufCMessageDescriptor *type, const uint8_t *data, size_t bytes, struct dk_arena *arena,
                   ProtobufCMessage **header, const uint8_t **payload, size_t *payload_bytes);

/* JSON <-> message by descriptor, as protobuf's canonical JSON mapping but with the field names as written in proto/:
 * enums by name, bytes in base64, 64-bit numbers as JSON integers (as texts from 2^63 on; both are read), NaN and
 * infinities as texts, null the same as absent. */
/* Returns a malloc'ed text; NULL: no memory. indent: 0 for one line. */
char *dk_json_from_message(const ProtobufCMessage *m, int indent);
/* *m is freed by protobuf_c_message_free_unpacked. -EINVAL: err names the field and what it takes. */
int dk_json_to_message(const ProtobufCMessageDescriptor *type, const char *json, ProtobufCMessage **m,
                       struct dk_err *err);

/* Every service of proto/, NULL-terminated; finds "Service/Method" (package prefix optional). NULL: none. */
extern const ProtobufCServiceDescriptor *const dk_services[];
const ProtobufCMethodDescriptor *dk_method_find(const char *name, const ProtobufCServiceDescriptor **service);

#endif
