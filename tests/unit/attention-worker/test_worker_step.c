/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of the whole engine, against ducks that hold a small MoE model. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "step_bench.h"

#define MODEL       FIXTURES "/qwen3-moe-fp8-tiny"
#define WITH_SHARED FIXTURES "/deepseek_v3-fp8-tiny" /* one dense layer, then MoE with a shared expert */

enum { VOCAB = 1024, LAYERS = 3, CONTEXT = BENCH_CONTEXT, SEQUENCES = BENCH_SEQUENCES, ROWS = BENCH_ROWS };

Test(worker_step, sequences_beside_each_other)
{
    struct bench b;
    Dk__NextStepReply *step;
    Dk__StepResult *r;

    bench_open(&b, MODEL);
    step = cluster_step_new(&b.c, 2);
    cluster_step_add(step, 1, 0, b.prompt, b.count);
    cluster_step_add(step, 2, 0, b.prompt, b.count);
    r = bench_run(&b, step);
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

    bench_open(&b, MODEL);
    step = cluster_step_new(&b.c, 4);
    cluster_step_add(step, 1, 5, b.prompt, 1); /* the cache holds nothing of it */
    cluster_step_add(step, 2, 0, b.prompt, b.count);
    cluster_step_add(step, 3, 0, bad_token, 2);
    cluster_step_add(step, 4, 0, NULL, 0);
    r = bench_run(&b, step);
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
    r = bench_run(&b, step);
    check_error(r, 0, DK__CODE__FAILED_PRECONDITION, "the cache holds 19");
    cr_assert_null(r->sequences[1]->error);
    check_error(r, 2, DK__CODE__INVALID_ARGUMENT, "49 tokens");
    check_error(r, 3, DK__CODE__FAILED_PRECONDITION, "position");
    dk__step_result__free_unpacked(r, NULL);

    step = cluster_step_new(&b.c, 1); /* the sequence that was refused goes on where it was */
    cluster_step_add(step, 2, b.count, b.golden, 1);
    r = bench_run(&b, step);
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

    bench_open(&b, MODEL);
    step = cluster_step_new(&b.c, 3);
    cluster_step_add(step, 1, 0, b.prompt, b.count);
    cluster_step_add(step, 1, 0, b.prompt, 1);
    cluster_step_add(step, 1, b.count, b.golden, 1);
    r = bench_run(&b, step);
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

    bench_open(&b, MODEL);
    step = cluster_step_new(&b.c, SEQUENCES);
    for (uint64_t id = 1; id <= SEQUENCES; id++)
        cluster_step_add(step, id, 0, b.prompt, 2);
    dk__step_result__free_unpacked(bench_run(&b, step), NULL);
    step = cluster_step_new(&b.c, 2);
    cluster_step_add(step, 10, 0, b.prompt, b.count);
    cluster_step_add(step, 1, 2, b.prompt + 2, 1);
    r = bench_run(&b, step);
    check_error(r, 0, DK__CODE__RESOURCE_EXHAUSTED, "cache is full");
    cr_assert_null(r->sequences[1]->error);
    dk__step_result__free_unpacked(r, NULL);

    step = cluster_step_new(&b.c, 1);
    bench_release(step, 2);
    bench_release(step, 77); /* unknown */
    bench_release(step, 2);
    cluster_step_add(step, 10, 0, b.prompt, b.count);
    r = bench_run(&b, step);
    check_token(r, 0, b.golden[0]);
    dk__step_result__free_unpacked(r, NULL);

    step = cluster_step_new(&b.c, 1);
    cluster_step_add(step, 2, 2, b.prompt + 2, 1); /* was released */
    r = bench_run(&b, step);
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

    bench_open(&b, MODEL);
    for (uint32_t position = 0; position < CONTEXT; position += ROWS) {
        step = cluster_step_new(&b.c, 1);
        cluster_step_add(step, 1, position, tokens, ROWS);
        r = bench_run(&b, step);
        cr_assert_null(r->sequences[0]->error);
        dk__step_result__free_unpacked(r, NULL);
    }
    step = cluster_step_new(&b.c, 1);
    cluster_step_add(step, 1, CONTEXT, tokens, 1);
    r = bench_run(&b, step);
    check_error(r, 0, DK__CODE__INVALID_ARGUMENT, "96");
    dk__step_result__free_unpacked(r, NULL);
    check_usable(&b, 2);
    bench_close(&b);
}

