/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of the whole engine, against ducks that hold the small MoE model. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "cluster_rig.h"
#include "golden_file.h"

#define MODEL FIXTURES "/qwen3-moe-fp8-tiny"

enum { VOCAB = 1024, LAYERS = 3, CONTEXT = 96, SEQUENCES = 4, ROWS = 48 };

struct bench {
    struct cluster c;
    uint32_t *prompt, *golden, count, golden_count;
    struct dk_err err;
};

static void quiet(void *ctx, enum dk_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    (void)line;
}

static void bench_open(struct bench *b)
{
    json_t *golden = golden_json(MODEL "/golden/golden.json");
    const json_t *prompt = json_object_get(json_object_get(golden, "prompts"), "short");

    memset(b, 0, sizeof *b);
    dk_log_setup(quiet, NULL, DK_LOG_ERROR, "test");
    b->prompt = golden_ids(prompt, "ids", &b->count);
    b->golden = golden_ids(prompt, "greedy_ids", &b->golden_count);
    json_decref(golden);
    cr_assert_eq(cluster_open(&b->c, 2, NULL, &b->err), 0, "%s", b->err.text);
    cr_assert_eq(cluster_load(&b->c, MODEL, 32, &b->err), 0, "%s", b->err.text);
    cr_assert(b->c.plan.rows_max == ROWS && b->c.plan.sequences_max == SEQUENCES && b->c.plan.context == CONTEXT);
}

static void bench_close(struct bench *b)
{
    cluster_close(&b->c);
    free(b->prompt);
    free(b->golden);
}

static Dk__StepResult *run(struct bench *b, Dk__NextStepReply *step)
{
    Dk__StepResult *r = cluster_step(&b->c, step);

    cr_assert_not_null(r);
    return r;
}

static void release(Dk__NextStepReply *step, uint64_t id)
{
    step->step->released = realloc(step->step->released, (step->step->n_released + 1) * sizeof(uint64_t));
    step->step->released[step->step->n_released++] = id;
}

static void check_error(const Dk__StepResult *r, size_t i, Dk__Code code, const char *part)
{
    cr_assert_null(r->error);
    cr_assert_not_null(r->sequences[i]->error, "sequence %zu went on", i);
    cr_assert_eq(r->sequences[i]->error->code, code, "%s: %s", dk_code_name(r->sequences[i]->error->code),
                 r->sequences[i]->error->text);
    cr_assert(strstr(r->sequences[i]->error->text, part), "%s", r->sequences[i]->error->text);
    cr_assert_not(r->sequences[i]->has_token);
    cr_assert_not(r->sequences[i]->has_logits);
}

static void check_token(const Dk__StepResult *r, size_t i, uint32_t token)
{
    cr_assert_null(r->error);
    cr_assert_null(r->sequences[i]->error);
    cr_assert(r->sequences[i]->has_token);
    cr_assert_eq(r->sequences[i]->token, token, "%u, wanted %u", r->sequences[i]->token, token);
}

/* The engine still does what it did. */
static void check_usable(struct bench *b, uint64_t id)
{
    uint32_t tokens[3];
    struct dk_err err = {0};
    Dk__NextStepReply *last;

    cr_assert_eq(cluster_generate(&b->c, id, b->prompt, b->count, 3, tokens, NULL, &err), 0, "%s", err.text);
    cr_assert_eq(memcmp(tokens, b->golden, sizeof tokens), 0);
    last = cluster_step_new(&b->c, 0);
    release(last, id);
    dk__step_result__free_unpacked(run(b, last), NULL);
}

Test(worker_step, sequences_beside_each_other)
{
    struct bench b;
    Dk__NextStepReply *step;
    Dk__StepResult *r;

    bench_open(&b);
    step = cluster_step_new(&b.c, 2);
    cluster_step_add(step, 1, 0, b.prompt, b.count);
    cluster_step_add(step, 2, 0, b.prompt, b.count);
    r = run(&b, step);
    check_token(r, 0, b.golden[0]);
    check_token(r, 1, b.golden[0]);
    cr_assert_eq(r->timing->rows, 2 * b.count);
    cr_assert_eq(r->timing->layer_operations, LAYERS);
    cr_assert_gt(r->timing->weight_bytes, 0);
    dk__step_result__free_unpacked(r, NULL);
    bench_close(&b);
}

