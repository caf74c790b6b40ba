/* SPDX-License-Identifier: Apache-2.0 */
#include "coord_fixture.h"

static struct fx fx;

static void start(void)
{
    fx_init(&fx);
}

static void stop(void)
{
    fx_close(&fx);
}

TestSuite(scheduler, .init = start, .fini = stop);

static const char *letters(char c, size_t n)
{
    static char text[FX_CONTEXT];

    memset(text, c, n);
    text[n] = 0;
    return text;
}

Test(scheduler, the_same_step_comes_again_until_its_result_does)
{
    struct answer a, b;
    uint64_t handle, step_id;
    struct fx_told t = {0}, plain = {0};

    fx_ready(&fx);
    fx_finish(&fx, fx_submit_text(&fx, "same", 8), &plain);
    handle = fx_submit_text(&fx, "same", 8);
    fx_next_step(&fx, 0, &a);
    step_id = FX_REPLY(&a, Dk__NextStepReply)->step->step_id;
    fx_next_step(&fx, 0, &b); /* the reply was lost; the worker still brings its older result */
    cr_assert_eq(FX_REPLY(&b, Dk__NextStepReply)->step->step_id, step_id);
    cr_assert_eq(protobuf_c_message_get_packed_size(a.reply), protobuf_c_message_get_packed_size(b.reply));
    fx_run_step(&fx, FX_REPLY(&b, Dk__NextStepReply)->step);
    fx_clear(&a);
    fx_clear(&b);
    fx_next_step(&fx, 0, &a); /* lost as well, after the result was taken */
    cr_assert_gt(FX_REPLY(&a, Dk__NextStepReply)->step->step_id, step_id);
    fx_next_step(&fx, 0, &b);
    cr_assert_eq(FX_REPLY(&b, Dk__NextStepReply)->step->step_id, FX_REPLY(&a, Dk__NextStepReply)->step->step_id);
    fx_clear(&a);
    fx_read(&fx, handle, 0, 0, &a);
    cr_assert_eq(FX_REPLY(&a, Dk__ReadReply)->n_events, 1, "one result, one token");
    fx_clear(&a);
    fx_run_step(&fx, FX_REPLY(&b, Dk__NextStepReply)->step);
    fx_clear(&b);
    fx_finish(&fx, handle, &t);
    cr_assert_str_eq(t.text, plain.text);
    cr_assert_eq(t.token_count, 8u);
}

Test(scheduler, results_of_other_steps_are_ignored)
{
    uint64_t handle;
    struct answer a;

    fx_ready(&fx);
    handle = fx_submit_text(&fx, "x", 8);
    fx_step(&fx);
    fx.w.result->step_id += 5;
    fx_step(&fx);
    fx_read(&fx, handle, 0, 0, &a);
    cr_assert_eq(FX_REPLY(&a, Dk__ReadReply)->n_events, 0);
    fx_clear(&a);
}

Test(scheduler, an_idle_worker_waits)
{
    struct answer a, b;

    fx_ready(&fx);
    fx_next_step(&fx, 300, &a);
    cr_assert_not(a.done);
    fx_tick(&fx, 300 * MS);
    cr_assert_null(FX_REPLY(&a, Dk__NextStepReply)->step);
    fx_clear(&a);
    fx_next_step(&fx, 300, &a);
    fx_submit_text(&fx, "go", 3);
    cr_assert_not_null(FX_REPLY(&a, Dk__NextStepReply)->step);
    fx_run_step(&fx, FX_REPLY(&a, Dk__NextStepReply)->step);
    fx_clear(&a);
    while (fx_step(&fx))
        ;
    fx_next_step(&fx, 300, &a);
    fx_next_step(&fx, 300, &b); /* the first one was given up */
    cr_assert_null(FX_REPLY(&a, Dk__NextStepReply)->step);
    cr_assert_not(b.done);
    fx_clear(&a);
    fx_submit_text(&fx, "go", 3);
    cr_assert_not_null(FX_REPLY(&b, Dk__NextStepReply)->step);
    fx_clear(&b);
}

