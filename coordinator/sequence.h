/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_COORDINATOR_SEQUENCE_H
#define DK_COORDINATOR_SEQUENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "coordinator/stop_filter.h"
#include "model/tokenizer.h"
#include "wire/wire.h"

/* One request's life: its tokens, and the events that its reader has not acknowledged yet. */

enum dk_sequence_state {
    DK_SEQUENCE_QUEUED,  /* waits for a place among the running ones, at first or after the worker's cache was lost */
    DK_SEQUENCE_PREFILL, /* runs; tokens before its last one are missing in the worker's cache */
    DK_SEQUENCE_DECODE,  /* runs; only its last, generated token is missing in the worker's cache */
    DK_SEQUENCE_DONE,    /* its finish event is made; kept for its reader */
    DK_SEQUENCE_STATES
};

/* Values of prompt positions: logits, scores, tensors of a trace. */
#define DK_VALUES_UNREAD_BYTES (64u << 20) /* most in events of a sequence that are not acknowledged */
#define DK_SCORE_BYTES         64u         /* of a score or of one of its alternatives in an event */

struct dk_sequence {
    uint64_t id;
    enum dk_sequence_state state;
    uint32_t *tokens; /* [prompt_len + max_tokens]: the prompt, then what was generated; NULL when DONE */
    uint32_t prompt_len, output_len, max_tokens; /* max_tokens 0: score */
    uint32_t cached;                             /* tokens that the worker's cache holds */
    bool known;        /* this worker has been given a step with it: it must be told of the end */
    uint32_t rows_now; /* of the step that is being formed */

    float temperature, top_p;
    uint32_t top_k, logprobs;
    uint64_t seed;
    bool want_logprob, want_logits, ignore_eos;
    bool score;             /* nothing is generated: it ends with the scores of its prompt */
    bool trace;             /* the whole prompt goes into one step, alone */
    uint32_t *trace_layers; /* [trace_layer_count] rising; count 0: all */
    uint32_t trace_layer_count;
    uint32_t prefill_chunk; /* most tokens of a prefill chunk; 0: no limit of its own */
    uint32_t told;          /* prompt positions whose values are in events; they are not asked for again */

    struct dk_detokenizer detokenizer;
    struct dk_stop_filter stop;

    Dk__Event **events; /* not acknowledged ones, cursors without gaps */
    uint32_t event_count, event_capacity;
    uint64_t cursor_last;    /* of the newest event made; 0: none yet */
    uint64_t values_unread;  /* bytes in events */
    uint64_t unread_us;      /* since then they wait and none was acknowledged; only if there are any */
    uint64_t contact_us;     /* last sign of the client */
    uint32_t readers_parked; /* calls that wait for an event */

    uint64_t submit_us, start_us, first_us, last_us; /* opened, first scheduled, first token (score: prompt
                                                      * done), newest token; 0: not yet */
};

const char *dk_sequence_state_name(enum dk_sequence_state s);
/* The only place that changes the state. */
void dk_sequence_state_set(struct dk_sequence *s, enum dk_sequence_state to);

/* Takes the ids over. NULL: no memory (ids stay the caller's). */
struct dk_sequence *dk_sequence_alloc(uint64_t id, uint32_t *prompt, uint32_t prompt_len, uint32_t max_tokens,
                                      uint64_t now_us);
void dk_sequence_free(struct dk_sequence *s);

static inline uint32_t dk_sequence_total(const struct dk_sequence *s)
{
    return s->prompt_len + s->output_len;
}

/* The text that is certain with one more token, through the detokenizer and the stop strings. *text is malloc'ed, NULL
 * if there is none. *stopped: a stop string is complete; nothing more is to be emitted. -ENOMEM. */
int dk_sequence_text(struct dk_sequence *s, const struct dk_tokenizer *t, uint32_t token, char **text, bool *stopped);
/* What was held back; NULL if there is nothing. */
char *dk_sequence_text_rest(struct dk_sequence *s);

/* A new event with the next cursor, already in the list. NULL: no memory. */
Dk__Event *dk_sequence_event(struct dk_sequence *s);
/* What its values count for, in values_unread and in a reply. */
uint64_t dk_event_value_bytes(const Dk__Event *e);
/* Forgets the events up to a cursor. */
void dk_sequence_acknowledge(struct dk_sequence *s, uint64_t cursor, uint64_t now_us);
uint64_t dk_sequence_cursor_kept(const struct dk_sequence *s); /* events after this one are still there */

/* NULL: no memory. */
Dk__GenerationStats *dk_sequence_stats(const struct dk_sequence *s, uint64_t now_us);

#endif