/* A wrong sequence ends alone. */
Test(worker_step, wrong_sequences_end_alone)
{
    uint32_t bad_token[2] = {0, VOCAB}, good_token[2] = {1, VOCAB - 1}, long_one[ROWS + 1] = {0};
    struct bench b;
    Dk__NextStepReply *step;
    Dk__StepResult *r;

    bench_open(&b);
    step = cluster_step_new(&b.c, 4);
    cluster_step_add(step, 1, 5, b.prompt, 1); /* the cache holds nothing of it */
    cluster_step_add(step, 2, 0, b.prompt, b.count);
    cluster_step_add(step, 3, 0, bad_token, 2);
    cluster_step_add(step, 4, 0, NULL, 0);
    r = run(&b, step);
    check_error(r, 0, DK__CODE__FAILED_PRECONDITION, "position 5");
    check_token(r, 1, b.golden[0]);
    check_error(r, 2, DK__CODE__INVALID_ARGUMENT, "1024");
    check_error(r, 3, DK__CODE__INVALID_ARGUMENT, "0 tokens");
    cr_assert_eq(r->timing->rows, b.count);
    dk__step_result__free_unpacked(r, NULL);

    step = cluster_step_new(&b.c, 4);
    cluster_step_add(step, 2, b.count + 1, b.golden, 1); /* one too far */
    cluster_step_add(step, 5, 0, good_token, 2);         /* the last token of the vocabulary is one */
    cluster_step_add(step, 6, 0, long_one, ROWS + 1);
    cluster_step_add(step, 7, UINT32_MAX, b.golden, 1);
    r = run(&b, step);
    check_error(r, 0, DK__CODE__FAILED_PRECONDITION, "the cache holds 19");
    cr_assert_null(r->sequences[1]->error);
    check_error(r, 2, DK__CODE__INVALID_ARGUMENT, "49 tokens");
    check_error(r, 3, DK__CODE__FAILED_PRECONDITION, "position");
    dk__step_result__free_unpacked(r, NULL);

    step = cluster_step_new(&b.c, 1); /* the sequence that was refused goes on where it was */
    cluster_step_add(step, 2, b.count, b.golden, 1);
    r = run(&b, step);
    check_token(r, 0, b.golden[1]);
    dk__step_result__free_unpacked(r, NULL);
    bench_close(&b);
}

/* Twice in one step, the second would write where the first reads. */
Test(worker_step, the_same_sequence_twice_is_refused)
{
    struct bench b;
    Dk__NextStepReply *step;
    Dk__StepResult *r;

    bench_open(&b);
    step = cluster_step_new(&b.c, 3);
    cluster_step_add(step, 1, 0, b.prompt, b.count);
    cluster_step_add(step, 1, 0, b.prompt, 1);
    cluster_step_add(step, 1, b.count, b.golden, 1);
    r = run(&b, step);
    check_token(r, 0, b.golden[0]);
    check_error(r, 1, DK__CODE__INVALID_ARGUMENT, "twice");
    check_error(r, 2, DK__CODE__INVALID_ARGUMENT, "twice");
    dk__step_result__free_unpacked(r, NULL);
    check_usable(&b, 9);
    bench_close(&b);
}

