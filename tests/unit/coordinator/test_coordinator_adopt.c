/* SPDX-License-Identifier: Apache-2.0 */
#include "coord_fixture.h"

/* A coordinator is restarted; ducks and worker go on as if nothing had happened. */

static struct fx fx;
static char text[500];

static void start(void)
{
    fx_init(&fx);
}

static void stop(void)
{
    fx_close(&fx);
}

TestSuite(adopt, .init = start, .fini = stop);

/* A heartbeat of a duck that holds the plan's weights. */
static void duck(const char *name, uint32_t instance, uint64_t held, struct answer *a)
{
    struct fx_beat b = {.name = name, .kind = DK__NODE_KIND__DUCK, .instance = instance, .held_epoch = held};

    fx_heartbeat(&fx, &b, a);
}

static void duck_joins(const char *name, uint32_t instance, uint32_t index)
{
    struct answer a;

    duck(name, instance, fx.w.epoch, &a);
    cr_assert_eq(FX_REPLY(&a, Dk__HeartbeatReply)->member_index, index, "%s has index %u", name,
                 FX_REPLY(&a, Dk__HeartbeatReply)->member_index);
    fx_clear(&a);
}

static void worker(const struct fx_link *links, uint32_t link_count, struct answer *a)
{
    struct fx_beat b = {.name = "worker",
                        .kind = DK__NODE_KIND__WORKER,
                        .instance = 100,
                        .ready_epoch = fx.w.epoch,
                        .held_epoch = fx.w.epoch,
                        .plan = fx.w.plan,
                        .links = links,
                        .link_count = link_count};

    fx_heartbeat(&fx, &b, a);
}

static void worker_waits(const struct fx_link *links, uint32_t link_count)
{
    struct answer a;

    worker(links, link_count, &a);
    fx_assert_failed(&a, DK__CODE__UNAVAILABLE, "waits for the ducks");
}

static void assert_state(Dk__ClusterState state, const char *part)
{
    Dk__ClusterState s = fx_state(&fx, text, sizeof text);

    cr_assert_eq(s, state, "state %d, not %d: %s", (int)s, (int)state, text);
    cr_assert(strstr(text, part), "'%s' does not say '%s'", text, part);
}

Test(adopt, the_plan_goes_on_and_nobody_loads_again)
{
    struct fx_told plain = {0}, t = {0};
    uint64_t epoch, old, handle;
    struct answer a;

    fx_ready(&fx);
    epoch = fx.w.epoch;
    fx_finish(&fx, fx_submit_text(&fx, "again", 9), &plain);
    old = fx_submit_text(&fx, "lost", 20);
    fx_submit_text(&fx, "lost too", 20);
    for (int i = 0; i < 4; i++)
        fx_step(&fx);
    cr_assert_eq(fx.w.cache_count, 2u);
    fx_coordinator_restart(&fx);
    assert_state(DK__CLUSTER_STATE__EMPTY, "");
    duck("duck-2", 2, epoch, &a);
    fx_assert_failed(&a, DK__CODE__UNAVAILABLE, "waits for the attention-worker");
    worker_waits(NULL, 0);
    assert_state(DK__CLUSTER_STATE__DEGRADED, "duck 'duck-1' of the plan is not heard of yet");
    duck_joins("duck-2", 2, 1); /* the index that it had, although it is the first to join */
    worker_waits(NULL, 0);
    duck_joins("duck-1", 1, 0);
    fx_worker_beat(&fx);
    assert_state(DK__CLUSTER_STATE__READY, "");
    cr_assert_eq(fx.c->plan->epoch, epoch);
    cr_assert_eq(fx.w.epoch, epoch);
    /* What only the old one knew. */
    fx_read(&fx, old, 0, 0, &a);
    fx_assert_failed(&a, DK__CODE__NOT_FOUND, "restarted");
    /* The worker brings a result of the old one's step: it is nobody's. */
    handle = fx_submit_text(&fx, "again", 9);
    cr_assert(fx_step(&fx));
    cr_assert(fx.w.step->release_all);
    cr_assert_eq(fx.w.cache_count, 1u, "the old caches are gone");
    cr_assert(fx_step(&fx));
    cr_assert_not(fx.w.step->release_all, "only once");
    fx_finish(&fx, handle, &t);
    cr_assert_str_eq(t.text, plain.text);
    for (int i = 0; i < 400; i++) /* its own handles are forgotten in time */
        fx_cancel(&fx, fx_submit_text(&fx, "x", 1));
    fx_read(&fx, handle, 0, 0, &a);
    fx_assert_failed(&a, DK__CODE__NOT_FOUND, "ended long ago");
}

