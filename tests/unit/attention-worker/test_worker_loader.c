/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces of a checkpoint made in memory, against what the ducks are given. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention-worker/loader.h"
#include "base/log.h"
#include "cluster_rig.h"

enum { LAYERS_MAX = 4, EXPERTS_MAX = 8 };

struct layer_shape {
    enum dk_dtype type;
    uint32_t width, experts; /* experts 0: dense */
};

struct bench {
    struct cluster c;
    struct worker_model model;
    struct worker_plan plan;
    struct loader loader;
    struct dk_arena arena, duck_arena;
    uint8_t *file;
    const struct layer_shape *shapes;
    uint16_t *seen[LAYERS_MAX]; /* [experts][width]: how often a row came */
    bool count;                 /* repeats are an error */
    uint32_t pieces;
    struct dk_err err;
};

static void quiet(void *ctx, enum dk_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    (void)line;
}

/* ---- a checkpoint */

struct writer {
    char *header;
    size_t header_bytes, data_bytes;
    uint8_t *data;
};

static void add_tensor(struct writer *w, const char *name, enum dk_dtype type, uint32_t rows, uint32_t cols)
{
    size_t bytes = (size_t)rows * cols * dk_dtype_bytes(type);

    w->header_bytes += (size_t)sprintf(
        w->header + w->header_bytes, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%u,%u],\"data_offsets\":[%zu,%zu]}",
        w->header_bytes > 1 ? "," : "", name, dk_dtype_name(type), rows, cols, w->data_bytes, w->data_bytes + bytes);
    w->data = realloc(w->data, w->data_bytes + bytes);
    for (size_t i = 0; i < bytes; i++) /* small positive numbers of every type, all bytes different enough */
        w->data[w->data_bytes + i] = (uint8_t)((i * 2654435761u + w->data_bytes) >> 11 & 0x3f);
    w->data_bytes += bytes;
}

static void add_layer(struct writer *w, uint32_t layer, const struct layer_shape *s, uint32_t hidden)
{
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    char name[128], scale[160];

    for (uint32_t e = 0; e < (s->experts ? s->experts : 1); e++)
        for (int i = 0; i < 3; i++) {
            uint32_t rows = i == 2 ? hidden : s->width, cols = i == 2 ? s->width : hidden;

            if (s->experts)
                snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%u.%s.weight", layer, e, names[i]);
            else
                snprintf(name, sizeof name, "model.layers.%u.mlp.%s.weight", layer, names[i]);
            add_tensor(w, name, s->type, rows, cols);
            snprintf(scale, sizeof scale, "%s_scale_inv", name);
            if (s->type == DK_F8_E4M3)
                add_tensor(w, scale, DK_F32, (rows + 127) / 128, (cols + 127) / 128);
        }
}

static void make_model(struct bench *b, const struct layer_shape *shapes, uint32_t layers, uint32_t hidden)
{
    struct writer w = {.header = malloc(1 << 16), .header_bytes = 1, .data = malloc(1)};
    struct dk_model_config *c = &b->model.config;

    w.header[0] = '{';
    c->hidden = hidden;
    c->layers = layers;
    c->top_k = 1;
    for (uint32_t i = 0; i < layers; i++) {
        add_layer(&w, i, &shapes[i], hidden);
        c->layer_is_moe[i] = shapes[i].experts > 0;
        if (shapes[i].experts) {
            c->experts = shapes[i].experts;
            c->moe_intermediate = shapes[i].width;
        } else {
            c->intermediate = shapes[i].width;
        }
        b->seen[i] = calloc((size_t)(shapes[i].experts ? shapes[i].experts : 1) * shapes[i].width, sizeof(uint16_t));
    }
    w.header[w.header_bytes++] = '}';
    while (w.header_bytes % 8)
        w.header[w.header_bytes++] = ' ';
    b->file = malloc(8 + w.header_bytes + w.data_bytes);
    for (int i = 0; i < 8; i++)
        b->file[i] = (uint8_t)((uint64_t)w.header_bytes >> 8 * i);
    memcpy(b->file + 8, w.header, w.header_bytes);
    memcpy(b->file + 8 + w.header_bytes, w.data, w.data_bytes);
    cr_assert_eq(
        dk_checkpoint_from_memory(b->file, 8 + w.header_bytes + w.data_bytes, "test", &b->model.checkpoint, &b->err), 0,
        "%s", b->err.text);
    b->model.id = 99;
    b->shapes = shapes;
    free(w.header);
    free(w.data);
}

