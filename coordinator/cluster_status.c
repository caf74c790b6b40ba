/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "coordinator/coordinator_internal.h"

/* What the cluster is doing, for people and their tools. */

static Dk__NodeStatus *node_status(const struct dk_coordinator *c, const struct dk_member *m)
{
    Dk__NodeStatus *n = dk_message_new(&dk__node_status__descriptor);

    if (!n)
        return NULL;
    n->node = dk_member_info(m);
    if (!n->node) {
        dk_message_free(n);
        return NULL;
    }
    n->member_index = m->index;
    n->alive = dk_member_alive(c, m);
    n->has_silent_ms = true;
    n->silent_ms = (uint32_t)((c->now_us - m->last_us) / 1000);
    n->holding = m->beat->holding ? dk_message_clone(m->beat->holding) : NULL;
    n->duck = m->beat->duck ? dk_message_clone(m->beat->duck) : NULL;
    n->transport = m->beat->transport ? dk_message_clone(m->beat->transport) : NULL;
    return n;
}

/* Ducks in the order of their names, the worker before them. */
static int order(const void *a, const void *b)
{
    const Dk__NodeInfo *m = (*(Dk__NodeStatus *const *)a)->node, *n = (*(Dk__NodeStatus *const *)b)->node;

    if (m->kind != n->kind)
        return m->kind == DK__NODE_KIND__WORKER ? -1 : 1;
    return strverscmp(m->name, n->name);
}

static size_t list_nodes(const struct dk_coordinator *c, Dk__NodeStatus ***nodes)
{
    size_t count = 0;

    *nodes = c->member_count ? calloc(c->member_count, sizeof **nodes) : NULL;
    for (uint32_t i = 0; *nodes && i < c->member_count; i++) {
        (*nodes)[count] = node_status(c, &c->members[i]);
        count += (*nodes)[count] != NULL;
    }
    if (count)
        qsort(*nodes, count, sizeof **nodes, order);
    return count;
}

void dk_status_handle(struct dk_coordinator *c, void *call, const Dk__StatusRequest *q, struct dk_outbox *out)
{
    struct dk_parked p = {.kind = DK_PARKED_STATUS, .call = call, .has_unlike = q->has_unlike, .unlike = q->unlike};

    dk_park(c, &p, q->wait_ms);
}

bool dk_status_serve(struct dk_coordinator *c, const struct dk_parked *p, bool late, struct dk_outbox *out)
{
    struct dk_member *worker = dk_member_worker(c);
    Dk__StatusReply *r;

    if (!late && p->has_unlike && c->state == p->unlike)
        return false;
    r = dk_message_new(&dk__status_reply__descriptor);
    if (!r) {
        dk_outbox_reply(out, p->call, NULL);
        return true;
    }
    r->state = c->state;
    if (c->error_code != DK__CODE__OK)
        r->error = dk_status_new(c->error_code, c->error_text);
    if (c->plan) {
        r->model_dir = strdup(c->plan->model_dir);
        r->model_type = strdup(c->model.config.model_type);
        r->plan = dk_message_clone(c->plan);
    }
    if (worker && worker->beat->load)
        r->load = dk_message_clone(worker->beat->load);
    r->n_nodes = list_nodes(c, &r->nodes);
    r->has_running = r->has_queued = r->has_uptime_ms = true;
    r->running = dk_sequences_in(c, DK_SEQUENCE_PREFILL) + dk_sequences_in(c, DK_SEQUENCE_DECODE);
    r->queued = dk_sequences_in(c, DK_SEQUENCE_QUEUED);
    r->uptime_ms = (c->now_us - c->start_us) / 1000;
    r->version = strdup(c->options.version);
    dk_outbox_reply(out, p->call, r);
    return true;
}

void dk_stats_handle(struct dk_coordinator *c, void *call, struct dk_outbox *out)
{
    Dk__StatsReply *r = dk_message_new(&dk__stats_reply__descriptor);

    if (r) {
        r->has_steps = r->has_prompt_tokens = r->has_output_tokens = true;
        r->has_sequences_done = r->has_sequences_failed = true;
        r->steps = c->steps;
        r->prompt_tokens = c->prompt_tokens;
        r->output_tokens = c->output_tokens;
        r->sequences_done = c->sequences_done;
        r->sequences_failed = c->sequences_failed;
        r->total = dk_message_clone(&c->timing_total);
        r->last = dk_message_clone(&c->timing_last);
        r->n_nodes = list_nodes(c, &r->nodes);
    }
    dk_outbox_reply(out, call, r);
}