Test(worker_step, position_0_begins_again)
{
    struct bench b;

    bench_open(&b, MODEL);
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

    bench_open(&b, MODEL);
    step = cluster_step_new(&b.c, SEQUENCES + 1);
    id = step->step->step_id;
    for (uint64_t s = 1; s <= SEQUENCES + 1; s++)
        cluster_step_add(step, s, 0, b.prompt, 1);
    r = bench_run(&b, step);
    cr_assert_eq(r->error->code, DK__CODE__FAILED_PRECONDITION);
    cr_assert_eq(r->step_id, id);
    cr_assert_eq(r->n_sequences, 0);
    dk__step_result__free_unpacked(r, NULL);

    r = bench_run(&b, cluster_step_new(&b.c, 0)); /* nothing to do is no error */
    cr_assert_null(r->error);
    dk__step_result__free_unpacked(r, NULL);
    check_usable(&b, 1);
    bench_close(&b);
}

/* It has no result, so for the coordinator it was never done: neither its tokens nor what it releases are lost. */
Test(worker_step, a_step_of_another_epoch_is_as_if_it_never_came)
{
    struct bench b;

    bench_open(&b, MODEL);
    bench_expect(&b, 1, 0, b.prompt, b.count, b.golden[0]);
    for (int newer = 0; newer < 2; newer++) {
        Dk__NextStepReply *step = cluster_step_new(&b.c, 1);

        step->step->plan_epoch += newer ? 1 : (uint64_t)-1;
        step->step->has_release_all = step->step->release_all = true;
        bench_release(step, 1);
        cluster_step_add(step, 2, 0, b.prompt, b.count);
        cr_assert_null(cluster_step(&b.c, step));
        cr_assert(b.c.ended);
    }
    cr_expect_eq(dk_cache_tokens(b.c.worker.model.cache, 1), b.count);
    cr_expect_eq(dk_cache_tokens(b.c.worker.model.cache, 2), 0);
    bench_expect(&b, 1, b.count, b.golden, 1, b.golden[1]);
    bench_close(&b);
}

/* The coordinator waits for the end of every step that it has given out. */
Test(worker_step, a_step_before_the_plan_is_ended_without_a_result)
{
    uint32_t token = 1;
    struct cluster c;
    struct dk_err err = {0};
    Dk__NextStepReply *step;

    dk_log_setup(bench_quiet, NULL, DK_LOG_ERROR, "test");
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

        bench_open(&b, MODEL);
        step = cluster_step_new(&b.c, 3);
        cluster_step_add(step, 1, 0, b.prompt, b.count);
        cluster_step_add(step, 2, 0, b.prompt, 5);
        cluster_step_add(step, 3, 0, b.prompt, b.count);
        poison(&b, &ops, b.count + 2, layer, false);
        r = bench_run(&b, step);
        check_token(r, 0, b.golden[0]);
        check_error(r, 1, DK__CODE__DATA_LOSS, "token 2 ");
        check_token(r, 2, b.golden[0]);
        dk__step_result__free_unpacked(r, NULL);
        b.c.worker.model.family = real;
        step = cluster_step_new(&b.c, 1);
        bench_release(step, 2);
        dk__step_result__free_unpacked(bench_run(&b, step), NULL);
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

    bench_open(&b, MODEL);
    step = cluster_step_new(&b.c, 2);
    cluster_step_add(step, 1, 0, b.prompt, 4);
    cluster_step_add(step, 2, 0, b.prompt, b.count);
    poison(&b, &ops, 3, 0, true);
    r = bench_run(&b, step);
    check_error(r, 0, DK__CODE__DATA_LOSS, "not a number");
    check_token(r, 1, b.golden[0]);
    dk__step_result__free_unpacked(r, NULL);
    b.c.worker.model.family = real;
    bench_close(&b);
}

