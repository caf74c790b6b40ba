/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "net/sim/sim.h"

enum { CONTEXT = 96, BUSY_US = 5, IDLE_US = 50, LONG_IDLE_US = 500, POLLS_MAX = 400000 };

static uint64_t sim_now(void *ctx)
{
    return ((struct cluster *)ctx)->now_us;
}

/* Ducks only measure with it. */
static uint64_t still_clock(void)
{
    return 0;
}

static struct dk_net_faults faults_for(const struct cluster *c, uint32_t who)
{
    struct dk_net_faults f = c->faults;

    f.seed = c->faults.seed * 1000 + who;
    return f;
}

int cluster_duck_start(struct cluster *c, uint32_t duck, struct dk_err *err)
{
    struct cluster_duck *d = &c->ducks[duck];
    struct dk_net_config net = {.name = d->name, .run_dir = "sim", .ports_max = 2, .frame_bytes = 9014};
    uint32_t lives = d->lives + 1;
    int rc;

    memset(d, 0, sizeof *d);
    d->lives = lives;
    snprintf(d->name, sizeof d->name, "duck-%u", duck);
    d->own = (struct dk_addr){.mac = {2, 1, 0, 0, (uint8_t)lives, (uint8_t)duck},
                              .ipv4 = 0x0a4d0002u + duck,
                              .udp_port = 7700,
                              .instance = 0x1000u * lives + duck + 1};
    net.faults = faults_for(c, 100 * lives + duck);
    rc = duck_open(&d->duck, dk_kernels_get(dk_isa_best()), c->exec, still_clock, 64u << 20, 0);
    if (rc == 0)
        rc = dk_endpoint_open(&d->endpoint, &dk_net_sim, &net, err);
    if (rc < 0)
        return dk_err_set(err, rc, "%s cannot be started", d->name);
    d->up = true;
    return 0;
}

static void add_counters(struct dk_net_counters *sum, const struct dk_net_counters *n)
{
    sum->fault_dropped += n->fault_dropped;
    sum->fault_duplicated += n->fault_duplicated;
    sum->fault_reordered += n->fault_reordered;
    sum->fault_corrupted += n->fault_corrupted;
    sum->fault_delayed += n->fault_delayed;
}

void cluster_duck_crash(struct cluster *c, uint32_t duck)
{
    struct cluster_duck *d = &c->ducks[duck];

    if (!d->up)
        return;
    add_counters(&c->past, d->endpoint.ops->counters(d->endpoint.net));
    dk_endpoint_close(&d->endpoint);
    duck_close(&d->duck);
    d->up = false;
}

int cluster_open(struct cluster *c, uint32_t ducks, const struct dk_net_faults *faults, struct dk_err *err)
{
    int rc;

    memset(c, 0, sizeof *c);
    c->now_us = 1000000;
    c->duck_count = ducks;
    if (faults)
        c->faults = *faults;
    dk_sim_clock_set(sim_now, c);
    c->options.node = (struct dk_node_options){.name = "worker",
                                               .run_dir = "sim",
                                               .isa_name = "auto",
                                               .threads = 1,
                                               .udp_port = 7700,
                                               .dead_after_ms = 2000,
                                               .port_kind = DK_PORT_VHOST,
                                               .isa = dk_isa_best(),
                                               .faults = faults_for(c, 0)};
    rc = dk_exec_open(1, false, &c->exec);
    if (rc == 0)
        rc = dk_mailbox_open(256, NULL, NULL, &c->news);
    if (rc == 0)
        rc = worker_engine_open(&c->worker, &c->options, &dk_net_sim, c->news, err);
    for (uint32_t i = 0; rc == 0 && i < ducks; i++)
        rc = cluster_duck_start(c, i, err);
    if (rc < 0)
        return rc;
    cluster_follow(c);
    for (int i = 0; i < 10; i++)
        cluster_poll(c);
    return 0;
}

void cluster_close(struct cluster *c)
{
    struct engine_news *n;

    for (uint32_t i = 0; i < c->duck_count; i++)
        cluster_duck_crash(c, i);
    worker_engine_close(&c->worker);
    while (c->news && (n = dk_mailbox_pop(c->news)))
        engine_news_free(n);
    dk_mailbox_close(c->news);
    free(c->result);
    dk_exec_close(c->exec);
    dk_sim_clock_set(NULL, NULL);
}

/* A heartbeat's reply, as often as the duck is polled: the same again changes nothing. */
static void duck_follow(struct cluster *c, uint32_t i)
{
    struct cluster_duck *d = &c->ducks[i];
    struct duck_link_order order;

    memset(&order, 0, sizeof order); /* orders are compared with their padding */
    order.present = true;
    order.worker = c->worker.identity.own;
    order.own = d->own;
    order.mtu = c->worker.identity.mtu;
    order.member_index = i;
    dk_text_copy(order.socket_path, sizeof order.socket_path, c->worker.links.link[i].socket_path);
    duck_link_follow(&d->link, &d->endpoint, DK_PORT_VIRTIO_USER, c->options.node.dead_after_ms, &order);
}