Test(worker_step, a_full_cache_refuses_until_something_is_released)
{
    struct bench b;
    Dk__NextStepReply *step;
    Dk__StepResult *r;

    bench_open(&b);
    step = cluster_step_new(&b.c, SEQUENCES);
    for (uint64_t id = 1; id <= SEQUENCES; id++)
        cluster_step_add(step, id, 0, b.prompt, 2);
    dk__step_result__free_unpacked(run(&b, step), NULL);
    step = cluster_step_new(&b.c, 2);
    cluster_step_add(step, 10, 0, b.prompt, b.count);
    cluster_step_add(step, 1, 2, b.prompt + 2, 1);
    r = run(&b, step);
    check_error(r, 0, DK__CODE__RESOURCE_EXHAUSTED, "cache is full");
    cr_assert_null(r->sequences[1]->error);
    dk__step_result__free_unpacked(r, NULL);

    step = cluster_step_new(&b.c, 1);
    release(step, 2);
    release(step, 77); /* unknown */
    release(step, 2);
    cluster_step_add(step, 10, 0, b.prompt, b.count);
    r = run(&b, step);
    check_token(r, 0, b.golden[0]);
    dk__step_result__free_unpacked(r, NULL);

    step = cluster_step_new(&b.c, 1);
    cluster_step_add(step, 2, 2, b.prompt + 2, 1); /* was released */
    r = run(&b, step);
    check_error(r, 0, DK__CODE__FAILED_PRECONDITION, "the cache holds 0");
    dk__step_result__free_unpacked(r, NULL);
    bench_close(&b);
}

Test(worker_step, beyond_the_context)
{
    uint32_t tokens[ROWS] = {0};
    struct bench b;
    Dk__NextStepReply *step;
    Dk__StepResult *r;

    bench_open(&b);
    for (uint32_t position = 0; position < CONTEXT; position += ROWS) {
        step = cluster_step_new(&b.c, 1);
        cluster_step_add(step, 1, position, tokens, ROWS);
        r = run(&b, step);
        cr_assert_null(r->sequences[0]->error);
        dk__step_result__free_unpacked(r, NULL);
    }
    step = cluster_step_new(&b.c, 1);
    cluster_step_add(step, 1, CONTEXT, tokens, 1);
    r = run(&b, step);
    check_error(r, 0, DK__CODE__INVALID_ARGUMENT, "96");
    dk__step_result__free_unpacked(r, NULL);
    check_usable(&b, 2);
    bench_close(&b);
}

Test(worker_step, position_0_begins_again)
{
    struct bench b;

    bench_open(&b);
    for (int i = 0; i < 3; i++) {
        uint32_t tokens[2];

        cr_assert_eq(cluster_generate(&b.c, 1, b.prompt, b.count, 2, tokens, NULL, &b.err), 0, "%s", b.err.text);
        cr_assert_eq(memcmp(tokens, b.golden, sizeof tokens), 0);
    }
    bench_close(&b);
}

Test(worker_step, whole_steps_that_cannot_be)
{
    struct bench b;
    Dk__NextStepReply *step;
    Dk__StepResult *r;
    uint64_t id;

    bench_open(&b);
    step = cluster_step_new(&b.c, 1);
    step->step->plan_epoch++;
    id = step->step->step_id;
    cluster_step_add(step, 1, 0, b.prompt, b.count);
    r = run(&b, step);
    cr_assert_eq(r->error->code, DK__CODE__FAILED_PRECONDITION);
    cr_assert_eq(r->step_id, id);
    cr_assert_eq(r->n_sequences, 0);
    dk__step_result__free_unpacked(r, NULL);

    step = cluster_step_new(&b.c, SEQUENCES + 1);
    for (uint64_t s = 1; s <= SEQUENCES + 1; s++)
        cluster_step_add(step, s, 0, b.prompt, 1);
    r = run(&b, step);
    cr_assert_eq(r->error->code, DK__CODE__FAILED_PRECONDITION);
    dk__step_result__free_unpacked(r, NULL);

    r = run(&b, cluster_step_new(&b.c, 0)); /* nothing to do is no error */
    cr_assert_null(r->error);
    dk__step_result__free_unpacked(r, NULL);
    check_usable(&b, 1);
    bench_close(&b);
}

