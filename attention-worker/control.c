/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/control.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"

#define INTERVAL_FIRST_US 200000u
#define BEAT_TIMEOUT_MS   2000u
#define PULL_WAIT_MS      500u
#define PULL_TIMEOUT_MS   5000u
#define PULL_RETRY_US     100000u

/* A message to this actor: news from the engine, or the end of a call. */
enum mail_kind { MAIL_NEWS, MAIL_BEAT_END, MAIL_PULL_END };
struct mail {
    enum mail_kind kind;
    int rc;
    ProtobufCMessage *reply;
    struct dk_err err;
};

/* The engine pushes its own struct, told apart by the lowest bit of the pointer, which mail has set. */
static void post(struct worker_control *c, enum mail_kind kind, int rc, ProtobufCMessage *reply,
                 const struct dk_err *err)
{
    struct mail *m = calloc(1, sizeof *m);

    if (m) {
        m->kind = kind;
        m->rc = rc;
        m->reply = reply;
        if (err)
            m->err = *err;
    }
    if (!m || dk_mailbox_push(dk_loop_ev_mailbox(c->loop), (void *)((uintptr_t)m | 1)) < 0) {
        if (reply)
            protobuf_c_message_free_unpacked(reply, NULL);
        free(m);
    }
}

static void on_beat_done(void *ctx, int rc, ProtobufCMessage *reply, const struct dk_err *err)
{
    post(ctx, MAIL_BEAT_END, rc, reply, err);
}

static void on_pull_done(void *ctx, int rc, ProtobufCMessage *reply, const struct dk_err *err)
{
    post(ctx, MAIL_PULL_END, rc, reply, err);
}

/* ---- heartbeat */

static void fill_links(const struct worker_control *c, Dk__DuckLink *links, Dk__DuckLink **list)
{
    const struct engine_news *n = c->last;

    for (uint32_t i = 0; n && i < n->link_count; i++) {
        dk__duck_link__init(&links[i]);
        links[i].member_index = n->links[i].member_index;
        links[i].duck_instance = n->links[i].instance;
        links[i].port_ready = true;
        links[i].has_alive = true;
        links[i].alive = n->links[i].heard;
        if (c->options->port_kind == DK_PORT_VHOST) {
            links[i].socket_path = (char *)(uintptr_t)n->links[i].socket_path;
            links[i].bell_path = (char *)(uintptr_t)n->bell_path;
        }
        list[i] = &links[i];
    }
}

static void fill_node(const struct worker_control *c, Dk__NodeInfo *node, Dk__DataAddress *address)
{
    dk_addr_to_wire(&c->engine->identity.own, c->engine->identity.mtu, address);
    node->name = (char *)(uintptr_t)c->options->name;
    node->kind = DK__NODE_KIND__WORKER;
    node->host = (char *)(uintptr_t)c->host;
    node->isa = (char *)(uintptr_t)dk_isa_name(c->options->isa);
    node->version = (char *)(uintptr_t)DUCKLLM_VERSION;
    node->port_kind = c->options->port_kind == DK_PORT_AF_PACKET ? DK__PORT_KIND__AF_PACKET : DK__PORT_KIND__VHOST;
    node->address = address;
#define SET(field, v) (node->has_##field = true, node->field = (v))
    SET(pid, (uint32_t)getpid());
    SET(cores, dk_cpu_count());
    SET(kernel_threads, c->options->threads);
    SET(ram_total_bytes, dk_ram_total_bytes());
    SET(ram_free_bytes, dk_ram_free_bytes());
#undef SET
}

static void beat(struct worker_control *c)
{
    const struct engine_news *n = c->last;
    Dk__HeartbeatRequest q = DK__HEARTBEAT_REQUEST__INIT;
    Dk__NodeInfo node = DK__NODE_INFO__INIT;
    Dk__DataAddress address;
    Dk__TransportCounters t;
    Dk__LoadProgress load = DK__LOAD_PROGRESS__INIT;
    Dk__Holding holding = DK__HOLDING__INIT;
    Dk__Status status = DK__STATUS__INIT;
    Dk__DuckLink links[WORKER_LINKS_MAX], *list[WORKER_LINKS_MAX];
    struct dk_err err = {0};

    fill_node(c, &node, &address);
    q.node = &node;
    if (n) {
        fill_links(c, links, list);
        q.n_links = n->link_count;
        q.links = list;
        dk_counters_to_wire(&n->transport, &n->net, &t);
        q.transport = &t;
        load.has_plan_epoch = load.has_bytes_done = load.has_bytes_total = load.has_ready = true;
        load.plan_epoch = n->plan_epoch;
        load.bytes_done = n->bytes_done;
        load.bytes_total = n->bytes_total;
        load.ready = n->ready;
        if (n->load_err.rc) {
            status.code = dk_code_from_errno(n->load_err.rc);
            status.text = (char *)(uintptr_t)n->load_err.text;
            load.error = &status;
        }
        holding.has_plan_epoch = holding.has_model_id = true;
        holding.plan_epoch = n->ready ? n->plan_epoch : 0;
        holding.model_id = n->model_id;
        q.load = &load;
        q.holding = &holding;
    }
    if (dk_rpc_call_start(c->client, &dk__membership__descriptor, "Heartbeat", &q.base, BEAT_TIMEOUT_MS, on_beat_done,
                          c, &err) == 0)
        c->beat_in_flight = true;
    else
        dk_log(DK_LOG_WARN, "heartbeat.start", "text=\"%s\"", err.text);
}

