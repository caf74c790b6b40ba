/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WORKER_LINKS_H
#define WORKER_LINKS_H

#include "attention-worker/options.h"
#include "endpoint/endpoint.h"
#include "plan/plan.h"

/* The ducks that the worker can reach: wanted (from the coordinator) and actual state, by member index. */

#define WORKER_LINKS_MAX DK_PLAN_DUCKS_MAX

struct worker_link {
    bool wanted;
    char name[64];
    struct dk_addr addr; /* of the duck */
    bool port_up, peer_up;
    bool heard; /* answered something in this life */
    uint32_t port, peer;
    char socket_path[100];
};

struct worker_links {
    struct dk_endpoint *endpoint;
    enum dk_port_kind kind;
    uint32_t shared_port;  /* af_packet */
    uint32_t ports_opened; /* vhost */
    char run_dir[88], bell_path[100];
    struct worker_link link[WORKER_LINKS_MAX];
};

/* Wanted state of one duck, in an order to the engine. */
struct worker_link_order {
    uint32_t member_index;
    char name[64];
    struct dk_addr addr;
};

void worker_links_init(struct worker_links *l, struct dk_endpoint *e, const struct worker_options *o,
                       const struct dk_identity *id);
/* Opens and closes ports and peers so that exactly these ducks can be reached. A duck with a new instance gets a new
 * peer. Returns the member indexes whose peer was removed or made anew, as bits: what was outstanding there is lost. */
uint64_t worker_links_follow(struct worker_links *l, const struct worker_link_order *orders, uint32_t count);
/* A dead peer: made anew, so that the same duck may answer again. Returns its link index or -ENOENT. */
int worker_links_peer_lost(struct worker_links *l, uint32_t peer);
/* The link of a duck that can be sent to, or NULL. */
const struct worker_link *worker_links_find(const struct worker_links *l, uint32_t member_index, uint32_t instance);

#endif
