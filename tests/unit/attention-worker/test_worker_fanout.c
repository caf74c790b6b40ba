/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <string.h>

#include "attention-worker/fanout.h"
#include "base/log.h"
#include "cluster_rig.h"

enum { HIDDEN = 64, ROWS = 3, TOP_K = 2, EXPERTS = 4, EPOCH = 11 };

/* What a duck does: layer 0 is dense, layer 1 is not. */
enum mode {
    RIGHT,
    OTHER_EPOCH,
    OTHER_LAYER,
    OTHER_ROWS,
    OTHER_HIDDEN,
    SHORT,
    LONG,
    INIT_REPLY,
    NO_RESULT,
    GARBAGE,
    MISALIGNED,
    REFUSE_WITH_OK,
    REFUSE,
    MODES
};

struct bench {
    struct cluster c;
    struct fanout f;
    struct worker_plan plan;
    struct dk_model_config config;
    struct dk_arena arena, duck_arena;
    float x[ROWS * HIDDEN], weights[ROWS * TOP_K], y[ROWS * HIDDEN];
    int32_t ids[ROWS * TOP_K];
    float value[CLUSTER_DUCKS_MAX]; /* partial sums of each duck */
    float sums[ROWS * HIDDEN + 1];
    enum mode mode[CLUSTER_DUCKS_MAX];
    uint32_t asked[CLUSTER_DUCKS_MAX];
    struct dk_err err;
};

static void quiet(void *ctx, enum dk_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    (void)line;
}

/* The rows, ids and weights have arrived as they were given. */
static void check_request(struct bench *b, const Dk__DataRequest *r, const uint8_t *payload, size_t bytes)
{
    size_t x_bytes = sizeof b->x, routing = sizeof b->ids;

    cr_assert_eq(r->plan_epoch, EPOCH);
    cr_assert_eq(r->model_id, 77);
    cr_assert_eq(memcmp(payload, b->x, x_bytes), 0);
    if (r->op_case == DK__DATA_REQUEST__OP_MLP_FORWARD) {
        cr_assert_eq(r->mlp_forward->layer, 0);
        cr_assert(r->mlp_forward->rows == ROWS && r->mlp_forward->hidden_size == HIDDEN);
        cr_assert_eq(bytes, x_bytes);
        return;
    }
    cr_assert_eq(r->op_case, DK__DATA_REQUEST__OP_MOE_FORWARD);
    cr_assert_eq(r->moe_forward->layer, 1);
    cr_assert(r->moe_forward->rows == ROWS && r->moe_forward->hidden_size == HIDDEN);
    cr_assert_eq(r->moe_forward->num_activated, TOP_K);
    cr_assert_eq(bytes, x_bytes + 2 * routing);
    cr_assert_eq(memcmp(payload + x_bytes, b->ids, routing), 0);
    cr_assert_eq(memcmp(payload + x_bytes + routing, b->weights, routing), 0);
}

static enum cluster_verdict by_mode(void *ctx, struct cluster *c, uint32_t duck, const uint8_t *data, size_t bytes,
                                    struct duck_answer *a)
{
    struct bench *b = ctx;
    Dk__DataReply reply = DK__DATA_REPLY__INIT;
    Dk__ForwardReply forward = DK__FORWARD_REPLY__INIT;
    Dk__InitReply init = DK__INIT_REPLY__INIT;
    Dk__Status status = DK__STATUS__INIT;
    enum mode mode = b->mode[duck];
    ProtobufCMessage *m;
    const uint8_t *payload;
    size_t payload_bytes;