Test(scheduler, decoding_and_prefill_share_a_step)
{
    uint64_t first;
    const Dk__Step *s;

    fx.options.step_rows = 32;
    fx_ready(&fx);
    first = fx_submit_text(&fx, "x", 100);
    fx_step(&fx);
    fx_submit_text(&fx, letters('a', 100), 5);
    fx_submit_text(&fx, letters('b', 6), 5);
    fx_step(&fx);
    s = fx.w.step;
    cr_assert_eq(s->n_sequences, 3);
    cr_assert_eq(s->sequences[0]->sequence_id, first);
    cr_assert_eq(s->sequences[0]->n_tokens, 1);
    cr_assert(s->sequences[0]->sample);
    cr_assert_eq(s->sequences[1]->n_tokens, 25, "the long prompt gets what is left over: %zu",
                 s->sequences[1]->n_tokens);
    cr_assert_not(s->sequences[1]->sample);
    cr_assert_null(s->sequences[1]->sampling);
    cr_assert_eq(s->sequences[2]->n_tokens, 6, "the short one is not kept waiting");
    cr_assert(s->sequences[2]->sample);
    for (int i = 0; i < 10; i++)
        fx_step(&fx);
    cr_assert_eq(fx.w.rows_most, 32u);
}

Test(scheduler, a_chunk_size_of_its_own)
{
    Dk__SubmitRequest q = DK__SUBMIT_REQUEST__INIT;
    struct answer a;

    fx_ready(&fx);
    q.prompt_case = DK__SUBMIT_REQUEST__PROMPT_TEXT;
    q.text = (char *)letters('c', 20);
    q.has_prefill_chunk = true;
    q.prefill_chunk = 7;
    fx_submit(&fx, &q, &a);
    fx_clear(&a);
    for (uint32_t at = 0; at < 20; at += 7) {
        fx_step(&fx);
        cr_assert_eq(fx.w.step->sequences[0]->position, at);
        cr_assert_eq(fx.w.step->sequences[0]->n_tokens, at < 14 ? 7 : 6);
    }
}

Test(scheduler, no_more_than_max_running_and_in_order)
{
    uint64_t handles[10];
    struct fx_told t[10];

    fx.options.running_max = 3;
    fx.options.step_rows = 8;
    fx_ready(&fx);
    memset(t, 0, sizeof t);
    for (int i = 0; i < 10; i++)
        handles[i] = fx_submit_text(&fx, letters((char)('a' + i), 5 + (size_t)i), 6);
    for (int i = 0; i < 10; i++) {
        cr_assert_leq(dk_sequences_in(fx.c, DK_SEQUENCE_PREFILL) + dk_sequences_in(fx.c, DK_SEQUENCE_DECODE), 3u);
        fx_finish(&fx, handles[i], &t[i]);
        cr_assert_eq(t[i].token_count, 6u);
    }
    cr_assert_leq(fx.w.cache_most, 3u, "the worker never holds more caches than sequences run");
    cr_assert_leq(fx.w.rows_most, 8u);
}

Test(scheduler, the_batch_does_not_matter)
{
    uint64_t handles[6];
    struct fx_told alone[6], together[6];

    fx_ready(&fx);
    memset(alone, 0, sizeof alone);
    memset(together, 0, sizeof together);
    for (int i = 0; i < 6; i++)
        fx_finish(&fx, fx_submit_text(&fx, letters((char)('a' + i), 3 + 9 * (size_t)i), 20), &alone[i]);
    for (int i = 0; i < 6; i++)
        handles[i] = fx_submit_text(&fx, letters((char)('a' + i), 3 + 9 * (size_t)i), 20);
    for (int i = 0; i < 6; i++) {
        fx_finish(&fx, handles[i], &together[i]);
        cr_assert_str_eq(alone[i].text, together[i].text);
    }
    cr_assert_str_neq(alone[0].text, alone[1].text);
}

Test(scheduler, foreign_workers_get_nothing)
{
    struct answer a;
    uint32_t instance;

    fx_ready(&fx);
    fx_submit_text(&fx, "x", 5);
    instance = fx.w.instance;
    fx.w.instance = 999;
    fx_next_step(&fx, 100, &a);
    fx_assert_failed(&a, DK__CODE__FAILED_PRECONDITION, "attention-worker is 'worker'");
    fx.w.instance = instance;
    cr_assert(fx_step(&fx));
}

Test(scheduler, a_worker_before_its_first_heartbeat_waits)
{
    struct answer a;

    fx_open(&fx);
    fx_next_step(&fx, 100, &a);
    cr_assert_not(a.done);
    fx_tick(&fx, 100 * MS);
    cr_assert_null(FX_REPLY(&a, Dk__NextStepReply)->step);
    fx_clear(&a);
}