static const struct dk_tensor *tensor(struct bench *b, uint32_t layer, uint32_t expert, const char *part, bool scale)
{
    char name[160];
    const struct dk_tensor *t;

    if (b->shapes[layer].experts)
        snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%u.%s.weight%s", layer, expert, part,
                 scale ? "_scale_inv" : "");
    else
        snprintf(name, sizeof name, "model.layers.%u.mlp.%s.weight%s", layer, part, scale ? "_scale_inv" : "");
    t = dk_checkpoint_find(b->model.checkpoint, name);
    cr_assert_not_null(t, "%s", name);
    return t;
}

/* ---- what a duck must be given, element by element, as proto/attention_duck.proto says */

struct init {
    uint32_t layer, begin, end, expert_begin, expert_end, slice_begin;
    enum dk_dtype type; /* on the wire */
};

static size_t check_element(const struct dk_tensor *t, uint64_t row, uint64_t col, const uint8_t *wire)
{
    const uint8_t *stored = t->data + (row * t->shape[1] + col) * dk_dtype_bytes(t->type);
    float wide;

    if (t->type != DK_F16) {
        cr_assert_eq(memcmp(stored, wire, dk_dtype_bytes(t->type)), 0, "%s [%llu][%llu]", t->name,
                     (unsigned long long)row, (unsigned long long)col);
        return dk_dtype_bytes(t->type);
    }
    dk_widen(&wide, stored, DK_F16, 1);
    cr_assert_eq(memcmp(&wide, wire, sizeof wide), 0);
    return sizeof wide;
}

static const uint8_t *check_block(const struct dk_tensor *t, uint32_t row, uint32_t row_end, uint32_t col,
                                  uint32_t col_end, const uint8_t *wire)
{
    for (uint32_t r = row; r < row_end; r++)
        for (uint32_t k = col; k < col_end; k++)
            wire += check_element(t, r, k, wire);
    return wire;
}

static void check_piece(struct bench *b, const struct init *p, const uint8_t *payload, size_t bytes)
{
    uint32_t hidden = b->model.config.hidden, width = b->shapes[p->layer].width;
    uint32_t first = p->slice_begin + p->begin, last = p->slice_begin + p->end;
    const uint8_t *at = payload;

    for (uint32_t e = p->expert_begin; e < p->expert_end; e++) {
        at = check_block(tensor(b, p->layer, e, "gate_proj", false), first, last, 0, hidden, at);
        at = check_block(tensor(b, p->layer, e, "up_proj", false), first, last, 0, hidden, at);
        at = check_block(tensor(b, p->layer, e, "down_proj", false), 0, hidden, first, last, at);
        if (p->type == DK_F8_E4M3) {
            uint32_t block = first / 128, block_end = (last + 127) / 128, cols = (hidden + 127) / 128;

            at = check_block(tensor(b, p->layer, e, "gate_proj", true), block, block_end, 0, cols, at);
            at = check_block(tensor(b, p->layer, e, "up_proj", true), block, block_end, 0, cols, at);
            at = check_block(tensor(b, p->layer, e, "down_proj", true), 0, cols, block, block_end, at);
        }
        for (uint32_t r = first; r < last; r++) {
            uint16_t *seen = &b->seen[p->layer][(size_t)e * width + r];

            cr_assert(!b->count || *seen == 0, "layer %u expert %u row %u came twice", p->layer, e, r);
            ++*seen;
        }
    }
    cr_assert_eq((size_t)(at - payload), bytes);
}

static enum cluster_verdict watch(void *ctx, struct cluster *c, uint32_t duck, const uint8_t *data, size_t bytes,
                                  struct duck_answer *answer)
{
    struct bench *b = ctx;
    const Dk__DataRequest *r;
    const Dk__SliceShape *shape;
    struct init p = {.expert_end = 1};
    ProtobufCMessage *m;
    const uint8_t *payload;
    size_t payload_bytes;

