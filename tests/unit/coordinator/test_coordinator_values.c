/* SPDX-License-Identifier: Apache-2.0 */
/* Scores and traces: every position's values once and in order, whatever the steps were and whatever was lost. */
#include "coord_fixture.h"

#include <math.h>
#include <stdio.h>

static struct fx fx;

static void start(void)
{
    fx_init(&fx);
}

static void stop(void)
{
    fx_close(&fx);
}

TestSuite(values, .init = start, .fini = stop);

#define LONG "the quick brown fox jumps over the lazy dog, and then it does it again: what a dog."

static Dk__SubmitRequest text_prompt(const char *text)
{
    Dk__SubmitRequest q = DK__SUBMIT_REQUEST__INIT;

    q.prompt_case = DK__SUBMIT_REQUEST__PROMPT_TEXT;
    q.text = (char *)text;
    return q;
}

static uint64_t submit(Dk__SubmitRequest *q)
{
    struct answer a;
    uint64_t handle;

    fx_submit(&fx, q, &a);
    handle = FX_REPLY(&a, Dk__SubmitReply)->handle;
    fx_clear(&a);
    return handle;
}

static uint64_t submit_score(const char *text, uint32_t chunk, uint32_t logprobs)
{
    Dk__SubmitRequest q = text_prompt(text);

    q.has_score = q.score = true;
    q.has_prefill_chunk = chunk > 0;
    q.prefill_chunk = chunk;
    q.has_logprobs = logprobs > 0;
    q.logprobs = logprobs;
    return submit(&q);
}

static uint64_t submit_trace(const char *text, uint32_t max_tokens)
{
    Dk__SubmitRequest q = text_prompt(text);

    q.has_trace = q.trace = true;
    q.has_max_tokens = max_tokens > 0;
    q.max_tokens = max_tokens;
    return submit(&q);
}

static void refused(Dk__SubmitRequest *q, const char *part)
{
    struct answer a;

    fx_submit(&fx, q, &a);
    fx_assert_failed(&a, DK__CODE__INVALID_ARGUMENT, part);
}

/* A text's tokens are its bytes. */
static void assert_scores(const struct fx_told *t, const char *text, uint32_t logprobs)
{
    uint32_t tokens[FX_CONTEXT], n = (uint32_t)strlen(text);

    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (uint8_t)text[i];
    cr_assert_eq(t->finish, DK__FINISH_REASON__STOP, "%s", t->error_text);
    cr_assert_eq(t->token_count, 0u);
    cr_assert_eq(t->score_count, n - 1, "%u scores of %u tokens", t->score_count, n);
    for (uint32_t i = 1; i < n; i++) {
        cr_assert_eq(t->scores[i - 1].id, tokens[i], "position %u", i);
        cr_assert_eq(t->scores[i - 1].logprob, fx_score(tokens, i), "position %u", i);
        cr_assert_eq(t->scores[i - 1].top_count, logprobs);
    }
}

static void restart_worker(uint32_t instance)
{
    fx_worker_restart(&fx, instance);
    fx_tick(&fx, 1500 * MS);
    fx_all_beat(&fx);
}

/* duck-1 is restarted: a new epoch, for which the worker fills its caches anew. */
static void restart_duck(uint32_t instance)
{
    fx_tick(&fx, 1100 * MS);
    fx_duck(&fx, "duck-2", 2);
    fx_duck(&fx, "duck-1", instance);
    fx_worker_beat(&fx);
    fx.w.cache_count = 0;
}

/* Reads what comes after a cursor. */
static void acknowledge(uint64_t handle, uint64_t cursor)
{
    struct answer a;

    fx_read(&fx, handle, cursor, 0, &a);
    fx_clear(&a);
}

/* ---- scores */

Test(values, scores_of_every_position_whatever_the_chunks)
{
    static const uint32_t chunks[] = {0, 1, 2, 7, 82, 83, 84};

    fx_ready(&fx);
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        struct fx_told t = {0};

        fx_finish(&fx, submit_score(LONG, chunks[i], 0), &t);
        assert_scores(&t, LONG, 0);
        cr_assert_eq(t.stats.input_len, strlen(LONG));
        cr_assert_eq(t.stats.output_len, 0u);
        cr_assert_not(t.stats.has_ttft_s);
    }
    cr_assert_eq(fx.c->output_tokens, 0u);
    cr_assert_eq(fx.c->prompt_tokens, 7 * strlen(LONG));
}

