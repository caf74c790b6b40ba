/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/control.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"

#define PULL_WAIT_MS    500u
#define PULL_TIMEOUT_MS 5000u
#define PULL_RETRY_US   100000u

/* ---- heartbeat */

static void fill_links(struct worker_control *c, Dk__HeartbeatRequest *q)
{
    const struct engine_news *n = c->last;

    for (uint32_t i = 0; i < n->link_count; i++) {
        Dk__DuckLink *l = &c->links[i];

        dk__duck_link__init(l);
        l->member_index = n->links[i].member_index;
        l->duck_instance = n->links[i].instance;
        l->port_ready = true;
        l->has_alive = true;
        l->alive = n->links[i].heard;
        if (c->engine->options->node.port_kind == DK_PORT_VHOST) {
            l->socket_path = (char *)(uintptr_t)n->links[i].socket_path;
            l->bell_path = (char *)(uintptr_t)n->bell_path;
        }
        c->link_list[i] = l;
    }
    q->n_links = n->link_count;
    q->links = c->link_list;
}

static void fill_load(struct worker_control *c, Dk__HeartbeatRequest *q)
{
    const struct engine_news *n = c->last;

    dk__load_progress__init(&c->load);
    dk__holding__init(&c->holding);
#define SET(m, field, v) ((m)->has_##field = true, (m)->field = (v))
    SET(&c->load, plan_epoch, n->plan_epoch);
    SET(&c->load, bytes_done, n->bytes_done);
    SET(&c->load, bytes_total, n->bytes_total);
    SET(&c->load, ready, n->ready);
    SET(&c->holding, plan_epoch, n->ready ? n->plan_epoch : 0);
    SET(&c->holding, model_id, n->model_id);
    SET(&c->holding, cache_tokens, n->cache_tokens);
#undef SET
    if (n->load_err.rc) {
        dk__status__init(&c->status);
        c->status.code = dk_code_from_errno(n->load_err.rc);
        c->status.text = (char *)(uintptr_t)n->load_err.text;
        c->load.error = &c->status;
    }
    q->load = &c->load;
    q->holding = &c->holding;
}

static void fill(void *ctx, Dk__NodeInfo *node, Dk__HeartbeatRequest *q)
{
    static char *backends[] = {"cpu"};
    struct worker_control *c = ctx;

    node->n_backends = sizeof backends / sizeof *backends;
    node->backends = backends;
    if (!c->last)
        return;
    fill_links(c, q);
    fill_load(c, q);
    dk_counters_to_wire(&c->last->transport, &c->last->net, &c->transport);
    q->transport = &c->transport;
    q->plan = c->plan;
}

static void copy_plan(struct worker_plan *to, const Dk__Plan *p)
{
    to->epoch = p->epoch;
    to->model_id = p->model_id;
    to->multiple_of = p->multiple_of;
    to->context = p->context;
    to->full_attention = p->full_attention;
    to->rows_max = p->rows;
    to->sequences_max = p->sequences;
    dk_text_copy(to->model_dir, sizeof to->model_dir, p->model_dir);
    dk_text_copy(to->backend, sizeof to->backend, p->backend && *p->backend ? p->backend : "cpu");
    for (size_t i = 0; i < p->n_slots && i < PLAN_SLOTS_MAX; i++) {
        struct plan_slot *s = &to->slots[to->slot_count++];

        dk_text_copy(s->duck, sizeof s->duck, p->slots[i]->duck);
        s->member_index = p->slots[i]->member_index;
        s->instance = p->slots[i]->duck_instance;
    }
}

/* What this build can hold; a coordinator of the same version sends nothing else. */
static bool plan_fits(const Dk__Plan *p)
{
    return strlen(p->model_dir) < sizeof((struct worker_plan *)0)->model_dir && p->n_slots <= PLAN_SLOTS_MAX &&
           p->context && p->rows && p->rows <= DK_PLAN_ROWS_MAX && p->sequences &&
           p->sequences <= DK_PLAN_SEQUENCES_MAX;
}

/* For a coordinator that is restarted: it takes the plan over from the worker's heartbeats. */
static void keep_plan(struct worker_control *c, const Dk__Plan *p)
{
    Dk__Plan *copy = c->plan && c->plan->epoch == p->epoch ? NULL : dk_message_clone(p);

    if (!copy)
        return;
    dk_message_free(c->plan);
    c->plan = copy;
}