/* The coordinator waits for the end of every step that it has given out. */
Test(worker_step, a_step_before_the_plan_is_ended_without_a_result)
{
    uint32_t token = 1;
    struct cluster c;
    struct dk_err err = {0};
    Dk__NextStepReply *step;

    dk_log_setup(quiet, NULL, DK_LOG_ERROR, "test");
    cr_assert_eq(cluster_open(&c, 1, NULL, &err), 0, "%s", err.text);
    step = cluster_step_new(&c, 1);
    cluster_step_add(step, 1, 0, &token, 1);
    cr_assert_null(cluster_step(&c, step));
    cr_assert(c.ended);
    cluster_close(&c);
}

/* ---- numbers that are none */

static const struct dk_family_ops *real;
static uint32_t poisoned_row, poisoned_layer;
static bool poison_head;

static void poisoned_attend(struct dk_family_model *m, uint32_t layer, float *ffn_in, float *router_logits)
{
    real->attend(m, layer, ffn_in, router_logits);
    if (layer == poisoned_layer && !poison_head)
        router_logits[16 * poisoned_row + 3] = NAN;
}

static void poisoned_head(struct dk_family_model *m, const uint32_t *rows, uint32_t count, float *logits)
{
    real->head(m, rows, count, logits);
    for (uint32_t i = 0; i < count; i++)
        if (rows[i] == poisoned_row && poison_head)
            logits[(size_t)i * VOCAB + 17] = NAN;
}

static void poison(struct bench *b, struct dk_family_ops *ops, uint32_t row, uint32_t layer, bool at_head)
{
    real = b->c.worker.model.family;
    *ops = *real;
    ops->attend = poisoned_attend;
    ops->head = poisoned_head;
    poisoned_row = row;
    poisoned_layer = layer;
    poison_head = at_head;
    b->c.worker.model.family = ops;
}

Test(worker_step, a_router_logit_that_is_no_number_ends_its_sequence_only)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        struct dk_family_ops ops;
        struct bench b;
        Dk__NextStepReply *step;
        Dk__StepResult *r;

        bench_open(&b);
        step = cluster_step_new(&b.c, 3);
        cluster_step_add(step, 1, 0, b.prompt, b.count);
        cluster_step_add(step, 2, 0, b.prompt, 5);
        cluster_step_add(step, 3, 0, b.prompt, b.count);
        poison(&b, &ops, b.count + 2, layer, false);
        r = run(&b, step);
        check_token(r, 0, b.golden[0]);
        check_error(r, 1, DK__CODE__DATA_LOSS, "token 2 ");
        check_token(r, 2, b.golden[0]);
        dk__step_result__free_unpacked(r, NULL);
        b.c.worker.model.family = real;
        step = cluster_step_new(&b.c, 1);
        release(step, 2);
        dk__step_result__free_unpacked(run(&b, step), NULL);
        check_usable(&b, 4);
        bench_close(&b);
    }
}

Test(worker_step, a_logit_that_is_no_number_ends_its_sequence_only)
{
    struct dk_family_ops ops;
    struct bench b;
    Dk__NextStepReply *step;
    Dk__StepResult *r;

    bench_open(&b);
    step = cluster_step_new(&b.c, 2);
    cluster_step_add(step, 1, 0, b.prompt, 4);
    cluster_step_add(step, 2, 0, b.prompt, b.count);
    poison(&b, &ops, 3, 0, true);
    r = run(&b, step);
    check_error(r, 0, DK__CODE__DATA_LOSS, "not a number");
    check_token(r, 1, b.golden[0]);
    dk__step_result__free_unpacked(r, NULL);
    b.c.worker.model.family = real;
    bench_close(&b);
}

/* ---- what comes back */

