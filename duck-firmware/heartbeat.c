/* SPDX-License-Identifier: Apache-2.0 */
#include "duck-firmware/heartbeat.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"

static void fill(void *ctx, Dk__NodeInfo *node, Dk__HeartbeatRequest *q)
{
    struct duck_heartbeat *h = ctx;
    const struct duck_report *r = &h->last;

    dk__holding__init(&h->holding);
    dk__duck_counters__init(&h->counters);
#define SET(m, field, v) ((m)->has_##field = true, (m)->field = (v))
    SET(node, memory_bytes_per_s, h->engine->memory_bytes_per_s);
    SET(&h->holding, plan_epoch, r->holding.plan_epoch);
    SET(&h->holding, model_id, r->holding.model_id);
    SET(&h->holding, layers, (uint32_t)r->holding.layers);
    SET(&h->holding, bytes, r->holding.bytes);
    SET(&h->counters, requests, r->counters.requests);
    SET(&h->counters, rows, r->counters.rows);
    SET(&h->counters, expert_rows, r->counters.expert_rows);
    SET(&h->counters, refused, r->counters.refused);
    SET(&h->counters, weight_bytes, r->counters.weight_bytes);
    SET(&h->counters, compute_us, r->counters.compute_us);
#undef SET
    dk_counters_to_wire(&r->transport, &r->net, &h->transport);
    q->holding = &h->holding;
    q->duck = &h->counters;
    q->transport = &h->transport;
}

/* Whether the plan of the cluster has a slot for this duck. */
static bool plan_names(const Dk__Plan *p, const char *name)
{
    for (size_t i = 0; i < p->n_slots; i++)
        if (!strcmp(p->slots[i]->duck, name))
            return true;
    return false;
}

static void on_reply(void *ctx, const Dk__HeartbeatReply *reply)
{
    struct duck_heartbeat *h = ctx;
    const struct dk_identity *id = &h->engine->identity;
    const Dk__WorkerLink *w = reply->worker;
    struct duck_order *o = calloc(1, sizeof *o);

    if (!o)
        return;
    if (reply->plan && !plan_names(reply->plan, h->node.options->name))
        o->drop_before = reply->plan->epoch;
    if (w && dk_addr_from_wire(w->worker, &o->link.worker) && dk_addr_from_wire(w->own, &o->link.own)) {
        /* Otherwise the addresses were given to an earlier life of this duck. */
        o->link.present = o->link.own.instance == id->own.instance;
        o->link.mtu = id->mtu;
        o->link.member_index = w->member_index;
        if (!dk_text_copy(o->link.socket_path, sizeof o->link.socket_path, w->socket_path) ||
            !dk_text_copy(o->link.bell_path, sizeof o->link.bell_path, w->bell_path)) {
            dk_log(DK_LOG_ERROR, "link.path", "text=\"the worker's socket path is too long\" path=%s", w->socket_path);
            o->link.present = false;
        }
    }
    if (dk_mailbox_push(h->engine->orders, o) < 0)
        free(o); /* the next reply says the same */
}

static void on_news(void *ctx, void *news, uint64_t now_us)
{
    struct duck_heartbeat *h = ctx;
    struct duck_report *r = news;
    bool changed = memcmp(&h->last.holding, &r->holding, sizeof r->holding) != 0;

    h->last = *r;
    free(r);
    if (changed)
        dk_node_beat_now(&h->node, now_us);
}

const struct dk_node_control duck_control = {
    .kind = DK__NODE_KIND__DUCK,
    .fill = fill,
    .on_reply = on_reply,
    .on_news = on_news,
    .free_news = free,
};
