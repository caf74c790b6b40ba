/* SPDX-License-Identifier: Apache-2.0 */
/* The polling actor of the worker: frames, transport events, orders, the running step, the loader. */
#include "attention-worker/engine.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"

#define REPORT_EVERY_US 100000u
#define ARENA_BYTES     65536u
#define VHOST_IPV4      0x0a4d0001u /* 10.77.0.1; the coordinator gives 10.77.0.2 and up to the ducks */

void engine_news_free(struct engine_news *n)
{
    if (n)
        free(n->result);
    free(n);
}

static void report(struct worker_engine *e, uint64_t now_us)
{
    struct engine_news *n;

    if (now_us < e->report_due_us || !(n = calloc(1, sizeof *n)))
        return;
    e->report_due_us = now_us + REPORT_EVERY_US;
    n->kind = NEWS_REPORT;
    n->plan_epoch = e->plan.epoch;
    n->model_id = e->model.id;
    n->cache_tokens = e->model.cache_tokens;
    n->bytes_total = e->loader.bytes_total;
    n->bytes_done = e->loader.bytes_done < n->bytes_total ? e->loader.bytes_done : n->bytes_total;
    n->ready = e->loader.state == LOADER_READY;
    n->load_err = e->plan_err.rc ? e->plan_err : e->loader.err;
    n->transport = *dk_transport_counters(e->endpoint.transport);
    n->net = *e->endpoint.ops->counters(e->endpoint.net);
    for (uint32_t i = 0; i < WORKER_LINKS_MAX; i++) {
        const struct worker_link *k = &e->links.link[i];

        if (!k->peer_up)
            continue;
        n->links[n->link_count].member_index = i;
        n->links[n->link_count].instance = k->addr.instance;
        n->links[n->link_count].heard = k->heard;
        memcpy(n->links[n->link_count].socket_path, k->socket_path, sizeof k->socket_path);
        n->link_count++;
    }
    memcpy(n->bell_path, e->links.bell_path, sizeof n->bell_path);
    if (dk_mailbox_push(e->news, n) < 0)
        engine_news_free(n); /* the next one says the same and more */
}

/* The control actor waits for every step's end: a result is never dropped. */
static void send_result(struct worker_engine *e)
{
    if (e->unsent && dk_mailbox_push(e->news, e->unsent) == 0)
        e->unsent = NULL;
}

/* Ends the step that the control actor waits for; without a result it asks the coordinator again. */
static void hand_in_result(struct worker_engine *e)
{
    struct engine_news *n = e->unsent ? NULL : calloc(1, sizeof *n);

    e->result_owed = !n;
    if (!n)
        return; /* tried again in the next poll */
    n->kind = NEWS_RESULT;
    if (e->step.state == STEP_REPLY)
        n->result = step_result(&e->step, &n->result_bytes);
    e->unsent = n;
    send_result(e);
}

/* ---- orders */

static void begin_plan(struct worker_engine *e, const struct worker_plan *plan)
{
    int rc = 0;

    memset(&e->plan_err, 0, sizeof e->plan_err);
    if (e->step.state != STEP_FREE) {
        struct dk_err err = {0};

        dk_err_set(&err, -EHOSTDOWN, "the plan changed during the step; try again");
        step_fail(&e->step, &err);
        hand_in_result(e);
    }
    step_close(&e->step);
    loader_stop(&e->loader);
    e->plan = *plan;
    dk_log(DK_LOG_INFO, "plan.begin", "epoch=%llu model=\"%s\" ducks=%u", (unsigned long long)plan->epoch,
           plan->model_dir, plan->slot_count);
    if (!worker_model_serves(&e->model, plan)) {
        worker_model_close(&e->model);
        rc = worker_model_open(&e->model, plan, e->options, &e->plan_err);
    }
    if (rc == 0)
        rc = step_open(&e->step, &e->model, &e->plan, &e->links, plan->rows_max, plan->sequences_max, dk_now_us,
                       &e->plan_err);
    if (rc == 0)
        rc = loader_begin(&e->loader, plan, &e->model, &e->links);
    else
        worker_model_close(&e->model);
    if (e->plan_err.rc)
        dk_log(DK_LOG_ERROR, "plan.failed", "epoch=%llu text=\"%s\"", (unsigned long long)plan->epoch,
               e->plan_err.text);
    e->report_due_us = 0;
}

