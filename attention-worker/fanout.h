/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKER_FANOUT_H
#define WORKER_FANOUT_H

#include "attention-worker/links.h"
#include "attention-worker/plan_slots.h"
#include "model/ffn_tensors.h"

/* One feed-forward on the ducks: the same rows go to every duck of the plan with a part of the layer, and the partial
 * sums are added in slot order. */

struct fanout_slot {
    bool asked, answered;
    uint32_t peer;
    uint64_t request_id;
    struct dk_transport_event event; /* the response, kept until all are there */
    const float *sums;               /* in it: [rows][hidden] */
    uint32_t compute_us;
    uint64_t weight_bytes;
};

struct fanout {
    const struct worker_plan *plan;
    const struct dk_model_config *config;
    uint64_t model_id;
    struct worker_links *links;
    bool running;
    uint32_t layer, rows, waiting;
    struct fanout_slot slots[PLAN_SLOTS_MAX];
    uint8_t headers[DK_DATA_HEADER_MAX];
    uint64_t asked_us;    /* when the last request was handed to the transport */
    uint32_t overtaken;   /* answers that came before one of an earlier slot */
    uint32_t duck_max_us; /* of the finished one */
    uint64_t weight_bytes;
};

/* Hands the requests to the transport. x [rows][hidden], ids and weights [rows][top_k] (NULL for a dense layer): must
 * stay until done. -EHOSTDOWN: a duck of the plan cannot be reached, err names it; -EAGAIN: too many outstanding. */
int fanout_begin(struct fanout *f, uint32_t layer, uint32_t rows, const float *x, const int32_t *ids,
                 const float *weights, uint64_t now_us, struct dk_err *err);
/* A transport event. 1: it was the last answer, fanout_sum may follow; 0: taken, or not the fan-out's (*taken tells; a
 * taken event with data is given back by the fan-out); negative: the fan-out has failed, err says why. */
int fanout_on_event(struct fanout *f, const struct dk_transport_event *event, struct dk_arena *arena, bool *taken,
                    struct dk_err *err);
/* After links have changed (member indexes as bits): -EHOSTDOWN if a duck that was asked can no longer answer, err
 * names it. */
int fanout_check(const struct fanout *f, uint64_t changed, struct dk_err *err);
/* y [rows][hidden] = partial sums added in slot order; gives the events back. */
void fanout_sum(struct fanout *f, float *y);
/* Forgets the running one: its peers are made anew, because the transport may still read the rows. */
void fanout_abort(struct fanout *f);

#endif