/* ---- the worker's own part, the shared expert */

enum { LAYERS_MOST = 8, SPY_MTU = 576, SPY_FRAGMENT = 496, PIECE_US = 1000, ANSWER_US = 7 };

static struct {
    const struct dk_family_ops *real;
    struct cluster *c;
    uint32_t pieces[LAYERS_MOST], calls[LAYERS_MOST]; /* pieces: those with work */
    uint64_t sent_before[LAYERS_MOST], sent_at_first[LAYERS_MOST], last_us, clock_us;
    bool two_at_once;
} spy;

static uint64_t frames_sent(void)
{
    return dk_transport_counters(spy.c->worker.endpoint.transport)->frames_sent;
}

static void spy_attend(struct dk_family_model *m, uint32_t layer, float *ffn_in, float *router_logits)
{
    spy.real->attend(m, layer, ffn_in, router_logits);
    spy.sent_before[layer] = frames_sent();
}

static bool spy_meanwhile(struct dk_family_model *m, uint32_t layer)
{
    bool more = spy.real->meanwhile(m, layer), work = spy.c->worker.model.config.layer_is_moe[layer];

    if (!spy.calls[layer]++)
        spy.sent_at_first[layer] = frames_sent();
    spy.two_at_once |= spy.c->now_us == spy.last_us;
    spy.last_us = spy.c->now_us; /* differs in each poll */
    spy.pieces[layer] += work;
    spy.clock_us += work ? PIECE_US : 0;
    return more;
}

static void spy_open(struct bench *b, struct dk_family_ops *ops)
{
    memset(&spy, 0, sizeof spy);
    spy.c = &b->c;
    spy.real = b->c.worker.model.family;
    *ops = *spy.real;
    ops->attend = spy_attend;
    ops->meanwhile = spy_meanwhile;
    b->c.worker.model.family = ops;
}

/* As many rows as a step takes, of sequences of one prompt; the last one is cut. */
static Dk__NextStepReply *full_step(struct bench *b, uint32_t *whole)
{
    Dk__NextStepReply *step = cluster_step_new(&b->c, SEQUENCES);
    uint32_t prompt[ROWS], rows = 0;

    *whole = 0;
    for (uint64_t id = 1; rows < ROWS && id <= SEQUENCES; id++) {
        uint32_t n = ROWS - rows < b->count ? ROWS - rows : b->count;

        if (id == SEQUENCES && n < ROWS - rows) { /* prompts are short: the last one is longer */
            n = ROWS - rows;
            for (uint32_t i = 0; i < n; i++)
                prompt[i] = b->prompt[i % b->count];
            cluster_step_add(step, id, 0, prompt, n);
        } else {
            cluster_step_add(step, id, 0, b->prompt, n);
            *whole += n == b->count;
        }
        rows += n;
    }
    cr_assert_eq(rows, ROWS);
    return step;
}

