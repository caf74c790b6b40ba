/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_COORDINATOR_INTERNAL_H
#define DK_COORDINATOR_INTERNAL_H

#include "base/clock.h"
#include "base/log.h"
#include "coordinator/core.h"
#include "coordinator/sequence.h"
#include "plan/plan.h"

/* For the files of this folder and white-box tests. */

#define DK_TICK_US           100000ull    /* how often silence and grace times are looked at */
#define DK_HEARTBEAT_MS      200u         /* what nodes are told */
#define DK_SILENT_US         2000000ull   /* a node silent for longer is not alive */
#define DK_NAME_FREE_US      1000000ull   /* a name whose owner is silent for longer may be taken by a newcomer */
#define DK_FORGET_US         30000000ull  /* a silent node that the plan does not need is forgotten */
#define DK_GRACE_US          60000000ull  /* of a client that neither reads nor cancels */
#define DK_STALL_US          1000000ull   /* a longer time without a tick was our own pause, and nobody's silence */
#define DK_BEAT_BYTES_MAX    (256u << 10) /* of a heartbeat, which is kept */
#define DK_WAIT_MS_MAX       600000u      /* longest wait of a call */
#define DK_MEMBERS_MAX       (DK_PLAN_DUCKS_MAX + 1)
#define DK_NODE_NAME_ROOM    64u        /* with the zero byte */
#define DK_LINK_WAIT_US      2000000ull /* a link that is not up after that is worth a word */
#define DK_SETTLE_US         3000000ull /* after a start: time for nodes of an earlier coordinator to be heard */
#define DK_MTU_LEAST         576u       /* what every IPv4 host takes, RFC 791 */
#define DK_MTU_MOST          9000u
#define DK_CACHE_PAGE        16u        /* tokens: what the worker's cache is given out in */
#define DK_FINISHED_MAX      256u       /* sequences kept for readers after their end */
#define DK_VALUES_STEP_BYTES (4u << 20) /* logits and scores asked for in one step, if of more than one row */
/* Values of all sequences that are not read yet: eight sequences at their own limit. Beyond it no step asks for more.
 */
#define DK_VALUES_ALL_BYTES (8ull * DK_VALUES_UNREAD_BYTES)
#define DK_VALUES_GRACE_US  5000000ull /* beyond it: of a client that takes nothing, whose values are then dropped */
#define DK_READ_REPLY_BYTES (4u << 20) /* events in one reply, if more than one */
#define DK_READ_EVENTS_MAX  4096u
#define DK_TEXT_BYTES_MAX   (4u << 20) /* longest text that is made into tokens */

struct dk_member {
    Dk__HeartbeatRequest *beat;   /* its last one */
    uint32_t index;               /* smallest free number of its kind when it joined */
    uint64_t last_us;             /* when that came */
    uint64_t link_us, link_epoch; /* duck: since when its link has not been up, in this epoch */
};

enum dk_parked_kind { DK_PARKED_READ, DK_PARKED_NEXT_STEP, DK_PARKED_STATUS };

/* A call that waits for something. */
struct dk_parked {
    enum dk_parked_kind kind;
    void *call;
    uint64_t since_us, deadline_us;
    uint64_t sequence_id, cursor; /* READ */
    char worker[64];              /* NEXT_STEP */
    uint32_t instance;
    uint64_t plan_epoch;
    bool has_unlike; /* STATUS */
    Dk__ClusterState unlike;
};

struct dk_coordinator {
    struct dk_coordinator_options options;
    uint64_t now_us, start_us, tick_us; /* tick_us: of the next look at silence and grace times */
    struct dk_rng rng;
    uint64_t settle_us; /* end of the time in which an earlier coordinator's nodes are waited for */
    bool ending;

    struct dk_member members[DK_MEMBERS_MAX]; /* in order of joining */
    uint32_t member_count;

    bool has_model;
    struct dk_served_model model;
    Dk__ClusterState state;
    uint64_t ready_us;   /* when it became READY last */
    Dk__Code error_code; /* why FAILED or DEGRADED, or what LOADING waits for; OK: nothing */
    char error_text[500];
    Dk__Plan *plan;           /* NULL: none */
    uint32_t worker_instance; /* that the plan's epoch is meant for; 0: the first one that comes */
    uint64_t epoch_last;      /* largest one seen or made */
    uint64_t epoch_us;        /* when the plan got its epoch */
    bool adopted;             /* the plan is an earlier coordinator's */
    uint64_t refused_epoch;   /* of a worker's plan that could not be taken over; 0: none */

