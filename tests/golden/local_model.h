/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LOCAL_MODEL_H
#define LOCAL_MODEL_H

#include "attention-worker/cache.h"
#include "attention-worker/family/family.h"
#include "kernel/kernel.h"

/* A whole model in one process, for tests: a family on a back end, and the feed-forward that the ducks would do, on
 * full width with the same kernels and threads. */

struct local_options {
    const char *isa; /* NULL: the best */
    uint32_t threads, rows_max, context, sequences_max;
    uint32_t page_tokens, pages;
    bool full_attention;              /* as in struct dk_family_load */
    const struct dk_backend_ops *ops; /* NULL: dk_backend_cpu */
};

/* 1 thread, 320 rows, 8 sequences of 448 positions, pages of 16. */
struct local_options local_defaults(void);

/* Consecutive rows of one sequence in a step. */
struct local_rows {
    uint64_t sequence_id;
    uint32_t position, count;
    const uint32_t *ids; /* [count] */
};

struct local_model {
    struct local_options options;
    struct dk_model_config config;
    struct dk_backend *backend;
    const struct dk_kernels *kernels;
    struct dk_exec *exec;
    const struct dk_family_ops *family;
    struct dk_family_model *model;
    struct dk_cache *cache;
    struct dk_ffn *ffns; /* [layers][experts_max] */
    uint32_t experts_max;
    float *ffn_in, *ffn_out, *router_logits, *expert_weights;
    int32_t *expert_ids;
    void *moe_scratch;
    uint32_t *ids, *head_rows;
    struct dk_span *spans;
    struct dk_trace_list *list; /* NULL: nobody looks */
    uint32_t list_run;
};

int local_open(struct local_model *m, const char *dir, const struct local_options *o, struct dk_err *err);
void local_close(struct local_model *m); /* a zeroed or half-open one is fine */
/* One step. logits [vocab] of each sequence's last row, or, with all_rows, of every row. Errors of dk_cache_extend. */
int local_step(struct local_model *m, const struct local_rows *runs, uint32_t count, bool all_rows, float *logits);
/* From the next step on: the values inside the layers of all rows of its run number `run` go to list; NULL: no longer.
 */
void local_trace(struct local_model *m, struct dk_trace_list *list, uint32_t run);
/* The feed-forward of a layer alone; ids and weights [rows][top_k], NULL in dense layers. */
void local_ffn(struct local_model *m, uint32_t layer, uint32_t rows, const float *x, const int32_t *ids,
               const float *weights, float *y);

uint32_t local_argmax(const float *logits, uint32_t vocab);
/* Feeds back the most likely token `steps` times: the first one is chosen from *row [vocab], which is overwritten. The
 * sequence holds `position` tokens. out [steps]; logits (may be NULL) [steps][vocab]: what each token was chosen from.
 */
int local_continue(struct local_model *m, uint64_t sequence_id, uint32_t position, float *row, uint32_t steps,
                   uint32_t *out, float *logits);
/* Prefills ids in pieces of `chunk` rows (0: at most rows_max), then local_continue. The sequence is released. */
int local_generate(struct local_model *m, const uint32_t *ids, uint32_t count, uint32_t chunk, uint32_t steps,
                   uint32_t *out, float *logits);

#endif