Test(values, the_step_says_what_comes_next)
{
    const Dk__StepSequence *s;

    fx_ready(&fx);
    submit_score("abcde", 2, 3);
    for (uint32_t i = 0; i < 3; i++) {
        cr_assert(fx_step(&fx));
        s = fx.w.step->sequences[0];
        cr_assert(s->score && !s->sample && !s->want_logits && !s->trace);
        cr_assert_eq(s->score_top, 3u);
        cr_assert_eq(s->has_next_token, i < 2);
        cr_assert(i == 2 || s->next_token == (uint32_t) "abcde"[2 * i + 2]);
    }
    fx_step(&fx);
    cr_assert_eq(dk_sequences_in(fx.c, DK_SEQUENCE_DONE), 1u);
}

Test(values, one_token_has_no_score)
{
    struct fx_told t = {0};

    fx_ready(&fx);
    fx_finish(&fx, submit_score("x", 0, 0), &t);
    assert_scores(&t, "x", 0);
}

Test(values, a_score_may_fill_the_context)
{
    char text[FX_CONTEXT + 2];
    Dk__SubmitRequest q = text_prompt(text);
    struct fx_told t = {0};

    fx_ready(&fx);
    memset(text, 'x', FX_CONTEXT);
    text[FX_CONTEXT] = 0;
    fx_finish(&fx, submit_score(text, 0, 0), &t);
    assert_scores(&t, text, 0);
    text[FX_CONTEXT] = 'x';
    text[FX_CONTEXT + 1] = 0;
    q.has_score = q.score = true;
    refused(&q, "513 tokens, and the context of 512");
}

Test(values, a_score_beside_others)
{
    struct fx_told t = {0}, u = {0}, alone = {0};
    uint64_t score, answer;

    fx_ready(&fx);
    fx_finish(&fx, fx_submit_text(&fx, "beside", 30), &alone);
    score = submit_score(LONG, 5, 20);
    answer = fx_submit_text(&fx, "beside", 30);
    fx_finish(&fx, score, &t);
    fx_finish(&fx, answer, &u);
    assert_scores(&t, LONG, 20);
    cr_assert_str_eq(u.text, alone.text);
}

Test(values, scores_and_logits_together)
{
    Dk__SubmitRequest q = text_prompt(LONG);
    struct fx_told t = {0};

    fx_ready(&fx);
    q.has_score = q.score = q.has_want_logits = q.want_logits = q.has_prefill_chunk = true;
    q.prefill_chunk = 9;
    fx_finish(&fx, submit(&q), &t);
    assert_scores(&t, LONG, 0);
    cr_assert_eq(t.logits_bytes, strlen(LONG) * FX_VOCAB * sizeof(float));
}

