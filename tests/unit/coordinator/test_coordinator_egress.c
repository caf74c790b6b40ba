/* SPDX-License-Identifier: Apache-2.0 */
#include "coord_fixture.h"

static struct fx fx;
static const char *script; /* what the model answers; '$' is the end token */
static uint32_t script_prompt;

static void start(void)
{
    fx_init(&fx);
    fx_ready(&fx);
}

static void stop(void)
{
    fx_close(&fx);
}

TestSuite(egress, .init = start, .fini = stop);

static uint32_t scripted(const struct fx_cache *s)
{
    uint8_t b = (uint8_t)script[s->count - script_prompt];

    return b == '$' ? FX_END : b == '0' ? 0 : b;
}

static void submit_stops(const char *answer, char **stops, size_t n, bool ignore_eos, uint32_t max_tokens,
                         struct fx_told *t)
{
    Dk__SubmitRequest q = DK__SUBMIT_REQUEST__INIT;
    struct answer a;

    script = answer;
    script_prompt = 1;
    fx.next_token = scripted;
    q.prompt_case = DK__SUBMIT_REQUEST__PROMPT_TEXT;
    q.text = (char *)"?";
    q.stop = stops;
    q.n_stop = n;
    q.has_ignore_eos = true;
    q.ignore_eos = ignore_eos;
    q.has_max_tokens = true;
    q.max_tokens = max_tokens;
    fx_submit(&fx, &q, &a);
    fx_finish(&fx, FX_REPLY(&a, Dk__SubmitReply)->handle, t);
    fx_clear(&a);
}

Test(egress, an_end_token_is_in_the_tokens_but_not_in_the_text)
{
    struct fx_told t = {0};

    submit_stops("hello$", NULL, 0, false, 100, &t);
    cr_assert_str_eq(t.text, "hello");
    cr_assert_eq(t.token_count, 6);
    cr_assert_eq(t.tokens[5], FX_END);
    cr_assert_eq(t.finish, DK__FINISH_REASON__STOP);
}

Test(egress, end_tokens_can_be_ignored)
{
    struct fx_told t = {0};

    submit_stops("he$llo$$", NULL, 0, true, 7, &t);
    cr_assert_str_eq(t.text, "hello");
    cr_assert_eq(t.token_count, 7);
    cr_assert_eq(t.finish, DK__FINISH_REASON__LENGTH);
}

Test(egress, an_end_token_as_the_last_allowed_one_is_a_stop)
{
    struct fx_told t = {0};

    submit_stops("hi$", NULL, 0, false, 3, &t);
    cr_assert_eq(t.finish, DK__FINISH_REASON__STOP);
}

Test(egress, stop_strings_across_tokens)
{
    char *stops[] = {(char *)"</a>", (char *)"STOP"};
    struct fx_told t = {0}, u = {0}, v = {0}, w = {0};

    submit_stops("x<y</b></a>more$", stops, 2, false, 100, &t);
    cr_assert_str_eq(t.text, "x<y</b>");
    cr_assert_eq(t.token_count, 11);
    cr_assert_eq(t.finish, DK__FINISH_REASON__STOP);
    /* Held back text comes out when the answer ends otherwise. */
    submit_stops("aST$", stops, 2, false, 100, &u);
    cr_assert_str_eq(u.text, "aST");
    submit_stops("aSTxxx", stops, 2, false, 3, &v);
    cr_assert_str_eq(v.text, "aST");
    cr_assert_eq(v.finish, DK__FINISH_REASON__LENGTH);
    submit_stops("ab\xe4STOP", stops, 2, false, 100, &w);
    cr_assert_str_eq(w.text, "ab\xef\xbf\xbd");
    cr_assert_eq(w.finish, DK__FINISH_REASON__STOP);
}