Test(worker_step, logits_and_log_probabilities)
{
    struct bench b;
    Dk__NextStepReply *step;
    Dk__StepSequence *q;
    Dk__StepResult *r;
    const float *logits;
    float best;
    double sum = 0;

    bench_open(&b);
    step = cluster_step_new(&b.c, 1);
    q = cluster_step_add(step, 1, 0, b.prompt, b.count);
    q->has_want_logits = q->want_logits = true;
    q->sampling = malloc(sizeof *q->sampling);
    dk__sampling__init(q->sampling);
    q->sampling->has_logprobs = true;
    q->sampling->logprobs = 5;
    r = run(&b, step);
    check_token(r, 0, b.golden[0]);
    cr_assert_eq(r->sequences[0]->vocab, VOCAB);
    cr_assert_eq(r->sequences[0]->logits.len, (size_t)b.count * VOCAB * sizeof(float));
    cr_assert_eq(r->sequences[0]->n_top, 5);
    cr_assert_eq(r->sequences[0]->top[0]->id, b.golden[0]);
    cr_assert_eq(r->sequences[0]->top[0]->logprob, r->sequences[0]->logprob);
    logits = (const float *)(const void *)r->sequences[0]->logits.data + (size_t)(b.count - 1) * VOCAB;
    best = logits[b.golden[0]];
    for (uint32_t i = 0; i < VOCAB; i++)
        sum += exp((double)logits[i] - best);
    cr_assert_float_eq(r->sequences[0]->logprob, -log(sum), 1e-5);
    dk__step_result__free_unpacked(r, NULL);
    bench_close(&b);
}

/* Whatever the chunks, a position's score is the one that its logits give. */
Test(worker_step, scores_of_given_tokens)
{
    struct bench b;
    Dk__NextStepReply *step;
    Dk__StepSequence *q;
    Dk__StepResult *whole, *part;
    const float *logits;

    bench_open(&b);
    step = cluster_step_new(&b.c, 1);
    q = cluster_step_add(step, 1, 0, b.prompt, b.count);
    q->sample = false;
    q->has_want_logits = q->want_logits = q->has_score = q->score = true;
    q->has_score_top = true;
    q->score_top = 2;
    whole = run(&b, step);
    cr_assert_null(whole->sequences[0]->error);
    cr_assert_not(whole->sequences[0]->has_token);
    cr_assert_eq(whole->sequences[0]->n_scores, b.count - 1, "the token behind the last is not known");
    logits = (const float *)(const void *)whole->sequences[0]->logits.data;
    for (uint32_t i = 0; i + 1 < b.count; i++, logits += VOCAB) {
        const Dk__TokenScore *s = whole->sequences[0]->scores[i];
        double sum = 0;

        for (uint32_t t = 0; t < VOCAB; t++)
            sum += exp((double)logits[t] - logits[b.prompt[i + 1]]);
        cr_expect_eq(s->id, b.prompt[i + 1]);
        cr_expect_float_eq(s->logprob, -log(sum), 1e-4, "position %u", i);
        cr_assert_eq(s->n_top, 2);
        cr_expect_geq(s->top[0]->logprob, s->top[1]->logprob);
        cr_expect_geq(s->top[0]->logprob, s->logprob);
    }
    for (uint32_t at = 0; at < b.count; at += 5) {
        uint32_t n = b.count - at < 5 ? b.count - at : 5;

        step = cluster_step_new(&b.c, 1);
        q = cluster_step_add(step, 2, at, b.prompt + at, n);
        q->sample = false;
        q->has_score = q->score = true;
        q->has_next_token = at + n < b.count;
        q->next_token = q->has_next_token ? b.prompt[at + n] : 0;
        part = run(&b, step);
        cr_assert_null(part->sequences[0]->error);
        cr_assert_eq(part->sequences[0]->n_scores, at + n < b.count ? n : n - 1);
        for (uint32_t i = 0; i < part->sequences[0]->n_scores; i++) {
            cr_expect_eq(part->sequences[0]->scores[i]->logprob, whole->sequences[0]->scores[at + i]->logprob);
            cr_expect_eq(part->sequences[0]->scores[i]->n_top, 0);
        }
        dk__step_result__free_unpacked(part, NULL);
    }
    step = cluster_step_new(&b.c, 1);
    q = cluster_step_add(step, 3, 0, b.prompt, 1);
    q->has_score = q->score = q->has_next_token = true;
    q->next_token = VOCAB;
    part = run(&b, step);
    check_error(part, 0, DK__CODE__INVALID_ARGUMENT, "next token is 1024");
    dk__step_result__free_unpacked(part, NULL);
    dk__step_result__free_unpacked(whole, NULL);
    bench_close(&b);
}

