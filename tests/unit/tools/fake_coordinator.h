/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAKE_COORDINATOR_H
#define FAKE_COORDINATOR_H

#include "rpc/rpc.h"

/* A coordinator that does what a test says. Made inside the test: NNG's threads do not survive a fork. */
struct fake {
    char url[64];
    struct dk_rpc_server *server;
    /* On a thread of the control plane, one call at a time. number: how many calls of that method came before. Answers
     * the call, or hands it to fake_keep. */
    void (*on_call)(struct fake *f, struct dk_rpc_call *call, const char *method, int number);
    struct {
        char method[32];
        int calls;
    } seen[8];
    struct dk_rpc_call *kept[8];
    int kept_count;
};

void fake_open(struct fake *f,
               void (*on_call)(struct fake *f, struct dk_rpc_call *call, const char *method, int number));
/* Ends the kept calls too. */
void fake_close(struct fake *f);
/* Inside on_call: the call is answered later. */
void fake_keep(struct fake *f, struct dk_rpc_call *call);
/* Of the kept calls, the first; the caller ends it. */
struct dk_rpc_call *fake_take(struct fake *f);
int fake_calls(struct fake *f, const char *method);

#endif