    (void)c;
    b->asked[duck]++;
    cr_assert_eq(
        dk_data_unpack(&dk__data_request__descriptor, data, bytes, &b->duck_arena, &m, &payload, &payload_bytes), 0);
    check_request(b, (const Dk__DataRequest *)m, payload, payload_bytes);
    for (uint32_t i = 0; i < ROWS * HIDDEN; i++)
        b->sums[i] = b->value[duck];
    forward.layer = b->f.layer + (mode == OTHER_LAYER);
    forward.rows = ROWS + (mode == OTHER_ROWS);
    forward.hidden_size = HIDDEN + (mode == OTHER_HIDDEN);
    forward.has_compute_us = forward.has_weight_bytes = true;
    forward.compute_us = 10 * (duck + 1);
    forward.weight_bytes = 1000;
    reply.plan_epoch = EPOCH + (mode == OTHER_EPOCH);
    reply.result_case = DK__DATA_REPLY__RESULT_FORWARD;
    reply.forward = &forward;
    a->payload = b->sums;
    a->payload_bytes = ROWS * HIDDEN * sizeof(float) - (mode == SHORT ? sizeof(float) : 0) +
                       (mode == LONG ? sizeof(float) : 0);
    if (mode == INIT_REPLY) {
        reply.result_case = DK__DATA_REPLY__RESULT_INIT;
        reply.init = &init;
    } else if (mode == NO_RESULT) {
        reply.result_case = DK__DATA_REPLY__RESULT__NOT_SET;
    } else if (mode == REFUSE || mode == REFUSE_WITH_OK) {
        status.code = mode == REFUSE ? DK__CODE__FAILED_PRECONDITION : DK__CODE__OK;
        status.text = "the pond is frozen";
        reply.result_case = DK__DATA_REPLY__RESULT_ERROR;
        reply.error = &status;
    }
    a->header_bytes = (size_t)dk_data_pack(&reply.base, a->header, sizeof a->header);
    if (mode == MISALIGNED) { /* a header without our padding, and one that puts the sums where no float may lie */
        size_t packed = protobuf_c_message_get_packed_size(&reply.base), pad = 4 - packed % 4 + 1;

        memset(a->header, 0, sizeof a->header);
        a->header[0] = (uint8_t)(packed + pad);
        protobuf_c_message_pack(&reply.base, a->header + 4);
        a->header[4 + packed] = 15 << 3 | 2;
        a->header[4 + packed + 1] = (uint8_t)(pad - 2);
        a->header_bytes = 4 + packed + pad;
    }
    if (mode == GARBAGE)
        memset(a->header, 0xff, a->header_bytes);
    return CLUSTER_MINE;
}

static void bench_open(struct bench *b, uint32_t ducks, uint32_t width)
{
    memset(b, 0, sizeof *b);
    dk_log_setup(quiet, NULL, DK_LOG_ERROR, "test");
    cr_assert_eq(cluster_open(&b->c, ducks, NULL, &b->err), 0, "%s", b->err.text);
    cr_assert_eq(dk_arena_init(&b->arena, 65536), 0);
    cr_assert_eq(dk_arena_init(&b->duck_arena, 65536), 0);
    b->c.on_request = by_mode;
    b->c.ctx = b;
    b->config = (struct dk_model_config){.hidden = HIDDEN,
                                         .layers = 2,
                                         .intermediate = width,
                                         .moe_intermediate = width,
                                         .experts = EXPERTS,
                                         .top_k = TOP_K,
                                         .layer_is_moe = {false, true}};
    b->plan = (struct worker_plan){.epoch = EPOCH, .multiple_of = 32, .slot_count = ducks};
    for (uint32_t i = 0; i < ducks; i++) {
        memcpy(b->plan.slots[i].duck, b->c.ducks[i].name, sizeof b->c.ducks[i].name);
        b->plan.slots[i].member_index = i;
        b->plan.slots[i].instance = b->c.ducks[i].own.instance;
        b->value[i] = (float)(i + 1);
    }
    b->f = (struct fanout){.plan = &b->plan, .config = &b->config, .model_id = 77, .links = &b->c.worker.links};
    for (uint32_t i = 0; i < ROWS * HIDDEN; i++)
        b->x[i] = (float)i * 0.25f - 7;
    for (uint32_t i = 0; i < ROWS * TOP_K; i++) {
        b->ids[i] = (int32_t)(i % TOP_K + i / TOP_K);
        b->weights[i] = 0.5f + (float)i;
    }
}

static void bench_close(struct bench *b)
{
    fanout_abort(&b->f);
    cluster_close(&b->c);
    dk_arena_fini(&b->arena);
    dk_arena_fini(&b->duck_arena);
}