Test(values, what_shapes_an_answer_does_not_go_with_a_score)
{
    Dk__SubmitRequest q = text_prompt("abc");
    char *stops[] = {(char *)"x"};

    fx_ready(&fx);
    q.has_score = q.score = true;
#define BAD(field, v)                            \
    do {                                         \
        q.has_##field = true;                    \
        q.field = v;                             \
        refused(&q, "does not go with " #field); \
        q.has_##field = false;                   \
    } while (0)
    BAD(max_tokens, 5);
    BAD(temperature, 0);
    BAD(top_p, 0.5f);
    BAD(top_k, 3);
    BAD(seed, 3);
    BAD(ignore_eos, true);
    q.stop = stops;
    q.n_stop = 1;
    refused(&q, "does not go with stop");
    cr_assert_eq(fx.c->sequence_count, 0u);
    q.score = false; /* as if it were absent */
    submit(&q);
}

Test(values, a_restarted_worker_neither_doubles_nor_loses_scores)
{
    fx_ready(&fx);
    for (uint32_t after = 1; after <= 12; after++)
        for (int delivered = 0; delivered < 2; delivered++) {
            uint64_t handle = submit_score(LONG, 8, 2);
            struct fx_told t = {0};

            for (uint32_t i = 0; i < after; i++)
                fx_step(&fx);
            if (delivered) {
                struct answer a;

                fx_next_step(&fx, 0, &a); /* brings the result, dies before the reply is there */
                fx_clear(&a);
            }
            restart_worker(200 + 2 * after + (uint32_t)delivered);
            if (dk_sequence_find(fx.c, handle)->state != DK_SEQUENCE_DONE)
                dk_sequence_find(fx.c, handle)->prefill_chunk = 5 + after; /* other borders than before */
            fx_finish(&fx, handle, &t);
            assert_scores(&t, LONG, 2);
        }
}

Test(values, a_new_epoch_neither_doubles_nor_loses_scores)
{
    fx_ready(&fx);
    for (uint32_t after = 1; after <= 12; after++)
        for (int way = 0; way < 3; way++) {
            uint64_t handle = submit_score(LONG, 8, 0);
            struct fx_told t = {0};

            for (uint32_t i = 0; i < after; i++)
                fx_step(&fx);
            if (way == 1) { /* the step fails for the lost duck, and is done again */
                fx.w.fail_step = dk_status_new(DK__CODE__UNAVAILABLE, "the plan changed during the step");
                fx_step(&fx);
                if (fx.w.fail_step) { /* it had ended */
                    dk_message_free(fx.w.fail_step);
                    fx.w.fail_step = NULL;
                }
            }
            restart_duck(1000 + 10 * after + (uint32_t)way);
            if (way == 2) { /* the worker drops its last result, too; otherwise it comes with the new epoch */
                dk_message_free(fx.w.result);
                fx.w.result = NULL;
            }
            fx_finish(&fx, handle, &t);
            assert_scores(&t, LONG, 0);
        }
}

Test(values, unread_scores_hold_a_sequence_back)
{
    struct dk_sequence *s;
    struct fx_told t = {0};
    uint64_t handle;

    fx_ready(&fx);
    handle = submit_score(LONG, 10, 20);
    s = dk_sequence_find(fx.c, handle);
    fx_step(&fx);
    fx_step(&fx);
    cr_assert_eq(s->values_unread, 10 * 21 * DK_SCORE_BYTES);
    s->values_unread += DK_VALUES_UNREAD_BYTES;
    fx_step(&fx);
    cr_assert_not(fx_step(&fx), "held back");
    s->values_unread -= DK_VALUES_UNREAD_BYTES;
    fx_finish(&fx, handle, &t);
    assert_scores(&t, LONG, 20);
    acknowledge(handle, t.cursor);
    cr_assert_eq(s->values_unread, 0u);
}

/* ---- traces */

Test(values, a_trace_has_a_step_of_its_own)
{
    struct fx_told plain = {0}, other = {0}, t = {0}, u = {0};
    uint64_t handle, busy;

    fx_ready(&fx);
    fx_finish(&fx, fx_submit_text(&fx, LONG, 9), &plain);
    fx_finish(&fx, fx_submit_text(&fx, "busy", 20), &other);
    busy = fx_submit_text(&fx, "busy", 20);
    fx_step(&fx);
    handle = submit_trace(LONG, 9);
    cr_assert(fx_step(&fx));
    cr_assert_eq(fx.w.step->n_sequences, 1);
    cr_assert(fx.w.step->sequences[0]->trace && fx.w.step->sequences[0]->sample);
    cr_assert_eq(fx.w.step->sequences[0]->n_tokens, strlen(LONG));
    cr_assert(fx_step(&fx));
    cr_assert_eq(fx.w.step->n_sequences, 2, "then all go on");
    cr_assert_not(fx.w.step->sequences[1]->trace);
    fx_finish(&fx, handle, &t);
    fx_finish(&fx, busy, &u);
    cr_assert_eq(t.trace_count, 3u);
    cr_assert_eq(t.trace_events, 1u);
    cr_assert_str_eq(t.text, plain.text);
    cr_assert_str_eq(u.text, other.text);
    cr_assert_eq(t.stats.output_len, 9u);
}

/* T: a trace alone; o: anything else. */
static char kind_of_step(void)
{
    const Dk__Step *s = fx.w.step;
    bool trace = false;

    for (size_t i = 0; i < s->n_sequences; i++)
        trace |= s->sequences[i]->trace;
    cr_assert(!trace || s->n_sequences == 1, "a trace has its step for itself");
    return trace ? 'T' : 'o';
}

Test(values, traces_and_others_take_turns)
{
    struct fx_told alone = {0}, t = {0};
    uint64_t answer, traces[3], prompt;
    char kinds[9] = "";

    fx_ready(&fx);
    fx_finish(&fx, fx_submit_text(&fx, "busy", 30), &alone);
    answer = fx_submit_text(&fx, "busy", 30);
    fx_step(&fx);
    prompt = submit_score(LONG, 20, 0);
    for (uint32_t i = 0; i < 3; i++)
        traces[i] = submit_trace(LONG, 1);
    for (uint32_t i = 0; i < 8; i++) {
        cr_assert(fx_step(&fx));
        kinds[i] = kind_of_step();
        if (kinds[i] == 'o') {
            cr_assert_eq(fx.w.step->n_sequences, 2, "the answer and the prompt both get on");
            cr_assert_eq(fx.w.step->sequences[0]->sequence_id, answer);
            cr_assert_eq(fx.w.step->sequences[1]->sequence_id, prompt);
        }
    }
    cr_assert_str_eq(kinds, "ToToTooo");
    for (uint32_t i = 0; i < 3; i++) {
        memset(&t, 0, sizeof t);
        fx_finish(&fx, traces[i], &t);
        cr_assert_eq(t.trace_count, 3u);
    }
    memset(&t, 0, sizeof t);
    fx_finish(&fx, answer, &t);
    cr_assert_str_eq(t.text, alone.text);
}

Test(values, traces_alone_do_not_wait_for_others)
{
    fx_ready(&fx);
    for (uint32_t i = 0; i < 3; i++)
        submit_trace(LONG, 1);
    for (uint32_t i = 0; i < 3; i++) {
        cr_assert(fx_step(&fx));
        cr_assert_eq(kind_of_step(), 'T');
    }
    cr_assert_not(fx_step(&fx));
}

/* ---- what nobody reads */

/* The events' own values stay; the rest stands for more of them. */
static void more_unread(uint64_t handle, uint64_t bytes)
{
    dk_sequence_find(fx.c, handle)->values_unread += bytes;
}

Test(values, no_step_asks_for_values_while_too_many_are_unread)
{
    struct fx_told t = {0}, u = {0};
    uint64_t unread, score, trace, answer;

    fx_ready(&fx);
    unread = submit_trace("abc", 1);
    fx_step(&fx);
    fx_step(&fx);
    more_unread(unread, DK_VALUES_ALL_BYTES);
    answer = fx_submit_text(&fx, "busy", 5);
    trace = submit_trace(LONG, 1);
    score = submit_score(LONG, 0, 0);
    fx_finish(&fx, answer, &t);
    cr_assert_eq(t.token_count, 5u, "an answer without values gets on");
    cr_assert_not(fx_step(&fx));
    cr_assert_eq(dk_sequence_find(fx.c, trace)->told, 0u);
    cr_assert_eq(dk_sequence_find(fx.c, score)->told, 0u);
    more_unread(unread, -DK_VALUES_ALL_BYTES);
    fx_finish(&fx, unread, &u);
    cr_assert_eq(u.trace_count, 3u);
    memset(&t, 0, sizeof t);
    fx_finish(&fx, score, &t);
    assert_scores(&t, LONG, 0);
    memset(&t, 0, sizeof t);
    fx_finish(&fx, trace, &t);
    cr_assert_eq(t.trace_count, 3u);
}

Test(values, those_that_wait_for_readers_do_not_keep_the_places_of_others)
{
    struct fx_told t = {0};
    uint64_t unread;

    fx.options.running_max = 2;
    fx_ready(&fx);
    unread = submit_trace("abc", 1);
    fx_step(&fx);
    fx_step(&fx);
    more_unread(unread, DK_VALUES_ALL_BYTES);
    for (int i = 0; i < 3; i++)
        submit_trace(LONG, 1);
    fx_finish(&fx, fx_submit_text(&fx, "busy", 5), &t);
    cr_assert_eq(t.token_count, 5u);
    more_unread(unread, -DK_VALUES_ALL_BYTES);
    for (int i = 0; i < 4; i++)
        fx_step(&fx);
    cr_assert_eq(dk_sequences_in(fx.c, DK_SEQUENCE_DONE), 5u);
}

Test(values, values_that_nobody_reads_make_room)
{
    struct fx_told t = {0}, u = {0}, v = {0};
    uint64_t first, second, later;

    fx.trace_count = 30; /* come in several events */
    fx_ready(&fx);
    first = submit_trace(LONG, 1);
    second = submit_trace(LONG, 1);
    for (int i = 0; i < 3; i++)
        fx_step(&fx);
    more_unread(first, DK_VALUES_ALL_BYTES / 2);
    more_unread(second, DK_VALUES_ALL_BYTES / 2);
    later = submit_score("later", 0, 0);
    for (uint32_t i = 0; i < DK_VALUES_GRACE_US / SECOND; i++) {
        fx_tick(&fx, SECOND);
        fx_all_beat(&fx);
        if (i == 3)
            acknowledge(second, 1); /* its reader is there, but slow */
        cr_assert_not(fx_step(&fx));
    }
    fx_tick(&fx, SECOND);
    fx_all_beat(&fx);
    cr_assert_eq(dk_sequence_find(fx.c, first)->values_unread, 0u);
    cr_assert_gt(dk_sequence_find(fx.c, second)->values_unread, DK_VALUES_ALL_BYTES / 2);
    fx_finish(&fx, later, &v);
    assert_scores(&v, "later", 0);
    fx_finish(&fx, first, &t);
    cr_assert_eq(t.finish, DK__FINISH_REASON__ERROR);
    cr_assert_eq(t.error, DK__CODE__RESOURCE_EXHAUSTED);
    cr_assert(strstr(t.error_text, "the values were dropped"), "%s", t.error_text);
    cr_assert_eq(t.trace_count, 0u);
    cr_assert_eq(t.token_count, 1u, "what is no value stays");
    more_unread(second, -DK_VALUES_ALL_BYTES / 2);
    u.cursor = 1;
    u.trace_count = (uint32_t)(DK_READ_REPLY_BYTES / (strlen(LONG) * FX_TRACE_WIDTH * 4));
    fx_finish(&fx, second, &u);
    cr_assert_eq(u.finish, DK__FINISH_REASON__LENGTH);
    cr_assert_eq(u.trace_count, 30u);
}

Test(values, a_client_that_asks_for_the_same_again_and_again_does_not_read)
{
    struct fx_told t = {0}, u = {0};
    uint64_t unread, later;

    fx_ready(&fx);
    unread = submit_trace(LONG, 1);
    fx_step(&fx);
    fx_step(&fx);
    more_unread(unread, DK_VALUES_ALL_BYTES);
    later = submit_score("later", 0, 0);
    for (uint32_t i = 0; i <= DK_VALUES_GRACE_US / SECOND; i++) {
        cr_assert_gt(dk_values_unread(fx.c), DK_VALUES_ALL_BYTES, "dropped after %u s", i);
        cr_assert_not(fx_step(&fx));
        fx_tick(&fx, SECOND);
        fx_all_beat(&fx);
        acknowledge(unread, 0);
    }
    cr_assert_eq(dk_values_unread(fx.c), 0u, "it keeps the others from their values");
    fx_finish(&fx, later, &u);
    assert_scores(&u, "later", 0);
    fx_finish(&fx, unread, &t);
    cr_assert_eq(t.error, DK__CODE__RESOURCE_EXHAUSTED);
}

Test(values, the_time_to_read_them_begins_when_they_come)
{
    Dk__SubmitRequest q = text_prompt(LONG);
    uint64_t handle;

    fx_ready(&fx);
    q.has_score = q.score = q.has_prefill_chunk = true;
    q.prefill_chunk = 9;
    handle = submit(&q);
    for (uint32_t i = 0; i < 20; i++) { /* nothing is there to be read */
        fx_tick(&fx, SECOND);
        fx_all_beat(&fx);
    }
    fx_step(&fx);
    fx_step(&fx);
    more_unread(handle, DK_VALUES_ALL_BYTES);
    fx_tick(&fx, SECOND);
    fx_all_beat(&fx);
    cr_assert_gt(dk_values_unread(fx.c), DK_VALUES_ALL_BYTES, "dropped before anybody could read them");
    for (uint32_t i = 0; i < DK_VALUES_GRACE_US / SECOND; i++) {
        fx_tick(&fx, SECOND);
        fx_all_beat(&fx);
    }
    cr_assert_eq(dk_values_unread(fx.c), 0u);
}

Test(values, one_that_is_not_done_ends_too)
{
    Dk__SubmitRequest q = text_prompt(LONG);
    struct fx_told t = {0};
    uint64_t handle;

    fx_ready(&fx);
    q.has_score = q.score = q.has_want_logits = q.want_logits = q.has_prefill_chunk = true;
    q.prefill_chunk = 9;
    handle = submit(&q);
    fx_step(&fx);
    fx_step(&fx);
    more_unread(handle, DK_VALUES_ALL_BYTES);
    for (uint32_t i = 0; i <= DK_VALUES_GRACE_US / SECOND; i++) {
        fx_tick(&fx, SECOND);
        fx_all_beat(&fx);
    }
    fx_step(&fx); /* the result of the step that was under way counts no more */
    cr_assert_eq(dk_values_unread(fx.c), 0u);
    fx_finish(&fx, handle, &t);
    cr_assert_eq(t.error, DK__CODE__RESOURCE_EXHAUSTED);
    cr_assert_eq(t.logits_bytes, 0u);
    cr_assert_eq(t.score_count, 0u);
}

Test(values, a_large_trace_comes_in_several_events)
{
    struct answer a;
    struct fx_told t = {0};
    uint64_t handle, tensor = strlen(LONG) * FX_TRACE_WIDTH * 4, in_one = DK_READ_REPLY_BYTES / tensor;
    struct dk_sequence *s;

    fx.trace_count = 30;
    fx_ready(&fx);
    handle = submit_trace(LONG, 1);
    fx_step(&fx);
    fx_step(&fx);
    s = dk_sequence_find(fx.c, handle);
    cr_assert_eq(s->values_unread, 30 * tensor);
    fx_read(&fx, handle, 0, 0, &a);
    cr_assert_eq(FX_REPLY(&a, Dk__ReadReply)->n_events, 1, "a reply is bounded as well");
    cr_assert_eq(FX_REPLY(&a, Dk__ReadReply)->events[0]->n_trace, in_one);
    fx_clear(&a);
    fx_finish(&fx, handle, &t);
    cr_assert_eq(t.trace_count, 30u);
    cr_assert_eq(t.trace_events, (30 + in_one - 1) / in_one);
    acknowledge(handle, t.cursor);
    cr_assert_eq(s->values_unread, 0u);
}

Test(values, two_traces_and_a_score_of_one)
{
    struct fx_told t = {0}, u = {0};
    Dk__SubmitRequest q = text_prompt(LONG);
    uint64_t first;

    fx_ready(&fx);
    q.has_trace = q.trace = q.has_score = q.score = q.has_want_logits = q.want_logits = true;
    first = submit(&q);
    fx_finish(&fx, submit_trace("second", 2), &u);
    fx_finish(&fx, first, &t);
    assert_scores(&t, LONG, 0);
    cr_assert_eq(t.trace_count, 3u);
    cr_assert_eq(t.logits_bytes, strlen(LONG) * FX_VOCAB * sizeof(float));
    cr_assert_eq(u.trace_count, 3u);
    cr_assert_eq(u.token_count, 2u);
}

Test(values, a_trace_that_does_not_fit_is_refused)
{
    Dk__SubmitRequest q = text_prompt(LONG);

    fx.options.step_rows = 50;
    fx_ready(&fx);
    q.has_trace = q.trace = true;
    refused(&q, "the prompt has 83 tokens, and a step takes 50");
    q.text = (char *)"short enough";
    q.has_prefill_chunk = true;
    q.prefill_chunk = 11;
    refused(&q, "the prompt has 12 tokens and goes into one step, which prefill_chunk 11 forbids");
    q.prefill_chunk = 12;
    submit(&q);
    fx.c->model.config.hidden = 1u << 19; /* 2 * (1 + 2) rows of it for each token: 12 MiB */
    refused(&q,
            "12 tokens in 2 layers of this model take 144.0 MiB, and at most 64.0 MiB are sent; shorten the prompt");
    q.text = (char *)"short";
    submit(&q);
    fx.c->model.config.vocab = 1u << 20;
    q.has_want_logits = q.want_logits = true; /* 4 MiB more for each */
    refused(&q, "with their logits take 80.0 MiB, and at most 64.0 MiB are sent; leave one of the two out");
    q.want_logits = false;
    submit(&q);
}

/* 12 tokens; 64 MiB are what a result may have. */
Test(values, a_trace_that_does_not_fit_says_what_helps)
{
    uint32_t layers[] = {3, 0, 3, 3};
    Dk__SubmitRequest q = text_prompt("twelve bytes");
    struct dk_model_config *m;

    fx_ready(&fx);
    m = &fx.c->model.config;
    m->layers = 4;
    m->kv_heads = 0;
    memset(m->mixer, DK_MIXER_DELTA, 4);
    /* States of 60 MiB. */
    m->delta = (struct dk_delta_config){
        .key_heads = 1, .key_dim = 1, .value_heads = 1, .value_dim = 60u << 17, .conv_taps = 2};
    q.has_trace = q.trace = true;
    m->hidden = 8;
    refused(&q, "in 4 layers of this model take 240.0 MiB, and at most 64.0 MiB are sent; choose fewer layers "
                "(trace_layers, --trace-layers); a shorter prompt alone does not help");
    q.trace_layers = layers;
    q.n_trace_layers = 4; /* 3 and 0 */
    refused(&q, "in 2 layers of this model take 120.0 MiB");
    q.n_trace_layers = 1;
    submit(&q);
    m->hidden = 1u << 17; /* a row is 0.5 MiB, each token has two outside the layers and two in each */
    refused(&q, "in 1 layers of this model take 84.0 MiB, and at most 64.0 MiB are sent; shorten the prompt");
    m->hidden = 1u << 19;
    q.n_trace_layers = 4;
    refused(&q, "choose fewer layers (trace_layers, --trace-layers) and shorten the prompt");

    memset(m->mixer, DK_MIXER_ATTENTION, 4);
    m->hidden = 1u << 17; /* 12 + 4 * 12 */
    q.n_trace_layers = 0;
    submit(&q);
    q.text = (char *)"fourteen bytes";
    refused(&q, "take 70.0 MiB, and at most 64.0 MiB are sent; choose fewer layers (trace_layers, --trace-layers) or "
                "shorten the prompt");

    layers[0] = 4;
    q.n_trace_layers = 1;
    refused(&q, "trace_layers[0]: there is no layer 4: the model has 4");
    layers[0] = 3;
    q.has_trace = false;
    refused(&q, "trace_layers: goes with trace");
}

Test(values, the_layers_of_a_trace_reach_the_worker)
{
    uint32_t layers[] = {1, 0, 1};
    Dk__SubmitRequest q = text_prompt(LONG);
    struct fx_told t = {0};
    uint64_t handle;

    fx_ready(&fx);
    q.has_trace = q.trace = true;
    q.has_max_tokens = true;
    q.max_tokens = 2;
    for (uint32_t first = 0; first < 4; first++) { /* 1 0 1; 0 1; 1; none */
        const Dk__StepSequence *s;

        q.trace_layers = layers + first;
        q.n_trace_layers = 3 - first;
        handle = submit(&q);
        cr_assert(fx_step(&fx));
        s = fx.w.step->sequences[0];
        cr_assert(s->trace);
        cr_assert_eq(s->n_trace_layers, first < 2 ? 2 : 3 - first);
        for (size_t i = 0; i < s->n_trace_layers; i++)
            cr_assert_eq(s->trace_layers[i], first < 2 ? i : 1, "rising, once each");
        memset(&t, 0, sizeof t);
        fx_finish(&fx, handle, &t);
        cr_assert_eq(t.finish, DK__FINISH_REASON__LENGTH);
        cr_assert_eq(fx.w.step->sequences[0]->n_trace_layers, 0, "decoding has no trace");
    }
}

Test(values, a_trace_comes_once_although_the_worker_is_lost)
{
    struct fx_told plain = {0};

    fx_ready(&fx);
    fx_finish(&fx, fx_submit_text(&fx, LONG, 9), &plain);
    for (uint32_t after = 0; after <= 4; after++)
        for (int way = 0; way < 2; way++) {
            uint64_t handle = submit_trace(LONG, 9);
            struct fx_told t = {0};

            for (uint32_t i = 0; i < after; i++)
                fx_step(&fx);
            if (way)
                restart_worker(300 + after);
            else
                restart_duck(2000 + after); /* the last result comes with the new epoch */
            fx_finish(&fx, handle, &t);
            cr_assert_eq(t.trace_count, 3u, "after %u steps: %u tensors", after, t.trace_count);
            cr_assert_str_eq(t.text, plain.text);
        }
}

Test(values, the_size_of_a_trace)
{
    /* By hand, in floats, T tokens: embed and final_norm 2 * 8 T; each layer 2 * 8 T more; layer 0: k and v 2 * 6 T;
     * layer 1: 2 * 2 * 3 + 4 * 5 = 32 channels with 3 inputs, states 4 * 3 * 5; layer 2: latent 7 T, key 2 T, index key
     * 9 T, 10 positions T; layer 2 is MoE: in and out 2 * 8 T, 11 experts T, 2 * 3 T. Tensors: 2, then 4, 4 and 6 + 5,
     * 96 bytes each. */
    struct dk_model_config m = {
        .hidden = 8,
        .layers = 3,
        .heads = 4,
        .kv_heads = 2,
        .head_dim = 3,
        .delta = {.key_heads = 2, .key_dim = 3, .value_heads = 4, .value_dim = 5, .conv_taps = 4},
        .mla = {.kv_rank = 7, .rope_dim = 2},
        .index = {.heads = 1, .dim = 9, .top_k = 10},
        .experts = 11,
        .top_k = 3,
        .mixer = {DK_MIXER_ATTENTION, DK_MIXER_DELTA, DK_MIXER_MLA},
        .layer_is_moe = {false, false, true}};
    const uint32_t some[] = {1, 2};

    fx_open(&fx);
    for (uint64_t n = 1; n <= 100; n += 33) {
        cr_assert_eq(dk_trace_bytes(&m, NULL, 0, (uint32_t)n),
                     4 * (n * (16 + 3 * 16 + 12 + 7 + 2 + 9 + 10 + 16 + 11 + 6) + 32 * 3 + 4 * 3 * 5) + 21 * 96);
        cr_assert_eq(dk_trace_bytes(&m, some, 2, (uint32_t)n),
                     4 * (n * (16 + 2 * 16 + 7 + 2 + 9 + 10 + 16 + 11 + 6) + 32 * 3 + 4 * 3 * 5) + 17 * 96);
        cr_assert_eq(dk_trace_bytes(&m, some, 1, (uint32_t)n), 4 * (n * (16 + 16) + 32 * 3 + 4 * 3 * 5) + 6 * 96);
    }
}

/* ---- a worker that sends nonsense */

static void one_less(Dk__SequenceResult *r)
{
    if (r->n_scores)
        dk_message_free(r->scores[--r->n_scores]);
}

static void another_id(Dk__SequenceResult *r)
{
    if (r->n_scores)
        r->scores[r->n_scores - 1]->id ^= 1;
}

static void not_a_number(Dk__SequenceResult *r)
{
    if (r->n_scores)
        r->scores[0]->logprob = NAN;
}

static void alternative_beyond_the_vocabulary(Dk__SequenceResult *r)
{
    if (r->n_scores)
        r->scores[0]->top[0]->id = FX_VOCAB;
}

static void alternative_without_a_number(Dk__SequenceResult *r)
{
    if (r->n_scores)
        r->scores[r->n_scores - 1]->top[0]->logprob = NAN;
}

static void no_tensor(Dk__SequenceResult *r)
{
    while (r->n_trace)
        dk_message_free(r->trace[--r->n_trace]);
}

static void longer_shape(Dk__SequenceResult *r)
{
    if (r->n_trace)
        r->trace[r->n_trace - 1]->shape[0]++;
}

static void overflowing_shape(Dk__SequenceResult *r)
{
    if (r->n_trace) {
        r->trace[0]->shape[0] = r->trace[0]->shape[1] = 0x80000000u;
        r->trace[0]->data.len = 0;
    }
}

Test(values, nonsense_ends_the_sequence)
{
    static const struct {
        void (*spoil)(Dk__SequenceResult *r);
        bool trace;
        const char *says;
    } cases[] = {{alternative_beyond_the_vocabulary, false, "outside the vocabulary"},
                 {alternative_without_a_number, false, "not a log-probability"},
                 {one_less, false, "another number of tokens"},
                 {another_id, false, "another token than the next one"},
                 {not_a_number, false, "not a log-probability"},
                 {no_tensor, true, "sent no trace"},
                 {longer_shape, true, "its data do not fill"},
                 {overflowing_shape, true, "its data do not fill"}};

    fx_ready(&fx);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fx_told t = {0};

        fx.spoil = cases[i].spoil;
        fx_finish(&fx, cases[i].trace ? submit_trace(LONG, 2) : submit_score(LONG, 7, 1), &t);
        cr_assert_eq(t.finish, DK__FINISH_REASON__ERROR);
        cr_assert_eq(t.error, DK__CODE__INTERNAL);
        cr_assert(strstr(t.error_text, cases[i].says), "%s", t.error_text);
    }
}
