/* SPDX-License-Identifier: Apache-2.0 */
#include "coord_fixture.h"

static struct fx fx;
static char text[500];

static void start(void)
{
    fx_init(&fx);
    fx_open(&fx);
}

static void stop(void)
{
    fx_close(&fx);
}

TestSuite(cluster, .init = start, .fini = stop);

static void assert_state(Dk__ClusterState state, const char *part)
{
    Dk__ClusterState s = fx_state(&fx, text, sizeof text);

    cr_assert_eq(s, state, "state %d, not %d: %s", (int)s, (int)state, text);
    cr_assert(strstr(text, part), "'%s' does not say '%s'", text, part);
}

static uint64_t load(Dk__LoadRequest *q)
{
    struct answer a;
    uint64_t epoch;

    fx_call(&fx, q, &a);
    epoch = FX_REPLY(&a, Dk__LoadReply)->plan_epoch;
    fx_clear(&a);
    return epoch;
}

static void refused(Dk__LoadRequest *q, Dk__Code code, const char *part)
{
    struct answer a;

    fx_call(&fx, q, &a);
    fx_assert_failed(&a, code, part);
}

static Dk__LoadRequest request(void)
{
    Dk__LoadRequest q = DK__LOAD_REQUEST__INIT;

    q.model_dir = (char *)"/models/bytes";
    return q;
}

/* A heartbeat of the worker with any progress. */
static void worker(uint32_t instance, uint64_t ready_epoch, Dk__Status *error)
{
    struct fx_beat b = {.name = "worker",
                        .kind = DK__NODE_KIND__WORKER,
                        .instance = instance,
                        .ready_epoch = ready_epoch,
                        .load_error = error};
    struct answer a;

    fx_heartbeat(&fx, &b, &a);
    FX_REPLY(&a, Dk__HeartbeatReply);
    fx_clear(&a);
}

Test(cluster, load_checks_what_it_is_told)
{
    static char path[513];
    Dk__LoadRequest q = request();

    refused(&q, DK__CODE__FAILED_PRECONDITION, "no duck is there");
    fx_duck(&fx, "duck-1", 1);
    fx_duck(&fx, "duck-2", 2);
    q.model_dir = (char *)"models";
    refused(&q, DK__CODE__INVALID_ARGUMENT, "absolute");
    q = request();
    fx.open_code = DK__CODE__NOT_FOUND;
    refused(&q, DK__CODE__NOT_FOUND, "/models/bytes/config.json");
    fx.open_code = DK__CODE__OK;
    q.has_tp = true;
    q.tp = 3;
    refused(&q, DK__CODE__FAILED_PRECONDITION, "tp 3 asks for more ducks than there are: 2 are present");
    q.tp = 0;
    refused(&q, DK__CODE__INVALID_ARGUMENT, "tp");
    q.tp = 65;
    refused(&q, DK__CODE__INVALID_ARGUMENT, "tp: 65 is more than the 64 ducks that a plan can have");
    memset(path, 'd', sizeof path);
    path[0] = '/';
    path[512] = 0;
    q.model_dir = path;
    refused(&q, DK__CODE__INVALID_ARGUMENT, "model_dir: the path has 512 bytes, at most 511 are taken");
    path[511] = 0;
    q.tp = 2;
    q.has_multiple_of = true;
    q.multiple_of = 48;
    refused(&q, DK__CODE__INVALID_ARGUMENT, "multiple_of");
    q.multiple_of = 0;
    refused(&q, DK__CODE__INVALID_ARGUMENT, "multiple_of");
    q.multiple_of = 64;
    q.has_context = true;
    q.context = FX_CONTEXT + 1;
    refused(&q, DK__CODE__INVALID_ARGUMENT, "context: 513 is not from 1 to 512");
    q.context = 0;
    refused(&q, DK__CODE__INVALID_ARGUMENT, "context");
    q.context = 100;
    q.backend = (char *)"tpu";
    refused(&q, DK__CODE__INVALID_ARGUMENT, "backend");
    assert_state(DK__CLUSTER_STATE__EMPTY, "");
    q.backend = (char *)"cuda";
    path[511] = 0;
    load(&q); /* with the longest path that is taken */
    cr_assert_eq(fx.c->plan->context, 100u);
    cr_assert_str_eq(fx.c->plan->backend, "cuda");
    cr_assert_eq(fx.c->plan->sequences, 16u);
}