void cluster_follow(struct cluster *c)
{
    struct engine_order *o = calloc(1, sizeof *o);

    o->kind = ORDER_WANTED;
    o->plan = c->plan;
    for (uint32_t i = 0; i < c->duck_count; i++)
        if (c->ducks[i].up && !c->ducks[i].away) {
            struct worker_link_order *l = &o->links[o->link_count++];

            l->member_index = i;
            l->addr = c->ducks[i].own;
            memcpy(l->name, c->ducks[i].name, sizeof c->ducks[i].name);
        }
    if (dk_mailbox_push(c->worker.orders, o) < 0)
        free(o);
}

static void duck_answer(struct cluster *c, uint32_t i, struct dk_transport_event *event)
{
    struct cluster_duck *d = &c->ducks[i];
    enum cluster_verdict verdict = CLUSTER_HANDLE;
    struct duck_answer a = {.header_bytes = 0};
    struct iovec parts[2];

    d->requests++;
    if (c->on_request)
        verdict = c->on_request(c->ctx, c, i, event->data, event->bytes, &a);
    if (verdict == CLUSTER_CRASH) {
        cluster_duck_crash(c, i);
        return;
    }
    if (verdict == CLUSTER_HANDLE)
        duck_handle(&d->duck, event->data, event->bytes, &a);
    if (verdict != CLUSTER_NEVER) {
        parts[0] = (struct iovec){a.header, a.header_bytes};
        parts[1] = (struct iovec){(void *)(uintptr_t)a.payload, a.payload_bytes};
        dk_transport_respond(d->endpoint.transport, event->peer, event->request_id, parts, a.payload_bytes ? 2 : 1,
                             c->now_us);
    }
    dk_transport_event_done(d->endpoint.transport, event);
}

static bool duck_poll(struct cluster *c, uint32_t i)
{
    struct cluster_duck *d = &c->ducks[i];
    struct dk_transport_event event;
    bool worked = dk_endpoint_poll(&d->endpoint, c->now_us);

    if (c->worker.links.link[i].port_up)
        duck_follow(c, i);
    while (d->up && d->endpoint.transport &&
           (dk_transport_event(d->endpoint.transport, &event), event.type != DK_EVENT_NONE)) {
        worked = true;
        if (event.type == DK_EVENT_REQUEST) {
            duck_answer(c, i, &event);
            continue;
        }
        dk_transport_event_done(d->endpoint.transport, &event);
        if (event.type == DK_EVENT_DEAD)
            duck_link_peer_lost(&d->link, &d->endpoint);
    }
    return worked;
}

bool cluster_poll_ducks(struct cluster *c)
{
    bool worked = false;

    for (uint32_t i = 0; i < c->duck_count; i++)
        if (c->ducks[i].up && !c->ducks[i].away)
            worked |= duck_poll(c, i);
    c->idle_polls = worked ? 0 : c->idle_polls + 1;
    c->now_us += worked ? BUSY_US : c->idle_polls > 20 ? LONG_IDLE_US : IDLE_US;
    return worked;
}

static void take_news(struct cluster *c)
{
    struct engine_news *n;

    while ((n = dk_mailbox_pop(c->news))) {
        if (n->kind == NEWS_RESULT) {
            free(c->result);
            c->ended = true;
            c->result = n->result;
            c->result_bytes = n->result_bytes;
            n->result = NULL;
        }
        engine_news_free(n);
    }
}

bool cluster_poll(struct cluster *c)
{
    bool worked = c->worker.loop.poll(c->worker.loop.ctx, c->now_us);

    take_news(c);
    if (worked)
        c->idle_polls = 0;
    return cluster_poll_ducks(c) || worked;
}

/* The coordinator names the model by what it has read itself; 0: nothing could be read. */
static uint64_t model_id(const char *dir)
{
    struct dk_checkpoint *ck;
    uint64_t id = 0;

    if (dk_checkpoint_open(dir, &ck, NULL) == 0) {
        id = dk_checkpoint_id(ck);
        dk_checkpoint_close(ck);
    }
    return id;
}

