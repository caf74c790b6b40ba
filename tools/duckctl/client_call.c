/* SPDX-License-Identifier: Apache-2.0 */
/* Calls whose wait Ctrl-C ends. A call that was given up lives on until its answer or its end comes, on a thread of the
 * control plane: its state belongs to both sides, and the last one frees it. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "duckctl/duckctl.h"

#define SLICE_US 50000u
#define GRACE_US 300000u /* after Ctrl-C, for an answer that is on its way: it may tell what has to be undone */

struct pending_call {
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t ended; /* on CLOCK_MONOTONIC */
    unsigned users;       /* the waiting side and the answering one */
    bool end;
    int rc;
    ProtobufCMessage *reply;
    struct dk_err err;
};

static struct pending_call *pending_alloc(void)
{
    struct pending_call *p = calloc(1, sizeof *p);
    pthread_condattr_t clock;

    if (!p)
        return NULL;
    p->users = 2;
    pthread_mutex_init(&p->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&p->ended, &clock);
    pthread_condattr_destroy(&clock);
    return p;
}

/* Called with the lock held, which it gives back. */
static void pending_drop(struct pending_call *p)
{
    bool last = --p->users == 0;

    pthread_mutex_unlock(&p->lock);
    if (!last)
        return;
    if (p->reply)
        protobuf_c_message_free_unpacked(p->reply, NULL);
    pthread_cond_destroy(&p->ended);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

static void on_done(void *ctx, int rc, ProtobufCMessage *reply, const struct dk_err *err)
{
    struct pending_call *p = ctx;

    pthread_mutex_lock(&p->lock);
    p->end = true;
    p->rc = rc;
    p->reply = reply;
    if (rc < 0)
        p->err = *err;
    pthread_cond_signal(&p->ended);
    pending_drop(p);
}

/* With the lock held. False: given up after Ctrl-C. */
static bool wait_end(struct pending_call *p)
{
    uint64_t given_up_us = 0;

    while (!p->end) {
        uint64_t now_us = dk_now_us(), next_us = now_us + SLICE_US;
        struct timespec next = {.tv_sec = (time_t)(next_us / 1000000), .tv_nsec = (long)(next_us % 1000000 * 1000)};

        if (interrupted && !given_up_us)
            given_up_us = now_us + GRACE_US;
        if (given_up_us && now_us >= given_up_us)
            return false;
        pthread_cond_timedwait(&p->ended, &p->lock, &next);
    }
    return true;
}

int service_call(struct dk_rpc_client *c, const ProtobufCServiceDescriptor *service, const char *method,
                 const ProtobufCMessage *request, uint32_t timeout_ms, ProtobufCMessage **reply, struct dk_err *err)
{
    struct pending_call *p;
    int rc;

    *reply = NULL;
    if (interrupted)
        return dk_err_set(err, -EINTR, "interrupted");
    p = pending_alloc();
    if (!p)
        return dk_err_set(err, -ENOMEM, "no memory for a call");
    rc = dk_rpc_call_start(c, service, method, request, timeout_ms, on_done, p, err);
    pthread_mutex_lock(&p->lock);
    if (rc < 0) { /* on_done never comes */
        p->users--;
    } else if (!wait_end(p)) {
        rc = dk_err_set(err, -EINTR, "interrupted while waiting for the answer to %s", method);
    } else {
        rc = p->rc;
        *reply = p->reply;
        p->reply = NULL;
        if (rc < 0 && err)
            *err = p->err;
    }
    pending_drop(p);
    return rc;
}

int client_call(struct dk_rpc_client *c, const char *method, const ProtobufCMessage *request, uint32_t timeout_ms,
                ProtobufCMessage **reply, struct dk_err *err)
{
    return service_call(c, &dk__client__descriptor, method, request, timeout_ms, reply, err);
}