Test(egress, characters_are_never_cut)
{
    struct fx_told t = {0}, u = {0}, v = {0};
    struct answer a;
    uint64_t handle;
    const char *text = "\xe4\xbd\xa0\xf0\x9f\xa6\x86";

    submit_stops("\xe4\xbd\xa0\xf0\x9f\xa6\x86$", NULL, 0, false, 100, &t);
    cr_assert_str_eq(t.text, text);
    submit_stops("\xe4\xbd$", NULL, 0, false, 100, &u);
    cr_assert_eq(u.text[0], '\xef', "the rest of a character becomes U+FFFD");
    submit_stops("a0b$", NULL, 0, false, 100, &v);
    cr_assert_str_eq(v.text, "a\xef\xbf\xbd"
                             "b");
    /* Event by event: text only when a character is whole. */
    script = text;
    script_prompt = 1;
    handle = fx_submit_text(&fx, "?", 7);
    for (int i = 0; i < 8; i++)
        fx_step(&fx);
    fx_read(&fx, handle, 0, 0, &a);
    for (size_t i = 0; i < 7; i++) {
        const Dk__Event *e = FX_REPLY(&a, Dk__ReadReply)->events[i];

        cr_assert(e->has_token);
        cr_assert_eq(e->text != NULL, i == 2 || i == 6, "event %zu", i);
    }
    fx_clear(&a);
}

Test(egress, a_lost_reply_is_read_again)
{
    struct fx_told t = {0}, half = {0};
    uint64_t handle = fx_submit_text(&fx, "again", 20);
    struct answer a;

    for (int i = 0; i < 6; i++)
        fx_step(&fx);
    fx_read(&fx, handle, 0, 0, &a);
    fx_take(&half, FX_REPLY(&a, Dk__ReadReply));
    cr_assert_eq(half.token_count, 5);
    fx_clear(&a); /* lost on the way */
    fx_step(&fx);
    fx_read(&fx, handle, 0, 0, &a);
    fx_take(&t, FX_REPLY(&a, Dk__ReadReply));
    cr_assert_eq(t.token_count, 6);
    cr_assert_arr_eq(t.tokens, half.tokens, 5 * sizeof(uint32_t));
    fx_clear(&a);
    fx_read(&fx, handle, 3, 0, &a);
    cr_assert_eq(FX_REPLY(&a, Dk__ReadReply)->n_events, 3);
    fx_clear(&a);
    fx_read(&fx, handle, 2, 0, &a);
    fx_assert_failed(&a, DK__CODE__INVALID_ARGUMENT, "events up to 3 are gone");
    fx_read(&fx, handle, 7, 0, &a);
    fx_assert_failed(&a, DK__CODE__INVALID_ARGUMENT, "newest event of this sequence is 6");
    fx_finish(&fx, handle, &t);
    cr_assert_eq(t.token_count, 20);
    fx_read(&fx, handle, t.cursor, 60000, &a); /* nothing can come any more: no reason to wait */
    cr_assert_eq(FX_REPLY(&a, Dk__ReadReply)->n_events, 0);
    fx_clear(&a);
}

Test(egress, a_read_waits_for_an_event_or_its_deadline)
{
    uint64_t handle = fx_submit_text(&fx, "wait", 20);
    struct answer a, b;

    fx_read(&fx, handle, 0, 500, &a);
    cr_assert_not(a.done);
    fx_tick(&fx, 499 * MS);
    cr_assert_not(a.done);
    fx_tick(&fx, 1 * MS);
    cr_assert_eq(FX_REPLY(&a, Dk__ReadReply)->n_events, 0);
    fx_clear(&a);
    fx_all_beat(&fx);
    fx_read(&fx, handle, 0, 500, &a);
    fx_read(&fx, handle, 0, 500, &b); /* two readers of one sequence */
    fx_step(&fx);
    cr_assert_not(a.done);
    fx_step(&fx);
    cr_assert_eq(FX_REPLY(&a, Dk__ReadReply)->n_events, 1);
    cr_assert_eq(FX_REPLY(&b, Dk__ReadReply)->n_events, 1);
    fx_clear(&a);
    fx_clear(&b);
    fx_read(&fx, handle + 1, 0, 500, &a);
    fx_assert_failed(&a, DK__CODE__NOT_FOUND, "handle");
}