    struct dk_sequence **sequences; /* by id, which is the order of their Submit calls */
    uint32_t sequence_count, sequences_max;
    uint64_t sequence_first, sequence_next; /* handles of this coordinator: [first, next) */

    Dk__Step *step;         /* handed to the worker, result not here yet; NULL: none */
    uint32_t step_instance; /* worker that it was made for */
    uint64_t step_next;
    bool step_was_trace; /* the last step was for a trace alone */
    uint64_t *released;  /* [2 * running_max] ended sequences that the worker may still have a cache of */
    uint32_t released_count;
    bool release_all; /* the worker may have caches of sequences that nobody here knows */

    struct dk_parked *parked; /* [parked_max + 2] */
    uint32_t parked_count;

    uint64_t steps, prompt_tokens, output_tokens, sequences_done, sequences_failed;
    Dk__StepTiming timing_total, timing_last;
};

/* ---- membership.c */
void dk_heartbeat_handle(struct dk_coordinator *c, void *call, const Dk__HeartbeatRequest *q, struct dk_outbox *out);
void dk_leave_handle(struct dk_coordinator *c, void *call, const Dk__LeaveRequest *q, struct dk_outbox *out);
void dk_members_tick(struct dk_coordinator *c); /* forgets who has been silent for long */
void dk_members_fini(struct dk_coordinator *c);
struct dk_member *dk_member_find(struct dk_coordinator *c, const char *name);
struct dk_member *dk_member_worker(struct dk_coordinator *c); /* NULL: none */
bool dk_member_alive(const struct dk_coordinator *c, const struct dk_member *m);
/* A copy of what the node told of itself, with the data-plane address that it was given. NULL: no memory. */
Dk__NodeInfo *dk_member_info(const struct dk_member *m);
/* What the worker says of its link to this life of a duck. NULL: nothing. */
const Dk__DuckLink *dk_member_link(const struct dk_member *worker, const struct dk_member *duck);
/* Gives each duck the index under which the worker and the plan know it. */
void dk_members_renumber(struct dk_coordinator *c);

/* ---- cluster.c */
void dk_load_handle(struct dk_coordinator *c, void *call, const Dk__LoadRequest *q, struct dk_outbox *out);
void dk_cluster_update(struct dk_coordinator *c); /* after anything that the state depends on */
bool dk_cluster_needs(const struct dk_coordinator *c, const struct dk_member *m); /* m is a duck of the plan */
void dk_cluster_state_set(struct dk_coordinator *c, Dk__ClusterState to, Dk__Code code, const char *text);
/* Drops the old plan and model for these, which it takes over. The plan has its epoch; its worker is not known yet. */
void dk_cluster_take(struct dk_coordinator *c, Dk__Plan *plan, const struct dk_served_model *m);
void dk_cluster_fini(struct dk_coordinator *c);

/* ---- attention_mode.c */
/* What a load of this model may ask for; *context: the longest sequence of the plan. */
int dk_attention_mode(const Dk__LoadRequest *q, const struct dk_model_config *m, uint32_t *context, struct dk_err *err);
/* True: the plan's context ends where full attention stops being what the model was trained for. */
bool dk_attention_ends(const struct dk_coordinator *c);

/* ---- load_wait.c */
/* text: what the load waits for; empty if it gets on. All ducks of the plan are members. feeding: the worker has read
 * its own part and sends the ducks theirs. */
void dk_load_wait(struct dk_coordinator *c, const struct dk_member *worker, bool feeding, char *text, size_t room);

/* ---- plan_adopt.c */
void dk_plan_adopt(struct dk_coordinator *c, const struct dk_member *worker); /* if it has a plan and we have none */
/* The node is of an earlier coordinator's time, and cannot be answered yet. */
bool dk_settling(struct dk_coordinator *c, const Dk__HeartbeatRequest *q);

/* ---- cluster_status.c */
void dk_status_handle(struct dk_coordinator *c, void *call, const Dk__StatusRequest *q, struct dk_outbox *out);
bool dk_status_serve(struct dk_coordinator *c, const struct dk_parked *p, bool late, struct dk_outbox *out);
void dk_stats_handle(struct dk_coordinator *c, void *call, struct dk_outbox *out);

