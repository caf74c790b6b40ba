/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/coordinator_internal.h"

/* The plan and the state of the cluster. dk_cluster_update() derives the state from the members' last heartbeats, so it
 * can be called at any time, any number of times. */

static const char *state_name(Dk__ClusterState s)
{
    const ProtobufCEnumValue *v = protobuf_c_enum_descriptor_get_value(&dk__cluster_state__descriptor, (int)s);

    return v ? v->name : "?";
}

void dk_cluster_state_set(struct dk_coordinator *c, Dk__ClusterState to, Dk__Code code, const char *text)
{
    if (c->state != to || strcmp(c->error_text, text))
        dk_log(to == DK__CLUSTER_STATE__FAILED || to == DK__CLUSTER_STATE__DEGRADED ? DK_LOG_WARN : DK_LOG_INFO,
               "cluster.state", "from=%s to=%s epoch=%llu text=\"%s\"", state_name(c->state), state_name(to),
               c->plan ? (unsigned long long)c->plan->epoch : 0ull, text);
    if (to == DK__CLUSTER_STATE__READY && c->state != to)
        c->ready_us = c->now_us;
    c->state = to;
    c->error_code = code;
    snprintf(c->error_text, sizeof c->error_text, "%s", text);
}

bool dk_cluster_needs(const struct dk_coordinator *c, const struct dk_member *m)
{
    if (!c->plan)
        return false;
    for (size_t i = 0; i < c->plan->n_slots; i++)
        if (!strcmp(c->plan->slots[i]->duck, m->beat->node->name))
            return true;
    return false;
}

void dk_cluster_fini(struct dk_coordinator *c)
{
    dk_message_free(c->plan);
    c->plan = NULL;
    if (c->has_model)
        dk_tokenizer_close(c->model.tokenizer);
    c->has_model = false;
}

/* The first duck of the plan that is not there; NULL: all are. */
static const Dk__PlanSlot *missing_duck(struct dk_coordinator *c, char *text, size_t room)
{
    for (size_t i = 0; i < c->plan->n_slots; i++) {
        const Dk__PlanSlot *slot = c->plan->slots[i];
        const struct dk_member *m = dk_member_find(c, slot->duck);

        if (m && m->beat->node->kind == DK__NODE_KIND__DUCK && dk_member_alive(c, m))
            continue;
        if (m)
            snprintf(text, room, "duck '%s' of the plan is silent; waiting for it", slot->duck);
        else
            snprintf(text, room,
                     c->adopted && c->now_us < c->settle_us
                         ? "duck '%s' of the plan is not heard of yet; waiting for it"
                         : "duck '%s' of the plan has left; waiting for it",
                     slot->duck);
        return slot;
    }
    return NULL;
}

/* Some node of the plan lives another life than the epoch was made for. All ducks are there. */
static bool instances_changed(struct dk_coordinator *c, const struct dk_member *worker)
{
    for (size_t i = 0; i < c->plan->n_slots; i++) {
        const struct dk_member *m = dk_member_find(c, c->plan->slots[i]->duck);

        if (m->beat->node->address->instance != c->plan->slots[i]->duck_instance ||
            m->index != c->plan->slots[i]->member_index)
            return true;
    }
    return worker->beat->node->address->instance != c->worker_instance;
}

static void next_epoch(struct dk_coordinator *c, const struct dk_member *worker)
{
    for (size_t i = 0; i < c->plan->n_slots; i++) {
        const struct dk_member *m = dk_member_find(c, c->plan->slots[i]->duck);

        c->plan->slots[i]->duck_instance = m->beat->node->address->instance;
        c->plan->slots[i]->member_index = m->index;
    }
    c->plan->epoch = ++c->epoch_last;
    c->epoch_us = c->now_us;
    if (c->worker_instance != worker->beat->node->address->instance)
        dk_schedule_new_worker(c);
    else
        dk_schedule_uncache(c);
    c->worker_instance = worker->beat->node->address->instance;
    dk_log(DK_LOG_INFO, "cluster.epoch", "epoch=%llu why=\"a node of the plan was restarted\"",
           (unsigned long long)c->plan->epoch);
}

/* What the worker says of its own loading. */
static void follow_load(struct dk_coordinator *c, const struct dk_member *worker)
{
    const Dk__LoadProgress *load = worker->beat->load;
    bool taken = load && load->has_plan_epoch && load->plan_epoch == c->plan->epoch;
    char text[sizeof c->error_text];

    if (taken && load->error) {
        dk_cluster_state_set(c, DK__CLUSTER_STATE__FAILED, load->error->code,
                             load->error->text ? load->error->text : "the attention-worker could not load the model");
        dk_sequences_fail(c, load->error->code, c->error_text);
    } else if (taken && load->has_ready && load->ready) {
        dk_cluster_state_set(c, DK__CLUSTER_STATE__READY, DK__CODE__OK, "");
    } else {
        dk_load_wait(c, worker, taken, text, sizeof text);
        dk_cluster_state_set(c, DK__CLUSTER_STATE__LOADING, text[0] ? DK__CODE__UNAVAILABLE : DK__CODE__OK, text);
    }
}

