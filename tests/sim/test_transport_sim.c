/* SPDX-License-Identifier: Apache-2.0 */
/* One requester and several responders over a network that loses a fifth of the frames and doubles, reorders and
 * damages others: every message arrives once and intact. DUCK_SIM_SEEDS: how many seeds (default 1000);
 * DUCK_SIM_FIRST: the first of them (default 0). */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport_rig.h"

enum {
    SIZES = 20, /* messages of a seed in each direction, from 1 B to LARGEST in even steps of the logarithm */
    LARGEST = 8 << 20,
    NOISE_BYTES = LARGEST + (1 << 16),
    RESPONDERS_MAX = 5,
    FOR_US = 600000000, /* of the fake clock */
};

struct exchange {
    uint64_t id;
    uint32_t responder;
    uint32_t request_bytes, response_bytes;
    uint32_t request_at, response_at; /* in the noise */
    uint32_t requests_seen, responses_seen;
};

struct run {
    uint64_t seed;
    uint32_t responders;
    uint32_t peer_of_requester[RESPONDERS_MAX];
    struct exchange exchanges[SIZES];
    uint32_t started, done;
    bool all_done;
    bool split; /* requests given as several parts */
    struct dk_transport_counters sums;
    struct dk_net_counters faults;
};

static uint8_t *noise;

static void noise_make(void)
{
    struct dk_rng rng = {1};

    noise = malloc(NOISE_BYTES);
    cr_assert(noise);
    for (size_t i = 0; i < NOISE_BYTES; i += 8) {
        uint64_t word = dk_rng_next(&rng);

        memcpy(noise + i, &word, 8);
    }
}

static uint32_t below(struct dk_rng *rng, uint32_t n)
{
    return (uint32_t)(dk_rng_next(rng) % n);
}

/* Step i of SIZES from 1 B to LARGEST; the inner ones are moved a little at random. */
static uint32_t spread_bytes(struct dk_rng *rng, uint32_t i)
{
    double octaves = 23.0 * i / (SIZES - 1);
    uint32_t whole = (uint32_t)octaves;
    double bytes = (double)(1u << whole) * (1.0 + (octaves - whole));

    if (i > 0 && i < SIZES - 1)
        bytes *= 0.7 + 0.6 * dk_rng_unit(rng);
    return bytes < 1 ? 1 : bytes > LARGEST ? LARGEST : (uint32_t)bytes;
}

static void exchanges_make(struct run *run, struct dk_rng *rng)
{
    uint32_t order[SIZES];
    bool long_requests = run->seed & 1;

    for (uint32_t i = 0; i < SIZES; i++)
        order[i] = i;
    for (uint32_t i = SIZES - 1; i > 0; i--) {
        uint32_t other = below(rng, i + 1), swap = order[i];

        order[i] = order[other];
        order[other] = swap;
    }
    for (uint32_t i = 0; i < SIZES; i++) {
        struct exchange *e = &run->exchanges[i];
        uint32_t spread = spread_bytes(rng, order[i]), small = spread_bytes(rng, below(rng, 14));

        e->responder = below(rng, run->responders);
        e->request_bytes = long_requests ? spread : small;
        e->response_bytes = long_requests ? small : spread;
        e->request_at = below(rng, NOISE_BYTES - e->request_bytes);
        e->response_at = below(rng, NOISE_BYTES - e->response_bytes);
    }
}

static struct exchange *exchange_find(struct run *run, uint64_t id)
{
    for (uint32_t i = 0; i < run->started; i++)
        if (run->exchanges[i].id == id)
            return &run->exchanges[i];
    cr_assert_fail("seed %llu: an event of an unknown request", (unsigned long long)run->seed);
    return NULL;
}

static void exchanges_start(struct run *run, struct rig *rig)
{
    while (run->started < SIZES) {
        struct exchange *e = &run->exchanges[run->started];
        uint32_t head = e->request_bytes / 3;
        struct iovec parts[3] = {{noise + e->request_at, head}, {NULL, 0}, {noise + e->request_at + head, 0}};
        int rc;

        parts[2].iov_len = e->request_bytes - head;
        if (!run->split)
            parts[0].iov_len = e->request_bytes;
        rc = dk_transport_request(rig->ends[0], run->peer_of_requester[e->responder], parts, run->split ? 3 : 1,
                                  rig->now_us, &e->id);
        if (rc == -EAGAIN)
            return;
        cr_assert_eq(rc, 0);
        run->started++;
    }
}

static void on_event(void *ctx, struct rig *rig, uint32_t at, struct dk_transport_event *event)
{
    struct run *run = ctx;
    struct exchange *e = exchange_find(run, event->request_id);
    unsigned long long seed = run->seed;

    if (event->type == DK_EVENT_REQUEST) {
        struct iovec part = {noise + e->response_at, e->response_bytes};

        cr_assert_eq(at, e->responder + 1, "seed %llu: request at the wrong endpoint", seed);
        cr_assert_eq(event->bytes, e->request_bytes, "seed %llu: request of %zu bytes", seed, event->bytes);
        cr_assert(!memcmp(event->data, noise + e->request_at, event->bytes), "seed %llu: request damaged", seed);
        cr_assert_eq(++e->requests_seen, 1, "seed %llu: request delivered twice", seed);
        cr_assert_eq(dk_transport_respond(rig->ends[at], event->peer, event->request_id, &part, 1, rig->now_us), 0);
    } else {
        cr_assert_eq(event->type, DK_EVENT_RESPONSE, "seed %llu: event %d", seed, event->type);
        cr_assert_eq(at, 0);
        cr_assert_eq(event->bytes, e->response_bytes, "seed %llu: response of %zu bytes", seed, event->bytes);
        cr_assert(!memcmp(event->data, noise + e->response_at, event->bytes), "seed %llu: response damaged", seed);
        cr_assert_eq(++e->responses_seen, 1, "seed %llu: response delivered twice", seed);
        run->done++;
        run->all_done = run->done == SIZES;
    }
    dk_transport_event_done(rig->ends[at], event);
    if (at == 0)
        exchanges_start(run, rig);
}