Test(egress, too_many_waiting_calls_are_answered_at_once)
{
    static struct answer waiting[200];
    uint64_t handle = fx_submit_text(&fx, "wait", 20);
    struct answer a;

    for (uint32_t i = 0; i < fx.options.parked_max; i++)
        fx_read(&fx, handle, 0, 5000, &waiting[i]);
    cr_assert_not(waiting[0].done);
    fx_read(&fx, handle, 0, 5000, &a);
    cr_assert_eq(FX_REPLY(&a, Dk__ReadReply)->n_events, 0);
    fx_clear(&a);
    cr_assert(fx_step(&fx), "the worker is served all the same");
    fx_step(&fx);
    for (uint32_t i = 0; i < fx.options.parked_max; i++) {
        cr_assert_eq(FX_REPLY(&waiting[i], Dk__ReadReply)->n_events, 1);
        fx_clear(&waiting[i]);
    }
}

Test(egress, cancel_in_each_state)
{
    uint64_t queued, prefill, decode, done, in_step;
    char text[400];
    struct fx_told t;
    struct answer a;
    Dk__CancelRequest q = DK__CANCEL_REQUEST__INIT;

    done = fx_submit_text(&fx, "d", 1);
    memset(&t, 0, sizeof t);
    fx_finish(&fx, done, &t);
    fx_cancel(&fx, done); /* nothing left to do */
    cr_assert_eq(t.finish, DK__FINISH_REASON__LENGTH);

    decode = fx_submit_text(&fx, "e", 100);
    fx_step(&fx);
    fx_step(&fx);
    memset(text, 'p', 399);
    text[399] = 0;
    prefill = fx_submit_text(&fx, text, 100);
    fx_step(&fx);
    in_step = fx_submit_text(&fx, "s", 100);
    fx_step(&fx);
    queued = fx_submit_text(&fx, "q", 100);
    cr_assert_eq(dk_sequence_find(fx.c, queued)->state, DK_SEQUENCE_QUEUED);
    cr_assert_eq(dk_sequence_find(fx.c, prefill)->state, DK_SEQUENCE_PREFILL);
    cr_assert_eq(dk_sequence_find(fx.c, decode)->state, DK_SEQUENCE_DECODE);
    const uint64_t all[] = {queued, prefill, decode, in_step};

    for (int i = 0; i < 4; i++)
        fx_cancel(&fx, all[i]);
    fx_step(&fx); /* brings the result of a step that was meant for three of them */
    for (int i = 0; i < 4; i++) {
        memset(&t, 0, sizeof t);
        fx_finish(&fx, all[i], &t);
        cr_assert_eq(t.finish, DK__FINISH_REASON__CANCEL);
    }
    /* The next step tells the worker of the three that it knows. */
    fx_submit_text(&fx, "n", 1);
    fx_step(&fx);
    cr_assert_eq(fx.w.step->n_sequences, 1);
    cr_assert_eq(fx.w.step->n_released, 3);
    cr_assert_eq(fx.w.cache_count, 1u);
    q.handle = 1;
    fx_call(&fx, &q, &a);
    fx_assert_failed(&a, DK__CODE__NOT_FOUND, "handle 1");
}

Test(egress, a_client_that_went_away_is_cancelled_and_forgotten)
{
    uint64_t handle = fx_submit_text(&fx, "gone", 400), read = fx_submit_text(&fx, "read", 400);
    struct answer a;

    for (int i = 0; i < 59; i++) {
        fx_tick(&fx, 1 * SECOND);
        fx_all_beat(&fx);
        fx_read(&fx, read, 0, 0, &a);
        fx_clear(&a);
    }
    fx_step(&fx);
    cr_assert_eq(dk_sequence_find(fx.c, handle)->state, DK_SEQUENCE_PREFILL);
    fx_tick(&fx, 2 * SECOND);
    cr_assert_eq(dk_sequence_find(fx.c, handle)->state, DK_SEQUENCE_DONE);
    cr_assert_neq(dk_sequence_find(fx.c, read)->state, DK_SEQUENCE_DONE);
    fx_read(&fx, read, 0, 200000, &a); /* waiting is a sign of life, too */
    fx_tick(&fx, 61 * SECOND);
    cr_assert_null(dk_sequence_find(fx.c, handle));
    cr_assert_neq(dk_sequence_find(fx.c, read)->state, DK_SEQUENCE_DONE);
    cr_assert_not(a.done);
    fx_cancel(&fx, read);
    cr_assert(FX_REPLY(&a, Dk__ReadReply)->events[0]->has_finish);
    fx_clear(&a);
}