Test(adopt, old_caches_go_although_a_step_got_lost)
{
    struct answer a;

    fx_ready(&fx);
    fx_submit_text(&fx, "lost", 20);
    fx_step(&fx);
    fx_coordinator_restart(&fx);
    worker_waits(NULL, 0);
    duck_joins("duck-1", 1, 0);
    duck_joins("duck-2", 2, 1);
    fx_submit_text(&fx, "new", 5);
    fx_next_step(&fx, 0, &a); /* does not arrive, and the next epoch drops it */
    cr_assert(FX_REPLY(&a, Dk__NextStepReply)->step->release_all);
    fx_clear(&a);
    fx_tick(&fx, 1100 * MS);
    fx_duck(&fx, "duck-2", 22);
    fx_duck(&fx, "duck-1", 1);
    fx_worker_beat(&fx);
    cr_assert(fx_step(&fx));
    cr_assert(fx.w.step->release_all);
    cr_assert_eq(fx.w.cache_count, 1u);
}

Test(adopt, later_epochs_are_larger)
{
    uint64_t epoch;
    struct answer a;

    fx.options.epoch_base = 1u << 20; /* of the first coordinator, whose clock was wrong */
    fx_ready(&fx);
    epoch = fx.w.epoch;
    fx.options.epoch_base = 0;
    fx_coordinator_restart(&fx);
    worker_waits(NULL, 0);
    duck_joins("duck-1", 1, 0);
    duck("duck-2", 22, 0, &a); /* was restarted in the meantime */
    cr_assert_gt(FX_REPLY(&a, Dk__HeartbeatReply)->plan->epoch, epoch);
    fx_clear(&a);
    assert_state(DK__CLUSTER_STATE__LOADING, "");
    fx_worker_beat(&fx);
    assert_state(DK__CLUSTER_STATE__READY, "");
}

Test(adopt, spare_ducks_keep_their_index)
{
    const struct fx_link links[] = {{0, 1, false, false}, {1, 2, false, false}, {2, 3, false, false}};
    struct answer a;
    uint64_t epoch;

    fx_ready(&fx);
    epoch = fx.w.epoch;
    duck_joins("spare", 3, 2);
    fx_coordinator_restart(&fx);
    fx_duck(&fx, "spare", 3); /* holds nothing, so it is taken at once, as the first duck */
    worker_waits(links, 3);
    cr_assert_eq(dk_member_find(fx.c, "spare")->index, 2u);
    duck_joins("duck-2", 2, 1);
    duck_joins("duck-1", 1, 0);
    worker(links, 3, &a);
    cr_assert_eq(FX_REPLY(&a, Dk__HeartbeatReply)->n_ducks, 3);
    fx_clear(&a);
    assert_state(DK__CLUSTER_STATE__READY, "");
    cr_assert_eq(fx.c->plan->epoch, epoch);
}

Test(adopt, the_worker_waits_for_all_ducks_that_it_is_linked_to)
{
    const struct fx_link links[] = {{0, 1, false, false}, {1, 2, false, false}, {2, 3, false, false}};
    struct answer a;

    fx_ready(&fx);
    fx_coordinator_restart(&fx);
    worker_waits(links, 3);
    duck_joins("duck-1", 1, 0);
    duck_joins("duck-2", 2, 1);
    assert_state(DK__CLUSTER_STATE__READY, "");
    worker_waits(links, 3); /* an answer without the spare would close its link */
    duck("spare", 3, 0, &a);
    cr_assert_eq(FX_REPLY(&a, Dk__HeartbeatReply)->member_index, 2u);
    fx_clear(&a);
    worker(links, 3, &a);
    FX_REPLY(&a, Dk__HeartbeatReply);
    fx_clear(&a);
}