static void on_reply(void *ctx, const Dk__HeartbeatReply *r)
{
    struct worker_control *c = ctx;
    struct engine_order *o = calloc(1, sizeof *o);

    if (!o)
        return;
    o->kind = ORDER_WANTED;
    if (r->plan && plan_fits(r->plan)) {
        copy_plan(&o->plan, r->plan);
        keep_plan(c, r->plan);
    }
    if (r->plan && !plan_fits(r->plan))
        dk_log(DK_LOG_ERROR, "plan.refused", "epoch=%llu slots=%zu text=\"larger than this worker can hold\"",
               (unsigned long long)r->plan->epoch, r->plan->n_slots);
    for (size_t i = 0; i < r->n_ducks && o->link_count < WORKER_LINKS_MAX; i++) {
        struct worker_link_order *l = &o->links[o->link_count];

        if (!dk_addr_from_wire(r->ducks[i]->node->address, &l->addr))
            continue;
        l->member_index = r->ducks[i]->member_index;
        dk_text_copy(l->name, sizeof l->name, r->ducks[i]->node->name);
        o->link_count++;
    }
    if (dk_mailbox_push(c->engine->orders, o) < 0)
        free(o); /* the next reply says the same */
}

/* ---- steps */

static void pull(struct worker_control *c)
{
    Dk__NextStepRequest q = DK__NEXT_STEP_REQUEST__INIT;

    if (c->pull.in_flight || c->step_running)
        return;
    q.worker = (char *)(uintptr_t)c->node.options->name;
    q.instance = c->engine->identity.own.instance;
    q.result = c->result;
    q.has_wait_ms = q.has_plan_epoch = true;
    q.wait_ms = PULL_WAIT_MS;
    q.plan_epoch = c->last && c->last->ready ? c->last->plan_epoch : 0;
    if (!dk_node_call_start(&c->pull, c->node.client, &q.base))
        dk_timer_arm(dk_loop_ev_timers(c->node.loop), &c->pull_again, dk_now_us() + PULL_RETRY_US);
}

static void on_pull_again(void *ctx, uint64_t now_us)
{
    pull(ctx);
}

/* Hands the step to the engine, which owns the message from then on. */
static bool order_step(struct worker_control *c, Dk__NextStepReply *r)
{
    struct engine_order *o = calloc(1, sizeof *o);

    if (!o)
        return false;
    o->kind = ORDER_STEP;
    o->step = r;
    if (dk_mailbox_push(c->engine->orders, o) == 0)
        return true;
    free(o);
    return false;
}

static void on_pull_end(void *ctx, int rc, ProtobufCMessage **reply, uint64_t now_us)
{
    struct worker_control *c = ctx;
    Dk__NextStepReply *r = (Dk__NextStepReply *)*reply;

    if (rc < 0) {
        dk_timer_arm(dk_loop_ev_timers(c->node.loop), &c->pull_again, now_us + PULL_RETRY_US);
        return;
    }
    dk_message_free(c->result);
    c->result = NULL;
    if (!r->step) {
        pull(c);
        return;
    }
    c->step_running = order_step(c, r);
    if (c->step_running)
        *reply = NULL;
    else /* asking again without a result gives the same step */
        dk_timer_arm(dk_loop_ev_timers(c->node.loop), &c->pull_again, now_us + PULL_RETRY_US);
}

/* ---- the actor */

static void on_news(void *ctx, void *news, uint64_t now_us)
{
    struct worker_control *c = ctx;
    struct engine_news *n = news;

    if (n->kind == NEWS_REPORT) {
        if (!c->last || c->last->ready != n->ready || c->last->link_count != n->link_count ||
            c->last->load_err.rc != n->load_err.rc)
            dk_node_beat_now(&c->node, now_us);
        engine_news_free(c->last);
        c->last = n;
        return;
    }
    c->step_running = false;
    c->result = n->result ? dk_message_unpack(&dk__step_result__descriptor, n->result, n->result_bytes) : NULL;
    engine_news_free(n);
    pull(c);
}

static void free_news(void *news)
{
    engine_news_free(news);
}

static void on_turn(void *ctx, uint64_t now_us)
{
    struct worker_control *c = ctx;

    dk_node_call_turn(&c->pull, now_us);
}

static void on_start(void *ctx, uint64_t now_us)
{
    struct worker_control *c = ctx;

    c->pull_again = (struct dk_timer){.fire = on_pull_again, .ctx = c};
    c->pull = (struct dk_node_call){.service = &dk__attention__descriptor,
                                    .method = "NextStep",
                                    .timeout_ms = PULL_TIMEOUT_MS,
                                    .on_end = on_pull_end,
                                    .ctx = c,
                                    .wake = dk_loop_ev_mailbox(c->node.loop)};
    dk_timer_arm(dk_loop_ev_timers(c->node.loop), &c->pull_again, 0);
}

const struct dk_node_control worker_control_ops = {
    .kind = DK__NODE_KIND__WORKER,
    .fill = fill,
    .on_reply = on_reply,
    .on_news = on_news,
    .free_news = free_news,
    .on_turn = on_turn,
    .on_start = on_start,
};

void worker_control_fini(struct worker_control *c)
{
    dk_message_free(c->plan);
    dk_node_call_fini(&c->pull);
    engine_news_free(c->last);
    dk_message_free(c->result);
}
