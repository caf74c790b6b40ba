/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKER_PLAN_SLOTS_H
#define WORKER_PLAN_SLOTS_H

#include <stdbool.h>
#include <stdint.h>

#include "plan/plan.h"

/* A plan as the engine keeps it: plain values copied from the message. */

#define PLAN_SLOTS_MAX DK_PLAN_DUCKS_MAX

struct plan_slot {
    char duck[64];
    uint32_t member_index, instance;
};

struct worker_plan {
    uint64_t epoch; /* 0: none */
    uint64_t model_id;
    char model_dir[DK_MODEL_DIR_MAX + 1], backend[16];
    uint32_t multiple_of, context;
    bool full_attention;    /* models with an indexer: every position instead of the selected ones */
    uint32_t rows_max;      /* of a step */
    uint32_t sequences_max; /* in the cache at a time */
    uint32_t slot_count;
    struct plan_slot slots[PLAN_SLOTS_MAX];
};

#endif