static int begin(struct bench *b, uint32_t layer)
{
    memset(&b->err, 0, sizeof b->err);
    return fanout_begin(&b->f, layer, ROWS, b->x, layer ? b->ids : NULL, layer ? b->weights : NULL, b->c.now_us,
                        &b->err);
}

/* Polls until the fan-out ends or `polls` are over: 1, an error, or 0. */
static int pump(struct bench *b, int polls)
{
    struct dk_transport *t = b->c.worker.endpoint.transport;
    struct dk_transport_event event;
    int rc = 0;

    for (int i = 0; i < polls && rc == 0; i++) {
        dk_endpoint_poll(&b->c.worker.endpoint, b->c.now_us);
        cluster_poll_ducks(&b->c);
        while (rc == 0 && (dk_transport_event(t, &event), event.type != DK_EVENT_NONE)) {
            bool taken;

            rc = fanout_on_event(&b->f, &event, &b->arena, &taken, &b->err);
            if (!taken)
                dk_transport_event_done(t, &event);
        }
    }
    return rc;
}

Test(worker_fanout, sums_in_slot_order_whatever_arrives_first)
{
    static const uint32_t orders[][3] = {{0, 1, 2}, {2, 1, 0}, {1, 2, 0}};
    struct bench b;

    bench_open(&b, 3, 96);
    /* (1e8 + 3) - 1e8 is 0 in float32; any other order gives 3. */
    b.value[0] = 1e8f;
    b.value[1] = 3;
    b.value[2] = -1e8f;
    for (int o = 0; o < 3; o++)
        for (uint32_t layer = 0; layer < 2; layer++) {
            int rc = 0;

            cr_assert_eq(begin(&b, layer), 0, "%s", b.err.text);
            cr_assert_eq(b.f.waiting, 3);
            for (int i = 0; i < 3; i++)
                b.c.ducks[i].away = true;
            for (int i = 0; i < 3; i++) {
                cr_assert_eq(rc, 0, "%s", b.err.text);
                b.c.ducks[orders[o][i]].away = false;
                rc = pump(&b, 200);
            }
            cr_assert_eq(rc, 1, "%s", b.err.text);
            fanout_sum(&b.f, b.y);
            for (uint32_t i = 0; i < ROWS * HIDDEN; i++)
                cr_assert_eq(b.y[i], 0);
            cr_assert_eq(b.f.duck_max_us, 30);
            cr_assert_eq(b.f.weight_bytes, 3000);
            cr_assert_not(b.f.running);
        }
    bench_close(&b);
}

Test(worker_fanout, empty_parts_are_not_asked)
{
    struct bench b;

    bench_open(&b, 5, 96); /* three units for five ducks */
    for (uint32_t layer = 0; layer < 2; layer++) {
        cr_assert_eq(begin(&b, layer), 0);
        cr_assert_eq(b.f.waiting, 3);
        cr_assert_eq(pump(&b, 500), 1, "%s", b.err.text);
        fanout_sum(&b.f, b.y);
        cr_assert_eq(b.y[0], 1 + 2 + 3);
    }
    for (uint32_t i = 0; i < 5; i++)
        cr_assert_eq(b.asked[i], i < 3 ? 2 : 0);
    cluster_duck_crash(&b.c, 4); /* and not missed */
    cluster_follow(&b.c);
    cluster_poll(&b.c);
    cr_assert_eq(begin(&b, 1), 0, "%s", b.err.text);
    cr_assert_eq(pump(&b, 500), 1, "%s", b.err.text);
    bench_close(&b);
}

Test(worker_fanout, wrong_answers_are_typed_errors_with_a_name)
{
    struct bench b;

    bench_open(&b, 3, 96);
    for (enum mode mode = RIGHT + 1; mode < MODES; mode++)
        for (uint32_t layer = 0; layer < 2; layer++) {
            int rc;

            b.mode[1] = mode;
            cr_assert_eq(begin(&b, layer), 0);
            rc = pump(&b, 500);
            cr_assert_eq(rc, mode == REFUSE ? -EBUSY : -EBADMSG, "mode %d: %d %s", (int)mode, rc, b.err.text);
            cr_assert(strstr(b.err.text, "duck-1"), "mode %d: %s", (int)mode, b.err.text);
            cr_assert(mode != REFUSE || strstr(b.err.text, "the pond is frozen"), "%s", b.err.text);
            fanout_abort(&b.f);
            cr_assert_not(b.f.running);
            b.mode[1] = RIGHT; /* the next one is not disturbed */
            cr_assert_eq(begin(&b, layer), 0, "%s", b.err.text);
            cr_assert_eq(pump(&b, 500), 1, "after mode %d: %s", (int)mode, b.err.text);
            fanout_sum(&b.f, b.y);
            cr_assert_eq(b.y[0], 6);
        }
    bench_close(&b);
}