static void on_beat(void *ctx, uint64_t now_us)
{
    struct worker_control *c = ctx;

    if (!c->beat_in_flight)
        beat(c);
    dk_timer_arm(dk_loop_ev_timers(c->loop), &c->beat, now_us + c->interval_us);
}

static void copy_plan(struct worker_plan *to, const Dk__Plan *p)
{
    to->epoch = p->epoch;
    to->model_id = p->model_id;
    to->multiple_of = p->multiple_of;
    to->context = p->context;
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
    return strlen(p->model_dir) < sizeof ((struct worker_plan *)0)->model_dir && p->n_slots <= PLAN_SLOTS_MAX &&
           p->context && p->rows && p->rows <= 4096 && p->sequences && p->sequences <= 4096;
}

static void order_wanted(struct worker_control *c, const Dk__HeartbeatReply *r)
{
    struct engine_order *o = calloc(1, sizeof *o);

    if (!o)
        return;
    o->kind = ORDER_WANTED;
    if (r->plan && plan_fits(r->plan))
        copy_plan(&o->plan, r->plan);
    for (size_t i = 0; i < r->n_ducks && o->link_count < WORKER_LINKS_MAX; i++) {
        struct worker_link_order *l = &o->links[o->link_count];

        if (!dk_addr_from_wire(r->ducks[i]->node->address, &l->addr))
            continue;
        l->member_index = r->ducks[i]->member_index;
        dk_text_copy(l->name, sizeof l->name, r->ducks[i]->node->name);
        o->link_count++;
    }
    if (dk_mailbox_push(c->engine->orders, o) < 0)
        free(o);
}

static void on_beat_end(struct worker_control *c, struct mail *m)
{
    const Dk__HeartbeatReply *r = (const Dk__HeartbeatReply *)m->reply;

    c->beat_in_flight = false;
    if (m->rc < 0) {
        if (c->beat_failure != m->rc)
            dk_log(DK_LOG_WARN, "heartbeat.failed", "text=\"%s\" retry=yes", m->err.text);
        c->beat_failure = m->rc;
        return;
    }
    c->beat_failure = 0;
    if (r->interval_ms >= 10 && r->interval_ms <= 60000)
        c->interval_us = r->interval_ms * 1000u;
    order_wanted(c, r);
}

/* ---- steps */

static void pull(struct worker_control *c)
{
    Dk__NextStepRequest q = DK__NEXT_STEP_REQUEST__INIT;
    struct dk_err err = {0};

    if (c->pull_in_flight || c->step_running)
        return;
    q.worker = (char *)(uintptr_t)c->options->name;
    q.instance = c->engine->identity.own.instance;
    q.result = c->result;
    q.has_wait_ms = q.has_plan_epoch = true;
    q.wait_ms = PULL_WAIT_MS;
    q.plan_epoch = c->last && c->last->ready ? c->last->plan_epoch : 0;
    if (dk_rpc_call_start(c->client, &dk__attention__descriptor, "NextStep", &q.base, PULL_TIMEOUT_MS, on_pull_done, c,
                          &err) == 0)
        c->pull_in_flight = true;
    else
        dk_timer_arm(dk_loop_ev_timers(c->loop), &c->pull, dk_now_us() + PULL_RETRY_US);
}

static void on_pull(void *ctx, uint64_t now_us)
{
    pull(ctx);
}