Test(cluster, slots_follow_the_names_and_cover_everything)
{
    Dk__LoadRequest q = request();
    const Dk__Plan *p;

    fx_duck(&fx, "duck-10", 10);
    fx_duck(&fx, "duck-2", 2);
    fx_duck(&fx, "duck-1", 1);
    fx_duck(&fx, "sleepy", 4);
    fx_tick(&fx, 2100 * MS);
    fx_duck(&fx, "duck-10", 10);
    fx_duck(&fx, "duck-2", 2);
    fx_duck(&fx, "duck-1", 1);
    cr_assert_gt(load(&q), 1000u);
    p = fx.c->plan;
    cr_assert_eq(p->n_slots, 3, "those alive");
    cr_assert_str_eq(p->slots[0]->duck, "duck-1");
    cr_assert_str_eq(p->slots[1]->duck, "duck-2");
    cr_assert_str_eq(p->slots[2]->duck, "duck-10");
    cr_assert_eq(p->slots[2]->member_index, 0u);
    cr_assert_eq(p->slots[2]->duck_instance, 10u);
    cr_assert_eq(p->slots[0]->unit_begin, 0u);
    cr_assert_eq(p->slots[0]->unit_end, p->slots[1]->unit_begin);
    cr_assert_eq(p->slots[1]->unit_end, p->slots[2]->unit_begin);
    cr_assert_eq(p->slots[2]->unit_end, 384u / 32);
    cr_assert_eq(p->multiple_of, 32u);
    cr_assert_eq(p->context, FX_CONTEXT);
    cr_assert_eq(p->model_id, 0x1234u);
    q.has_tp = true;
    q.tp = 1;
    fx.experts = 8;
    load(&q);
    cr_assert_eq(fx.c->plan->n_slots, 1);
    cr_assert_eq(fx.c->plan->slots[0]->unit_end, 192u / 32, "of an expert");
}

Test(cluster, loading_waits_for_a_worker_and_for_its_word)
{
    Dk__LoadRequest q = request();
    uint64_t epoch;

    fx_duck(&fx, "duck-1", 1);
    epoch = load(&q);
    assert_state(DK__CLUSTER_STATE__LOADING, "waiting for an attention-worker");
    worker(100, 0, NULL);
    assert_state(DK__CLUSTER_STATE__LOADING, "");
    worker(100, epoch - 1, NULL);
    assert_state(DK__CLUSTER_STATE__LOADING, "");
    worker(100, epoch, NULL);
    assert_state(DK__CLUSTER_STATE__READY, "");
}

Test(cluster, a_failed_load_says_why)
{
    Dk__LoadRequest q = request();
    Dk__Status *error = dk_status_new(DK__CODE__RESOURCE_EXHAUSTED, "duck 'duck-1' has too little memory");
    Dk__SubmitRequest submit = DK__SUBMIT_REQUEST__INIT;
    struct answer a;
    uint64_t epoch, handle;
    struct fx_told t = {0};

    fx_duck(&fx, "duck-1", 1);
    epoch = load(&q);
    handle = fx_submit_text(&fx, "early", 3); /* queued while loading */
    worker(100, epoch, error);
    assert_state(DK__CLUSTER_STATE__FAILED, "too little memory");
    fx_finish(&fx, handle, &t);
    cr_assert_eq(t.error, DK__CODE__RESOURCE_EXHAUSTED);
    submit.prompt_case = DK__SUBMIT_REQUEST__PROMPT_TEXT;
    submit.text = (char *)"x";
    fx_submit(&fx, &submit, &a);
    fx_assert_failed(&a, DK__CODE__FAILED_PRECONDITION, "too little memory");
    fx_tick(&fx, 3 * SECOND);
    assert_state(DK__CLUSTER_STATE__FAILED, "too little memory");
    fx_duck(&fx, "duck-1", 2);
    assert_state(DK__CLUSTER_STATE__FAILED, "too little memory");
    fx_duck(&fx, "duck-1", 2);
    cr_assert_gt(load(&q), epoch);
    dk_message_free(error);
}

