/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/coordinator_internal.h"
#include "plan/plan.h"

/* A coordinator that was restarted knows nothing, and everybody else goes on as before. The worker's heartbeat carries
 * the plan, which is taken over with its epoch, its slots and its member indexes, so nobody loads anything again. Until
 * the picture is complete, for DK_SETTLE_US at most, nodes that are part of it get an error instead of an answer, which
 * they ignore: an answer out of half a picture would make them close links and number ducks anew. */

/* ---- the plan */

static const char *slots_defect(const Dk__Plan *p)
{
    uint64_t seen = 0;

    _Static_assert(DK_PLAN_DUCKS_MAX <= 64, "member indexes are bits of one word");
    if (!p->n_slots || p->n_slots > DK_PLAN_DUCKS_MAX)
        return "it has no duck, or more than a plan can have";
    for (size_t i = 0; i < p->n_slots; i++) {
        const Dk__PlanSlot *s = p->slots[i];

        if (!s->duck[0] || strlen(s->duck) >= DK_NODE_NAME_ROOM || s->unit_begin > s->unit_end ||
            s->member_index >= DK_PLAN_DUCKS_MAX || seen >> s->member_index & 1)
            return "a duck of it has a wrong name, index or part";
        seen |= 1ull << s->member_index;
        for (size_t k = 0; k < i; k++)
            if (!strcmp(p->slots[k]->duck, s->duck))
                return "it names a duck twice";
    }
    return NULL;
}

static const char *plan_defect(const Dk__Plan *p)
{
    if (p->epoch >= UINT64_MAX / 4)
        return "its epoch is out of range";
    if (p->model_dir[0] != '/' || strlen(p->model_dir) > DK_MODEL_DIR_MAX)
        return "its model folder is no absolute path";
    if (!p->multiple_of || p->multiple_of % 32 || !p->context || !p->backend)
        return "its unit, context or back end is missing or wrong";
    if (!p->sequences || p->sequences > DK_PLAN_SEQUENCES_MAX || p->rows <= p->sequences || p->rows > DK_PLAN_ROWS_MAX)
        return "its rows or sequences are out of range";
    if (p->allow_full && !p->full_attention)
        return "it allows full attention and has not got it";
    return slots_defect(p);
}

/* The model of the plan as this host has it. */
static int open_model(struct dk_coordinator *c, const Dk__Plan *p, struct dk_served_model *m, struct dk_err *err)
{
    const char *defect = plan_defect(p);
    int rc;

    if (defect)
        return dk_err_set(err, -EINVAL, "%s", defect);
    rc = c->options.source.open(c->options.source.ctx, p->model_dir, m, err);
    if (rc < 0)
        return rc;
    if (m->model_id == p->model_id && p->context <= m->config.context_max &&
        (!p->full_attention || m->config.index.heads))
        return 0;
    dk_tokenizer_close(m->tokenizer);
    return dk_err_set(err, dk_errno_from_code(DK__CODE__FAILED_PRECONDITION), "%s holds another model by now",
                      p->model_dir);
}

void dk_plan_adopt(struct dk_coordinator *c, const struct dk_member *worker)
{
    const Dk__Plan *p = worker->beat->plan;
    struct dk_served_model m = {0};
    struct dk_err err = {0};
    Dk__Plan *plan;
    char text[400];

    if (c->plan || (p && p->epoch == c->refused_epoch))
        return;
    c->refused_epoch = p ? p->epoch : 0;
    if (!p || !p->epoch) {
        dk_cluster_state_set(c, DK__CLUSTER_STATE__EMPTY, DK__CODE__OK, "");
        return;
    }
    if (open_model(c, p, &m, &err) < 0) {
        snprintf(
            text, sizeof text,
            "the attention-worker still has the plan of an earlier coordinator, which cannot be taken over: %.200s; "
            "load a model",
            err.text);
        dk_cluster_state_set(c, DK__CLUSTER_STATE__EMPTY, dk_code_from_errno(err.rc), text);
        return;
    }
    plan = dk_message_clone(p);
    if (!plan) {
        dk_tokenizer_close(m.tokenizer);
        c->refused_epoch = 0; /* tried again */
        return;
    }
    dk_cluster_take(c, plan, &m);
    if (plan->epoch > c->epoch_last)
        c->epoch_last = plan->epoch;
    c->worker_instance = worker->beat->node->address->instance;
    c->adopted = true;
    dk_schedule_new_worker(c);
    dk_members_renumber(c);
    dk_log(DK_LOG_INFO, "cluster.adopt", "model=\"%s\" epoch=%llu ducks=%zu rows=%u sequences=%u", plan->model_dir,
           (unsigned long long)plan->epoch, plan->n_slots, plan->rows, plan->sequences);
}

/* ---- the time until the picture is complete */

static bool instance_known(const struct dk_coordinator *c, uint32_t instance)
{
    for (uint32_t i = 0; i < c->member_count; i++)
        if (c->members[i].beat->node->address->instance == instance)
            return true;
    return false;
}

bool dk_settling(struct dk_coordinator *c, const Dk__HeartbeatRequest *q)
{
    const struct dk_member *worker = dk_member_worker(c);

    if (c->now_us >= c->settle_us)
        return false;
    if (q->node->kind == DK__NODE_KIND__DUCK)
        return !c->plan && !worker && q->holding && q->holding->has_plan_epoch && q->holding->plan_epoch;
    if (!c->adopted)
        return false;
    for (size_t i = 0; i < q->n_links; i++)
        if (!instance_known(c, q->links[i]->duck_instance))
            return true;
    for (size_t i = 0; i < c->plan->n_slots; i++)
        if (!dk_member_find(c, c->plan->slots[i]->duck))
            return true;
    return false;
}