Test(worker_fanout, a_dead_duck_is_named)
{
    struct bench b;
    uint64_t asked_us;

    bench_open(&b, 3, 96);
    cr_assert_eq(begin(&b, 1), 0);
    asked_us = b.c.now_us;
    cluster_duck_crash(&b.c, 2);
    cr_assert_eq(pump(&b, 100000), -EHOSTDOWN);
    cr_assert(strstr(b.err.text, "duck-2"), "%s", b.err.text);
    cr_assert_geq(b.c.now_us - asked_us, 2000000);
    cr_assert_leq(b.c.now_us - asked_us, 4000000);
    fanout_abort(&b.f);
    cr_assert_eq(begin(&b, 1), -EHOSTDOWN, "its peer is dead and was not made anew");
    cr_assert(strstr(b.err.text, "duck-2"), "%s", b.err.text);
    bench_close(&b);
}

Test(worker_fanout, a_duck_that_is_not_there_is_named)
{
    struct bench b;

    bench_open(&b, 3, 96);
    b.plan.slots[1].instance++; /* the plan was made for another life */
    cr_assert_eq(begin(&b, 0), -EHOSTDOWN);
    cr_assert(strstr(b.err.text, "duck-1"), "%s", b.err.text);
    fanout_abort(&b.f);
    b.plan.slots[1].instance--;
    cr_assert_eq(begin(&b, 0), 0, "%s", b.err.text);
    cr_assert_eq(fanout_check(&b.f, (uint64_t)1 << 40, &b.err), 0, "a link that is not of the plan");
    b.c.ducks[1].away = true;
    cluster_follow(&b.c);
    cluster_poll(&b.c); /* the link goes: the transport tells nobody of what was outstanding */
    cr_assert_eq(fanout_check(&b.f, (uint64_t)1 << b.plan.slots[1].member_index, &b.err), -EHOSTDOWN);
    cr_assert(strstr(b.err.text, "duck-1"), "%s", b.err.text);
    bench_close(&b);
}

Test(worker_fanout, an_aborted_one_leaves_no_answer_behind)
{
    struct bench b;

    bench_open(&b, 3, 96);
    for (int i = 0; i < 20; i++) {
        cr_assert_eq(begin(&b, 1), 0, "%s", b.err.text);
        cr_assert_geq(pump(&b, i), 0, "%s", b.err.text);
        fanout_abort(&b.f); /* with nothing sent, some of it sent, some answers here, or all */
        b.x[0] = (float)i;
        b.value[0] = (float)(100 * i);
        cr_assert_eq(begin(&b, 0), 0, "%s", b.err.text);
        cr_assert_eq(pump(&b, 20000), 1, "round %d: %s", i, b.err.text);
        fanout_sum(&b.f, b.y);
        cr_assert_eq(b.y[0], (float)(100 * i + 5));
    }
    bench_close(&b);
}

Test(worker_fanout, too_many_outstanding_are_refused)
{
    struct fanout more[5];
    struct bench b;
    int i, rc = 0;

    bench_open(&b, 1, 96);
    for (i = 0; i < 5 && rc == 0; i++) {
        more[i] = b.f;
        rc = fanout_begin(&more[i], 0, ROWS, b.x, NULL, NULL, b.c.now_us, &b.err);
    }
    cr_assert_eq(rc, -EAGAIN);
    cr_assert_eq(i, 5);
    cr_assert(strstr(b.err.text, "duck-0"), "%s", b.err.text);
    fanout_abort(&more[0]);
    cr_assert_eq(begin(&b, 0), 0, "%s", b.err.text);
    bench_close(&b);
}