    (void)c;
    (void)duck;
    (void)answer;
    cr_assert_eq(
        dk_data_unpack(&dk__data_request__descriptor, data, bytes, &b->duck_arena, &m, &payload, &payload_bytes), 0);
    r = (const Dk__DataRequest *)m;
    if (r->op_case == DK__DATA_REQUEST__OP_MOE_INIT) {
        shape = r->moe_init->shape;
        p.begin = r->moe_init->piece_begin;
        p.end = r->moe_init->piece_end;
        p.expert_begin = r->moe_init->expert_begin;
        p.expert_end = r->moe_init->expert_end;
        cr_assert_eq(r->moe_init->experts, b->shapes[shape->layer].experts);
    } else {
        cr_assert_eq(r->op_case, DK__DATA_REQUEST__OP_MLP_INIT);
        shape = r->mlp_init->shape;
        p.begin = r->mlp_init->piece_begin;
        p.end = r->mlp_init->piece_end;
        cr_assert_eq(b->shapes[shape->layer].experts, 0);
    }
    p.layer = shape->layer;
    p.slice_begin = shape->begin;
    p.type = b->shapes[p.layer].type;
    cr_assert_eq(shape->intermediate_size, b->shapes[p.layer].width);
    cr_assert_eq(shape->hidden_size, b->model.config.hidden);
    cr_assert_leq(p.end, shape->end - shape->begin);
    cr_assert_leq(payload_bytes, 5u << 20);
    cr_assert_eq(r->model_id, 99);
    check_piece(b, &p, payload, payload_bytes);
    b->pieces++;
    return CLUSTER_HANDLE;
}

static void bench_open(struct bench *b, const struct layer_shape *shapes, uint32_t layers, uint32_t hidden,
                       uint32_t ducks, uint32_t multiple_of)
{
    memset(b, 0, sizeof *b);
    dk_log_setup(quiet, NULL, DK_LOG_ERROR, "test");
    cr_assert_eq(cluster_open(&b->c, ducks, NULL, &b->err), 0, "%s", b->err.text);
    cr_assert_eq(dk_arena_init(&b->arena, 65536), 0);
    cr_assert_eq(dk_arena_init(&b->duck_arena, 65536), 0);
    b->c.on_request = watch;
    b->c.ctx = b;
    b->count = true;
    make_model(b, shapes, layers, hidden);
    b->plan = (struct worker_plan){.epoch = 5, .multiple_of = multiple_of, .slot_count = ducks};
    for (uint32_t i = 0; i < ducks; i++) {
        memcpy(b->plan.slots[i].duck, b->c.ducks[i].name, sizeof b->c.ducks[i].name);
        b->plan.slots[i].member_index = i;
        b->plan.slots[i].instance = b->c.ducks[i].own.instance;
    }
}

static void bench_close(struct bench *b)
{
    loader_stop(&b->loader);
    cluster_close(&b->c);
    dk_checkpoint_close(b->model.checkpoint);
    for (int i = 0; i < LAYERS_MAX; i++)
        free(b->seen[i]);
    free(b->file);
    dk_arena_fini(&b->arena);
    dk_arena_fini(&b->duck_arena);
}

static void poll_once(struct bench *b)
{
    struct dk_transport *t = b->c.worker.endpoint.transport;
    struct dk_transport_event event;

    loader_poll(&b->loader, b->c.now_us);
    dk_endpoint_poll(&b->c.worker.endpoint, b->c.now_us);
    cluster_poll_ducks(&b->c);
    while (dk_transport_event(t, &event), event.type != DK_EVENT_NONE) {
        if (event.type == DK_EVENT_RESPONSE || event.type == DK_EVENT_FAILED)
            loader_on_event(&b->loader, &event, &b->arena);
        dk_transport_event_done(t, &event);
        if (event.type == DK_EVENT_DEAD)
            loader_on_link_lost(&b->loader, (uint32_t)worker_links_peer_lost(&b->c.worker.links, event.peer));
    }
}

static void load(struct bench *b)
{
    for (int i = 0; i < 200000 && b->loader.state == LOADER_FEEDING; i++)
        poll_once(b);
}

/* Every duck holds every layer of which it has a part, and together they hold every row. */
static void check_all_there(struct bench *b, bool once)
{
    cr_assert_eq(b->loader.state, LOADER_READY, "state %d: %s", (int)b->loader.state, b->loader.err.text);
    cr_assert_eq(b->loader.bytes_done, b->loader.bytes_total);
    for (uint32_t layer = 0; layer < b->model.config.layers; layer++) {
        const struct layer_shape *s = &b->shapes[layer];
        uint32_t rows = (s->experts ? s->experts : 1) * s->width;

        for (uint32_t i = 0; i < rows; i++)
            cr_assert(b->seen[layer][i] == 1 || (!once && b->seen[layer][i] > 1),
                      "layer %u: row %u of expert %u: %u times", layer, i % s->width, i / s->width, b->seen[layer][i]);
        for (uint32_t d = 0; d < b->c.duck_count; d++) {
            const struct duck_layer *l = &b->c.ducks[d].duck.shards.layers[layer];

            cr_assert_eq(l->units_held, l->units_needed);
        }
    }
}