/* The values of one sequence, whoever else is in the step; the next step has none. */
Test(worker_step, a_trace_is_of_its_sequence_alone)
{
    struct golden_tensors golden;
    struct bench b;
    Dk__NextStepReply *step;
    Dk__StepResult *r;
    size_t compared = 0;

    bench_open(&b);
    golden_tensors_open(&golden, MODEL "/golden/trace.safetensors");
    step = cluster_step_new(&b.c, 2);
    cluster_step_add(step, 1, 0, b.prompt, 7);
    cluster_step_add(step, 2, 0, b.prompt, b.count);
    step->step->sequences[1]->has_trace = step->step->sequences[1]->trace = true;
    r = run(&b, step);
    cr_assert_null(r->sequences[0]->error);
    cr_expect_eq(r->sequences[0]->n_trace, 0);
    check_token(r, 1, b.golden[0]);
    for (size_t i = 0; i < r->sequences[1]->n_trace; i++) {
        const Dk__TraceTensor *t = r->sequences[1]->trace[i];
        size_t values = 1, count;
        void *expected = golden_tensor(&golden, &count, "%s", t->name);

        for (size_t k = 0; k < t->n_shape; k++)
            values *= t->shape[k];
        cr_assert_eq(t->data.len, values * 4, "%s", t->name);
        cr_assert_eq(values, count, "%s", t->name);
        if (t->type == DK__TRACE_TYPE__TRACE_I32)
            cr_expect_arr_eq(t->data.data, expected, t->data.len, "%s", t->name);
        else
            cr_expect_leq(golden_difference((const float *)(const void *)t->data.data, expected, count), 1e-4, "%s",
                          t->name);
        compared++;
        free(expected);
    }
    cr_expect_eq(compared, 1 + LAYERS * 9 + 1);
    dk__step_result__free_unpacked(r, NULL);
    golden_tensors_close(&golden);

    step = cluster_step_new(&b.c, 1);
    cluster_step_add(step, 2, b.count, b.golden, 1);
    r = run(&b, step);
    check_token(r, 0, b.golden[1]);
    cr_expect_eq(r->sequences[0]->n_trace, 0);
    dk__step_result__free_unpacked(r, NULL);
    bench_close(&b);
}

Test(worker_step, a_prefill_chunk_gives_no_token)
{
    struct bench b;
    Dk__NextStepReply *step;
    Dk__StepSequence *q;
    Dk__StepResult *r;

    bench_open(&b);
    step = cluster_step_new(&b.c, 1);
    q = cluster_step_add(step, 1, 0, b.prompt, 7);
    q->sample = false;
    r = run(&b, step);
    cr_assert_null(r->sequences[0]->error);
    cr_assert_not(r->sequences[0]->has_token);
    dk__step_result__free_unpacked(r, NULL);
    step = cluster_step_new(&b.c, 1);
    cluster_step_add(step, 1, 7, b.prompt + 7, b.count - 7);
    r = run(&b, step);
    check_token(r, 0, b.golden[0]);
    dk__step_result__free_unpacked(r, NULL);
    bench_close(&b);
}

/* ---- steps that end in the middle */

struct refusal {
    uint32_t at, seen;
};

static enum cluster_verdict refuse_once(void *ctx, struct cluster *c, uint32_t duck, const uint8_t *data, size_t bytes,
                                        struct duck_answer *a)
{
    struct refusal *f = ctx;
    Dk__DataReply reply = DK__DATA_REPLY__INIT;
    Dk__Status status = DK__STATUS__INIT;