/* Frames of 496 bytes, more than a poll moves: none waits in the worker for its own work. */
Test(worker_step, own_work_begins_when_all_rows_have_left)
{
    struct dk_family_ops ops;
    uint32_t whole, frames;
    struct bench b;
    Dk__NextStepReply *step;
    Dk__StepResult *r;

    bench_begin(&b, WITH_SHARED);
    b.c.ducks[0].own.mtu = b.c.ducks[1].own.mtu = SPY_MTU;
    cluster_follow(&b.c);
    bench_load(&b);
    spy_open(&b, &ops);
    step = full_step(&b, &whole);
    r = bench_run(&b, step);
    for (uint32_t i = 0; i < whole; i++)
        check_token(r, i, b.golden[0]);
    for (uint32_t layer = 0; layer < bench_layers(&b); layer++) {
        bool moe = b.c.worker.model.config.layer_is_moe[layer];
        const struct dk_model_config *c = &b.c.worker.model.config;
        uint32_t bytes = ROWS * (c->hidden + (moe ? 2 * c->top_k : 0)) * 4;
        uint32_t ducks = dk_ffn_width(c, layer) > 32 ? 2 : 1;

        frames = ducks * ((bytes + SPY_FRAGMENT - 1) / SPY_FRAGMENT);
        cr_assert_gt(frames, 64, "fewer than one poll moves: the test shows nothing");
        cr_expect_geq(spy.sent_at_first[layer] - spy.sent_before[layer], frames, "layer %u", layer);
        cr_expect_eq(spy.calls[layer], moe ? 6 : 1, "layer %u: %u", layer, spy.calls[layer]);
    }
    cr_expect_not(spy.two_at_once);
    dk__step_result__free_unpacked(r, NULL);
    b.c.worker.model.family = spy.real;
    bench_close(&b);
}

/* One row: gate, up and down are pieces of their own. */
Test(worker_step, own_work_of_a_decoded_token)
{
    struct dk_family_ops ops;
    struct bench b;

    bench_open(&b, WITH_SHARED);
    bench_expect(&b, 1, 0, b.prompt, b.count, b.golden[0]);
    spy_open(&b, &ops);
    bench_expect(&b, 1, b.count, b.golden, 1, b.golden[1]);
    for (uint32_t layer = 0; layer < bench_layers(&b); layer++)
        cr_expect_eq(spy.calls[layer], b.c.worker.model.config.layer_is_moe[layer] ? 3 : 1);
    cr_expect_not(spy.two_at_once);
    b.c.worker.model.family = spy.real;
    bench_close(&b);
}

static void order_prompt(struct bench *b)
{
    struct engine_order *o = calloc(1, sizeof *o);

    o->kind = ORDER_STEP;
    o->step = cluster_step_new(&b->c, 1);
    cluster_step_add(o->step, 1, 0, b->prompt, b->count);
    cr_assert_eq(dk_mailbox_push(b->c.worker.orders, o), 0);
}

/* Frames and events as the engine takes them, but no step: until all answers of the layer are here. */
static void take_answers(struct worker_engine *w, struct cluster *c)
{
    struct dk_transport_event event;

    for (uint32_t polls = 0; w->step.fanout.waiting; polls++) {
        cr_assert_lt(polls, 10000);
        dk_endpoint_poll(&w->endpoint, c->now_us);
        while (dk_transport_event(w->endpoint.transport, &event), event.type != DK_EVENT_NONE)
            if (!step_on_event(&w->step, &event, &w->arena))
                dk_transport_event_done(w->endpoint.transport, &event);
        cluster_poll_ducks(c);
    }
}

/* A layer without own work is added up in the poll that takes its last answer, also if frames moved in every poll. */
Test(worker_step, layers_without_own_work_cost_no_poll)
{
    struct bench b;
    struct step *s = &b.c.worker.step;
    Dk__StepResult *r;

    bench_open(&b, MODEL);
    order_prompt(&b);
    while (s->state != STEP_MEANWHILE)
        cluster_poll(&b.c);
    cr_assert_not(step_run(s, b.c.now_us, false), "frames may move first");
    take_answers(&b.c.worker, &b.c);
    cr_assert_eq(s->state, STEP_MEANWHILE);
    cr_assert(step_run(s, b.c.now_us, false));
    cr_assert(s->state == STEP_ATTEND && s->layer == 1);
    for (uint32_t polls = 0; !b.c.ended; polls++) {
        cr_assert_lt(polls, 10000);
        cluster_poll(&b.c);
        cr_assert_neq(s->state, STEP_SUM);
        cr_assert_not(step_is_out(s) && !s->fanout.waiting, "layer %u", s->layer);
    }
    r = dk__step_result__unpack(NULL, b.c.result_bytes, b.c.result);
    check_token(r, 0, b.golden[0]);
    dk__step_result__free_unpacked(r, NULL);
    bench_close(&b);
}

