/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_NODE_H
#define DK_NODE_H

#include "endpoint/endpoint.h"
#include "node/node_call.h"
#include "node/node_options.h"

/* What attention-worker and duck-firmware have in common: an engine thread that owns the data plane, and on the main
 * thread a control actor that tells the coordinator about the node and hands what it answers to the engine. */

struct dk_node;

/* The engine's thread calls open, run and close; the control actor calls stop. */
struct dk_node_engine {
    int (*open)(void *ctx, struct dk_mailbox *news, struct dk_err *err);
    void (*run)(void *ctx); /* until stop */
    void (*stop)(void *ctx);
    void (*close)(void *ctx);                         /* fine after a failed open */
    const struct dk_identity *(*identity)(void *ctx); /* constant once opened */
};

/* The control actor's own part, all on its thread. */
struct dk_node_control {
    Dk__NodeKind kind;
    /* Adds what the node holds and has counted. What it points to must live until the next call. */
    void (*fill)(void *ctx, Dk__NodeInfo *node, Dk__HeartbeatRequest *request);
    void (*on_reply)(void *ctx, const Dk__HeartbeatReply *reply);
    void (*on_news)(void *ctx, void *news, uint64_t now_us); /* from the engine; frees it */
    void (*free_news)(void *news);                           /* those left at the end */
    void (*on_turn)(void *ctx, uint64_t now_us);             /* after each batch; may be NULL */
    void (*on_start)(void *ctx, uint64_t now_us);            /* the engine is open; may be NULL */
};

struct dk_node {
    const struct dk_node_options *options;
    const struct dk_node_engine *engine;
    const struct dk_node_control *control;
    void *engine_ctx, *control_ctx;
    struct dk_loop_ev *loop;
    struct dk_rpc_client *client;
    struct dk_node_call heartbeat;
    struct dk_timer beat;
    uint64_t interval_us;
    char host[64];
};

/* Runs the node until SIGINT or SIGTERM, then says goodbye to the coordinator. 0, or why it could not start. */
int dk_node_run(struct dk_node *n, const struct dk_control_ops *plane, const struct dk_node_options *options,
                const struct dk_node_engine *engine, void *engine_ctx, const struct dk_node_control *control,
                void *control_ctx, struct dk_err *err);

/* Sends the next heartbeat at once: something has changed that the cluster waits for. */
void dk_node_beat_now(struct dk_node *n, uint64_t now_us);

/* The rest of a program's main: --help, --version, logging, signals. help prints the options. 2 wrong usage, -1: go on.
 */
int dk_node_begin(const char *program, const struct dk_node_options *o, int parse_rc, const struct dk_err *err,
                  void (*help)(void));

#endif
