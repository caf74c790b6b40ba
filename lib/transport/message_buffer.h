/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_TRANSPORT_MESSAGE_BUFFER_H
#define DK_TRANSPORT_MESSAGE_BUFFER_H

#include <stddef.h>
#include <stdint.h>

/* Message buffers of one size. Each is a mapping of its own, made when it is first needed, whose pages cost nothing
 * until they are touched; a buffer that comes back is used again. Memory of free buffers is kept up to
 * DK_BUFFERS_RETAIN_BYTES and given to the system beyond that, so that a few huge messages do not stay for ever. */

enum { DK_BUFFERS_RETAIN_BYTES = 64 << 20 };
#define DK_BUFFER_NONE UINT32_MAX

struct dk_buffer {
    uint8_t *data;
    size_t touched_bytes; /* from the start; may be resident */
};

struct dk_buffers {
    size_t buffer_bytes;
    uint32_t most, made;
    struct dk_buffer *items;
    uint32_t *free; /* stack */
    uint32_t free_count;
    size_t retained_bytes; /* touched, in free buffers */
};

/* -ENOMEM. most: how many there may be at one time. */
int dk_buffers_init(struct dk_buffers *b, size_t buffer_bytes, uint32_t most);
void dk_buffers_fini(struct dk_buffers *b);
/* A buffer of which `bytes` will be used; DK_BUFFER_NONE: all are in use, or no memory. */
uint32_t dk_buffer_take(struct dk_buffers *b, size_t bytes);
/* DK_BUFFER_NONE is fine. */
void dk_buffer_put(struct dk_buffers *b, uint32_t buffer);
static inline uint8_t *dk_buffer_data(const struct dk_buffers *b, uint32_t buffer)
{
    return b->items[buffer].data;
}

#endif