Test(scheduler, a_worker_with_another_plan_gets_no_step)
{
    struct answer a;
    uint64_t epoch;

    fx_ready(&fx);
    fx_submit_text(&fx, "x", 5);
    epoch = fx.w.epoch;
    fx.w.epoch = epoch - 1;
    fx_next_step(&fx, 0, &a);
    cr_assert_null(FX_REPLY(&a, Dk__NextStepReply)->step);
    fx_clear(&a);
    fx.w.epoch = epoch;
    cr_assert(fx_step(&fx));
}

Test(scheduler, a_call_from_before_the_plan_was_ready_does_not_wait_on)
{
    struct answer load, a, b;

    fx_open(&fx);
    fx_all_beat(&fx);
    fx_next_step(&fx, 5000, &a);
    fx_load(&fx, &load);
    fx_clear(&load);
    fx_tick(&fx, 300 * MS);
    cr_assert_not(a.done);
    fx_worker_beat(&fx);
    cr_assert_null(FX_REPLY(&a, Dk__NextStepReply)->step);
    fx_clear(&a);
    fx.w.epoch--; /* a worker that still asks with another epoch is not driven round in circles */
    fx_next_step(&fx, 5000, &b);
    cr_assert_not(b.done);
    fx_tick(&fx, 5 * SECOND);
    fx_clear(&b);
}

Test(scheduler, step_rows_must_leave_room_for_prompts)
{
    struct dk_coordinator *c;
    struct dk_err err = {0};

    fx_open(&fx);
    fx.options.step_rows = fx.options.running_max;
    cr_assert_eq(dk_coordinator_open(&fx.options, 0, &c, &err), -EINVAL);
    cr_assert(strstr(err.text, "--step-rows 16 must be larger than --max-running 16"), "%s", err.text);
    fx.options.step_rows = 4097;
    cr_assert_eq(dk_coordinator_open(&fx.options, 0, &c, &err), -EINVAL);
    cr_assert(strstr(err.text, "more than the 4096"), "%s", err.text);
}

static uint64_t submit_logits(const char *text, uint32_t chunk)
{
    Dk__SubmitRequest q = DK__SUBMIT_REQUEST__INIT;
    struct answer a;
    uint64_t handle;

    q.prompt_case = DK__SUBMIT_REQUEST__PROMPT_TEXT;
    q.text = (char *)text;
    q.has_want_logits = q.want_logits = true;
    q.has_max_tokens = true;
    q.max_tokens = 3;
    q.has_prefill_chunk = chunk > 0;
    q.prefill_chunk = chunk;
    fx_submit(&fx, &q, &a);
    handle = FX_REPLY(&a, Dk__SubmitReply)->handle;
    fx_clear(&a);
    return handle;
}

Test(scheduler, logits_of_every_prompt_position_once)
{
    struct fx_told t = {0}, u = {0};
    uint64_t handle;

    fx_ready(&fx);
    fx_finish(&fx, submit_logits(letters('l', 50), 0), &t);
    cr_assert_eq(t.logits_bytes, 50 * FX_VOCAB * sizeof(float));
    cr_assert_eq(t.token_count, 3u);
    /* The worker is restarted in the middle: what was told is not told again. */
    handle = submit_logits(letters('l', 50), 8);
    for (int i = 0; i < 4; i++)
        fx_step(&fx);
    fx_worker_restart(&fx, 300);
    fx_tick(&fx, 1500 * MS);
    fx_all_beat(&fx);
    dk_sequence_find(fx.c, handle)->prefill_chunk = 7; /* other borders than before */
    fx_finish(&fx, handle, &u);
    cr_assert_eq(u.logits_bytes, 50 * FX_VOCAB * sizeof(float));
    cr_assert_str_eq(u.text, t.text);
}