static void on_pull_end(struct worker_control *c, struct mail *m, uint64_t now_us)
{
    Dk__NextStepReply *r = (Dk__NextStepReply *)m->reply;
    struct engine_order *o;

    c->pull_in_flight = false;
    if (m->rc < 0) {
        if (c->pull_failure != m->rc)
            dk_log(DK_LOG_WARN, "step.pull", "text=\"%s\" retry=yes", m->err.text);
        c->pull_failure = m->rc;
        dk_timer_arm(dk_loop_ev_timers(c->loop), &c->pull, now_us + PULL_RETRY_US);
        return;
    }
    c->pull_failure = 0;
    if (c->result)
        dk__step_result__free_unpacked(c->result, NULL);
    c->result = NULL;
    if (!r->step) {
        pull(c);
        return;
    }
    o = calloc(1, sizeof *o);
    if (o) {
        o->kind = ORDER_STEP;
        o->step = r;
        m->reply = NULL;
        if (dk_mailbox_push(c->engine->orders, o) == 0) {
            c->step_running = true;
            return;
        }
        m->reply = &r->base;
        free(o);
    }
    /* The step was not taken: asking again with no result gives the same one. */
    dk_timer_arm(dk_loop_ev_timers(c->loop), &c->pull, now_us + PULL_RETRY_US);
}

static void on_result(struct worker_control *c, struct engine_news *n)
{
    c->step_running = false;
    c->result = n->result ? dk__step_result__unpack(NULL, n->result_bytes, n->result) : NULL;
    pull(c);
}

/* ---- the loop */

static void on_message(void *ctx, void *message, uint64_t now_us)
{
    struct worker_control *c = ctx;
    struct engine_news *n = message;

    if ((uintptr_t)message & 1) {
        struct mail *m = (struct mail *)((uintptr_t)message - 1);

        if (m->kind == MAIL_BEAT_END)
            on_beat_end(c, m);
        else
            on_pull_end(c, m, now_us);
        if (m->reply)
            protobuf_c_message_free_unpacked(m->reply, NULL);
        free(m);
        return;
    }
    if (n->kind == NEWS_RESULT) {
        on_result(c, n);
        engine_news_free(n);
        return;
    }
    engine_news_free(c->last);
    c->last = n;
}

static void on_signal(void *ctx, int signal)
{
    struct worker_control *c = ctx;

    dk_log(DK_LOG_INFO, "worker.end", "signal=%d", signal);
    dk_loop_ev_stop(c->loop);
}

int worker_control_open(struct worker_control *c, const struct worker_options *o, const struct dk_control_ops *plane,
                        struct dk_err *err)
{
    static const struct dk_loop_ev_handlers handlers = {on_message, NULL, on_signal};
    int rc;

    memset(c, 0, sizeof *c);
    c->options = o;
    c->interval_us = INTERVAL_FIRST_US;
    c->beat.fire = on_beat;
    c->beat.ctx = c;
    c->pull.fire = on_pull;
    c->pull.ctx = c;
    gethostname(c->host, sizeof c->host - 1);
    rc = dk_loop_ev_open(&handlers, c, 256, &c->loop);
    if (rc < 0)
        return dk_err_set(err, rc, "no memory for the control loop");
    return dk_rpc_dial(plane, o->coordinator, &c->client, err);
}

void worker_control_run(struct worker_control *c, struct worker_engine *engine)
{
    Dk__LeaveRequest leave = DK__LEAVE_REQUEST__INIT;
    ProtobufCMessage *reply;
    struct dk_err err = {0};

    c->engine = engine;
    dk_timer_arm(dk_loop_ev_timers(c->loop), &c->beat, 0);
    dk_timer_arm(dk_loop_ev_timers(c->loop), &c->pull, dk_now_us() + PULL_RETRY_US);
    dk_loop_ev_run(c->loop);
    leave.name = (char *)(uintptr_t)c->options->name;
    leave.instance = engine->identity.own.instance;
    if (dk_rpc_call(c->client, &dk__membership__descriptor, "Leave", &leave.base, 300, &reply, &err) == 0)
        protobuf_c_message_free_unpacked(reply, NULL);
}

void worker_control_close(struct worker_control *c)
{
    void *m;

    dk_rpc_client_close(c->client);
    while (c->loop && (m = dk_mailbox_pop(dk_loop_ev_mailbox(c->loop)))) {
        if ((uintptr_t)m & 1) {
            struct mail *mail = (struct mail *)((uintptr_t)m - 1);

            if (mail->reply)
                protobuf_c_message_free_unpacked(mail->reply, NULL);
            free(mail);
        } else {
            engine_news_free(m);
        }
    }
    dk_loop_ev_close(c->loop);
    engine_news_free(c->last);
    if (c->result)
        dk__step_result__free_unpacked(c->result, NULL);
}
