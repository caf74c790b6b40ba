/* SPDX-License-Identifier: Apache-2.0 */
#ifndef REFUSE_BENCH_H
#define REFUSE_BENCH_H

#include "duck_rig.h"

/* A duck with a dense and an MoE layer, and the proof that a request has changed neither. */

enum { HIDDEN = 192, WIDTH = 352, EXPERTS = 4, BEGIN = 32, END = 300, EPOCH = 7, ROWS = 2, TOP_K = 2 };
enum { DENSE_LAYER = 3, MOE_LAYER = 5 };

struct refuse_bench {
    struct duck_rig rig;
    struct ffn_source dense, moe;
    /* forward payloads: rows, then ids and weights */
    float x[ROWS * HIDDEN + 2 * ROWS * TOP_K];
    float bits[2][ROWS * HIDDEN]; /* what the two layers answered at first */
};

extern const int32_t refuse_good_ids[ROWS * TOP_K];
extern const float refuse_good_weights[ROWS * TOP_K];

void refuse_open(struct refuse_bench *b);
void refuse_close(struct refuse_bench *b);
/* [ROWS][TOP_K] each, for refuse_ask_forward. */
void refuse_set_routing(struct refuse_bench *b, const int32_t *ids, const float *weights);
const Dk__DataReply *refuse_ask_forward(struct refuse_bench *b, bool moe);
/* The reply is an error with that code, and `part` is in its text. */
void refuse_check(struct refuse_bench *b, const Dk__DataReply *r, Dk__Code code, const char *part);
/* Both layers are there and give the bits that they gave at first. */
void refuse_check_unchanged(struct refuse_bench *b);

#endif