/* ---- ingress.c */
void dk_submit_handle(struct dk_coordinator *c, void *call, const Dk__SubmitRequest *q, struct dk_outbox *out);
void dk_tokenize_handle(struct dk_coordinator *c, void *call, const Dk__TokenizeRequest *q, struct dk_outbox *out);
void dk_detokenize_handle(struct dk_coordinator *c, void *call, const Dk__DetokenizeRequest *q, struct dk_outbox *out);

/* ---- scheduler.c */
void dk_next_step_handle(struct dk_coordinator *c, void *call, const Dk__NextStepRequest *q, struct dk_outbox *out);
bool dk_next_step_serve(struct dk_coordinator *c, const struct dk_parked *p, bool late, struct dk_outbox *out);
void dk_schedule_uncache(struct dk_coordinator *c);      /* the worker's caches hold nothing that counts any more */
void dk_schedule_new_worker(struct dk_coordinator *c);   /* nor does it know of any sequence or step of ours */
uint64_t dk_cache_need(uint32_t tokens);                 /* rounded up to whole pages */
uint64_t dk_cache_room(struct dk_coordinator *c);        /* tokens; UINT64_MAX: not known */
uint32_t dk_running_max(const struct dk_coordinator *c); /* what the options and the plan allow */
uint32_t dk_step_rows(const struct dk_coordinator *c);   /* the same */

/* ---- prompt_values.c */
/* Bytes of a trace of so many tokens, names included. layers [layer_count]: rising, those that are wanted; count 0:
 * all. The tensors are those of attention-worker/trace.h. */
uint64_t dk_trace_bytes(const struct dk_model_config *m, const uint32_t *layers, uint32_t layer_count, uint32_t tokens);
/* What is wrong with the values that the worker sent for a sequence; NULL: nothing. */
const char *dk_values_defect(const struct dk_coordinator *c, const Dk__StepSequence *given,
                             const Dk__SequenceResult *r);
uint64_t dk_values_unread(const struct dk_coordinator *c); /* bytes, of all sequences */
/* Makes room when all are too many: those that wait for long without their client acknowledging any, be it silent or
 * asking for the same ones again, go, the longest waiting first, and their sequences end with RESOURCE_EXHAUSTED. */
void dk_values_tick(struct dk_coordinator *c);
/* What is wrong with alternatives of a token; NULL: nothing. */
const char *dk_top_defect(const struct dk_coordinator *c, Dk__TokenLogprob *const *top, size_t count);
/* Makes events of them. False: no memory. */
bool dk_values_take(const struct dk_coordinator *c, struct dk_sequence *s, const Dk__StepSequence *given,
                    const Dk__SequenceResult *r);

/* ---- egress.c */
void dk_step_result_apply(struct dk_coordinator *c, const Dk__StepResult *r);
void dk_read_handle(struct dk_coordinator *c, void *call, const Dk__ReadRequest *q, struct dk_outbox *out);
bool dk_read_serve(struct dk_coordinator *c, const struct dk_parked *p, bool late, struct dk_outbox *out);
void dk_cancel_handle(struct dk_coordinator *c, void *call, const Dk__CancelRequest *q, struct dk_outbox *out);
/* Ends a sequence, whatever its state. error: with ERROR only. */
void dk_sequence_end(struct dk_coordinator *c, struct dk_sequence *s, Dk__FinishReason why, Dk__Code code,
                     const char *text);
void dk_sequences_fail(struct dk_coordinator *c, Dk__Code code, const char *text); /* every one that lives */
void dk_sequences_tick(struct dk_coordinator *c);                                  /* grace times */
struct dk_sequence *dk_sequence_find(struct dk_coordinator *c, uint64_t id);
uint32_t dk_sequences_in(const struct dk_coordinator *c, enum dk_sequence_state state);
/* Makes room by forgetting the oldest finished one if need be. -ENOMEM. */
int dk_sequence_add(struct dk_coordinator *c, struct dk_sequence *s);

/* ---- parked.c */
/* The call is answered by dk_parked_serve() at the end of this message's handling if it can be. */
void dk_park(struct dk_coordinator *c, struct dk_parked *p, uint32_t wait_ms);
void dk_parked_serve(struct dk_coordinator *c, struct dk_outbox *out);
void dk_parked_drop_next_step(struct dk_coordinator *c, struct dk_outbox *out); /* answers "nothing to do" */

#endif
