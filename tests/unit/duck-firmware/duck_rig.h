/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_TESTS_DUCK_RIG_H
#define DK_TESTS_DUCK_RIG_H

#include "duck-firmware/dispatch.h"

/* A duck, weights to feed it with, messages made by hand, and what its answers must be. */

enum { DUCK_RIG_MODEL = 4711 };

/* The feed-forwards of one layer, whole: what a checkpoint has. */
struct ffn_source {
    enum dk_dtype type;
    uint32_t hidden, width, experts; /* experts 1 in a dense layer */
    uint8_t *weights; /* [experts][3][width * hidden]: gate and up [width][hidden], down [hidden][width] */
    float *scales;    /* [experts][3][row blocks][column blocks], FP8 only */
};

void ffn_source_make(struct ffn_source *s, enum dk_dtype type, uint32_t hidden, uint32_t width, uint32_t experts,
                     uint64_t seed);
void ffn_source_free(struct ffn_source *s);
/* Element of gate (0), up (1) or down (2), with its scale. */
double ffn_source_weight(const struct ffn_source *s, uint32_t expert, int part, uint32_t row, uint32_t col);
uint8_t *ffn_source_at(const struct ffn_source *s, uint32_t expert, int part, uint32_t row, uint32_t col);
float *ffn_source_scale(const struct ffn_source *s, uint32_t expert, int part, uint32_t row_block, uint32_t col_block);

/* y [rows][hidden] of the slice [begin, end) in float64; bound [rows][hidden]: how far float32 may be from it. ids and
 * weights [rows][top_k]; NULL in a dense layer. */
void ffn_source_forward(const struct ffn_source *s, uint32_t begin, uint32_t end, uint32_t rows, uint32_t top_k,
                        const float *x, const int32_t *ids, const float *weights, double *y, double *bound);

/* A request with the submessages it may need; requests_init makes op_case what the test wants. */
struct request {
    Dk__DataRequest data;
    Dk__SliceShape shape;
    Dk__MlpInitRequest mlp_init;
    Dk__MoeInitRequest moe_init;
    Dk__MlpForwardRequest mlp_forward;
    Dk__MoeForwardRequest moe_forward;
};

struct duck_rig {
    struct duck duck;
    struct duck_answer answer;
    struct dk_exec *exec;
    struct dk_arena arena;
};

void duck_rig_open(struct duck_rig *r, uint64_t reserve_bytes);
void duck_rig_close(struct duck_rig *r);

/* Fills in an init for rows [piece_begin, piece_end) of the slice [begin, end); moe: for these experts. */
void request_init(struct request *q, const struct ffn_source *s, bool moe, uint64_t epoch, uint32_t layer,
                  uint32_t begin, uint32_t end, uint32_t piece_begin, uint32_t piece_end, uint32_t expert_begin,
                  uint32_t expert_end);
void request_forward(struct request *q, const struct ffn_source *s, bool moe, uint64_t epoch, uint32_t layer,
                     uint32_t rows, uint32_t top_k);
/* The payload that an init describes, from the heap. */
uint8_t *request_payload(const struct request *q, const struct ffn_source *s, size_t *bytes);

/* Header and payload as one message in a block of exactly its size, aligned to 64. */
uint8_t *message_make(const ProtobufCMessage *header, const void *payload, size_t payload_bytes, size_t *bytes);
/* Hands a message to the duck; the reply is valid until the next one. */
const Dk__DataReply *duck_rig_ask(struct duck_rig *r, const ProtobufCMessage *header, const void *payload,
                                  size_t payload_bytes);
const Dk__DataReply *duck_rig_ask_bytes(struct duck_rig *r, const uint8_t *message, size_t bytes);
const Dk__DataReply *duck_rig_init(struct duck_rig *r, const struct request *q, const struct ffn_source *s);
/* Feeds a whole slice in one piece. */
void duck_rig_feed(struct duck_rig *r, const struct ffn_source *s, bool moe, uint64_t epoch, uint32_t layer,
                   uint32_t begin, uint32_t end);

#endif
