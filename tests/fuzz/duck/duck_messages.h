/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCK_MESSAGES_H
#define DUCK_MESSAGES_H

#include <stdbool.h>

#include "wire/wire.h"

/* Requests of small layers for the duck that fuzz_duck_request asks: layer 0 is dense and bf16, layer 1 a mixture of
 * FP8 experts. */
enum {
    DUCK_MESSAGES_EPOCH = 3,
    DUCK_MESSAGES_MODEL = 77,
    DUCK_MESSAGES_HIDDEN = 48,
    DUCK_MESSAGES_BEGIN = 32, /* of the slice */
    DUCK_MESSAGES_END = 100,
    DUCK_MESSAGES_WIDTH = 160,
    DUCK_MESSAGES_EXPERTS = 4,
    DUCK_MESSAGES_TOP_K = 2,
    DUCK_MESSAGES_BYTES_MAX = 1 << 17,
};

/* Each writes a whole message into out [DUCK_MESSAGES_BYTES_MAX] and returns its length. */
size_t duck_message_init(uint8_t *out, bool moe, uint64_t epoch, uint32_t piece_begin, uint32_t piece_end,
                         uint32_t expert_begin, uint32_t expert_end);
size_t duck_message_forward(uint8_t *out, bool moe, uint32_t rows);

#endif
