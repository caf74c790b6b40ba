/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/message_buffer.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int dk_buffers_init(struct dk_buffers *b, size_t buffer_bytes, uint32_t most)
{
    memset(b, 0, sizeof *b);
    b->buffer_bytes = (buffer_bytes + 4095) & ~(size_t)4095;
    b->most = most;
    b->items = calloc(most, sizeof *b->items);
    b->free = calloc(most, sizeof *b->free);
    return b->items && b->free ? 0 : -ENOMEM;
}

void dk_buffers_fini(struct dk_buffers *b)
{
    for (uint32_t i = 0; i < b->made; i++)
        munmap(b->items[i].data, b->buffer_bytes);
    free(b->items);
    free(b->free);
    memset(b, 0, sizeof *b);
}

uint32_t dk_buffer_take(struct dk_buffers *b, size_t bytes)
{
    struct dk_buffer *item;
    uint32_t buffer;

    assert(bytes <= b->buffer_bytes);
    if (b->free_count > 0) {
        buffer = b->free[--b->free_count];
        item = &b->items[buffer];
        b->retained_bytes -= item->touched_bytes;
    } else {
        void *data;

        if (b->made == b->most)
            return DK_BUFFER_NONE;
        data = mmap(NULL, b->buffer_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (data == MAP_FAILED)
            return DK_BUFFER_NONE;
        buffer = b->made++;
        item = &b->items[buffer];
        item->data = data;
    }
    if (bytes > item->touched_bytes)
        item->touched_bytes = bytes;
    return buffer;
}

void dk_buffer_put(struct dk_buffers *b, uint32_t buffer)
{
    struct dk_buffer *item;

    if (buffer == DK_BUFFER_NONE)
        return;
    assert(buffer < b->made && b->free_count < b->made);
    item = &b->items[buffer];
    if (b->retained_bytes + item->touched_bytes > DK_BUFFERS_RETAIN_BYTES &&
        madvise(item->data, b->buffer_bytes, MADV_DONTNEED) == 0)
        item->touched_bytes = 0;
    b->retained_bytes += item->touched_bytes;
    b->free[b->free_count++] = buffer;
}