static uint64_t spy_clock(void)
{
    return spy.clock_us;
}

static enum cluster_verdict slow_answer(void *ctx, struct cluster *c, uint32_t duck, const uint8_t *data, size_t bytes,
                                        struct duck_answer *a)
{
    (void)c;
    (void)duck;
    (void)data;
    (void)bytes;
    (void)a;
    spy.clock_us += ANSWER_US;
    ++*(uint32_t *)ctx;
    return CLUSTER_HANDLE;
}

/* Time passes only in own pieces and while a duck answers. */
Test(worker_step, waiting_does_not_contain_own_work)
{
    struct dk_family_ops ops;
    uint32_t answers = 0, pieces = 0;
    struct bench b;
    Dk__NextStepReply *step;
    Dk__StepResult *r;

    bench_open(&b, WITH_SHARED);
    spy_open(&b, &ops);
    b.c.worker.step.clock_us = spy_clock;
    b.c.on_request = slow_answer;
    b.c.ctx = &answers;
    step = cluster_step_new(&b.c, 1);
    cluster_step_add(step, 1, 0, b.prompt, b.count);
    r = bench_run(&b, step);
    for (uint32_t layer = 0; layer < bench_layers(&b); layer++)
        pieces += spy.pieces[layer];
    cr_assert_eq(pieces, 3 * (bench_layers(&b) - 1));
    cr_assert_geq(answers, bench_layers(&b));
    cr_assert(r->timing->has_meanwhile_us);
    cr_expect_eq(r->timing->meanwhile_us, pieces * PIECE_US);
    cr_expect_eq(r->timing->wait_us, answers * ANSWER_US);
    cr_expect_eq(r->timing->total_us, pieces * PIECE_US + answers * ANSWER_US);
    dk__step_result__free_unpacked(r, NULL);
    b.c.worker.model.family = spy.real;
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

    bench_open(&b, MODEL);
    step = cluster_step_new(&b.c, 1);
    q = cluster_step_add(step, 1, 0, b.prompt, b.count);
    q->has_want_logits = q->want_logits = true;
    q->sampling = malloc(sizeof *q->sampling);
    dk__sampling__init(q->sampling);
    q->sampling->has_logprobs = true;
    q->sampling->logprobs = 5;
    r = bench_run(&b, step);
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

    bench_open(&b, MODEL);
    step = cluster_step_new(&b.c, 1);
    q = cluster_step_add(step, 1, 0, b.prompt, b.count);
    q->sample = false;
    q->has_want_logits = q->want_logits = q->has_score = q->score = true;
    q->has_score_top = true;
    q->score_top = 2;
    whole = bench_run(&b, step);
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
        part = bench_run(&b, step);
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
    part = bench_run(&b, step);
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

    bench_open(&b, MODEL);
    golden_tensors_open(&golden, MODEL "/golden/trace.safetensors");
    step = cluster_step_new(&b.c, 2);
    cluster_step_add(step, 1, 0, b.prompt, 7);
    cluster_step_add(step, 2, 0, b.prompt, b.count);
    step->step->sequences[1]->has_trace = step->step->sequences[1]->trace = true;
    r = bench_run(&b, step);
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
    r = bench_run(&b, step);
    check_token(r, 0, b.golden[1]);
    cr_expect_eq(r->sequences[0]->n_trace, 0);
    dk__step_result__free_unpacked(r, NULL);
    bench_close(&b);
}

static uint32_t layer_of(const char *name)
{
    uint32_t layer;

    return sscanf(name, "layer.%u.", &layer) == 1 ? layer : UINT32_MAX;
}

