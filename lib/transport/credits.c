/* SPDX-License-Identifier: Apache-2.0 */
/* Credits against incast. Every response fragment that a peer may send and that has not come is one credit, whether
 * it was sent, lost or not made yet. A request gives as many as the peer's last responses needed, so that the common
 * response needs no further frame; longer ones get more as their fragments come. */
#include "transport/transport_internal.h"

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t credits_free(const struct dk_transport *t, const struct peer *p)
{
    uint32_t all = t->config.credit_frames, one = t->config.window_frames;

    all = t->credits < all ? all - t->credits : 0;
    one = p->credits < one ? one - p->credits : 0;
    return least(all, one);
}

static void credits_set(struct dk_transport *t, struct peer *p, struct call *c, uint32_t credits)
{
    t->credits += credits - c->credits;
    p->credits += credits - c->credits;
    c->credits = credits;
}

static void starved_set(struct dk_transport *t, struct peer *p, struct call *c, bool starved)
{
    uint32_t bit = 1u << (c - p->calls);

    if (!(p->calls_starved & bit) == !starved)
        return;
    p->calls_starved ^= bit;
    t->starved += starved ? 1 : UINT32_MAX; /* modulo 2^32: minus one */
}

void credits_begin(struct dk_transport *t, struct peer *p, struct call *c)
{
    uint32_t some = credits_free(t, p);

    /* One is always given: its fragment tells the response's length, and no peer waits for another's. */
    c->in.grant = least(least(p->expected, t->config.window_frames), some > 0 ? some : 1);
    credits_set(t, p, c, c->in.grant);
}

void credits_update(struct dk_transport *t, struct peer *p, struct call *c)
{
    uint32_t window = t->config.window_frames, bit = 1u << (c - p->calls);
    uint32_t outstanding = least(c->in.grant, c->in.count) - c->in.received, target, wanted, extra;

    credits_set(t, p, c, outstanding);
    if (c->in.grant >= c->in.count) {
        starved_set(t, p, c, false);
        return;
    }
    if (outstanding > window / 2)
        return; /* a grant for every half window, not for every fragment */
    target = least(c->in.count, least(c->in.received + window, c->in.cumulative + DK_RANGE_FRAGMENTS));
    if (target <= c->in.grant)
        return;
    wanted = target - c->in.grant;
    extra = least(wanted, credits_free(t, p));
    if (outstanding == 0 && extra == 0)
        extra = 1;
    starved_set(t, p, c, extra < wanted);
    if (extra == 0 || (outstanding > 0 && extra < least(wanted, (window + 3) / 4)))
        return;
    c->in.grant += extra;
    credits_set(t, p, c, outstanding + extra);
    p->calls_to_ack |= bit;
    peer_ready(t, p);
}

void credits_end(struct dk_transport *t, struct peer *p, struct call *c)
{
    credits_set(t, p, c, 0);
    starved_set(t, p, c, false);
}

void credits_distribute(struct dk_transport *t)
{
    if (t->starved == 0)
        return;
    for (uint32_t n = 0; n < t->config.peers_max && t->credits < t->config.credit_frames; n++) {
        struct peer *p = &t->peers[t->starved_turn];

        for (uint32_t left = p->calls_starved; left; left &= left - 1)
            credits_update(t, p, &p->calls[__builtin_ctz(left)]);
        t->starved_turn = (t->starved_turn + 1) % t->config.peers_max;
    }
}
