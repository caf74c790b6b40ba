/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "coordinator/coordinator_internal.h"

/* What a load waits for when it does not get on, in words that name the way out. A text holds no number that changes by
 * itself: it is logged when it changes. */

static const char *port_name(Dk__PortKind kind)
{
    return kind == DK__PORT_KIND__VHOST ? "vhost" : kind == DK__PORT_KIND__AF_PACKET ? "af_packet" : "sim";
}

/* True: it has been so without a break, in this epoch, for longer than a link needs to come up. */
static bool lasts(struct dk_coordinator *c, struct dk_member *duck, bool bad)
{
    if (!bad || duck->link_epoch != c->plan->epoch)
        duck->link_us = c->now_us;
    duck->link_epoch = c->plan->epoch;
    return bad && c->now_us - duck->link_us > DK_LINK_WAIT_US;
}

static void say_silent(const struct dk_member *worker, const struct dk_member *duck, const Dk__DuckLink *link,
                       char *text, size_t room)
{
    const char *name = duck->beat->node->name;
    const Dk__TransportCounters *t = duck->beat->transport;

    if (worker->beat->node->port_kind == DK__PORT_KIND__VHOST)
        snprintf(text, room,
                 "duck '%s' does not answer the attention-worker: frames do not pass between the two; check that both "
                 "run on one host and may use the socket %s (its duck says in its log why not), or start both with "
                 "--port af_packet",
                 name, link->socket_path ? link->socket_path : "of the worker");
    else if (t && t->frames_received)
        snprintf(text, room,
                 "duck '%s' receives frames of the attention-worker, but no answer has come back: if this lasts, "
                 "frames do not pass between the two in both directions, or large ones do not; check the interface, "
                 "its MTU and the firewall on both hosts",
                 name);
    else
        snprintf(text, room,
                 "duck '%s' does not answer the attention-worker: frames do not pass between the two; check the "
                 "interface, its MTU and the firewall on both hosts",
                 name);
}

/* Looks at the link of one slot; false: nothing is wrong with it. */
static bool look_at_link(struct dk_coordinator *c, const struct dk_member *worker, const Dk__PlanSlot *slot, char *text,
                         size_t room)
{
    struct dk_member *duck = dk_member_find(c, slot->duck);
    const Dk__DuckLink *link = dk_member_link(worker, duck);
    Dk__PortKind here = worker->beat->node->port_kind, there = duck->beat->node->port_kind;
    bool ready = link && link->port_ready;
    /* Nobody sends anything to a duck that has no part. */
    bool silent = ready && slot->unit_end > slot->unit_begin && link->has_alive && !link->alive;
    bool late = lasts(c, duck, !ready || silent);

    if (here != there) {
        snprintf(text, room,
                 "duck '%s' was started with --port %s, the attention-worker with --port %s: start both "
                 "with the same",
                 slot->duck, port_name(there), port_name(here));
        return true;
    }
    if (!late)
        return false;
    if (ready)
        say_silent(worker, duck, link, text, room);
    else
        snprintf(text, room, "the attention-worker has not opened its side of the link to duck '%s': its log says why",
                 slot->duck);
    return true;
}

void dk_load_wait(struct dk_coordinator *c, const struct dk_member *worker, bool feeding, char *text, size_t room)
{
    bool found = false;

    text[0] = 0;
    if (!feeding) {
        /* While it reads, it does not look at its links. */
        if (c->now_us - c->epoch_us > DK_LINK_WAIT_US)
            snprintf(text, room, "waiting for the attention-worker '%s' to read its own part of the model",
                     worker->beat->node->name);
        return;
    }
    for (size_t i = 0; i < c->plan->n_slots; i++) {
        char one[sizeof c->error_text];

        if (look_at_link(c, worker, c->plan->slots[i], one, sizeof one) && !found) {
            found = true;
            snprintf(text, room, "%s", one);
        }
    }
}
