/* SPDX-License-Identifier: Apache-2.0 */
/* The worker's engine and its ducks over a bad network: the same tokens and the same bits as over a good one. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "cluster_rig.h"
#include "golden_file.h"

#define MODEL FIXTURES "/qwen3-moe-fp8-tiny"

enum { STEPS = 8, SEEDS = 20, VOCAB = 1024 };

struct expected {
    const char *model;
    uint32_t *prompt, *tokens, count, token_count;
};

static void quiet(void *ctx, enum dk_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    (void)line;
}

static void expected_open(struct expected *e, const char *model)
{
    const json_t *short_prompt;
    char path[300];
    json_t *golden;

    snprintf(path, sizeof path, "%s/golden/golden.json", model);
    golden = golden_json(path);
    short_prompt = json_object_get(json_object_get(golden, "prompts"), "short");
    e->model = model;
    dk_log_setup(quiet, NULL, DK_LOG_WARN, "test");
    e->prompt = golden_ids(short_prompt, "ids", &e->count);
    e->tokens = golden_ids(short_prompt, "greedy_ids", &e->token_count);
    cr_assert_geq(e->token_count, STEPS);
    json_decref(golden);
}

static void expected_close(struct expected *e)
{
    free(e->prompt);
    free(e->tokens);
}

static void check_tokens(const struct expected *e, const uint32_t *found, uint64_t seed, uint32_t ducks)
{
    for (uint32_t i = 0; i < STEPS; i++)
        cr_assert_eq(found[i], e->tokens[i], "seed %llu, %u ducks: token %u is %u, golden %u", (unsigned long long)seed,
                     ducks, i, found[i], e->tokens[i]);
}

static struct dk_net_faults faults_of(uint64_t seed)
{
    return (struct dk_net_faults){
        .drop = 0.03, .dup = 0.03, .reorder = 0.05, .corrupt = 0.02, .delay = 0.05, .delay_us = 700, .seed = seed};
}

/* One history: load, generate, all counters. */
static void history(const struct expected *e, uint64_t seed, uint32_t ducks, float *logits,
                    struct dk_transport_counters *transport, struct dk_net_counters *net, uint64_t *end_us)
{
    struct dk_net_faults faults = faults_of(seed);
    struct dk_err err = {0};
    uint32_t tokens[STEPS];
    struct cluster c;

    cr_assert_eq(cluster_open(&c, ducks, seed ? &faults : NULL, &err), 0, "%s", err.text);
    cr_assert_eq(cluster_load(&c, MODEL, 32, &err), 0, "seed %llu, %u ducks: %s", (unsigned long long)seed, ducks,
                 err.text);
    cr_assert_eq(cluster_generate(&c, 7, e->prompt, e->count, STEPS, tokens, logits, &err), 0, "seed %llu: %s",
                 (unsigned long long)seed, err.text);
    check_tokens(e, tokens, seed, ducks);
    *transport = *dk_transport_counters(c.worker.endpoint.transport);
    *net = cluster_faults(&c);
    *end_us = c.now_us;
    cluster_close(&c);
}

static void many_seeds(uint32_t ducks)
{
    size_t n = (size_t)STEPS * VOCAB;
    float *good = malloc(n * sizeof *good), *bad = malloc(n * sizeof *bad);
    struct dk_transport_counters t, sum = {0};
    struct dk_net_counters net;
    struct expected e;
    uint64_t end_us;

    expected_open(&e, MODEL);
    history(&e, 0, ducks, good, &t, &net, &end_us);
    cr_assert_eq(net.fault_dropped + net.fault_corrupted + t.retransmitted, 0);
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        history(&e, seed, ducks, bad, &t, &net, &end_us);
        cr_assert_eq(memcmp(good, bad, n * sizeof *good), 0, "seed %llu, %u ducks: other logits",
                     (unsigned long long)seed, ducks);
        cr_assert(net.fault_dropped && net.fault_duplicated && net.fault_reordered && net.fault_corrupted &&
                  net.fault_delayed);
        cr_assert_gt(t.retransmitted, 0);
        cr_assert_eq(t.peers_dead, 0);
        sum.retransmitted += t.retransmitted;
        sum.duplicates += t.duplicates;
        sum.reordered += t.reordered;
        sum.corrupt += t.corrupt;
    }
    cr_assert(sum.duplicates && sum.reordered && sum.corrupt);
    printf("%u ducks, %d seeds: retransmitted %llu, duplicates %llu, reordered %llu, corrupt %llu\n", ducks, SEEDS,
           (unsigned long long)sum.retransmitted, (unsigned long long)sum.duplicates, (unsigned long long)sum.reordered,
           (unsigned long long)sum.corrupt);
    free(good);
    free(bad);
    expected_close(&e);
}

Test(cluster_sim, one_duck)
{
    many_seeds(1);
}

Test(cluster_sim, three_ducks)
{
    many_seeds(3);
}

Test(cluster_sim, five_ducks)
{
    many_seeds(5);
}

