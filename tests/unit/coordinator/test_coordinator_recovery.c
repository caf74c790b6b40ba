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

TestSuite(recovery, .init = start, .fini = stop);

static const char *letters(char c, size_t n)
{
    static char text[FX_CONTEXT];

    memset(text, c, n);
    text[n] = 0;
    return text;
}

Test(recovery, a_restarted_worker_goes_on_with_the_same_tokens)
{
    struct fx_told plain[3], t[3];
    uint64_t handles[3];
    char text[200];

    fx.options.step_rows = 40;
    fx_ready(&fx);
    memset(plain, 0, sizeof plain);
    for (int i = 0; i < 3; i++)
        fx_finish(&fx, fx_submit_text(&fx, letters((char)('a' + i), 30 + 20 * (size_t)i), 40), &plain[i]);
    /* Killed after any number of steps, with its last result delivered or not. */
    for (int after = 1; after < 20; after++) {
        memset(t, 0, sizeof t);
        for (int i = 0; i < 3; i++)
            handles[i] = fx_submit_text(&fx, letters((char)('a' + i), 30 + 20 * (size_t)i), 40);
        for (int i = 0; i < after; i++)
            fx_step(&fx);
        if (after % 2) {
            struct answer a;

            fx_next_step(&fx, 0, &a); /* brings the result, dies before the reply is there */
            fx_clear(&a);
        }
        fx_worker_restart(&fx, 200 + (uint32_t)after);
        fx_tick(&fx, 1500 * MS);
        fx_duck(&fx, "duck-1", 1);
        fx_duck(&fx, "duck-2", 2);
        fx_worker_beat(&fx);
        cr_assert_eq(fx_state(&fx, text, sizeof text), DK__CLUSTER_STATE__READY);
        for (int i = 0; i < 3; i++) {
            fx_finish(&fx, handles[i], &t[i]);
            cr_assert_eq(t[i].token_count, 40u);
            cr_assert_str_eq(t[i].text, plain[i].text, "after %d steps: %s, not %s", after, t[i].text, plain[i].text);
        }
    }
}

Test(recovery, a_step_of_the_old_epoch_is_forgotten_by_a_worker_that_reloaded)
{
    uint64_t handle;
    struct fx_told plain = {0}, t = {0};

    fx_ready(&fx);
    fx_finish(&fx, fx_submit_text(&fx, "epoch", 12), &plain);
    handle = fx_submit_text(&fx, "epoch", 12);
    for (int i = 0; i < 4; i++)
        fx_step(&fx);
    /* duck-1 is restarted; the worker drops everything for the new epoch, its last result included. */
    fx_tick(&fx, 1100 * MS);
    fx_duck(&fx, "duck-2", 2);
    fx_duck(&fx, "duck-1", 11);
    fx_worker_beat(&fx);
    fx_worker_beat(&fx);
    fx.w.cache_count = 0;
    dk_message_free(fx.w.result);
    fx.w.result = NULL;
    cr_assert_eq(fx_state(&fx, NULL, 0), DK__CLUSTER_STATE__READY);
    fx_finish(&fx, handle, &t);
    cr_assert_str_eq(t.text, plain.text);
    cr_assert_eq(t.token_count, 12u);
}

Test(recovery, a_result_that_crosses_a_new_epoch_still_counts)
{
    uint64_t handle;
    struct fx_told plain = {0}, t = {0};

    fx_ready(&fx);
    fx_finish(&fx, fx_submit_text(&fx, "cross", 12), &plain);
    handle = fx_submit_text(&fx, "cross", 12);
    for (int i = 0; i < 4; i++)
        fx_step(&fx);
    fx_tick(&fx, 1100 * MS);
    fx_duck(&fx, "duck-2", 2);
    fx_duck(&fx, "duck-1", 11);
    fx_worker_beat(&fx);
    fx_worker_beat(&fx);
    fx.w.cache_count = 0; /* but the result of the last step is brought */
    fx_finish(&fx, handle, &t);
    cr_assert_str_eq(t.text, plain.text);
    cr_assert_eq(t.token_count, 12u);
}

Test(recovery, a_step_that_failed_for_a_duck_that_is_back_is_done_again)
{
    uint64_t handle;
    struct fx_told plain = {0}, t = {0};

    fx_ready(&fx);
    fx_finish(&fx, fx_submit_text(&fx, "twice", 12), &plain);
    handle = fx_submit_text(&fx, "twice", 12);
    for (int i = 0; i < 4; i++)
        fx_step(&fx);
    fx.w.fail_step = dk_status_new(DK__CODE__UNAVAILABLE, "the plan changed during the step");
    fx_step(&fx);
    fx_tick(&fx, 1100 * MS);
    fx_duck(&fx, "duck-2", 2);
    fx_duck(&fx, "duck-1", 11);
    fx_worker_beat(&fx);
    fx_finish(&fx, handle, &t);
    cr_assert_eq(t.finish, DK__FINISH_REASON__LENGTH, "%s", t.error_text);
    cr_assert_str_eq(t.text, plain.text);
    cr_assert_eq(t.token_count, 12u);
}

Test(recovery, what_ended_is_released_although_a_step_got_lost)
{
    uint64_t first, second;
    struct answer a;

    fx_ready(&fx);
    first = fx_submit_text(&fx, "first", 50);
    second = fx_submit_text(&fx, "second", 50);
    fx_step(&fx);
    fx_cancel(&fx, first);
    fx_next_step(&fx, 0, &a); /* names the first as released, but never arrives */
    cr_assert_eq(FX_REPLY(&a, Dk__NextStepReply)->step->n_released, 1);
    fx_clear(&a);
    fx_tick(&fx, 1100 * MS);
    fx_duck(&fx, "duck-2", 2);
    fx_duck(&fx, "duck-1", 11); /* a new epoch; this worker keeps its caches */
    fx_worker_beat(&fx);
    cr_assert(fx_step(&fx));
    cr_assert_eq(fx.w.step->n_released, 1);
    cr_assert_eq(fx.w.step->released[0], first);
    cr_assert_eq(fx.w.cache_count, 1u);
    /* A new worker knows neither of them. */
    fx_worker_restart(&fx, 500);
    fx_tick(&fx, 1100 * MS);
    fx_duck(&fx, "duck-1", 11);
    fx_duck(&fx, "duck-2", 2);
    fx_worker_beat(&fx);
    fx_cancel(&fx, second);
    fx_submit_text(&fx, "third", 5);
    cr_assert(fx_step(&fx));
    cr_assert_eq(fx.w.step->n_released, 0);
}
