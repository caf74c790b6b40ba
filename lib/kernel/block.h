/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_KERNEL_BLOCK_H
#define DK_KERNEL_BLOCK_H

#include <stddef.h>
#include <stdint.h>

/* Zeroed, aligned to 64; NULL when there is no memory. Any thread. */
uint8_t *dk_block_alloc(size_t bytes);
/* With the size that it was allocated with. NULL is fine. */
void dk_block_free(uint8_t *p, size_t bytes);

#endif