Test(adopt, nobody_is_waited_for_long)
{
    struct answer a;
    uint64_t epoch;

    fx_ready(&fx);
    epoch = fx.w.epoch;
    fx_coordinator_restart(&fx);
    fx_tick(&fx, 2900 * MS);
    duck("duck-2", 2, epoch, &a);
    fx_assert_failed(&a, DK__CODE__UNAVAILABLE, "waits for the attention-worker");
    fx_tick(&fx, 100 * MS);
    duck_joins("duck-2", 2, 0); /* as if it were new */
    worker(NULL, 0, &a);
    cr_assert_eq(FX_REPLY(&a, Dk__HeartbeatReply)->plan->epoch, epoch);
    cr_assert_eq(FX_REPLY(&a, Dk__HeartbeatReply)->n_ducks, 1);
    fx_clear(&a);
    cr_assert_eq(dk_member_find(fx.c, "duck-2")->index, 1u, "numbered anew");
    assert_state(DK__CLUSTER_STATE__DEGRADED, "duck 'duck-1' of the plan has left");
    fx_duck(&fx, "newcomer", 9);
    cr_assert_eq(dk_member_find(fx.c, "newcomer")->index, 2u, "0 is kept for the duck of the plan");
    duck_joins("duck-1", 1, 0);
    assert_state(DK__CLUSTER_STATE__READY, "");
    cr_assert_eq(fx.c->plan->epoch, epoch);
}

Test(adopt, reading_the_model_for_long_is_nobodys_fault)
{
    struct answer a;

    fx_ready(&fx);
    fx_coordinator_restart(&fx);
    worker_waits(NULL, 0);
    fx.now += 60 * SECOND; /* it took a minute, in which nobody was heard */
    duck("duck-1", 1, fx.w.epoch, &a);
    FX_REPLY(&a, Dk__HeartbeatReply);
    fx_clear(&a);
    worker_waits(NULL, 0);
    duck_joins("duck-2", 2, 1);
    assert_state(DK__CLUSTER_STATE__READY, "");
}

Test(adopt, smaller_numbers_of_the_plan_hold)
{
    struct fx_told t = {0};
    uint64_t handles[4];

    fx.options.running_max = 2;
    fx.options.step_rows = 8;
    fx_ready(&fx);
    fx.options.running_max = 16;
    fx.options.step_rows = 256;
    fx_coordinator_restart(&fx);
    worker_waits(NULL, 0);
    duck_joins("duck-1", 1, 0);
    duck_joins("duck-2", 2, 1);
    fx_worker_beat(&fx);
    for (int i = 0; i < 4; i++)
        handles[i] = fx_submit_text(&fx, "more than eight tokens", 5);
    fx_finish(&fx, handles[3], &t);
    cr_assert_eq(t.token_count, 5u);
    cr_assert_eq(fx.w.rows_most, 8u);
    cr_assert_eq(fx.w.cache_most, 2u);
}

Test(adopt, a_model_that_is_gone_cannot_be_taken_over)
{
    struct answer a;
    int changed;

    fx_ready(&fx);
    for (changed = 0; changed < 2; changed++) {
        fx.open_code = changed ? DK__CODE__OK : DK__CODE__NOT_FOUND;
        fx.w.plan->model_id += (uint64_t)changed;
        fx_coordinator_restart(&fx);
        worker(NULL, 0, &a);
        cr_assert_null(FX_REPLY(&a, Dk__HeartbeatReply)->plan);
        fx_clear(&a);
        assert_state(DK__CLUSTER_STATE__EMPTY, changed ? "/models/bytes holds another model" : "no such file");
        cr_assert(strstr(text, "plan of an earlier coordinator"), "%s", text);
        fx.open_code = DK__CODE__OK; /* it is looked at only once */
        fx.w.plan->model_id -= (uint64_t)changed;
        worker(NULL, 0, &a);
        fx_clear(&a);
        assert_state(DK__CLUSTER_STATE__EMPTY, "plan of an earlier coordinator");
    }
    fx_duck(&fx, "duck-1", 1);
    fx_duck(&fx, "duck-2", 2);
    fx_load(&fx, &a);
    cr_assert_gt(FX_REPLY(&a, Dk__LoadReply)->plan_epoch, fx.w.epoch);
    fx_clear(&a);
    assert_state(DK__CLUSTER_STATE__LOADING, "");
    fx_worker_beat(&fx);
    assert_state(DK__CLUSTER_STATE__READY, "");
}

Test(adopt, a_worker_without_the_plan_clears_the_text)
{
    struct answer a;
    Dk__Plan *plan;

    fx_ready(&fx);
    fx.open_code = DK__CODE__NOT_FOUND;
    fx_coordinator_restart(&fx);
    worker(NULL, 0, &a);
    fx_clear(&a);
    assert_state(DK__CLUSTER_STATE__EMPTY, "plan of an earlier coordinator");
    plan = fx.w.plan;
    fx.w.plan = NULL;
    worker(NULL, 0, &a);
    fx_clear(&a);
    cr_assert_eq(fx_state(&fx, text, sizeof text), DK__CLUSTER_STATE__EMPTY);
    cr_assert_str_eq(text, "");
    fx.w.plan = plan;
}