/* The reason why a failing seed can be looked at. */
Test(cluster_sim, a_seed_is_a_history)
{
    float *logits = malloc((size_t)STEPS * VOCAB * sizeof *logits);
    struct dk_transport_counters a, b, other;
    struct dk_net_counters net_a, net_b, net_other;
    uint64_t end_a, end_b, end_other;
    struct expected e;

    expected_open(&e, MODEL);
    history(&e, 5, 3, logits, &a, &net_a, &end_a);
    history(&e, 5, 3, logits, &b, &net_b, &end_b);
    history(&e, 6, 3, logits, &other, &net_other, &end_other);
    cr_assert_eq(memcmp(&a, &b, sizeof a), 0);
    cr_assert_eq(memcmp(&net_a, &net_b, sizeof net_a), 0);
    cr_assert_eq(end_a, end_b);
    cr_assert_neq(memcmp(&a, &other, sizeof a), 0);
    free(logits);
    expected_close(&e);
}

/* ---- a duck dies in the middle of a step */

struct crash {
    uint32_t duck, at_forward, forwards;
};

static bool is_forward(const uint8_t *data, size_t bytes)
{
    static uint8_t block[65536];
    struct dk_arena arena = {block, sizeof block, 0};
    ProtobufCMessage *m;
    const uint8_t *payload;
    size_t payload_bytes;

    return dk_data_unpack(&dk__data_request__descriptor, data, bytes, &arena, &m, &payload, &payload_bytes) == 0 &&
           (((const Dk__DataRequest *)m)->op_case == DK__DATA_REQUEST__OP_MOE_FORWARD ||
            ((const Dk__DataRequest *)m)->op_case == DK__DATA_REQUEST__OP_MLP_FORWARD);
}

static enum cluster_verdict crash_in_step(void *ctx, struct cluster *c, uint32_t duck, const uint8_t *data,
                                          size_t bytes, struct duck_answer *answer)
{
    struct crash *crash = ctx;

    (void)c;
    (void)answer;
    if (duck != crash->duck || !is_forward(data, bytes) || ++crash->forwards != crash->at_forward)
        return CLUSTER_HANDLE;
    return CLUSTER_CRASH;
}

/* at_forward counts the layers that the duck was asked for: the first of them are the prompt's. */
static void crash_history(const struct expected *e, uint64_t seed, uint32_t duck, uint32_t at_forward)
{
    struct dk_net_faults faults = faults_of(seed);
    struct crash crash = {.duck = duck, .at_forward = at_forward};
    struct dk_err err = {0};
    uint32_t tokens[STEPS];
    char name[16];
    struct cluster c;

    snprintf(name, sizeof name, "duck-%u", duck);
    cr_assert_eq(cluster_open(&c, 3, &faults, &err), 0, "%s", err.text);
    c.on_request = crash_in_step;
    c.ctx = &crash;
    cr_assert_eq(cluster_load(&c, e->model, 32, &err), 0, "%s", err.text);
    cr_assert_eq(cluster_generate(&c, 7, e->prompt, e->count, STEPS, tokens, NULL, &err), -EHOSTUNREACH,
                 "seed %llu: %s", (unsigned long long)seed, err.text);
    cr_assert(strstr(err.text, name), "the text does not name the duck: %s", err.text);
    cr_assert_not(c.ducks[duck].up);

    memset(&err, 0, sizeof err);
    cr_assert_eq(cluster_duck_start(&c, duck, &err), 0, "%s", err.text);
    cr_assert_eq(cluster_load(&c, e->model, 32, &err), 0, "seed %llu, after the crash: %s", (unsigned long long)seed,
                 err.text);
    cr_assert_eq(cluster_generate(&c, 8, e->prompt, e->count, STEPS, tokens, NULL, &err), 0, "%s", err.text);
    check_tokens(e, tokens, seed, 3);
    cluster_close(&c);
}

Test(cluster_sim, a_duck_dies_and_comes_back)
{
    static const struct {
        const char *model;
        uint32_t duck; /* one with a part of every layer, or with nearly */
        uint64_t seeds;
        uint32_t apart; /* layers between the deaths of two seeds: some in the prompt, some in later steps */
    } models[] = {
        {MODEL, 1, 6, 2},
        {FIXTURES "/qwen3_5_moe-fp8-tiny", 0, 3, 7}, /* its experts are 32 wide: all on duck 0 */
        {FIXTURES "/deepseek_v32-fp8-tiny", 1, 3, 4},
    };

    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct expected e;

        expected_open(&e, models[i].model);
        for (uint64_t seed = 1; seed <= models[i].seeds; seed++)
            crash_history(&e, seed, models[i].duck, 1 + (uint32_t)seed * models[i].apart);
        expected_close(&e);
    }
}

