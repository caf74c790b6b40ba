/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKER_STEP_H
#define WORKER_STEP_H

#include "attention-worker/fanout.h"
#include "attention-worker/model.h"
#include "attention-worker/sampler.h"
#include "attention-worker/trace.h"
#include "net/net.h"
#include "wire/wire.h"

/* Of one sequence's trace: the message that it travels in has a limit. */
#define STEP_TRACE_BYTES_MAX (DK_CONTROL_BYTES_MAX / 4)

/* One batched pass over the layers for the rows of several sequences, as a state machine: it stops where the ducks have
 * to answer. */
enum step_state {
    STEP_FREE,        /* nothing to do */
    STEP_ATTEND,      /* this layer's attention, router and fan-out come next */
    STEP_MEANWHILE,   /* rows are on their way, and pieces of the worker's own part of the feed-forward may be left */
    STEP_AWAIT_DUCKS, /* nothing is left but partial sums that are missing */
    STEP_SUM,         /* all partial sums are there, and the worker's own part */
    STEP_HEAD,        /* all layers done: head and sampler come next */
    STEP_REPLY,       /* the result is ready to be taken */
    STEP_STATES
};

struct step_sequence {
    const Dk__StepSequence *request;
    int32_t span;      /* index of its span, -1: it takes no part (failed) */
    struct dk_err err; /* rc 0: fine */
    bool sampled;
    struct dk_sampled token;
    float *logits;             /* [tokens][vocab] if wanted */
    struct dk_sampled *scores; /* [score_count] of the token behind each, if wanted */
    uint32_t score_count;
    struct dk_trace_list trace; /* values inside the layers, if wanted */
};

struct step_timing {
    uint64_t begin_us, prepare_us, send_us, wait_us, meanwhile_us, fetch_us, duck_max_us, weight_bytes, overtaken;
    uint32_t operations;
};

struct step {
    enum step_state state;
    struct worker_model *model;
    struct fanout fanout;
    uint64_t (*clock_us)(void); /* only to tell where the time went */
    uint32_t rows_max, sequences_max;

    Dk__NextStepReply *request;            /* owned while a step runs */
    struct step_sequence *sequences;       /* [sequences_max] */
    struct dk_span *spans;                 /* [sequences_max] */
    struct step_sequence **head_sequences; /* [sequences_max] those that sample, and their rows */
    uint32_t *head_rows;
    uint32_t *ids; /* [rows_max] */
    uint32_t span_count, rows, layer;
    float *ffn_in, *ffn_out; /* [rows_max][hidden] */
    float *router_logits;    /* [rows_max][experts] */
    int32_t *expert_ids;     /* [rows_max][top_k] */
    float *expert_weights;
    bool *row_ok;                 /* [rows_max] */
    float *logits;                /* [sequences_max][vocab] */
    uint32_t *scratch;            /* [vocab] */
    struct step_sequence *traced; /* NULL: none */
    struct dk_trace trace;
    bool *trace_layers; /* [layers] what trace points to if it wants some only */
    struct step_timing timing;
    uint64_t meanwhile_us; /* of this layer */
    struct dk_err err;     /* of the whole step */
};

/* Allocates every buffer for a model. -ENOMEM. */
int step_open(struct step *s, struct worker_model *m, const struct worker_plan *plan, struct worker_links *links,
              uint32_t rows_max, uint32_t sequences_max, uint64_t (*clock_us)(void), struct dk_err *err);
void step_close(struct step *s); /* a running step is aborted without a result; fine on a zeroed one */

/* Takes over the reply, which has a step of the plan's epoch. State must be FREE. */
void step_begin(struct step *s, Dk__NextStepReply *request);
/* Goes on by one state, or one piece of own work. net_idle: no frame can move now. While answers are missing, own work
 * waits for that, because it keeps the thread from the frames. True: something happened. */
bool step_run(struct step *s, uint64_t now_us, bool net_idle);
/* Whether ducks have been asked and their answers are not yet added up. */
bool step_is_out(const struct step *s);
/* A transport event. Returns whether the step has taken it (and will give its data back). */
bool step_on_event(struct step *s, const struct dk_transport_event *event, struct dk_arena *arena);
/* Ends the running step with an error for all its sequences. */
void step_fail(struct step *s, const struct dk_err *err);

/* Frees what is left of a finished step, the request and the sequences' results; the state is FREE after. */
void step_forget(struct step *s);
/* State REPLY: packs the NextStepRequest's result (a Dk__StepResult) into malloc'ed bytes; the state is FREE after.
 * NULL: no memory. */
uint8_t *step_result(struct step *s, size_t *bytes);

#endif