Test(worker_step, a_trace_of_some_layers)
{
    static const uint32_t chosen[] = {2, 0, 2};
    struct bench b;
    Dk__NextStepReply *step;
    Dk__StepSequence *q;
    Dk__StepResult *r;
    size_t of_layers[LAYERS] = {0}, others = 0;

    bench_open(&b, MODEL);
    for (uint32_t first = 0; first < 3; first += 2) { /* layers 2 and 0; then 2 alone */
        memset(of_layers, 0, sizeof of_layers);
        others = 0;
        step = cluster_step_new(&b.c, 1);
        q = cluster_step_add(step, 1, 0, b.prompt, b.count);
        q->has_trace = q->trace = true;
        q->n_trace_layers = 3 - first;
        q->trace_layers = malloc(sizeof chosen);
        memcpy(q->trace_layers, chosen + first, (3 - first) * sizeof *chosen);
        r = bench_run(&b, step);
        check_token(r, 0, b.golden[0]);
        for (size_t i = 0; i < r->sequences[0]->n_trace; i++) {
            uint32_t layer = layer_of(r->sequences[0]->trace[i]->name);

            if (layer < LAYERS)
                of_layers[layer]++;
            else
                others++;
        }
        cr_expect_eq(of_layers[0], first ? 0 : 9);
        cr_expect_eq(of_layers[1], 0);
        cr_expect_eq(of_layers[2], 9);
        cr_expect_eq(others, 2, "embed and final_norm");
        dk__step_result__free_unpacked(r, NULL);
    }
    step = cluster_step_new(&b.c, 1);
    q = cluster_step_add(step, 1, 0, b.prompt, b.count);
    q->has_trace = q->trace = true;
    q->n_trace_layers = 1;
    q->trace_layers = malloc(sizeof *chosen);
    q->trace_layers[0] = LAYERS;
    r = bench_run(&b, step);
    check_error(r, 0, DK__CODE__INVALID_ARGUMENT, "layer 3; the model has 3");
    dk__step_result__free_unpacked(r, NULL);
    check_usable(&b, 1);
    bench_close(&b);
}

Test(worker_step, a_prefill_chunk_gives_no_token)
{
    struct bench b;
    Dk__NextStepReply *step;
    Dk__StepSequence *q;
    Dk__StepResult *r;

    bench_open(&b, MODEL);
    step = cluster_step_new(&b.c, 1);
    q = cluster_step_add(step, 1, 0, b.prompt, 7);
    q->sample = false;
    r = bench_run(&b, step);
    cr_assert_null(r->sequences[0]->error);
    cr_assert_not(r->sequences[0]->has_token);
    dk__step_result__free_unpacked(r, NULL);
    step = cluster_step_new(&b.c, 1);
    cluster_step_add(step, 1, 7, b.prompt + 7, b.count - 7);
    r = bench_run(&b, step);
    check_token(r, 0, b.golden[0]);
    dk__step_result__free_unpacked(r, NULL);
    bench_close(&b);
}

/* ---- steps that end in the middle */

Test(worker_step, an_aborted_step_leaves_the_engine_usable)
{
    struct bench b;

    bench_open(&b, MODEL);
    for (uint32_t at = 1; at <= LAYERS; at++) {
        struct bench_refusal refusal = {.duck = 1, .at = at};
        Dk__NextStepReply *step = cluster_step_new(&b.c, 2);
        Dk__StepResult *r;

        b.c.on_request = bench_refuse_once;
        b.c.ctx = &refusal;
        cluster_step_add(step, 1, 0, b.prompt, b.count);
        cluster_step_add(step, 2, 0, b.prompt, 3);
        r = bench_run(&b, step);
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

    bench_open(&b, MODEL);
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

    bench_open(&b, MODEL);
    cr_assert_eq(cluster_load(&b.c, FIXTURES "/nowhere", 32, &b.err), -ENOENT, "%s", b.err.text);
    cr_assert(strstr(b.err.text, "nowhere"), "%s", b.err.text);
    memset(&b.err, 0, sizeof b.err);
    cr_assert_eq(cluster_load(&b.c, MODEL, 32, &b.err), 0, "%s", b.err.text);
    check_usable(&b, 1);
    bench_close(&b);
}