static void counters_add(struct dk_transport_counters *sum, const struct dk_transport_counters *c)
{
    sum->frames_sent += c->frames_sent;
    sum->retransmitted += c->retransmitted;
    sum->duplicates += c->duplicates;
    sum->replayed += c->replayed;
    sum->reordered += c->reordered;
    sum->corrupt += c->corrupt;
    sum->foreign += c->foreign;
    sum->messages_received += c->messages_received;
    sum->peers_dead += c->peers_dead;
}

static void seed_run(struct run *run, struct rig *rig, uint64_t seed, bool no_retransmit)
{
    struct dk_net_faults faults = {.drop = 0.2, .dup = 0.05, .reorder = 0.1, .corrupt = 0.02, .seed = seed};
    struct dk_rng rng = {seed ^ 0x5eed};
    struct dk_transport_config config;

    memset(run, 0, sizeof *run);
    run->seed = seed;
    run->responders = 2 + below(&rng, RESPONDERS_MAX - 1);
    run->split = below(&rng, 2);
    dk_transport_defaults(&config);
    config.mtu = below(&rng, 2) ? 1500 : 9000;
    config.peers_max = RESPONDERS_MAX;
    config.requests_max = 1 + below(&rng, 8);
    config.message_bytes_max = LARGEST;
    config.no_retransmit = no_retransmit;
    exchanges_make(run, &rng);
    rig_init(rig, &faults);
    rig->on_event = on_event;
    rig->ctx = run;
    if (no_retransmit)
        config.dead_after_us = 0;
    rig_add(rig, &config);
    for (uint32_t i = 0; i < run->responders; i++) {
        uint32_t unused;

        rig_add(rig, &config);
        rig_join(rig, 0, i + 1, &run->peer_of_requester[i], &unused);
    }
    exchanges_start(run, rig);
    rig_run(rig, &run->all_done, FOR_US);
    cr_assert_eq(rig->overflow, 0, "the test's own network was too small");
    for (uint32_t i = 0; i < rig->count; i++)
        counters_add(&run->sums, dk_transport_counters(rig->ends[i]));
    run->faults = rig->faults;
    rig_fini(rig);
}

static uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);

    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

Test(transport_sim, every_message_arrives_once_and_intact, .timeout = 1500)
{
    uint64_t seeds = number_of("DUCK_SIM_SEEDS", 1000), first = number_of("DUCK_SIM_FIRST", 0);
    struct dk_transport_counters sums = {0};
    struct rig *rig = malloc(sizeof *rig);
    struct run *run = malloc(sizeof *run);

    cr_assert(rig && run);
    noise_make();
    for (uint64_t seed = first; seed < first + seeds; seed++) {
        seed_run(run, rig, seed, false);
        cr_assert_eq(run->done, SIZES, "seed %llu: %u of %u exchanges", (unsigned long long)seed, run->done, SIZES);
        for (int i = 0; i < SIZES; i++)
            cr_assert(run->exchanges[i].requests_seen == 1 && run->exchanges[i].responses_seen == 1);
        cr_assert(run->faults.fault_dropped && run->faults.fault_duplicated && run->faults.fault_reordered &&
                      run->faults.fault_corrupted,
                  "seed %llu: a kind of fault did not happen", (unsigned long long)seed);
        cr_assert(run->sums.retransmitted && run->sums.duplicates && run->sums.reordered && run->sums.corrupt,
                  "seed %llu: a counter of repairs is 0", (unsigned long long)seed);
        cr_assert_eq(run->sums.messages_received, 2 * SIZES);
        cr_assert_eq(run->sums.peers_dead, 0);
        counters_add(&sums, &run->sums);
    }
    cr_assert(sums.replayed > 0 || seeds < 20, "no response was ever replayed");
    cr_assert(sums.foreign > 0 || seeds < 20, "no damaged address was ever seen");
    fprintf(stderr,
            "%llu seeds from %llu: %llu frames, retransmitted %llu, duplicates %llu, replayed %llu, reordered %llu, "
            "corrupt %llu, "
            "foreign %llu\n",
            (unsigned long long)seeds, (unsigned long long)first, (unsigned long long)sums.frames_sent,
            (unsigned long long)sums.retransmitted, (unsigned long long)sums.duplicates,
            (unsigned long long)sums.replayed, (unsigned long long)sums.reordered, (unsigned long long)sums.corrupt,
            (unsigned long long)sums.foreign);
    free(noise);
    free(run);
    free(rig);
}

Test(transport_sim, without_retransmission_nothing_completes, .timeout = 300)
{
    struct rig *rig = malloc(sizeof *rig);
    struct run *run = malloc(sizeof *run);

    cr_assert(rig && run);
    noise_make();
    for (uint64_t seed = 0; seed < 100; seed++) {
        seed_run(run, rig, seed, true);
        cr_assert_lt(run->done, SIZES, "seed %llu completed without retransmission", (unsigned long long)seed);
        cr_assert_eq(run->sums.retransmitted, 0);
    }
    free(noise);
    free(run);
    free(rig);
}
