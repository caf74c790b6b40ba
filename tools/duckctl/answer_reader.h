/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCKCTL_ANSWER_READER_H
#define DUCKCTL_ANSWER_READER_H

#include "duckctl/duckctl.h"

/* Reads the events of a sequence, tells a person what is waited for, and cancels it on Ctrl-C. */

struct answer_sink {
    /* 1: that was the last event; 0; negative: err, and the sequence is cancelled. */
    int (*event)(void *ctx, const Dk__Event *e, struct dk_err *err);
    bool (*in_line)(void *ctx); /* standard output has a line without an end; NULL: never */
    void *ctx;
    bool quiet; /* nothing is told on stderr */
};

/* 0: the last event came; -EINTR after Ctrl-C: the sequence was cancelled; or what the calls, the sink and a finish
 * with ERROR gave. */
int answer_read(struct dk_rpc_client *c, uint64_t handle, const struct answer_sink *sink, struct dk_err *err);
/* The same if rc, of what was made ready for the answer, is 0; otherwise cancels the sequence and returns rc. */
int answer_take(struct dk_rpc_client *c, uint64_t handle, int rc, const struct answer_sink *sink, struct dk_err *err);
/* A second Ctrl-C ends this too. */
int answer_cancel(struct dk_rpc_client *c, uint64_t handle);

#endif
