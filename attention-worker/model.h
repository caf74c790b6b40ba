/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKER_MODEL_H
#define WORKER_MODEL_H

#include "attention-worker/cache.h"
#include "attention-worker/family/family.h"
#include "attention-worker/options.h"
#include "attention-worker/plan_slots.h"

/* A model as the worker holds it: checkpoint, back end with the attention weights, caches. */
struct worker_model {
    char dir[512];
    uint64_t id;          /* dk_checkpoint_id */
    uint64_t files_stamp; /* changes when a file in dir does */
    uint32_t context, rows_max, sequences_max;
    bool full_attention;
    uint64_t cache_tokens; /* places in the cache */
    struct dk_model_config config;
    struct dk_checkpoint *checkpoint;
    const struct dk_backend_ops *backend_ops;
    struct dk_backend *backend;
    const struct dk_family_ops *family;
    struct dk_family_model *layers;
    struct dk_cache *cache;
};

/* Opens plan->model_dir. err names file and field. */
int worker_model_open(struct worker_model *m, const struct worker_plan *plan, const struct worker_options *o,
                      struct dk_err *err);
void worker_model_close(struct worker_model *m); /* fine on a zeroed or half-open one */
/* Whether this open model serves the plan as it is: the same folder with the same files in it. */
bool worker_model_serves(const struct worker_model *m, const struct worker_plan *plan);

#endif