Test(cluster, a_lost_duck_is_waited_for)
{
    Dk__LoadRequest q = request();
    uint64_t epoch, next, handle;
    struct fx_told t = {0};

    fx_all_beat(&fx);
    epoch = load(&q);
    fx_all_beat(&fx);
    fx_all_beat(&fx);
    assert_state(DK__CLUSTER_STATE__READY, "");
    for (int i = 0; i < 11; i++) {
        fx_tick(&fx, 200 * MS);
        fx_duck(&fx, "duck-1", 1);
        fx_worker_beat(&fx);
    }
    assert_state(DK__CLUSTER_STATE__DEGRADED, "duck 'duck-2' of the plan is silent");
    handle = fx_submit_text(&fx, "wait", 5);
    cr_assert_not(fx_step(&fx), "no step can work now");
    fx_tick(&fx, 40 * SECOND);
    fx_duck(&fx, "duck-1", 1);
    fx_worker_beat(&fx);
    assert_state(DK__CLUSTER_STATE__DEGRADED, "duck-2"); /* not forgotten */
    fx_duck(&fx, "duck-2", 2);
    assert_state(DK__CLUSTER_STATE__READY, "");
    cr_assert_eq(fx.c->plan->epoch, epoch, "it was only silent");
    fx_tick(&fx, 1100 * MS);
    fx_duck(&fx, "duck-1", 1);
    next = fx_duck(&fx, "duck-2", 22);
    cr_assert_gt(next, epoch);
    cr_assert_eq(fx.c->plan->slots[1]->duck_instance, 22u);
    assert_state(DK__CLUSTER_STATE__LOADING, "");
    fx_worker_beat(&fx);
    fx_worker_beat(&fx);
    assert_state(DK__CLUSTER_STATE__READY, "");
    cr_assert_eq(fx.w.epoch, next);
    fx_finish(&fx, handle, &t);
    cr_assert_eq(t.token_count, 5u);
}

Test(cluster, a_duck_that_leaves_is_missed)
{
    Dk__LoadRequest q = request();
    Dk__LeaveRequest leave = DK__LEAVE_REQUEST__INIT;
    struct answer a;

    fx_all_beat(&fx);
    load(&q);
    fx_all_beat(&fx);
    leave.name = (char *)"duck-2";
    leave.instance = 2;
    fx_call(&fx, &leave, &a);
    fx_clear(&a);
    assert_state(DK__CLUSTER_STATE__DEGRADED, "duck 'duck-2' of the plan has left");
    fx_duck(&fx, "duck-2", 3);
    assert_state(DK__CLUSTER_STATE__LOADING, "");
    leave.name = (char *)"worker";
    leave.instance = 100;
    fx_call(&fx, &leave, &a);
    fx_clear(&a);
    assert_state(DK__CLUSTER_STATE__DEGRADED, "attention-worker has left");
}

Test(cluster, a_load_that_failed_for_a_lost_duck_is_tried_again)
{
    Dk__LoadRequest q = request();
    Dk__Status *error = dk_status_new(DK__CODE__UNAVAILABLE, "duck 'duck-1' does not answer");
    uint64_t epoch;

    fx_duck(&fx, "duck-1", 1);
    epoch = load(&q);
    worker(100, epoch, error);
    assert_state(DK__CLUSTER_STATE__FAILED, "duck-1");
    fx_tick(&fx, 1100 * MS);
    worker(100, epoch, error);
    cr_assert_gt(fx_duck(&fx, "duck-1", 2), epoch);
    assert_state(DK__CLUSTER_STATE__LOADING, "");
    worker(100, fx.c->plan->epoch, NULL);
    assert_state(DK__CLUSTER_STATE__READY, "");
    dk_message_free(error);
}

