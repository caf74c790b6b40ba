/* SPDX-License-Identifier: Apache-2.0 */
#include "coordinator/coordinator_internal.h"

/* Waiting calls are looked at after every message and tick; each knows how to be answered, and must be at its deadline.
 * The table has two places more than parked_max: one is the worker's, which would ask again without a pause if it could
 * not wait; the call in the other has no time to wait, so it is free again at the end of the same message. */

/* The worker's call, of which there is one, does not count. */
static bool full(const struct dk_coordinator *c)
{
    uint32_t clients = 0;

    for (uint32_t i = 0; i < c->parked_count; i++)
        clients += c->parked[i].kind != DK_PARKED_NEXT_STEP;
    return clients >= c->options.parked_max;
}

void dk_park(struct dk_coordinator *c, struct dk_parked *p, uint32_t wait_ms)
{
    uint64_t wait_us = 1000ull * (wait_ms < DK_WAIT_MS_MAX ? wait_ms : DK_WAIT_MS_MAX);

    p->since_us = c->now_us;
    p->deadline_us = p->kind == DK_PARKED_NEXT_STEP || !full(c) ? c->now_us + wait_us : c->now_us;
    c->parked[c->parked_count++] = *p;
    if (p->kind == DK_PARKED_READ)
        dk_sequence_find(c, p->sequence_id)->readers_parked++;
}

/* Takes one entry out, keeping the order of the others. */
static struct dk_parked unpark(struct dk_coordinator *c, uint32_t i)
{
    struct dk_parked p = c->parked[i];

    c->parked_count--;
    for (; i < c->parked_count; i++)
        c->parked[i] = c->parked[i + 1];
    if (p.kind == DK_PARKED_READ) {
        struct dk_sequence *s = dk_sequence_find(c, p.sequence_id);

        if (s) {
            s->readers_parked--;
            s->contact_us = c->now_us;
        }
    }
    return p;
}

static bool serve(struct dk_coordinator *c, const struct dk_parked *p, bool late, struct dk_outbox *out)
{
    switch (p->kind) {
    case DK_PARKED_READ:
        return dk_read_serve(c, p, late, out);
    case DK_PARKED_NEXT_STEP:
        return dk_next_step_serve(c, p, late, out);
    default:
        return dk_status_serve(c, p, late, out);
    }
}

void dk_parked_serve(struct dk_coordinator *c, struct dk_outbox *out)
{
    for (uint32_t i = 0; i < c->parked_count;) {
        if (serve(c, &c->parked[i], c->parked[i].deadline_us <= c->now_us, out))
            unpark(c, i);
        else
            i++;
    }
}

void dk_parked_drop_next_step(struct dk_coordinator *c, struct dk_outbox *out)
{
    for (uint32_t i = 0; i < c->parked_count;) {
        if (c->parked[i].kind == DK_PARKED_NEXT_STEP)
            dk_outbox_reply(out, unpark(c, i).call, dk_message_new(&dk__next_step_reply__descriptor));
        else
            i++;
    }
}
