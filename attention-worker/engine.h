/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKER_ENGINE_H
#define WORKER_ENGINE_H

#include "actor/actor.h"
#include "attention-worker/links.h"
#include "attention-worker/loader.h"
#include "attention-worker/model.h"
#include "attention-worker/step.h"
#include "endpoint/endpoint.h"
#include "node/node.h"

/* From the control actor to the engine: malloc'ed, the engine frees it. */
enum engine_order_kind { ORDER_WANTED, ORDER_STEP };
struct engine_order {
    enum engine_order_kind kind;
    /* WANTED: the cluster as the last heartbeat's reply has it */
    struct worker_plan plan; /* epoch 0: none */
    uint32_t link_count;
    struct worker_link_order links[WORKER_LINKS_MAX];
    /* STEP: the engine takes it over */
    Dk__NextStepReply *step;
};

/* From the engine to the control actor: malloc'ed, the receiver frees it. */
enum engine_news_kind { NEWS_REPORT, NEWS_RESULT };
struct engine_news {
    enum engine_news_kind kind;
    /* REPORT */
    uint64_t plan_epoch, model_id, bytes_done, bytes_total, cache_tokens;
    bool ready;
    struct dk_err load_err;
    struct dk_transport_counters transport;
    struct dk_net_counters net;
    uint32_t link_count;
    struct {
        uint32_t member_index, instance;
        bool heard;
        char socket_path[100];
    } links[WORKER_LINKS_MAX];
    char bell_path[100];
    /* RESULT: a packed Dk__StepResult, malloc'ed */
    uint8_t *result;
    size_t result_bytes;
};
void engine_news_free(struct engine_news *n);

/* The engine of a worker: one thread that owns the data plane, the model and the running step. */
struct worker_engine {
    const struct worker_options *options;
    struct dk_endpoint endpoint;
    struct dk_identity identity; /* constant once opened */
    struct worker_links links;
    struct worker_plan plan; /* being loaded or served; epoch 0: none */
    struct worker_model model;
    struct loader loader;
    struct step step;
    struct dk_err plan_err; /* why the plan could not even be begun */
    struct dk_arena arena;
    struct dk_mailbox *orders, *news;
    struct engine_news *unsent; /* a result that the mailbox had no room for */
    bool result_owed;           /* the control actor waits for a result that could not be made */
    uint64_t report_due_us;
    struct dk_loop_poll loop;
};

/* Opens the data plane; the calling thread becomes its thread. */
int worker_engine_open(struct worker_engine *e, const struct worker_options *o, const struct dk_net_ops *net_ops,
                       struct dk_mailbox *news, struct dk_err *err);
void worker_engine_close(struct worker_engine *e);

/* The same as a node's engine, but for open, which needs to know the net back end; its ctx is a struct worker_engine.
 */
extern const struct dk_node_engine worker_engine_ops;

#endif