void dk_cluster_update(struct dk_coordinator *c)
{
    const struct dk_member *worker = dk_member_worker(c);
    char text[300];

    if (!c->plan)
        return;
    /* A plan that failed is not tried again, unless it failed for a node that was missing. */
    if (c->state == DK__CLUSTER_STATE__FAILED && c->error_code != DK__CODE__UNAVAILABLE)
        return;
    if (missing_duck(c, text, sizeof text)) {
        dk_cluster_state_set(c, DK__CLUSTER_STATE__DEGRADED, DK__CODE__UNAVAILABLE, text);
        return;
    }
    if (!worker || !dk_member_alive(c, worker)) {
        if (c->worker_instance)
            dk_cluster_state_set(c, DK__CLUSTER_STATE__DEGRADED, DK__CODE__UNAVAILABLE,
                                 worker ? "the attention-worker is silent; waiting for it"
                                        : "the attention-worker has left; waiting for one");
        else
            dk_cluster_state_set(c, DK__CLUSTER_STATE__LOADING, DK__CODE__UNAVAILABLE,
                                 "waiting for an attention-worker");
        return;
    }
    if (!c->worker_instance) {
        c->worker_instance = worker->beat->node->address->instance;
        if (c->step_instance != c->worker_instance)
            dk_schedule_new_worker(c);
    }
    if (instances_changed(c, worker))
        next_epoch(c, worker);
    follow_load(c, worker);
}

void dk_cluster_take(struct dk_coordinator *c, Dk__Plan *plan, const struct dk_served_model *m)
{
    dk_cluster_fini(c);
    c->model = *m;
    c->has_model = true;
    c->plan = plan;
    c->epoch_us = c->now_us;
    c->worker_instance = 0;
    c->adopted = false;
    dk_cluster_state_set(c, DK__CLUSTER_STATE__LOADING, DK__CODE__OK, "");
}

/* ---- Load */

static int by_name(const void *a, const void *b)
{
    const struct dk_member *const *m = a, *const *n = b;

    return strverscmp((*m)->beat->node->name, (*n)->beat->node->name); /* duck-2 before duck-10 */
}

static uint32_t ducks_alive(struct dk_coordinator *c, const struct dk_member **ducks)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < c->member_count; i++)
        if (c->members[i].beat->node->kind == DK__NODE_KIND__DUCK && dk_member_alive(c, &c->members[i]))
            ducks[count++] = &c->members[i];
    qsort(ducks, count, sizeof *ducks, by_name);
    return count;
}

static int slot_add(Dk__Plan *plan, const struct dk_model_config *m, const struct dk_member *duck, uint32_t tp,
                    struct dk_err *err)
{
    uint32_t intermediate = m->experts ? m->moe_intermediate : m->intermediate;
    Dk__PlanSlot *slot;
    struct dk_slice slice;
    int rc = dk_plan_slice(intermediate, plan->multiple_of, tp, (uint32_t)plan->n_slots, &slice, err);

    if (rc < 0)
        return dk_err_prefix(err, "multiple_of");
    slot = dk_message_new(&dk__plan_slot__descriptor);
    if (!slot)
        return dk_err_set(err, -ENOMEM, "out of memory");
    plan->slots[plan->n_slots++] = slot;
    slot->duck = strdup(duck->beat->node->name);
    if (!slot->duck)
        return dk_err_set(err, -ENOMEM, "out of memory");
    slot->member_index = duck->index;
    slot->duck_instance = duck->beat->node->address->instance;
    slot->unit_begin = slice.begin / plan->multiple_of;
    slot->unit_end = (slice.end + plan->multiple_of - 1) / plan->multiple_of;
    return 0;
}

/* Everything but the epoch. */
static int plan_make(struct dk_coordinator *c, const Dk__LoadRequest *q, const struct dk_served_model *m,
                     uint32_t context, Dk__Plan **out, struct dk_err *err)
{
    const struct dk_member *ducks[DK_MEMBERS_MAX];
    uint32_t alive = ducks_alive(c, ducks), tp = q->has_tp ? q->tp : alive;
    Dk__Plan *plan;
    int rc = 0;

    if (!alive || tp > alive)
        return dk_err_set(err, dk_errno_from_code(DK__CODE__FAILED_PRECONDITION),
                          alive ? "tp %u asks for more ducks than there are: %u %s present"
                                : "no duck is there: start duck-firmware first",
                          tp, alive, alive == 1 ? "is" : "are");
    plan = dk_message_new(&dk__plan__descriptor);
    if (!plan)
        return dk_err_set(err, -ENOMEM, "out of memory");
    plan->model_dir = strdup(q->model_dir);
    plan->model_id = m->model_id;
    plan->multiple_of = q->multiple_of;
    plan->has_context = true;
    plan->context = context;
    plan->has_full_attention = m->config.index.heads > 0;
    plan->full_attention = q->attention == DK__ATTENTION_MODE__FULL;
    plan->has_allow_full = plan->allow_full = q->has_allow_full && q->allow_full;
    plan->backend = strdup(q->backend);
    plan->has_sequences = true;
    plan->sequences = c->options.running_max;
    plan->has_rows = true;
    plan->rows = c->options.step_rows;
    plan->slots = calloc(tp, sizeof(Dk__PlanSlot *));
    if (!plan->model_dir || !plan->backend || !plan->slots)
        rc = dk_err_set(err, -ENOMEM, "out of memory");
    for (uint32_t i = 0; i < tp && rc == 0; i++)
        rc = slot_add(plan, &m->config, ducks[i], tp, err);
    if (rc < 0)
        dk_message_free(plan);
    else
        *out = plan;
    return rc;
}

