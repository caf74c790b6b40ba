/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_COORDINATOR_OUTBOX_H
#define DK_COORDINATOR_OUTBOX_H

#include <stddef.h>
#include <stdint.h>

#include "wire/wire.h"

/* Replies that a handler made, in order. The shell sends them and empties the box. */

struct dk_outbox_entry {
    void *call;
    ProtobufCMessage *reply; /* owned by the entry; NULL: the call failed with code and text */
    Dk__Code code;
    char text[500];
};

struct dk_outbox {
    struct dk_outbox_entry *entries;
    uint32_t count, capacity;
};

/* capacity: of the first block; the box grows when it must. -ENOMEM. */
int dk_outbox_init(struct dk_outbox *out, uint32_t capacity);
void dk_outbox_fini(struct dk_outbox *out);  /* fine on a zeroed one */
void dk_outbox_clear(struct dk_outbox *out); /* frees the replies */

/* reply: owned by the box from now on; NULL means that there was no memory to make it, and the call fails so. */
void dk_outbox_reply(struct dk_outbox *out, void *call, void *reply);
void dk_outbox_fail(struct dk_outbox *out, void *call, Dk__Code code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The same from an error of a library. */
void dk_outbox_fail_err(struct dk_outbox *out, void *call, const struct dk_err *err);

Dk__Status *dk_status_new(Dk__Code code, const char *text);

#endif
