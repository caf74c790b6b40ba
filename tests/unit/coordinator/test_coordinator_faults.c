/* SPDX-License-Identifier: Apache-2.0 */
#include "coord_fixture.h"

/* Random histories from a seed: replies get lost, reads and results are repeated, the worker and ducks are killed.
 * Every client must still read exactly the tokens that it would have got in peace. */

#define CLIENTS 5

static struct fx fx;

static uint32_t pick(struct dk_rng *rng, uint32_t n)
{
    return (uint32_t)(dk_rng_next(rng) % n);
}

static const char *prompt_of(uint32_t client)
{
    static const char *const prompts[CLIENTS] = {"a", "the second one",
                                                 "third, with a somewhat longer prompt than others", "four",
                                                 "5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5"};

    return prompts[client];
}

/* A read whose reply may be lost. */
static void read_some(struct dk_rng *rng, uint64_t handle, struct fx_told *t)
{
    struct answer a;

    if (t->finished)
        return;
    fx_read(&fx, handle, t->cursor, 0, &a);
    if (pick(rng, 3))
        fx_take(t, FX_REPLY(&a, Dk__ReadReply));
    fx_clear(&a);
}

static void step_with_losses(struct dk_rng *rng)
{
    struct answer a;
    Dk__NextStepReply *r;

    fx_next_step(&fx, 0, &a);
    r = FX_REPLY(&a, Dk__NextStepReply);
    if (!r->step || !pick(rng, 4)) { /* nothing to do, or the reply was lost */
        fx_clear(&a);
        return;
    }
    fx_run_step(&fx, r->step);
    fx_clear(&a);
}

static void settle(uint32_t duck_instance)
{
    fx_duck(&fx, "duck-1", 1);
    fx_duck(&fx, "duck-2", duck_instance);
    fx_worker_beat(&fx);
}

static void history(uint64_t seed, const struct fx_told *peace)
{
    struct dk_rng rng = {.state = seed};
    uint64_t handles[CLIENTS];
    struct fx_told t[CLIENTS];
    uint32_t duck_instance = 2, left = CLIENTS, kills = 0;

    fx_init(&fx);
    fx.options.running_max = 3;
    fx.options.step_rows = 4 + pick(&rng, 30);
    fx_ready(&fx);
    memset(t, 0, sizeof t);
    for (uint32_t i = 0; i < CLIENTS; i++)
        handles[i] = fx_submit_text(&fx, prompt_of(i), 25);
    for (int i = 0; i < 5000 && left; i++) {
        uint32_t what = pick(&rng, 100);

        if (what < 60)
            step_with_losses(&rng);
        else if (what < 95)
            read_some(&rng, handles[what % CLIENTS], &t[what % CLIENTS]);
        else if (what < 97) {
            settle(duck_instance);
        } else if (what == 98 && kills++ < 6) {
            fx_worker_restart(&fx, 1000 + (uint32_t)i);
            fx_tick(&fx, 1100 * MS);
            settle(duck_instance);
        } else if (what == 99 && kills++ < 6) {
            /* The duck is back before any step needed it; what the worker had is gone with the old epoch. */
            fx_tick(&fx, 1100 * MS);
            duck_instance = 1000 + (uint32_t)i;
            settle(duck_instance);
            fx.w.cache_count = 0;
            if (pick(&rng, 2)) {
                dk_message_free(fx.w.result);
                fx.w.result = NULL;
            }
        }
        left = 0;
        for (uint32_t k = 0; k < CLIENTS; k++)
            left += !t[k].finished;
    }
    for (uint32_t i = 0; i < CLIENTS; i++) {
        cr_assert(t[i].finished, "seed %llu: client %u never ended", (unsigned long long)seed, i);
        cr_assert_eq(t[i].finish, DK__FINISH_REASON__LENGTH, "seed %llu: %s", (unsigned long long)seed,
                     t[i].error_text);
        cr_assert_eq(t[i].token_count, 25u, "seed %llu: %u tokens", (unsigned long long)seed, t[i].token_count);
        cr_assert_str_eq(t[i].text, peace[i].text, "seed %llu client %u: %s, not %s", (unsigned long long)seed, i,
                         t[i].text, peace[i].text);
    }
    cr_assert_leq(fx.w.cache_most, fx.options.running_max, "seed %llu: %u caches", (unsigned long long)seed,
                  fx.w.cache_most);
    fx_close(&fx);
}

Test(faults, no_token_is_lost_doubled_or_changed)
{
    static struct fx_told peace[CLIENTS];

    fx_init(&fx);
    fx_ready(&fx);
    for (uint32_t i = 0; i < CLIENTS; i++)
        fx_finish(&fx, fx_submit_text(&fx, prompt_of(i), 25), &peace[i]);
    fx_close(&fx);
    for (uint64_t seed = 1; seed <= 200; seed++)
        history(seed, peace);
}