/* One thing of a good plan is changed, and it is refused. */
#define SPOILT(change, part)                          \
    do {                                              \
        Dk__Plan *p = dk_message_clone(good);         \
                                                      \
        p->epoch += ++spoilt;                         \
        change;                                       \
        fx.w.plan = p;                                \
        worker(NULL, 0, &a);                          \
        FX_REPLY(&a, Dk__HeartbeatReply);             \
        fx_clear(&a);                                 \
        assert_state(DK__CLUSTER_STATE__EMPTY, part); \
        dk_message_free(p);                           \
    } while (0)

static void set_text(char **where, const char *to)
{
    free(*where);
    *where = strdup(to);
}

Test(adopt, bad_plans_are_refused)
{
    static char folder[600], name[65];
    Dk__Plan *good;
    struct answer a;
    uint32_t spoilt = 0;

    memset(folder, 'a', sizeof folder - 1);
    folder[0] = '/';
    memset(name, 'b', sizeof name - 1);
    fx_ready(&fx);
    good = fx.w.plan;
    fx_coordinator_restart(&fx);
    SPOILT(p->epoch = UINT64_MAX - 1, "epoch is out of range");
    SPOILT(set_text(&p->model_dir, "models"), "no absolute path");
    SPOILT(set_text(&p->model_dir, folder), "no absolute path");
    SPOILT(p->multiple_of = 0, "unit");
    SPOILT(p->multiple_of = 33, "unit");
    SPOILT(p->context = 0, "context");
    SPOILT(p->context = FX_CONTEXT + 1, "another model");
    SPOILT(p->sequences = 0, "rows or sequences");
    SPOILT(p->sequences = p->rows, "rows or sequences");
    SPOILT(p->rows = DK_PLAN_ROWS_MAX + 1, "rows or sequences");
    SPOILT(p->slots[0]->unit_begin = p->slots[0]->unit_end + 1, "a duck of it");
    SPOILT(p->slots[0]->member_index = DK_PLAN_DUCKS_MAX, "a duck of it");
    SPOILT(p->slots[0]->member_index = p->slots[1]->member_index, "a duck of it");
    SPOILT(set_text(&p->slots[0]->duck, ""), "a duck of it");
    SPOILT(set_text(&p->slots[0]->duck, name), "a duck of it");
    SPOILT(p->has_allow_full = p->allow_full = true, "it allows full attention and has not got it");
    SPOILT(set_text(&p->slots[0]->duck, p->slots[1]->duck), "names a duck twice");
    fx.w.plan = good;
    worker_waits(NULL, 0); /* and this one is good */
}

Test(adopt, the_attention_mode_goes_on)
{
    Dk__LoadRequest q = DK__LOAD_REQUEST__INIT;
    struct answer a;

    fx.index_top_k = 100;
    fx_ready(&fx);
    q.model_dir = (char *)"/models/bytes";
    q.has_attention = true;
    q.attention = DK__ATTENTION_MODE__FULL;
    fx_call(&fx, &q, &a);
    FX_REPLY(&a, Dk__LoadReply);
    fx_clear(&a);
    fx_all_beat(&fx);
    fx_coordinator_restart(&fx);
    worker_waits(NULL, 0);
    duck_joins("duck-1", 1, 0);
    duck_joins("duck-2", 2, 1);
    fx_worker_beat(&fx);
    assert_state(DK__CLUSTER_STATE__READY, "");
    cr_assert(fx.c->plan->full_attention);
    cr_assert_eq(fx.c->plan->context, 100u);
    cr_assert(dk_attention_ends(fx.c));
    fx.w.plan->has_allow_full = fx.w.plan->allow_full = true;
    fx_coordinator_restart(&fx);
    worker_waits(NULL, 0);
    cr_assert(fx.c->plan->allow_full && !dk_attention_ends(fx.c));
    /* A folder whose model has no indexer by now is another model. */
    fx_coordinator_restart(&fx);
    fx.index_top_k = 0;
    worker(NULL, 0, &a);
    fx_clear(&a);
    assert_state(DK__CLUSTER_STATE__EMPTY, "another model");
}