/* While loading: the rest of the pieces goes to the new life. */
static enum cluster_verdict crash_in_load(void *ctx, struct cluster *c, uint32_t duck, const uint8_t *data,
                                          size_t bytes, struct duck_answer *answer)
{
    (void)ctx;
    (void)data;
    (void)bytes;
    (void)answer;
    return duck == 0 && c->ducks[0].lives == 1 && c->ducks[0].requests == 2 ? CLUSTER_CRASH : CLUSTER_HANDLE;
}

Test(cluster_sim, a_duck_dies_while_loading)
{
    struct dk_net_faults faults = faults_of(3);
    struct dk_err err = {0};
    uint32_t tokens[STEPS];
    struct expected e;
    struct cluster c;

    expected_open(&e, MODEL);
    cr_assert_eq(cluster_open(&c, 2, &faults, &err), 0, "%s", err.text);
    c.on_request = crash_in_load;
    cr_assert_eq(cluster_load(&c, MODEL, 32, &err), -ETIMEDOUT, "loaded without its first duck: %s", err.text);
    cr_assert_eq(c.worker.loader.state, LOADER_FEEDING);
    memset(&err, 0, sizeof err);
    cr_assert_eq(cluster_duck_start(&c, 0, &err), 0, "%s", err.text);
    cr_assert_eq(cluster_load(&c, MODEL, 32, &err), 0, "%s", err.text);
    cr_assert_eq(cluster_generate(&c, 1, e.prompt, e.count, STEPS, tokens, NULL, &err), 0, "%s", err.text);
    check_tokens(&e, tokens, 3, 2);
    cluster_close(&c);
    expected_close(&e);
}

/* A duck that cannot keep an answer makes its peer anew: the worker asks again, and nobody notices. */
static enum cluster_verdict forget_peer(void *ctx, struct cluster *c, uint32_t duck, const uint8_t *data, size_t bytes,
                                        struct duck_answer *answer)
{
    struct crash *often = ctx;

    (void)answer;
    if (!is_forward(data, bytes) || ++often->forwards % often->at_forward)
        return CLUSTER_HANDLE;
    duck_link_peer_lost(&c->ducks[duck].link, &c->ducks[duck].endpoint);
    return CLUSTER_NEVER;
}

Test(cluster_sim, ducks_forget_their_peer_in_a_step)
{
    struct expected e;

    expected_open(&e, MODEL);
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct crash often = {.at_forward = 3 + (uint32_t)seed};
        struct dk_net_faults faults = faults_of(seed);
        struct dk_err err = {0};
        uint32_t tokens[STEPS];
        struct cluster c;

        cr_assert_eq(cluster_open(&c, 3, &faults, &err), 0, "%s", err.text);
        c.on_request = forget_peer;
        c.ctx = &often;
        cr_assert_eq(cluster_load(&c, MODEL, 32, &err), 0, "%s", err.text);
        cr_assert_eq(cluster_generate(&c, 7, e.prompt, e.count, STEPS, tokens, NULL, &err), 0, "seed %llu: %s",
                     (unsigned long long)seed, err.text);
        check_tokens(&e, tokens, seed, 3);
        cr_assert_geq(often.forwards, 72 + 72 / often.at_forward, "nothing was asked again");
        cluster_close(&c);
    }
    expected_close(&e);
}

/* The coordinator may drop a duck before the transport finds it dead, and the duck may come back as it was. */
static enum cluster_verdict silent_once(void *ctx, struct cluster *c, uint32_t duck, const uint8_t *data, size_t bytes,
                                        struct duck_answer *answer)
{
    struct crash *once = ctx;

    (void)answer;
    if (duck != once->duck || !is_forward(data, bytes) || ++once->forwards != once->at_forward)
        return CLUSTER_HANDLE;
    c->ducks[duck].away = true;
    cluster_follow(c);
    return CLUSTER_NEVER;
}

Test(cluster_sim, a_duck_leaves_in_a_step_and_returns)
{
    struct crash once = {.duck = 2, .at_forward = 5};
    struct dk_err err = {0};
    uint32_t tokens[STEPS];
    uint64_t asked_us;
    struct expected e;
    struct cluster c;

    expected_open(&e, MODEL);
    cr_assert_eq(cluster_open(&c, 3, NULL, &err), 0, "%s", err.text);
    c.on_request = silent_once;
    c.ctx = &once;
    cr_assert_eq(cluster_load(&c, MODEL, 32, &err), 0, "%s", err.text);
    asked_us = c.now_us;
    cr_assert_eq(cluster_generate(&c, 7, e.prompt, e.count, STEPS, tokens, NULL, &err), -EHOSTUNREACH, "%s", err.text);
    cr_assert(strstr(err.text, "duck-2"), "%s", err.text);
    cr_assert_lt(c.now_us - asked_us, 2000000, "the step waited for the transport");
    c.ducks[2].away = false;
    cluster_follow(&c);
    memset(&err, 0, sizeof err);
    cr_assert_eq(cluster_generate(&c, 8, e.prompt, e.count, STEPS, tokens, NULL, &err), 0, "%s", err.text);
    check_tokens(&e, tokens, 0, 3);
    cluster_close(&c);
    expected_close(&e);
}