Test(cluster, loading_again_needs_quiet)
{
    Dk__LoadRequest q = request();
    uint64_t first, handle;
    struct fx_told t = {0};

    fx_all_beat(&fx);
    first = load(&q);
    fx_all_beat(&fx);
    handle = fx_submit_text(&fx, "busy", 50);
    fx_step(&fx);
    refused(&q, DK__CODE__FAILED_PRECONDITION, "1 sequences are running or queued");
    fx_cancel(&fx, handle);
    cr_assert_gt(load(&q), first);
    /* The step of before is still out; the worker starts anew with the new epoch, a new life of it does too. */
    fx_tick(&fx, 1100 * MS);
    fx_worker_restart(&fx, 101);
    fx_all_beat(&fx);
    fx_all_beat(&fx);
    assert_state(DK__CLUSTER_STATE__READY, "");
    fx_finish(&fx, fx_submit_text(&fx, "again", 4), &t);
    cr_assert_eq(t.token_count, 4u);
}

Test(cluster, a_pause_of_our_own_is_nobodys_silence)
{
    Dk__LoadRequest q = request();

    fx_all_beat(&fx);
    load(&q);
    fx_all_beat(&fx);
    assert_state(DK__CLUSTER_STATE__READY, "");
    fx.now += 10 * SECOND; /* no tick in between */
    fx_duck(&fx, "duck-1", 1);
    assert_state(DK__CLUSTER_STATE__READY, "");
    fx_tick(&fx, 2100 * MS);
    assert_state(DK__CLUSTER_STATE__DEGRADED, "duck-1");
}

Test(cluster, a_real_folder_is_read)
{
    struct dk_served_model m;
    struct dk_err err = {0};

    cr_assert_eq(dk_model_source_files.open(NULL, FIXTURES "/qwen3-tiny", &m, &err), 0, "%s", err.text);
    cr_assert_eq(m.config.vocab, 1024u);
    cr_assert_eq(m.config.intermediate, 384u);
    cr_assert_eq(m.generation.eos_count, 2u);
    cr_assert_eq(m.generation.eos[0], 964u);
    cr_assert_eq(m.chat, DK_CHAT_QWEN3);
    cr_assert_neq(m.model_id, 0u);
    cr_assert_gt(dk_tokenizer_size(m.tokenizer), 900u);
    dk_tokenizer_close(m.tokenizer);
    cr_assert_lt(dk_model_source_files.open(NULL, FIXTURES "/tokenizers", &m, &err), 0);
    cr_assert_neq(err.text[0], 0);
}

Test(cluster, epochs_never_go_back)
{
    Dk__LoadRequest q = request();

    fx_duck(&fx, "duck-1", 1);
    worker(100, 5000, NULL); /* still has a plan of an earlier coordinator */
    cr_assert_gt(load(&q), 5000u);
    assert_state(DK__CLUSTER_STATE__LOADING, "");
}

Test(cluster, status_waits_for_a_change)
{
    Dk__StatusRequest q = DK__STATUS_REQUEST__INIT;
    Dk__LoadRequest l = request();
    struct answer a;

    q.has_wait_ms = q.has_unlike = true;
    q.wait_ms = 1000;
    q.unlike = DK__CLUSTER_STATE__EMPTY;
    fx_call(&fx, &q, &a);
    cr_assert_not(a.done);
    fx_duck(&fx, "duck-1", 1);
    cr_assert_not(a.done);
    load(&l);
    cr_assert_eq(FX_REPLY(&a, Dk__StatusReply)->state, DK__CLUSTER_STATE__LOADING);
    cr_assert_str_eq(FX_REPLY(&a, Dk__StatusReply)->model_dir, "/models/bytes");
    cr_assert_str_eq(FX_REPLY(&a, Dk__StatusReply)->model_type, "qwen3");
    cr_assert_not_null(FX_REPLY(&a, Dk__StatusReply)->plan);
    fx_clear(&a);
    q.unlike = DK__CLUSTER_STATE__LOADING;
    fx_call(&fx, &q, &a);
    fx_tick(&fx, 1000 * MS);
    cr_assert_eq(FX_REPLY(&a, Dk__StatusReply)->state, DK__CLUSTER_STATE__LOADING);
    fx_clear(&a);
}