Test(scheduler, unread_logits_hold_a_sequence_back)
{
    uint64_t handle, other;
    struct dk_sequence *s;
    struct answer a;
    struct fx_told t = {0};

    fx_ready(&fx);
    handle = submit_logits(letters('l', 50), 0);
    fx_step(&fx);
    cr_assert_eq(fx.w.step->sequences[0]->n_tokens, 50, "nothing unread: all at once");
    fx_cancel(&fx, handle);

    handle = submit_logits(letters('l', 50), 10);
    s = dk_sequence_find(fx.c, handle);
    fx_step(&fx);
    fx_step(&fx);
    cr_assert_eq(s->values_unread, 10 * FX_VOCAB * sizeof(float));
    /* As if all but 23 rows of the allowance were unread; the next result brings 10, the one after it 10 more. */
    s->values_unread += DK_VALUES_UNREAD_BYTES - s->values_unread - 23 * FX_VOCAB * sizeof(float);
    fx_step(&fx);
    fx_step(&fx);
    cr_assert_eq(fx.w.step->sequences[0]->n_tokens, 3, "%zu", fx.w.step->sequences[0]->n_tokens);
    cr_assert_not(fx_step(&fx), "held back");
    other = fx_submit_text(&fx, "x", 1);
    cr_assert(fx_step(&fx), "others are not");
    cr_assert_eq(fx.w.step->n_sequences, 1);
    cr_assert_eq(fx.w.step->sequences[0]->sequence_id, other);
    /* Reading lets it go on. */
    s->values_unread = 33 * FX_VOCAB * sizeof(float);
    fx_read(&fx, handle, 0, 0, &a);
    fx_take(&t, FX_REPLY(&a, Dk__ReadReply));
    fx_clear(&a);
    fx_finish(&fx, handle, &t);
    cr_assert_eq(s->values_unread, 0u);
    cr_assert_eq(t.logits_bytes, 50 * FX_VOCAB * sizeof(float));
}

Test(scheduler, logits_of_one_step_are_bounded)
{
    struct answer a;
    const Dk__Step *s;

    fx_ready(&fx);
    submit_logits(letters('l', 50), 0);
    submit_logits(letters('m', 50), 0);
    fx.c->model.config.vocab = 1u << 18; /* a row takes 1 MiB */
    fx_next_step(&fx, 0, &a);
    s = FX_REPLY(&a, Dk__NextStepReply)->step;
    cr_assert_eq(s->n_sequences, 1);
    cr_assert_eq(s->sequences[0]->n_tokens, 4);
    fx_clear(&a);
}

Test(scheduler, ending_answers_every_waiting_call)
{
    struct answer step, status, after;
    Dk__StatusRequest q = DK__STATUS_REQUEST__INIT;
    uint64_t handle;

    fx_ready(&fx);
    handle = fx_submit_text(&fx, "x", 5);
    fx_step(&fx);
    fx_cancel(&fx, handle);
    fx_step(&fx);
    fx_next_step(&fx, 5000, &step);
    q.has_wait_ms = q.has_unlike = true;
    q.wait_ms = 5000;
    q.unlike = DK__CLUSTER_STATE__READY;
    fx_call(&fx, &q, &status);
    cr_assert(!step.done && !status.done);
    dk_coordinator_end(fx.c, &fx.out);
    fx_call(&fx, &q, &after);
    fx_assert_failed(&step, DK__CODE__UNAVAILABLE, "coordinator is ending");
    fx_assert_failed(&status, DK__CODE__UNAVAILABLE, "coordinator is ending");
    fx_assert_failed(&after, DK__CODE__UNAVAILABLE, "coordinator is ending");
}

/* ---- the worker's cache */

Test(scheduler, only_what_fits_the_cache_runs)
{
    uint64_t handles[4];
    struct fx_told t[4];

    memset(t, 0, sizeof t);
    fx.w.cache_tokens = 96;
    fx_ready(&fx);
    handles[0] = fx_submit_text(&fx, letters('a', 30), 10); /* 40 tokens: 48 */
    handles[1] = fx_submit_text(&fx, letters('b', 28), 5);  /* 33: 48 */
    handles[2] = fx_submit_text(&fx, letters('c', 90), 6);  /* all of it */
    handles[3] = fx_submit_text(&fx, letters('d', 2), 2);   /* would fit beside the others, but came last */
    fx_step(&fx);
    cr_assert_eq(fx.w.step->n_sequences, 2);
    cr_assert_eq(dk_sequences_in(fx.c, DK_SEQUENCE_QUEUED), 2u);
    fx_finish(&fx, handles[1], &t[1]);
    fx_step(&fx);
    cr_assert_eq(fx.w.step->n_sequences, 1, "half of the cache is not enough");
    for (int i = 0; i < 4; i++) {
        fx_finish(&fx, handles[i], &t[i]);
        cr_assert_eq(t[i].finish, DK__FINISH_REASON__LENGTH);
    }
    cr_assert_eq(fx.w.cache_most, 2u);
}