static const struct layer_shape small[] = {
    {DK_F16, 352, 0}, {DK_F8_E4M3, 200, 8}, {DK_BF16, 352, 0}, {DK_F8_E4M3, 200, 8}};

Test(worker_loader, every_row_goes_out_once)
{
    static const uint32_t ducks[] = {1, 2, 3, 5, 8}, multiples[] = {32, 64, 128};

    for (int d = 0; d < 5; d++)
        for (int m = 0; m < 3; m++) {
            struct bench b;

            bench_open(&b, small, 4, 192, ducks[d], multiples[m]);
            cr_assert_eq(loader_begin(&b.loader, &b.plan, &b.model, &b.c.worker.links), 0, "%s", b.loader.err.text);
            load(&b);
            check_all_there(&b, true);
            cr_assert_eq(b.loader.bytes_total, (uint64_t)3 * 192 * (352 * 4 + 352 * 2 + 2 * 8 * 200));
            bench_close(&b);
        }
}

/* An expert of more than 4 MiB is cut into runs of rows; the tail is shorter than 32. */
Test(worker_loader, big_experts_are_cut_into_rows)
{
    static const struct layer_shape big[] = {{DK_BF16, 1000, 0}, {DK_F8_E4M3, 744, 3}};

    for (uint32_t ducks = 1; ducks <= 2; ducks++) {
        struct bench b;

        bench_open(&b, big, 2, 2048, ducks, 32);
        cr_assert_eq(loader_begin(&b.loader, &b.plan, &b.model, &b.c.worker.links), 0, "%s", b.loader.err.text);
        load(&b);
        check_all_there(&b, true);
        cr_assert_eq(b.pieces, ducks == 1 ? 4 + 3 * 2 : 2 * 2 + 2 * 3);
        bench_close(&b);
    }
}

Test(worker_loader, starts_again_after_a_lost_link)
{
    static const struct layer_shape big[] = {{DK_BF16, 1000, 0}, {DK_F8_E4M3, 744, 3}};

    for (uint32_t lost_at = 1; lost_at < 10; lost_at += 2) {
        struct bench b;
        int index;

        bench_open(&b, big, 2, 2048, 2, 32);
        b.count = false;
        cr_assert_eq(loader_begin(&b.loader, &b.plan, &b.model, &b.c.worker.links), 0, "%s", b.loader.err.text);
        for (int i = 0; i < 100000 && b.pieces < lost_at; i++)
            poll_once(&b);
        index = worker_links_peer_lost(&b.c.worker.links, b.c.worker.links.link[0].peer);
        cr_assert_eq(index, 0);
        loader_on_link_lost(&b.loader, 0);
        load(&b);
        check_all_there(&b, false);
        bench_close(&b);
    }
}

Test(worker_loader, a_new_plan_in_the_middle_of_one)
{
    struct bench b;

    bench_open(&b, small, 4, 192, 3, 32);
    b.count = false;
    for (uint64_t epoch = 5; epoch < 10; epoch++) {
        b.plan.epoch = epoch;
        cr_assert_eq(loader_begin(&b.loader, &b.plan, &b.model, &b.c.worker.links), 0, "%s", b.loader.err.text);
        for (uint64_t i = 0; i < 3 * (epoch - 4); i++)
            poll_once(&b);
    }
    load(&b);
    check_all_there(&b, false);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(b.c.ducks[i].duck.shards.plan_epoch, 9);
    bench_close(&b);
}

/* ---- answers that end the load */

struct bad_answer {
    enum { REFUSES, GARBAGE, OTHER_EPOCH, FORWARD_REPLY, REFUSES_WITH_OK } kind;
};

static enum cluster_verdict bad_answer(void *ctx, struct cluster *c, uint32_t duck, const uint8_t *data, size_t bytes,
                                       struct duck_answer *a)
{
    const struct bad_answer *bad = ctx;
    Dk__DataReply reply = DK__DATA_REPLY__INIT;
    Dk__ForwardReply forward = DK__FORWARD_REPLY__INIT;
    Dk__InitReply init = DK__INIT_REPLY__INIT;
    Dk__Status status = DK__STATUS__INIT;

