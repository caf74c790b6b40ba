/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_TESTS_CLUSTER_RIG_H
#define DK_TESTS_CLUSTER_RIG_H

#include "attention-worker/engine.h"
#include "duck-firmware/dispatch.h"
#include "duck-firmware/link.h"

/* The worker's engine and some ducks in one process, joined by lib/net/sim with faults from a seed and a clock that
 * only moves when they are polled: the same seed gives the same run. The test plays the coordinator. */

enum { CLUSTER_DUCKS_MAX = 8 };

/* What a duck does with a request. */
enum cluster_verdict {
    CLUSTER_HANDLE, /* answers it as a duck does */
    CLUSTER_MINE,   /* sends what the hook has put into *answer */
    CLUSTER_NEVER,  /* keeps silent about it; the duck lives */
    CLUSTER_CRASH,  /* dies with it */
};

struct cluster;
typedef enum cluster_verdict cluster_on_request(void *ctx, struct cluster *c, uint32_t duck, const uint8_t *data,
                                                size_t bytes, struct duck_answer *answer);

struct cluster_duck {
    bool up;
    bool away; /* neither polled nor in the orders, but it lives */
    char name[16];
    uint32_t lives, requests; /* requests: of this life */
    struct dk_addr own;
    struct dk_endpoint endpoint;
    struct duck_link link;
    struct duck duck;
};

struct cluster {
    uint64_t now_us;
    uint32_t idle_polls;
    struct dk_net_faults faults;
    struct dk_exec *exec;
    struct worker_options options;
    struct worker_engine worker;
    struct worker_plan plan; /* as the coordinator wants it */
    struct dk_mailbox *news;
    bool ended;      /* the step in hand */
    uint8_t *result; /* its packed Dk__StepResult; NULL: it was dropped */
    size_t result_bytes;
    uint32_t duck_count;
    struct cluster_duck ducks[CLUSTER_DUCKS_MAX];
    struct dk_net_counters past; /* of ducks that are gone */
    cluster_on_request *on_request;
    void *ctx;
};

/* All ducks up and connected; nothing loaded. faults may be NULL. -ENOMEM and others through err. */
int cluster_open(struct cluster *c, uint32_t ducks, const struct dk_net_faults *faults, struct dk_err *err);
void cluster_close(struct cluster *c);

void cluster_duck_crash(struct cluster *c, uint32_t duck);
/* A new life: another instance number, empty. cluster_follow tells the worker. */
int cluster_duck_start(struct cluster *c, uint32_t duck, struct dk_err *err);
/* Gives the worker a heartbeat's reply: the ducks that are up, and the plan. */
void cluster_follow(struct cluster *c);

/* Every program once. True: one of them had something to do. */
bool cluster_poll(struct cluster *c);
/* The ducks and the clock only: for tests that drive parts of the worker themselves. */
bool cluster_poll_ducks(struct cluster *c);

/* Makes the next epoch with all ducks as they are now, and polls until it is served. 0; or why it is not, in *err. */
int cluster_load(struct cluster *c, const char *model_dir, uint32_t multiple_of, struct dk_err *err);

/* Hands a step to the worker, which takes it over, and polls until its end. NULL: no end in sight, or (c->ended) the
 * worker dropped it. The caller frees it with dk__step_result__free_unpacked. */
Dk__StepResult *cluster_step(struct cluster *c, Dk__NextStepReply *step);
/* A step with room for `sequences`. plan_epoch is the present one. */
Dk__NextStepReply *cluster_step_new(const struct cluster *c, uint32_t sequences);
/* Adds a sequence that samples greedily. */
Dk__StepSequence *cluster_step_add(Dk__NextStepReply *step, uint64_t sequence_id, uint32_t position,
                                   const uint32_t *tokens, uint32_t count);

/* Greedy generation of one sequence: out [steps]; logits [steps][vocab] of each chosen token, NULL: not wanted. */
int cluster_generate(struct cluster *c, uint64_t sequence_id, const uint32_t *prompt, uint32_t count, uint32_t steps,
                     uint32_t *out, float *logits, struct dk_err *err);

/* What was injected on all sides. */
struct dk_net_counters cluster_faults(const struct cluster *c);

#endif