Test(scheduler, what_never_fits_is_refused)
{
    Dk__SubmitRequest q = DK__SUBMIT_REQUEST__INIT;
    struct answer a;

    fx.w.cache_tokens = 96;
    fx_ready(&fx);
    q.prompt_case = DK__SUBMIT_REQUEST__PROMPT_TEXT;
    q.text = (char *)letters('a', 91);
    q.has_max_tokens = true;
    q.max_tokens = 6;
    fx_submit(&fx, &q, &a);
    fx_assert_failed(&a, DK__CODE__RESOURCE_EXHAUSTED,
                     "room for 112 tokens in the attention-worker's cache, which has 96");
    cr_assert_eq(fx.c->sequence_count, 0u);
    q.max_tokens = 5;
    fx_submit(&fx, &q, &a);
    FX_REPLY(&a, Dk__SubmitReply);
    fx_clear(&a);
    q.has_max_tokens = false; /* what the cache leaves */
    fx_submit(&fx, &q, &a);
    cr_assert_eq(dk_sequence_find(fx.c, FX_REPLY(&a, Dk__SubmitReply)->handle)->max_tokens, 5u);
    fx_clear(&a);
    q.text = (char *)letters('a', 96);
    fx_submit(&fx, &q, &a);
    fx_assert_failed(&a, DK__CODE__RESOURCE_EXHAUSTED, "which has 96");
}

Test(scheduler, a_smaller_cache_of_a_new_worker)
{
    struct fx_told plain[3], t[3];
    uint64_t handles[3];

    memset(plain, 0, sizeof plain);
    memset(t, 0, sizeof t);
    fx.w.cache_tokens = 256;
    fx_ready(&fx);
    for (int i = 0; i < 3; i++)
        fx_finish(&fx, fx_submit_text(&fx, letters((char)('a' + i), 10 + 50 * (size_t)i), 12), &plain[i]);
    for (int i = 0; i < 3; i++)
        handles[i] = fx_submit_text(&fx, letters((char)('a' + i), 10 + 50 * (size_t)i), 12);
    for (int i = 0; i < 3; i++)
        fx_step(&fx);
    cr_assert_eq(fx.w.step->n_sequences, 3);
    fx_worker_restart(&fx, 200);
    fx.w.cache_tokens = 96; /* the first two fit together, 32 and 80, no: one after the other; the last never does */
    fx_tick(&fx, 1500 * MS);
    fx_all_beat(&fx);
    fx.w.cache_most = 0;
    for (int i = 0; i < 3; i++)
        fx_finish(&fx, handles[i], &t[i]);
    cr_assert_eq(fx.w.cache_most, 1u);
    cr_assert_str_eq(t[0].text, plain[0].text);
    cr_assert_str_eq(t[1].text, plain[1].text);
    cr_assert_eq(t[2].finish, DK__FINISH_REASON__ERROR);
    cr_assert_eq(t[2].error, DK__CODE__RESOURCE_EXHAUSTED);
    cr_assert(strstr(t[2].error_text, "room for 128 tokens"), "%s", t[2].error_text);
}

Test(scheduler, the_worker_has_a_place_to_wait)
{
    Dk__StatusRequest q = DK__STATUS_REQUEST__INIT;
    struct answer calls[3], step;

    fx.options.parked_max = 2;
    fx_ready(&fx);
    q.has_wait_ms = q.has_unlike = true;
    q.wait_ms = 1000;
    q.unlike = DK__CLUSTER_STATE__READY;
    for (int i = 0; i < 3; i++)
        fx_call(&fx, &q, &calls[i]);
    cr_assert(!calls[0].done && !calls[1].done && calls[2].done);
    fx_clear(&calls[2]);
    fx_next_step(&fx, 1000, &step);
    cr_assert_not(step.done, "it must not ask again and again");
    fx_call(&fx, &q, &calls[2]);
    cr_assert(calls[2].done && !step.done);
    fx_clear(&calls[2]);
    fx_submit_text(&fx, "go", 3);
    cr_assert_not_null(FX_REPLY(&step, Dk__NextStepReply)->step);
    fx_clear(&step);
    fx_tick(&fx, 1000 * MS);
    fx_clear(&calls[0]);
    fx_clear(&calls[1]);
}