int cluster_load(struct cluster *c, const char *model_dir, uint32_t multiple_of, struct dk_err *err)
{
    struct worker_plan *p = &c->plan;

    p->model_id = model_id(model_dir);
    p->epoch++;
    dk_text_copy(p->model_dir, sizeof p->model_dir, model_dir);
    dk_text_copy(p->backend, sizeof p->backend, "cpu");
    p->multiple_of = multiple_of;
    p->context = CONTEXT;
    p->rows_max = 48;
    p->sequences_max = 4;
    p->slot_count = c->duck_count;
    for (uint32_t i = 0; i < c->duck_count; i++) {
        memcpy(p->slots[i].duck, c->ducks[i].name, sizeof c->ducks[i].name);
        p->slots[i].member_index = i;
        p->slots[i].instance = c->ducks[i].own.instance;
    }
    cluster_follow(c);
    for (int i = 0; i < POLLS_MAX; i++) {
        const struct worker_engine *w = &c->worker;

        cluster_poll(c);
        if (w->plan.epoch != p->epoch)
            continue;
        if (w->plan_err.rc || w->loader.state == LOADER_FAILED) {
            *err = w->plan_err.rc ? w->plan_err : w->loader.err;
            return err->rc;
        }
        if (w->loader.state == LOADER_READY)
            return 0;
    }
    return dk_err_set(err, -ETIMEDOUT, "not loaded after %llu us", (unsigned long long)c->now_us);
}

Dk__StepResult *cluster_step(struct cluster *c, Dk__NextStepReply *step)
{
    struct engine_order *o = calloc(1, sizeof *o);
    Dk__StepResult *r = NULL;

    o->kind = ORDER_STEP;
    o->step = step;
    free(c->result);
    c->result = NULL;
    c->ended = false;
    if (dk_mailbox_push(c->worker.orders, o) < 0)
        abort();
    for (int i = 0; i < POLLS_MAX && !c->ended; i++)
        cluster_poll(c);
    if (c->result)
        r = dk__step_result__unpack(NULL, c->result_bytes, c->result);
    return r;
}

Dk__NextStepReply *cluster_step_new(const struct cluster *c, uint32_t sequences)
{
    static uint64_t steps;
    Dk__NextStepReply *r = malloc(sizeof *r);

    dk__next_step_reply__init(r);
    r->step = malloc(sizeof *r->step);
    dk__step__init(r->step);
    r->step->step_id = ++steps;
    r->step->plan_epoch = c->plan.epoch;
    r->step->sequences = calloc(sequences ? sequences : 1, sizeof *r->step->sequences);
    return r;
}

Dk__StepSequence *cluster_step_add(Dk__NextStepReply *step, uint64_t sequence_id, uint32_t position,
                                   const uint32_t *tokens, uint32_t count)
{
    Dk__StepSequence *q = malloc(sizeof *q);

    dk__step_sequence__init(q);
    q->sequence_id = sequence_id;
    q->position = position;
    q->tokens = malloc((count ? count : 1) * sizeof *q->tokens);
    if (count)
        memcpy(q->tokens, tokens, count * sizeof *q->tokens);
    q->n_tokens = count;
    q->has_sample = q->sample = true;
    step->step->sequences[step->step->n_sequences++] = q;
    return q;
}

/* Takes one token and its logits out of a result. */
static int take_token(const Dk__StepResult *r, uint32_t *token, float *logits, struct dk_err *err)
{
    const Dk__Status *bad = !r ? NULL : r->error ? r->error : r->n_sequences ? r->sequences[0]->error : NULL;

    if (!r)
        return dk_err_set(err, -ETIMEDOUT, "a step without end");
    if (bad)
        return dk_err_set(err, dk_errno_from_code(bad->code), "%s", bad->text ? bad->text : "");
    if (r->n_sequences != 1 || !r->sequences[0]->has_token)
        return dk_err_set(err, -EBADMSG, "a result without a token");
    *token = r->sequences[0]->token;
    if (logits) {
        size_t row = r->sequences[0]->vocab * sizeof *logits;

        memcpy(logits, r->sequences[0]->logits.data + r->sequences[0]->logits.len - row, row);
    }
    return 0;
}

int cluster_generate(struct cluster *c, uint64_t sequence_id, const uint32_t *prompt, uint32_t count, uint32_t steps,
                     uint32_t *out, float *logits, struct dk_err *err)
{
    uint32_t position = 0, vocab = c->worker.model.config.vocab;

    for (uint32_t i = 0; i < steps; i++) {
        Dk__NextStepReply *step = cluster_step_new(c, 1);
        uint32_t n = i ? 1 : count;
        Dk__StepSequence *q = cluster_step_add(step, sequence_id, position, i ? &out[i - 1] : prompt, n);
        Dk__StepResult *r;
        int rc;

        q->has_want_logits = q->want_logits = logits != NULL;
        r = cluster_step(c, step);
        rc = take_token(r, &out[i], logits ? logits + (size_t)i * vocab : NULL, err);
        if (r)
            dk__step_result__free_unpacked(r, NULL);
        if (rc < 0)
            return rc;
        position += n;
    }
    return 0;
}

struct dk_net_counters cluster_faults(const struct cluster *c)
{
    struct dk_net_counters sum = c->past;

    add_counters(&sum, c->worker.endpoint.ops->counters(c->worker.endpoint.net));
    for (uint32_t i = 0; i < c->duck_count; i++)
        if (c->ducks[i].up)
            add_counters(&sum, c->ducks[i].endpoint.ops->counters(c->ducks[i].endpoint.net));
    return sum;
}