static void begin_step(struct worker_engine *e, Dk__NextStepReply *reply)
{
    if (e->loader.state == LOADER_READY && e->step.state == STEP_FREE && reply->step->plan_epoch == e->plan.epoch) {
        step_begin(&e->step, reply);
        return;
    }
    /* The plan changed while the step was on its way. Without a result the coordinator takes it as not done: it forms
     * the step again, and names the released sequences again. */
    dk_log(DK_LOG_WARN, "step.dropped", "step=%llu", (unsigned long long)reply->step->step_id);
    protobuf_c_message_free_unpacked(&reply->base, NULL);
    hand_in_result(e);
}

static void follow_links(struct worker_engine *e, const struct engine_order *o)
{
    uint64_t changed = worker_links_follow(&e->links, o->links, o->link_count);
    struct dk_err err = {0};

    if (!changed)
        return;
    e->report_due_us = 0;
    for (uint32_t i = 0; i < WORKER_LINKS_MAX; i++)
        if (changed >> i & 1)
            loader_on_link_lost(&e->loader, i);
    if (step_is_out(&e->step) && fanout_check(&e->step.fanout, changed, &err) < 0)
        step_fail(&e->step, &err);
}

static bool take_orders(struct worker_engine *e)
{
    struct engine_order *o = dk_mailbox_pop(e->orders);

    if (!o)
        return false;
    if (o->kind == ORDER_STEP) {
        begin_step(e, o->step);
    } else {
        follow_links(e, o);
        if (o->plan.epoch && o->plan.epoch != e->plan.epoch)
            begin_plan(e, &o->plan);
    }
    free(o);
    return true;
}

/* ---- events */

static void on_dead(struct worker_engine *e, uint32_t peer)
{
    int index = worker_links_peer_lost(&e->links, peer);

    if (index >= 0)
        loader_on_link_lost(&e->loader, (uint32_t)index);
}

static void mark_heard(struct worker_engine *e, uint32_t peer)
{
    for (uint32_t i = 0; i < WORKER_LINKS_MAX; i++)
        if (e->links.link[i].peer_up && e->links.link[i].peer == peer)
            e->links.link[i].heard = true;
}

static bool take_events(struct worker_engine *e)
{
    struct dk_transport *t = e->endpoint.transport;
    struct dk_transport_event event;
    bool any = false;

    while (dk_transport_event(t, &event), event.type != DK_EVENT_NONE) {
        bool kept = false;

        any = true;
        if (event.type == DK_EVENT_RESPONSE || event.type == DK_EVENT_FAILED) {
            if (event.type == DK_EVENT_RESPONSE)
                mark_heard(e, event.peer);
            kept = step_on_event(&e->step, &event, &e->arena);
            if (!kept)
                loader_on_event(&e->loader, &event, &e->arena);
        }
        if (!kept)
            dk_transport_event_done(t, &event);
        if (event.type == DK_EVENT_DEAD)
            on_dead(e, event.peer);
    }
    return any;
}

static bool poll_once(void *ctx, uint64_t now_us)
{
    struct worker_engine *e = ctx;
    bool worked = dk_endpoint_poll(&e->endpoint, now_us);

    worked |= take_events(e);
    worked |= step_run(&e->step, now_us, !worked);
    worked |= loader_poll(&e->loader, now_us);
    worked |= take_orders(e);
    if (e->step.state == STEP_REPLY && !e->unsent) {
        hand_in_result(e);
        worked = true;
    }
    send_result(e);
    if (e->result_owed)
        hand_in_result(e);
    report(e, now_us);
    return worked;
}