    (void)data;
    (void)bytes;
    if (duck != 1 || ++f->seen != f->at)
        return CLUSTER_HANDLE;
    status.code = DK__CODE__INTERNAL;
    status.text = "a feather in the works";
    reply.plan_epoch = c->plan.epoch;
    reply.result_case = DK__DATA_REPLY__RESULT_ERROR;
    reply.error = &status;
    a->header_bytes = (size_t)dk_data_pack(&reply.base, a->header, sizeof a->header);
    return CLUSTER_MINE;
}

Test(worker_step, an_aborted_step_leaves_the_engine_usable)
{
    struct bench b;

    bench_open(&b);
    for (uint32_t at = 1; at <= LAYERS; at++) {
        struct refusal refusal = {.at = at};
        Dk__NextStepReply *step = cluster_step_new(&b.c, 2);
        Dk__StepResult *r;

        b.c.on_request = refuse_once;
        b.c.ctx = &refusal;
        cluster_step_add(step, 1, 0, b.prompt, b.count);
        cluster_step_add(step, 2, 0, b.prompt, 3);
        r = run(&b, step);
        cr_assert_not_null(r->error);
        cr_assert_eq(r->error->code, DK__CODE__INTERNAL);
        cr_assert(strstr(r->error->text, "duck-1") && strstr(r->error->text, "a feather in the works"), "%s",
                  r->error->text);
        cr_assert_eq(r->n_sequences, 0);
        dk__step_result__free_unpacked(r, NULL);
        b.c.on_request = NULL;
        check_usable(&b, 1);
        check_usable(&b, 2);
    }
    bench_close(&b);
}

static enum cluster_verdict never(void *ctx, struct cluster *c, uint32_t duck, const uint8_t *data, size_t bytes,
                                  struct duck_answer *a)
{
    (void)ctx;
    (void)c;
    (void)data;
    (void)bytes;
    (void)a;
    return duck == 1 ? CLUSTER_NEVER : CLUSTER_HANDLE;
}

Test(worker_step, a_new_plan_ends_the_running_step)
{
    struct engine_order *o = calloc(1, sizeof *o);
    uint32_t tokens[3];
    struct bench b;
    Dk__NextStepReply *step;
    Dk__StepResult *r;

    bench_open(&b);
    b.c.on_request = never;
    step = cluster_step_new(&b.c, 1);
    cluster_step_add(step, 1, 0, b.prompt, b.count);
    o->kind = ORDER_STEP;
    o->step = step;
    cr_assert_eq(dk_mailbox_push(b.c.worker.orders, o), 0);
    for (int i = 0; i < 100; i++)
        cluster_poll(&b.c);
    cr_assert_eq(b.c.worker.step.state, STEP_AWAIT_DUCKS);
    b.c.on_request = NULL;
    cr_assert_eq(cluster_load(&b.c, MODEL, 64, &b.err), 0, "%s", b.err.text);
    cr_assert(b.c.ended);
    r = dk__step_result__unpack(NULL, b.c.result_bytes, b.c.result);
    cr_assert_eq(r->error->code, DK__CODE__UNAVAILABLE);
    dk__step_result__free_unpacked(r, NULL);
    cr_assert_eq(cluster_generate(&b.c, 1, b.prompt, b.count, 3, tokens, NULL, &b.err), 0, "%s", b.err.text);
    cr_assert_eq(memcmp(tokens, b.golden, sizeof tokens), 0);
    bench_close(&b);
}

Test(worker_step, a_plan_that_cannot_be_loaded_says_why)
{
    struct bench b;

    bench_open(&b);
    cr_assert_eq(cluster_load(&b.c, FIXTURES "/nowhere", 32, &b.err), -ENOENT, "%s", b.err.text);
    cr_assert(strstr(b.err.text, "nowhere"), "%s", b.err.text);
    memset(&b.err, 0, sizeof b.err);
    cr_assert_eq(cluster_load(&b.c, MODEL, 32, &b.err), 0, "%s", b.err.text);
    check_usable(&b, 1);
    bench_close(&b);
}