/* A worker that is there says which back ends it was built with; a load that it could not do must not end the present
 * one. */
static int check_backend(struct dk_coordinator *c, const char *backend, struct dk_err *err)
{
    const struct dk_member *worker = dk_member_worker(c);
    const Dk__NodeInfo *n = worker ? worker->beat->node : NULL;
    char built[100] = "";

    for (size_t i = 0; n && i < n->n_backends; i++) {
        if (!strcmp(n->backends[i], backend))
            return 0;
        snprintf(built + strlen(built), sizeof built - strlen(built), "%s%s", i ? ", " : "", n->backends[i]);
    }
    if (!n || !n->n_backends)
        return 0;
    return dk_err_set(err, -ENOTSUP, "backend '%s': worker '%s' was built with: %s", backend, n->name, built);
}

static int check_load(struct dk_coordinator *c, const Dk__LoadRequest *q, struct dk_err *err)
{
    uint32_t live = c->sequence_count - dk_sequences_in(c, DK_SEQUENCE_DONE);

    if (q->model_dir[0] != '/')
        return dk_err_set(err, -EINVAL, "model_dir: '%.100s' is not an absolute path", q->model_dir);
    if (strlen(q->model_dir) > DK_MODEL_DIR_MAX)
        return dk_err_set(err, -EINVAL, "model_dir: the path has %zu bytes, at most %u are taken; use a shorter one",
                          strlen(q->model_dir), DK_MODEL_DIR_MAX);
    if (strcmp(q->backend, "cpu") && strcmp(q->backend, "cuda"))
        return dk_err_set(err, -EINVAL, "backend: '%s' is neither 'cpu' nor 'cuda'", q->backend);
    if (check_backend(c, q->backend, err) < 0)
        return err->rc;
    if (q->has_tp && !q->tp)
        return dk_err_set(err, -EINVAL, "tp: must be at least 1");
    if (q->has_tp && q->tp > DK_PLAN_DUCKS_MAX)
        return dk_err_set(err, -EINVAL, "tp: %u is more than the %u ducks that a plan can have", q->tp,
                          DK_PLAN_DUCKS_MAX);
    if (!q->multiple_of || q->multiple_of % 32)
        return dk_err_set(err, -EINVAL, "multiple_of: %u is not a multiple of 32", q->multiple_of);
    if (live)
        return dk_err_set(err, dk_errno_from_code(DK__CODE__FAILED_PRECONDITION),
                          "%u sequences are running or queued: cancel them or wait for their end", live);
    return 0;
}

void dk_load_handle(struct dk_coordinator *c, void *call, const Dk__LoadRequest *q, struct dk_outbox *out)
{
    struct dk_served_model m = {0};
    Dk__LoadReply *r;
    Dk__Plan *plan = NULL;
    struct dk_err err = {0};
    uint32_t context = 0;

    if (check_load(c, q, &err) < 0 || c->options.source.open(c->options.source.ctx, q->model_dir, &m, &err) < 0)
        goto fail;
    if (dk_attention_mode(q, &m.config, &context, &err) < 0 || plan_make(c, q, &m, context, &plan, &err) < 0)
        goto fail;
    plan->epoch = ++c->epoch_last;
    dk_cluster_take(c, plan, &m);
    dk_log(DK_LOG_INFO, "cluster.load",
           "model=\"%s\" epoch=%llu ducks=%zu multiple_of=%u context=%u backend=%s full_attention=%d", plan->model_dir,
           (unsigned long long)plan->epoch, plan->n_slots, plan->multiple_of, plan->context, plan->backend,
           plan->full_attention);
    dk_cluster_update(c);
    r = dk_message_new(&dk__load_reply__descriptor);
    if (r)
        r->plan_epoch = plan->epoch;
    dk_outbox_reply(out, call, r);
    return;
fail:
    if (m.tokenizer)
        dk_tokenizer_close(m.tokenizer);
    dk_outbox_fail_err(out, call, &err);
}
