/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_WIRE_INTERNAL_H
#define DK_WIRE_INTERNAL_H

#include "wire/wire.h"

/* Walking a message by its descriptor. protobuf-c keeps "is it set" in three places: a has_ flag or an element
 * count at quantifier_offset, the number of the set member of a oneof there, or a NULL (or default) pointer. */

/* How many values of the field are set: 0 or 1, or the length of a repeated field. */
size_t wire_field_count(const ProtobufCMessage *m, const ProtobufCFieldDescriptor *f);
/* Size of one value of this type in memory. */
size_t wire_value_bytes(ProtobufCType type);

/* Length of the well-formed UTF-8 character at s, of which `bytes` (not 0) are readable; 0: it is not one. */
size_t wire_utf8_next(const unsigned char *s, size_t bytes);

#endif
