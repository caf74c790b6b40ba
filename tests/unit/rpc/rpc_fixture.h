/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_RPC_FIXTURE_H
#define DK_RPC_FIXTURE_H

#include <pthread.h>
#include <stdbool.h>

#include "net/net.h"
#include "rpc/rpc.h"
#include "wire/wire.h"

/* A server of the Client service that answers Detokenize with the text "<number of ids>", holds GetStatus until
 * fixture_release, and counts. Everything is opened inside the test: NNG is not fork-safe. */
struct fixture {
    struct dk_rpc_server *server;
    struct dk_rpc_client *client;
    char url[128];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t runs, held_count;
    struct dk_rpc_call *held[64];
};

void fixture_url(char url[128], const char *scheme); /* a free tcp port of the loopback, or a fresh ipc path */
void fixture_open(struct fixture *f, const char *scheme);
void fixture_listen(struct fixture *f);
void fixture_close(struct fixture *f);
void fixture_wait_held(struct fixture *f, uint32_t count); /* until GetStatus was called so many times */
void fixture_release(struct fixture *f);                   /* answers every held call with READY */

/* Calls Detokenize with `ids` numbers; returns the rc and checks a good answer. */
int fixture_detokenize(struct dk_rpc_client *c, size_t ids, uint32_t timeout_ms, struct dk_err *err);

/* A call in progress. */
struct outcome {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t ended;
    int rc;
    char text[500];
};
void outcome_init(struct outcome *o);
void outcome_wait(struct outcome *o, uint32_t ended);
void outcome_done(void *ctx, int rc, ProtobufCMessage *reply, const struct dk_err *err);
int fixture_get_status(struct dk_rpc_client *c, uint32_t timeout_ms, struct outcome *o);

#endif
