/* SPDX-License-Identifier: Apache-2.0 */
/* What protobuf-c's decoder leaves open: it takes any number for an enum and any bytes for a string. */
#include "wire/wire_internal.h"

#include <string.h>

size_t wire_utf8_next(const unsigned char *s, size_t bytes)
{
    unsigned char c = s[0];
    size_t n = c < 0x80 ? 1 : c >= 0xc2 && c <= 0xdf ? 2 : (c & 0xf0) == 0xe0 ? 3 : c >= 0xf0 && c <= 0xf4 ? 4 : 0;

    if (!n || n > bytes)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    /* Overlong forms, surrogates and everything above U+10FFFF (RFC 3629, section 4). */
    if ((c == 0xe0 && s[1] < 0xa0) || (c == 0xed && s[1] > 0x9f) || (c == 0xf0 && s[1] < 0x90) ||
        (c == 0xf4 && s[1] > 0x8f))
        return 0;
    return n;
}

static int text_check(const char *text)
{
    size_t left = strlen(text), n;

    for (; left; text += n, left -= n)
        if (!(n = wire_utf8_next((const unsigned char *)text, left)))
            return -EBADMSG;
    return 0;
}

/* value: where the field's value, or one element of it, lies. */
static int value_check(const ProtobufCFieldDescriptor *f, const void *value, struct dk_err *err)
{
    switch (f->type) {
    case PROTOBUF_C_TYPE_ENUM: {
        int number = *(const int *)value;

        if (!protobuf_c_enum_descriptor_get_value(f->descriptor, number))
            return dk_err_set(err, -EBADMSG, "%s: %d is no %s that this build knows", f->name, number,
                              ((const ProtobufCEnumDescriptor *)f->descriptor)->short_name);
        return 0;
    }
    case PROTOBUF_C_TYPE_STRING: {
        const char *text = *(char *const *)value;

        if (text && text_check(text) < 0)
            return dk_err_set(err, -EBADMSG, "%s: the text is not UTF-8", f->name);
        return 0;
    }
    case PROTOBUF_C_TYPE_MESSAGE: {
        const ProtobufCMessage *m = *(ProtobufCMessage *const *)value;
        int rc = m ? dk_message_check(m, err) : 0;

        if (rc < 0 && err)
            dk_err_prefix(err, "%s", f->name);
        return rc;
    }
    default:
        return 0;
    }
}

int dk_message_check(const ProtobufCMessage *m, struct dk_err *err)
{
    for (unsigned i = 0; i < m->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &m->descriptor->fields[i];
        size_t count = wire_field_count(m, f);
        const char *at = (const char *)m + f->offset;
        int rc;

        if (f->label == PROTOBUF_C_LABEL_REPEATED)
            at = *(const char *const *)at;
        for (size_t j = 0; j < count; j++)
            if ((rc = value_check(f, at + j * wire_value_bytes(f->type), err)) < 0)
                return rc;
    }
    return 0;
}

size_t wire_field_count(const ProtobufCMessage *m, const ProtobufCFieldDescriptor *f)
{
    const char *quantifier = (const char *)m + f->quantifier_offset;

    if (f->label == PROTOBUF_C_LABEL_REPEATED)
        return *(const size_t *)quantifier;
    if (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF)
        return *(const uint32_t *)quantifier == f->id;
    if (f->type == PROTOBUF_C_TYPE_MESSAGE || f->type == PROTOBUF_C_TYPE_STRING) {
        const void *p = *(const void *const *)((const char *)m + f->offset);

        return p && (f->label == PROTOBUF_C_LABEL_REQUIRED || p != f->default_value);
    }
    return f->label == PROTOBUF_C_LABEL_REQUIRED || *(const protobuf_c_boolean *)quantifier;
}

size_t wire_value_bytes(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return 8;
    case PROTOBUF_C_TYPE_BOOL:
        return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    default:
        return 4;
    }
}