Test(egress, finished_sequences_are_bounded)
{
    uint64_t first = 0;

    for (uint32_t i = 0; i < fx.c->sequences_max + 10; i++) {
        uint64_t handle = fx_submit_text(&fx, "x", 1);

        fx_cancel(&fx, handle);
        first = first ? first : handle;
    }
    cr_assert_eq(fx.c->sequence_count, fx.c->sequences_max);
    cr_assert_null(dk_sequence_find(fx.c, first), "the oldest went first");
}

Test(egress, large_events_come_one_by_one)
{
    uint64_t handle = fx_submit_text(&fx, "x", 5);
    struct dk_sequence *s = dk_sequence_find(fx.c, handle);
    struct answer a;

    for (int i = 0; i < 3; i++) {
        Dk__Event *e = dk_sequence_event(s);

        e->has_logits = true;
        e->logits.len = 3u << 20;
        e->logits.data = calloc(1, e->logits.len);
        s->values_unread += e->logits.len;
    }
    for (uint64_t cursor = 0; cursor < 3; cursor++) {
        fx_read(&fx, handle, cursor, 0, &a);
        cr_assert_eq(FX_REPLY(&a, Dk__ReadReply)->n_events, 1);
        cr_assert_eq(FX_REPLY(&a, Dk__ReadReply)->events[0]->cursor, cursor + 1);
        fx_clear(&a);
    }
    fx_read(&fx, handle, 3, 0, &a);
    fx_clear(&a);
    cr_assert_eq(s->values_unread, 0u);
}

Test(egress, logprobs_are_reported_when_asked_for)
{
    Dk__SubmitRequest q = DK__SUBMIT_REQUEST__INIT;
    struct answer a;
    uint64_t handle;

    q.prompt_case = DK__SUBMIT_REQUEST__PROMPT_TEXT;
    q.text = (char *)"p";
    q.has_logprobs = true;
    q.logprobs = 0;
    fx_submit(&fx, &q, &a);
    handle = FX_REPLY(&a, Dk__SubmitReply)->handle;
    fx_clear(&a);
    fx_step(&fx);
    fx_step(&fx);
    fx_read(&fx, handle, 0, 0, &a);
    cr_assert(FX_REPLY(&a, Dk__ReadReply)->events[0]->has_logprob);
    cr_assert_float_eq(FX_REPLY(&a, Dk__ReadReply)->events[0]->logprob, -1, 1e-6);
    fx_clear(&a);
}

Test(egress, times_are_told_at_the_end)
{
    uint64_t handle = fx_submit_text(&fx, "0123456789", 5);
    struct fx_told t = {0};
    struct answer a;

    fx_tick(&fx, 100 * MS);
    for (int i = 0; i < 7; i++) {
        fx_step(&fx);
        fx_tick(&fx, 50 * MS);
        fx_all_beat(&fx);
    }
    fx_read(&fx, handle, 0, 0, &a);
    fx_take(&t, FX_REPLY(&a, Dk__ReadReply));
    fx_clear(&a);
    cr_assert_eq(t.stats.input_len, 10u);
    cr_assert_eq(t.stats.output_len, 5u);
    cr_assert_float_eq(t.stats.ttft_s, 0.150, 1e-9);
    cr_assert_float_eq(t.stats.tpot_s, 0.050, 1e-9);
    cr_assert_float_eq(t.stats.time_s, 0.350, 1e-9);
    cr_assert_float_eq(t.stats.prefill_tok_s, 10 / 0.050, 1e-6);
    cr_assert_float_eq(t.stats.decode_tok_s, 1 / 0.050, 1e-6);
}

