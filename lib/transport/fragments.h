/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_TRANSPORT_FRAGMENTS_H
#define DK_TRANSPORT_FRAGMENTS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "transport/datagram.h"

/* Which fragments of one message have been sent, have come, are missing. Fragments at most DK_RANGE_FRAGMENTS beyond
 * the first missing one are tracked, in a ring of bits, so that the state is small whatever the message's length. */

struct dk_fragment_set {
    uint64_t words[DK_RANGE_FRAGMENTS / 64]; /* fragment i is bit i % DK_RANGE_FRAGMENTS */
};

enum { DK_PARTS_MAX = 4, DK_REORDER_FRAGMENTS = 3 };

/* A message being sent. Fragments below cumulative are acknowledged, those from next on were never sent. */
struct dk_outgoing {
    struct iovec parts[DK_PARTS_MAX];
    int part_count;
    uint32_t bytes, fragment_bytes, count;
    uint32_t cumulative, next;
    uint32_t in_flight; /* sent, not acknowledged */
    uint32_t resend_count;
    struct dk_fragment_set acked, resend;
};

/* A message being received. count 0: nothing has come yet. */
struct dk_incoming {
    uint32_t bytes, fragment_bytes, count;
    uint32_t cumulative, highest;   /* as in an ack */
    uint32_t received;              /* different fragments */
    uint32_t grant;                 /* the sender may send below; requests are not limited by it */
    uint32_t gap_checked;           /* gaps below it have been asked for once */
    uint32_t nack_from, nack_below; /* to go into the next ack */
    uint32_t buffer;
    struct dk_fragment_set got;
};

/* parts: total bytes > 0, checked by the caller. */
void dk_outgoing_init(struct dk_outgoing *o, const struct iovec *parts, int part_count, uint32_t bytes,
                      uint32_t fragment_bytes);
/* As if nothing had been sent. */
void dk_outgoing_restart(struct dk_outgoing *o);
/* All fragments are there. */
void dk_outgoing_finish(struct dk_outgoing *o);
/* A never-sent fragment may go out as far as the ring of bits is concerned. */
bool dk_outgoing_has_new(const struct dk_outgoing *o);
/* Takes the next fragment to send again, which must exist. */
uint32_t dk_outgoing_pop_resend(struct dk_outgoing *o);
/* Takes in an ack; returns how many fragments it acknowledged newly. nack: also mark what it asks for. */
uint32_t dk_outgoing_ack(struct dk_outgoing *o, const struct dk_datagram *d, bool nack);
/* Marks all sent and unacknowledged fragments below `below` for sending again; returns how many are newly marked. */
uint32_t dk_outgoing_resend_below(struct dk_outgoing *o, uint32_t below);
/* Marks the last sent unacknowledged fragment for sending again: its ack shows all that is missing before it. */
void dk_outgoing_resend_last(struct dk_outgoing *o);
/* Copies the fragment's bytes; returns how many. */
uint32_t dk_outgoing_copy(const struct dk_outgoing *o, uint32_t fragment, uint8_t *to);

enum dk_fragment_verdict {
    DK_FRAGMENT_NEW,
    DK_FRAGMENT_DUPLICATE,
    DK_FRAGMENT_BAD, /* not of the message that the earlier ones belong to, or too far ahead */
};
/* Takes note of a data fragment; the first one sets the message's length. *reordered: an earlier one is missing. */
enum dk_fragment_verdict dk_incoming_take(struct dk_incoming *in, const struct dk_datagram *d, bool *reordered);
static inline bool dk_incoming_complete(const struct dk_incoming *in)
{
    return in->count > 0 && in->cumulative == in->count;
}
/* Looks for gaps that DK_REORDER_FRAGMENTS later fragments have passed by, each once. True: the next ack asks. */
bool dk_incoming_find_gap(struct dk_incoming *in);
/* The next ack asks for everything missing below `below`. */
void dk_incoming_ask(struct dk_incoming *in, uint32_t below);
/* Writes the ack's payload and returns its length; what was to be asked is asked then. */
uint32_t dk_incoming_write_ack(struct dk_incoming *in, uint8_t *payload);

#endif
