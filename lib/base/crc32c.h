/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_BASE_CRC32C_H
#define DK_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* CRC-32C (Castagnoli, RFC 3720 appendix B.4), with the usual inversion at both ends. Start with crc = 0 and pass
 * the result on to continue. Uses the SSE4.2 instruction where the CPU has it. */
uint32_t dk_crc32c(uint32_t crc, const void *data, size_t bytes);

#endif
