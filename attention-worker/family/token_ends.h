/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_TOKEN_ENDS_H
#define DK_TOKEN_ENDS_H

#include "attention-worker/family/piece.h"

/* Where tokens go in and logits come out: embedding, final norm, head (perhaps tied to the embedding). */

struct dk_token_ends {
    struct dk_weight *table, *norm, *head;
    struct dk_rows chosen; /* [rows][hidden] the head's input */
};

int dk_token_ends_take(struct dk_piece_context *c, struct dk_token_ends *e, struct dk_err *err);
int dk_token_ends_load(struct dk_piece_context *c, struct dk_token_ends *e, struct dk_err *err);
/* x = embedding of the batch's tokens. */
void dk_token_ends_embed(const struct dk_piece_context *c, const struct dk_token_ends *e);
/* logits [count][vocab] on the host, of chosen rows of x. */
void dk_token_ends_head(const struct dk_piece_context *c, const struct dk_token_ends *e, const uint32_t *rows,
                        uint32_t count, float *logits);
/* h = the final norm of every row: what the head sees, for the trace. */
void dk_token_ends_norm(const struct dk_piece_context *c, const struct dk_token_ends *e);

#endif
