/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKER_LOADER_H
#define WORKER_LOADER_H

#include "attention-worker/links.h"
#include "attention-worker/model.h"
#include "attention-worker/plan_slots.h"

/* Feeds the ducks of a plan with their slices of the feed-forward weights, piece by piece, a few pieces in flight per
 * duck. A piece is gathered from the checkpoint when it is sent. */

#define LOADER_IN_FLIGHT 2u

/* The place of a piece: rows of a layer's expert in the slot's slice. */
struct loader_cursor {
    uint32_t layer, expert, row;
};

struct loader_piece {
    bool busy;
    struct loader_cursor place;
    uint64_t request_id;
    uint64_t weight_bytes; /* for progress */
    uint64_t later_bytes;  /* of later pieces acknowledged since it was sent: sent again if it is */
    uint8_t *buffer;       /* [piece_bytes_max] header, then payload */
};

struct loader_slot {
    struct loader_cursor next; /* to be sent */
    bool all_sent;
    struct loader_piece pieces[LOADER_IN_FLIGHT];
};

enum loader_state {
    LOADER_IDLE,    /* no plan */
    LOADER_FEEDING, /* pieces are under way */
    LOADER_READY,   /* every duck of the plan holds its slices */
    LOADER_FAILED   /* err says why; the plan is not tried again */
};

struct loader {
    enum loader_state state;
    struct worker_plan plan;
    const struct worker_model *model;
    struct worker_links *links;
    struct loader_slot slots[PLAN_SLOTS_MAX];
    uint64_t bytes_done, bytes_total;
    struct dk_err err;
};

/* Begins feeding. model is open and stays so. -ENOMEM, -EINVAL through err; the state is then FAILED. */
int loader_begin(struct loader *l, const struct worker_plan *plan, const struct worker_model *model,
                 struct worker_links *links);
void loader_stop(struct loader *l); /* back to IDLE; outstanding pieces are forgotten */

/* Sends what can be sent. True: sent something. */
bool loader_poll(struct loader *l, uint64_t now_us);
/* A response or failure from a peer; -ENOENT: not one of the loader's. */
int loader_on_event(struct loader *l, const struct dk_transport_event *event, struct dk_arena *arena);
/* The link of a duck was made anew: what it has not acknowledged is sent again. */
void loader_on_link_lost(struct loader *l, uint32_t member_index);

#endif
