/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COORD_FIXTURE_H
#define COORD_FIXTURE_H

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/coordinator_internal.h"

/* A coordinator driven by hand: a clock that stands still until it is moved, a model made of bytes, ducks that only
 * send heartbeats, and a worker that keeps real caches of tokens and checks what it is asked to do. */

#define MS     1000ull
#define SECOND 1000000ull

#define FX_VOCAB       260u /* 0..255: the bytes; 256: the end token; the rest is padding without a text */
#define FX_END         256u
#define FX_CONTEXT     512u
#define FX_TRACE_WIDTH 1024u

struct answer {
    bool done;
    ProtobufCMessage *reply; /* NULL: it failed, or is not there yet */
    Dk__Code code;
    char text[500];
};

struct fx_cache {
    uint64_t id;
    uint32_t tokens[FX_CONTEXT], count;
};

struct fx_worker {
    const char *name;
    uint32_t instance;
    uint64_t epoch; /* that it is ready for; 0: nothing */
    Dk__Plan *plan;
    uint64_t cache_tokens; /* that it says it has room for; 0: says nothing */
    struct fx_cache caches[64];
    uint32_t cache_count, cache_most;
    Dk__StepResult *result; /* of the last step */
    Dk__Step *step;         /* the last one */
    uint32_t rows_most, steps, prefill_tokens;
    Dk__Status *fail_step;  /* the next step ends with this */
    uint64_t fail_sequence; /* this sequence ends with INTERNAL */
};

struct fx {
    struct dk_coordinator_options options;
    struct dk_coordinator *c;
    struct dk_outbox out;
    uint64_t now;
    struct fx_worker w;
    /* What the model says: the token after these. NULL: a hash of all of them. */
    uint32_t (*next_token)(const struct fx_cache *tokens);
    Dk__Code open_code; /* of the fake model folder; OK: it is there */
    uint32_t experts;
    uint32_t index_top_k;                 /* 0: the model has no indexer */
    uint32_t trace_count;                 /* tensors of a trace, [tokens][FX_TRACE_WIDTH] each */
    void (*spoil)(Dk__SequenceResult *r); /* changes the worker's results; NULL: nothing does */
};

void fx_open(struct fx *fx); /* fx->options may be changed before, after fx_init */
void fx_init(struct fx *fx);
void fx_close(struct fx *fx);
/* open, 2 ducks, worker, model loaded, READY. */
void fx_ready(struct fx *fx);

void fx_call(struct fx *fx, const void *request, struct answer *a);
void fx_tick(struct fx *fx, uint64_t later_us); /* moves the clock in steps that the deadlines ask for */
void fx_clear(struct answer *a);
void *fx_reply(const struct answer *a); /* must be a success */
#define FX_REPLY(a, type) ((type *)fx_reply(a))

void fx_assert_failed(const struct answer *a, Dk__Code code, const char *part);

/* ---- nodes */
struct fx_link {
    uint32_t index, instance;
    bool closed, silent;
};
struct fx_beat {
    const char *name;
    Dk__NodeKind kind;
    uint32_t instance;
    Dk__PortKind port;
    const char *version;
    uint64_t ready_epoch; /* worker: LoadProgress */
    Dk__Status *load_error;
    bool feeding;           /* not ready yet */
    uint32_t link_instance; /* worker: a DuckLink with member_index 0 for this instance */
    const struct fx_link *links;
    uint32_t link_count;
    Dk__Plan *plan;
    uint64_t held_epoch, cache_tokens; /* Holding */
    uint64_t frames_received;
};
void fx_heartbeat(struct fx *fx, const struct fx_beat *b, struct answer *a);
uint64_t fx_duck(struct fx *fx, const char *name,
                 uint32_t instance);        /* must be accepted; the plan's epoch in the reply */
void fx_worker_beat(struct fx *fx);         /* takes the plan's epoch over at once: loading takes no time */
void fx_all_beat(struct fx *fx);            /* duck-1, duck-2 and the worker */
void fx_coordinator_restart(struct fx *fx); /* forgets everything; a second passes */
void fx_worker_restart(struct fx *fx, uint32_t instance); /* empty caches; sends no heartbeat */

void fx_load(struct fx *fx, struct answer *a);
Dk__ClusterState fx_state(struct fx *fx, char *text, size_t room);

/* ---- clients */
void fx_submit(struct fx *fx, Dk__SubmitRequest *q, struct answer *a);
uint64_t fx_submit_text(struct fx *fx, const char *text, uint32_t max_tokens);
void fx_read(struct fx *fx, uint64_t handle, uint64_t cursor, uint32_t wait_ms, struct answer *a);
void fx_cancel(struct fx *fx, uint64_t handle);

/* ---- the worker's pull: one NextStep that brings the last result. true: got a step, and ran it. */
bool fx_step(struct fx *fx);
void fx_next_step(struct fx *fx, uint32_t wait_ms, struct answer *a); /* the bare call, with the last result */
void fx_run_step(struct fx *fx, const Dk__Step *step);                /* computes the result */

/* What the fake model says of tokens[position] after those before it. */
float fx_score(const uint32_t *tokens, uint32_t position);

/* Reads and runs until the finish event. */
struct fx_told {
    char text[4096];
    uint32_t tokens[FX_CONTEXT], token_count;
    uint64_t cursor;
    size_t logits_bytes;
    struct {
        uint32_t id;
        float logprob;
        uint32_t top_count;
    } scores[FX_CONTEXT];
    uint32_t score_count, trace_count, trace_events;
    bool finished;
    Dk__FinishReason finish;
    Dk__Code error;
    char error_text[500];
    Dk__GenerationStats stats;
};
void fx_take(struct fx_told *t, const Dk__ReadReply *r); /* asserts that cursors have no gap */
void fx_finish(struct fx *fx, uint64_t handle, struct fx_told *t);

#endif