    (void)c;
    (void)data;
    (void)bytes;
    if (duck != 1)
        return CLUSTER_HANDLE;
    reply.plan_epoch = 5 + (bad->kind == OTHER_EPOCH);
    reply.result_case = DK__DATA_REPLY__RESULT_INIT;
    reply.init = &init;
    if (bad->kind == FORWARD_REPLY) {
        reply.result_case = DK__DATA_REPLY__RESULT_FORWARD;
        reply.forward = &forward;
    } else if (bad->kind == REFUSES || bad->kind == REFUSES_WITH_OK) {
        status.code = bad->kind == REFUSES ? DK__CODE__RESOURCE_EXHAUSTED : DK__CODE__OK;
        status.text = "the nest is full";
        reply.result_case = DK__DATA_REPLY__RESULT_ERROR;
        reply.error = &status;
    }
    a->header_bytes = (size_t)dk_data_pack(&reply.base, a->header, sizeof a->header);
    if (bad->kind == GARBAGE)
        memset(a->header, 0xee, a->header_bytes);
    return CLUSTER_MINE;
}

Test(worker_loader, bad_answers_end_the_load_with_a_name)
{
    for (int kind = REFUSES; kind <= REFUSES_WITH_OK; kind++) {
        struct bad_answer bad = {kind};
        struct bench b;

        bench_open(&b, small, 4, 192, 3, 32);
        b.c.on_request = bad_answer;
        b.c.ctx = &bad;
        cr_assert_eq(loader_begin(&b.loader, &b.plan, &b.model, &b.c.worker.links), 0);
        load(&b);
        cr_assert_eq(b.loader.state, LOADER_FAILED);
        cr_assert_eq(b.loader.err.rc, kind == REFUSES ? -ENOSPC : -EBADMSG, "%d", b.loader.err.rc);
        cr_assert(strstr(b.loader.err.text, "duck-1"), "%s", b.loader.err.text);
        cr_assert(kind != REFUSES || strstr(b.loader.err.text, "the nest is full"), "%s", b.loader.err.text);
        bench_close(&b);
    }
}

/* A piece that the transport gives up on, although the duck lives, must not count as there. */
Test(worker_loader, a_refused_length_ends_the_load)
{
    struct dk_transport_event event = {.type = DK_EVENT_FAILED, .rc = -EMSGSIZE};
    struct bench b;

    bench_open(&b, small, 4, 192, 1, 32);
    cr_assert_eq(loader_begin(&b.loader, &b.plan, &b.model, &b.c.worker.links), 0);
    loader_poll(&b.loader, b.c.now_us);
    cr_assert(b.loader.slots[0].pieces[0].busy);
    event.peer = b.c.worker.links.link[0].peer;
    event.request_id = b.loader.slots[0].pieces[0].request_id;
    cr_assert_eq(loader_on_event(&b.loader, &event, &b.arena), 0);
    cr_assert_eq(b.loader.state, LOADER_FAILED);
    cr_assert_eq(b.loader.err.rc, -EMSGSIZE);
    cr_assert(strstr(b.loader.err.text, "duck-0"), "%s", b.loader.err.text);
    bench_close(&b);
}

Test(worker_loader, foreign_events_are_not_taken)
{
    struct dk_transport_event event = {.type = DK_EVENT_RESPONSE, .request_id = 1};
    struct bench b;

    bench_open(&b, small, 4, 192, 1, 32);
    cr_assert_eq(loader_on_event(&b.loader, &event, &b.arena), -ENOENT, "nothing is loaded");
    cr_assert_eq(loader_begin(&b.loader, &b.plan, &b.model, &b.c.worker.links), 0);
    loader_poll(&b.loader, b.c.now_us);
    cr_assert_eq(loader_on_event(&b.loader, &event, &b.arena), -ENOENT);
    event.peer = 55;
    event.request_id = b.loader.slots[0].pieces[0].request_id;
    cr_assert_eq(loader_on_event(&b.loader, &event, &b.arena), -ENOENT);
    cr_assert_eq(b.loader.state, LOADER_FEEDING);
    load(&b);
    check_all_there(&b, true);
    bench_close(&b);
}

Test(worker_loader, a_missing_tensor_ends_the_load)
{
    struct bench b;

    bench_open(&b, small, 4, 192, 1, 32);
    b.model.config.experts = 9; /* one more than the checkpoint has */
    loader_begin(&b.loader, &b.plan, &b.model, &b.c.worker.links);
    load(&b);
    cr_assert_eq(b.loader.state, LOADER_FAILED);
    cr_assert_eq(b.loader.err.rc, -ENOENT);
    cr_assert(strstr(b.loader.err.text, "layers.1.mlp.experts.8.gate_proj"), "%s", b.loader.err.text);
    b.shapes = small;
    bench_close(&b);
}