static void wait_for_work(void *ctx, bool worked, uint64_t now_us, uint64_t deadline_us)
{
    dk_endpoint_wait(&((struct worker_engine *)ctx)->endpoint, worked, now_us, deadline_us);
}

static uint64_t next_deadline(void *ctx)
{
    return ((struct worker_engine *)ctx)->report_due_us;
}

static void wake_engine(void *ctx)
{
    dk_endpoint_wake(&((struct worker_engine *)ctx)->endpoint);
}

static int start_transport(struct worker_engine *e, struct dk_err *err)
{
    struct dk_transport_config c;

    dk_transport_defaults(&c);
    c.own = e->identity.own;
    c.mtu = e->identity.mtu;
    c.peers_max = WORKER_LINKS_MAX;
    c.dead_after_us = (uint64_t)e->options->node.dead_after_ms * 1000;
    return dk_endpoint_start(&e->endpoint, &c, err);
}

int worker_engine_open(struct worker_engine *e, const struct worker_options *o, const struct dk_net_ops *net_ops,
                       struct dk_mailbox *news, struct dk_err *err)
{
    const struct dk_node_options *node = &o->node;
    struct dk_net_config net = {.name = node->name,
                                .run_dir = node->run_dir,
                                .ports_max = DK_VHOST_DUCKS_MAX,
                                .frame_bytes = 9014,
                                .busy_poll = node->busy_poll,
                                .faults = node->faults};
    int rc;

    memset(e, 0, sizeof *e);
    e->options = o;
    e->news = news;
    e->loop = (struct dk_loop_poll){.poll = poll_once, .wait = wait_for_work, .deadline = next_deadline, .ctx = e};
    if (dk_arena_init(&e->arena, ARENA_BYTES) < 0)
        return dk_err_set(err, -ENOMEM, "no memory");
    rc = dk_endpoint_open(&e->endpoint, net_ops, &net, err);
    if (rc == 0)
        rc = dk_endpoint_identify(&e->endpoint, node->port_kind, node->interface, node->udp_port, VHOST_IPV4,
                                  &e->identity, err);
    if (rc == 0)
        rc = start_transport(e, err);
    if (rc < 0)
        return rc;
    worker_links_init(&e->links, &e->endpoint, o, &e->identity);
    rc = dk_mailbox_open(64, wake_engine, e, &e->orders);
    return rc < 0 ? dk_err_set(err, rc, "no memory for a mailbox") : 0;
}

static void engine_run(void *ctx)
{
    struct worker_engine *e = ctx;

    dk_loop_poll_run(&e->loop);
}

static void engine_stop(void *ctx)
{
    struct worker_engine *e = ctx;

    dk_loop_poll_stop(&e->loop);
    if (e->endpoint.net)
        dk_endpoint_wake(&e->endpoint);
}

void worker_engine_close(struct worker_engine *e)
{
    struct engine_order *o;

    while (e->orders && (o = dk_mailbox_pop(e->orders))) {
        if (o->step)
            protobuf_c_message_free_unpacked(&o->step->base, NULL);
        free(o);
    }
    dk_mailbox_close(e->orders);
    engine_news_free(e->unsent);
    step_close(&e->step);
    loader_stop(&e->loader);
    worker_model_close(&e->model);
    dk_endpoint_close(&e->endpoint);
    dk_arena_fini(&e->arena);
}

/* ---- as a node's engine */

static void engine_close(void *ctx)
{
    worker_engine_close(ctx);
}

static const struct dk_identity *engine_identity(void *ctx)
{
    return &((struct worker_engine *)ctx)->identity;
}

const struct dk_node_engine worker_engine_ops = {
    .run = engine_run,
    .stop = engine_stop,
    .close = engine_close,
    .identity = engine_identity,
};
