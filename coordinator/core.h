/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_COORDINATOR_CORE_H
#define DK_COORDINATOR_CORE_H

#include "coordinator/outbox.h"
#include "model/chat.h"
#include "model/config.h"
#include "model/tokenizer.h"
#include "wire/wire.h"

/* The coordinator without clock, sockets and threads: calls and the time go in, replies come out. One thread. The shell
 * (shell.h) runs it behind the control plane; a simulator can run it just as well. */

struct dk_coordinator;

/* What the coordinator needs of a model's folder. */
struct dk_served_model {
    struct dk_model_config config;
    struct dk_generation_config generation;
    enum dk_chat_format chat;
    struct dk_tokenizer *tokenizer; /* owned */
    uint64_t model_id;              /* as the checkpoint says; not 0 */
};

/* Reads a folder, and is the only thing that the core does with files. */
struct dk_model_source {
    int (*open)(void *ctx, const char *dir, struct dk_served_model *out, struct dk_err *err);
    void *ctx;
};

extern const struct dk_model_source dk_model_source_files; /* the real one: model_source.c */

struct dk_coordinator_options {
    uint32_t step_rows;   /* most rows of a step; larger than running_max, so that prompts always get on */
    uint32_t running_max; /* most sequences in steps at a time */
    uint32_t queue_max;   /* most sequences that wait for that */
    uint32_t parked_max; /* most calls of clients that wait for something; further ones are answered at once. Fewer than
                          * the control plane takes at a time, so that heartbeats always get through. The worker's call
                          * has a place of its own */
    const char *version; /* of the program; nodes of another one are refused. Must outlive the coordinator */
    uint64_t epoch_base; /* smaller than every plan epoch: milliseconds of the wall clock at start, so that a
                          * restarted coordinator goes on with larger ones */
    uint64_t seed;       /* of handles and of the sampling seeds that clients leave out */
    struct dk_model_source source;
};

/* Fills in the defaults of the numbers. */
void dk_coordinator_options_init(struct dk_coordinator_options *o);

/* -EINVAL: the options contradict each other; -ENOMEM. */
int dk_coordinator_open(const struct dk_coordinator_options *o, uint64_t now_us, struct dk_coordinator **out,
                        struct dk_err *err);
/* Calls that wait are dropped without an answer: dk_coordinator_end() before. */
void dk_coordinator_close(struct dk_coordinator *c);

/* One call. call: names it in the outbox; opaque, not NULL. request: any input message of the services Client,
 * Membership and Attention; its type says which method is meant. It is only read inside. The answer to this call may
 * come now, with any later call of this function, or with a tick; each call is answered exactly once. */
void dk_coordinator_handle(struct dk_coordinator *c, void *call, const ProtobufCMessage *request, uint64_t now_us,
                           struct dk_outbox *out);
/* Everything that happens by time alone. To be called at dk_coordinator_deadline() or earlier. */
void dk_coordinator_tick(struct dk_coordinator *c, uint64_t now_us, struct dk_outbox *out);
uint64_t dk_coordinator_deadline(const struct dk_coordinator *c);
/* Answers all calls that wait with UNAVAILABLE, and from now on each new one too. */
void dk_coordinator_end(struct dk_coordinator *c, struct dk_outbox *out);

#endif
