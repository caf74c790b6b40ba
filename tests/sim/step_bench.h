/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_TESTS_STEP_BENCH_H
#define DK_TESTS_STEP_BENCH_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "cluster_rig.h"
#include "golden_file.h"

/* A small model on the engine and two ducks, with the golden tokens of its prompt "short". */

enum { BENCH_CONTEXT = 96, BENCH_SEQUENCES = 4, BENCH_ROWS = 48 };

struct bench {
    struct cluster c;
    const char *model;
    uint32_t *prompt, *golden, count, golden_count;
    struct dk_err err;
};

static inline void bench_quiet(void *ctx, enum dk_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    (void)line;
}

/* Connected, not loaded. model: the folder; kept. */
static inline void bench_begin(struct bench *b, const char *model)
{
    char path[300];
    json_t *golden;
    const json_t *prompt;

    memset(b, 0, sizeof *b);
    b->model = model;
    snprintf(path, sizeof path, "%s/golden/golden.json", model);
    golden = golden_json(path);
    prompt = json_object_get(json_object_get(golden, "prompts"), "short");
    dk_log_setup(bench_quiet, NULL, DK_LOG_ERROR, "test");
    b->prompt = golden_ids(prompt, "ids", &b->count);
    b->golden = golden_ids(prompt, "greedy_ids", &b->golden_count);
    json_decref(golden);
    cr_assert_eq(cluster_open(&b->c, 2, NULL, &b->err), 0, "%s", b->err.text);
}

static inline void bench_load(struct bench *b)
{
    cr_assert_eq(cluster_load(&b->c, b->model, 32, &b->err), 0, "%s", b->err.text);
    cr_assert(b->c.plan.rows_max == BENCH_ROWS && b->c.plan.sequences_max == BENCH_SEQUENCES &&
              b->c.plan.context == BENCH_CONTEXT);
}

static inline void bench_open(struct bench *b, const char *model)
{
    bench_begin(b, model);
    bench_load(b);
}

static inline void bench_close(struct bench *b)
{
    cluster_close(&b->c);
    free(b->prompt);
    free(b->golden);
}

static inline uint32_t bench_layers(const struct bench *b)
{
    return b->c.worker.model.config.layers;
}

/* Runs a step to its end; the result is freed with dk__step_result__free_unpacked. */
static inline Dk__StepResult *bench_run(struct bench *b, Dk__NextStepReply *step)
{
    Dk__StepResult *r = cluster_step(&b->c, step);

    cr_assert_not_null(r);
    return r;
}

static inline void bench_release(Dk__NextStepReply *step, uint64_t id)
{
    step->step->released = realloc(step->step->released, (step->step->n_released + 1) * sizeof(uint64_t));
    step->step->released[step->step->n_released++] = id;
}

static inline void check_error(const Dk__StepResult *r, size_t i, Dk__Code code, const char *part)
{
    cr_assert_null(r->error);
    cr_assert_not_null(r->sequences[i]->error, "sequence %zu went on", i);
    cr_assert_eq(r->sequences[i]->error->code, code, "%s: %s", dk_code_name(r->sequences[i]->error->code),
                 r->sequences[i]->error->text);
    cr_assert(strstr(r->sequences[i]->error->text, part), "%s", r->sequences[i]->error->text);
    cr_assert_not(r->sequences[i]->has_token);
    cr_assert_not(r->sequences[i]->has_logits);
}

static inline void check_token(const Dk__StepResult *r, size_t i, uint32_t token)
{
    cr_assert_null(r->error);
    cr_assert_null(r->sequences[i]->error);
    cr_assert(r->sequences[i]->has_token);
    cr_assert_eq(r->sequences[i]->token, token, "%u, wanted %u", r->sequences[i]->token, token);
}

/* A step of one sequence with a good end. */
static inline void bench_expect(struct bench *b, uint64_t id, uint32_t position, const uint32_t *tokens, uint32_t count,
                                uint32_t expected)
{
    Dk__NextStepReply *step = cluster_step_new(&b->c, 1);
    Dk__StepResult *r;

    cluster_step_add(step, id, position, tokens, count);
    r = bench_run(b, step);
    check_token(r, 0, expected);
    dk__step_result__free_unpacked(r, NULL);
}

/* The engine still does what it did. */
static inline void check_usable(struct bench *b, uint64_t id)
{
    uint32_t tokens[3];
    struct dk_err err = {0};
    Dk__NextStepReply *last;

    cr_assert_eq(cluster_generate(&b->c, id, b->prompt, b->count, 3, tokens, NULL, &err), 0, "%s", err.text);
    cr_assert_eq(memcmp(tokens, b->golden, sizeof tokens), 0);
    last = cluster_step_new(&b->c, 0);
    bench_release(last, id);
    dk__step_result__free_unpacked(bench_run(b, last), NULL);
}

/* Hook for c.on_request; ctx: a struct bench_refusal. The duck answers its at-th request with an error. */
struct bench_refusal {
    uint32_t duck, at, seen;
};

static inline enum cluster_verdict bench_refuse_once(void *ctx, struct cluster *c, uint32_t duck, const uint8_t *data,
                                                     size_t bytes, struct duck_answer *a)
{
    struct bench_refusal *f = ctx;
    Dk__DataReply reply = DK__DATA_REPLY__INIT;
    Dk__Status status = DK__STATUS__INIT;

    (void)data;
    (void)bytes;
    if (duck != f->duck || ++f->seen != f->at)
        return CLUSTER_HANDLE;
    status.code = DK__CODE__INTERNAL;
    status.text = "a feather in the works";
    reply.plan_epoch = c->plan.epoch;
    reply.result_case = DK__DATA_REPLY__RESULT_ERROR;
    reply.error = &status;
    a->header_bytes = (size_t)dk_data_pack(&reply.base, a->header, sizeof a->header);
    return CLUSTER_MINE;
}

#endif
