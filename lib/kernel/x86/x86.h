/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_KERNEL_X86_H
#define DK_KERNEL_X86_H

#include "kernel/kernel_internal.h"

void dk_panels_f8_avx2(const struct dk_panels *p, uint32_t n, const float *const *x, float (*out)[DK_PANEL_ROWS]);
void dk_panels_bf16_avx2(const struct dk_panels *p, uint32_t n, const float *const *x, float (*out)[DK_PANEL_ROWS]);
void dk_panels_f32_avx2(const struct dk_panels *p, uint32_t n, const float *const *x, float (*out)[DK_PANEL_ROWS]);
uint64_t dk_read_avx2(const void *data, size_t bytes);

void dk_panels_f8_avx512(const struct dk_panels *p, uint32_t n, const float *const *x, float (*out)[DK_PANEL_ROWS]);
void dk_panels_bf16_avx512(const struct dk_panels *p, uint32_t n, const float *const *x, float (*out)[DK_PANEL_ROWS]);
void dk_panels_f32_avx512(const struct dk_panels *p, uint32_t n, const float *const *x, float (*out)[DK_PANEL_ROWS]);
uint64_t dk_read_avx512(const void *data, size_t bytes);

/* Where to prefetch from for the columns that begin `offset` bytes into a panel: DK_PREFETCH_BYTES further on in the stream of
 * such panels, which goes on at p->next. For the second of two panels add panel_bytes. */
static inline const char *dk_prefetch_base(const struct dk_panels *p, size_t offset, size_t panel_bytes)
{
    size_t ahead = offset + DK_PREFETCH_BYTES;
    const uint8_t *base = p->data;

    if (ahead >= panel_bytes) {
        base = p->next;
        for (ahead -= panel_bytes; ahead >= panel_bytes; ahead -= panel_bytes)
            base += p->count * panel_bytes;
    }
    return (const char *)base + ahead;
}

#endif
