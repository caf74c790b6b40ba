/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCKCTL_SCORE_TABLE_H
#define DUCKCTL_SCORE_TABLE_H

#include "duckctl/duckctl.h"

/* Collects the scores of a prompt, and prints them as a table or as JSON. */
struct score_table {
    const Dk__SubmitReply *submitted; /* the caller's */
    Dk__TokenScore **scores;          /* owned; of positions 1, 2, ... */
    size_t count;
    double nll; /* negative log-likelihood: minus the sum of the log-probabilities, in nats */
    Dk__FinishReason finish;
    Dk__GenerationStats stats;
};

/* -ENOMEM. */
int score_table_open(struct score_table *t, const Dk__SubmitReply *submitted, struct dk_err *err);
void score_table_close(struct score_table *t);
/* 1: that was the last event; 0; -EBADMSG: more scores than positions; -ENOMEM. */
int score_table_event(struct score_table *t, const Dk__Event *e, struct dk_err *err);
/* -EBADMSG: not every position has its score. */
int score_table_check(const struct score_table *t, struct dk_err *err);
/* Asks c for the tokens' texts. Errors of those calls, and of standard output. */
int score_table_print(const struct score_table *t, struct dk_rpc_client *c, struct dk_err *err);
json_t *score_table_json(const struct score_table *t); /* a new reference */

#endif