/* ---- a load that does not get on */

static void load_beat(uint64_t epoch, const struct fx_link *links, uint32_t count)
{
    struct fx_beat b = {.name = "worker",
                        .kind = DK__NODE_KIND__WORKER,
                        .port = DK__PORT_KIND__AF_PACKET,
                        .instance = 100,
                        .ready_epoch = epoch,
                        .feeding = true,
                        .links = links,
                        .link_count = count};
    struct answer a;

    fx_heartbeat(&fx, &b, &a);
    FX_REPLY(&a, Dk__HeartbeatReply);
    fx_clear(&a);
}

static void net_duck(const char *name, uint32_t instance, Dk__PortKind port, uint64_t frames_received)
{
    struct fx_beat b = {.name = name,
                        .kind = DK__NODE_KIND__DUCK,
                        .port = port,
                        .instance = instance,
                        .frames_received = frames_received};
    struct answer a;

    fx_heartbeat(&fx, &b, &a);
    FX_REPLY(&a, Dk__HeartbeatReply);
    fx_clear(&a);
}

/* Some time in which everybody sends heartbeats. */
static void load_time(uint64_t us, uint64_t epoch, const struct fx_link *links, uint32_t count, uint64_t frames)
{
    for (uint64_t t = 0; t < us; t += 200 * MS) {
        fx_tick(&fx, 200 * MS);
        net_duck("duck-1", 1, DK__PORT_KIND__AF_PACKET, frames);
        net_duck("duck-2", 2, DK__PORT_KIND__AF_PACKET, frames);
        load_beat(epoch, links, count);
    }
}

static uint64_t begin_load(void)
{
    Dk__LoadRequest q = request();

    net_duck("duck-1", 1, DK__PORT_KIND__AF_PACKET, 0);
    net_duck("duck-2", 2, DK__PORT_KIND__AF_PACKET, 0);
    return load(&q);
}

Test(cluster, a_load_says_that_the_worker_reads)
{
    uint64_t epoch = begin_load();
    const struct fx_link links[] = {{.index = 0, .instance = 1, .silent = true},
                                    {.index = 1, .instance = 2, .silent = true}};

    load_time(1800 * MS, 0, links, 2, 0);
    assert_state(DK__CLUSTER_STATE__LOADING, "");
    cr_assert_str_eq(text, "");
    load_time(400 * MS, 0, links, 2, 0);
    assert_state(DK__CLUSTER_STATE__LOADING, "attention-worker 'worker' to read its own part");
    load_beat(epoch, links, 2);
    assert_state(DK__CLUSTER_STATE__LOADING, "");
    cr_assert_str_eq(text, "", "its time to feed the ducks has only begun");
}

Test(cluster, a_load_says_that_frames_do_not_pass)
{
    uint64_t epoch = begin_load();
    const struct fx_link dead[] = {{.index = 0, .instance = 1}, {.index = 1, .instance = 2, .silent = true}},
                         fine[] = {{.index = 0, .instance = 1}, {.index = 1, .instance = 2}};

    load_time(2000 * MS, epoch, dead, 2, 0);
    assert_state(DK__CLUSTER_STATE__LOADING, "");
    cr_assert_str_eq(text, "");
    load_time(400 * MS, epoch, dead, 2, 0);
    assert_state(DK__CLUSTER_STATE__LOADING, "duck 'duck-2' does not answer the attention-worker: frames do not pass");
    cr_assert(strstr(text, "the interface, its MTU and the firewall"), "%s", text);
    load_time(200 * MS, epoch, dead, 2, 50);
    assert_state(DK__CLUSTER_STATE__LOADING, "duck 'duck-2' receives frames");
    load_beat(epoch, fine, 2);
    assert_state(DK__CLUSTER_STATE__LOADING, "");
    cr_assert_str_eq(text, "");
    load_time(1000 * MS, epoch, dead, 2, 50);
    cr_assert_eq(fx_state(&fx, text, sizeof text), DK__CLUSTER_STATE__LOADING);
    cr_assert_str_eq(text, "", "only a second since it was heard");
}