Test(egress, errors_of_the_worker_end_what_they_concern)
{
    uint64_t bad = fx_submit_text(&fx, "bad", 50), good = fx_submit_text(&fx, "good", 50), third;
    struct fx_told t = {0}, u = {0}, v = {0};
    struct answer a;

    fx.w.fail_sequence = bad;
    fx_step(&fx);
    fx_step(&fx);
    fx_finish(&fx, bad, &t);
    cr_assert_eq(t.finish, DK__FINISH_REASON__ERROR);
    cr_assert_eq(t.error, DK__CODE__INTERNAL);
    cr_assert_str_eq(t.error_text, "this one failed");
    fx.w.fail_step = dk_status_new(DK__CODE__UNAVAILABLE, "duck 'duck-2' does not answer");
    third = 0;
    fx_step(&fx); /* this one fails */
    third = fx_submit_text(&fx, "later", 3);
    fx_finish(&fx, good, &u);
    cr_assert_eq(u.finish, DK__FINISH_REASON__ERROR);
    cr_assert_eq(u.error, DK__CODE__UNAVAILABLE);
    cr_assert_str_eq(u.error_text, "duck 'duck-2' does not answer");
    fx_finish(&fx, third, &v);
    cr_assert_eq(v.finish, DK__FINISH_REASON__LENGTH);
    Dk__StatsRequest q = DK__STATS_REQUEST__INIT;

    fx_call(&fx, &q, &a);
    cr_assert_eq(FX_REPLY(&a, Dk__StatsReply)->sequences_failed, 2u);
    cr_assert_eq(FX_REPLY(&a, Dk__StatsReply)->sequences_done, 1u);
    cr_assert_eq(FX_REPLY(&a, Dk__StatsReply)->n_nodes, 3);
    cr_assert_gt(FX_REPLY(&a, Dk__StatsReply)->total->total_us, 20u);
    cr_assert_eq(FX_REPLY(&a, Dk__StatsReply)->last->total_us, 10u);
    cr_assert_eq(FX_REPLY(&a, Dk__StatsReply)->last->meanwhile_us, 3u);
    cr_assert_eq(10 * FX_REPLY(&a, Dk__StatsReply)->total->meanwhile_us,
                 3 * FX_REPLY(&a, Dk__StatsReply)->total->total_us);
    fx_clear(&a);
}

static void answer_with(uint64_t step_id, Dk__SequenceResult *r)
{
    fx_step(&fx);
    if (r) {
        for (size_t i = 0; i < fx.w.result->n_sequences; i++)
            dk_message_free(fx.w.result->sequences[i]);
        fx.w.result->sequences[0] = r;
        fx.w.result->n_sequences = 1;
    }
    fx.w.result->step_id += step_id;
    fx_step(&fx);
}

Test(egress, a_worker_that_answers_nonsense_ends_the_sequence)
{
    uint64_t handle = fx_submit_text(&fx, "x", 50);
    struct fx_told t = {0}, u = {0};
    Dk__SequenceResult *r = dk_message_new(&dk__sequence_result__descriptor);

    r->sequence_id = handle;
    r->has_token = true;
    r->token = FX_VOCAB;
    answer_with(0, r);
    fx_finish(&fx, handle, &t);
    cr_assert_eq(t.error, DK__CODE__INTERNAL);
    cr_assert(strstr(t.error_text, "outside the vocabulary"));
    handle = fx_submit_text(&fx, "x", 50);
    r = dk_message_new(&dk__sequence_result__descriptor);
    r->sequence_id = handle + 1;
    answer_with(0, r);
    fx_finish(&fx, handle, &u);
    cr_assert_eq(u.error, DK__CODE__INTERNAL);
    cr_assert(strstr(u.error_text, "does not mention"));
}