Test(cluster, a_load_says_that_a_link_is_missing)
{
    uint64_t epoch = begin_load();
    const struct fx_link none[] = {{.index = 1, .instance = 2}},
                         other[] = {{.index = 0, .instance = 77}, {.index = 1, .instance = 2}},
                         closed[] = {{.index = 0, .instance = 1, .closed = true}, {.index = 1, .instance = 2}};

    load_time(2400 * MS, epoch, none, 1, 0);
    assert_state(DK__CLUSTER_STATE__LOADING, "has not opened its side of the link to duck 'duck-1'");
    load_time(400 * MS, epoch, other, 2, 0);
    assert_state(DK__CLUSTER_STATE__LOADING, "has not opened its side of the link to duck 'duck-1'");
    load_time(400 * MS, epoch, closed, 2, 0);
    assert_state(DK__CLUSTER_STATE__LOADING, "has not opened its side of the link to duck 'duck-1'");
}

Test(cluster, a_load_says_that_ports_differ)
{
    uint64_t epoch = begin_load();
    const struct fx_link links[] = {{.index = 0, .instance = 1}, {.index = 1, .instance = 2}};

    load_beat(epoch, links, 2);
    net_duck("duck-2", 2, DK__PORT_KIND__VHOST, 0);
    assert_state(DK__CLUSTER_STATE__LOADING,
                 "duck 'duck-2' was started with --port vhost, the attention-worker with --port af_packet");
}

Test(cluster, an_empty_part_is_never_sent_to)
{
    Dk__LoadRequest q = request();
    const struct fx_link links[] = {{.index = 0, .instance = 1}, {.index = 1, .instance = 2, .silent = true}};
    uint64_t epoch;

    net_duck("duck-1", 1, DK__PORT_KIND__AF_PACKET, 0);
    net_duck("duck-2", 2, DK__PORT_KIND__AF_PACKET, 0);
    q.has_multiple_of = true;
    q.multiple_of = 384; /* all of it */
    epoch = load(&q);
    load_time(3000 * MS, epoch, links, 2, 0);
    assert_state(DK__CLUSTER_STATE__LOADING, "");
    cr_assert_str_eq(text, "");
}

Test(cluster, what_is_submitted_while_degraded_waits_and_is_shown)
{
    Dk__LoadRequest q = request();
    Dk__StatusRequest status = DK__STATUS_REQUEST__INIT;
    struct fx_told t = {0};
    struct answer a;
    uint64_t handle;

    fx_all_beat(&fx);
    load(&q);
    fx_all_beat(&fx);
    fx_tick(&fx, 2100 * MS);
    fx_duck(&fx, "duck-1", 1);
    fx_worker_beat(&fx);
    handle = fx_submit_text(&fx, "wait", 5);
    cr_assert_not(fx_step(&fx));
    fx_call(&fx, &status, &a);
    cr_assert_eq(FX_REPLY(&a, Dk__StatusReply)->state, DK__CLUSTER_STATE__DEGRADED);
    cr_assert_eq(FX_REPLY(&a, Dk__StatusReply)->queued, 1u);
    cr_assert_eq(FX_REPLY(&a, Dk__StatusReply)->running, 0u);
    cr_assert_eq(FX_REPLY(&a, Dk__StatusReply)->error->code, DK__CODE__UNAVAILABLE);
    cr_assert_str_eq(FX_REPLY(&a, Dk__StatusReply)->error->text, "duck 'duck-2' of the plan is silent; waiting for it");
    fx_clear(&a);
    fx_duck(&fx, "duck-2", 2);
    fx_finish(&fx, handle, &t);
    cr_assert_eq(t.finish, DK__FINISH_REASON__LENGTH);
    cr_assert_eq(t.token_count, 5u);
    fx_call(&fx, &status, &a);
    cr_assert_eq(FX_REPLY(&a, Dk__StatusReply)->queued, 0u);
    cr_assert_null(FX_REPLY(&a, Dk__StatusReply)->error);
    fx_clear(&a);
}
