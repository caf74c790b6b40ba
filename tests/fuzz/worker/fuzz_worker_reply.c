/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a duck's reply to the rows of a step or to a piece of weights (reply_script.h). */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention-worker/fanout.h"
#include "attention-worker/loader.h"
#include "base/log.h"
#include "reply_script.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                \
        }                                                                           \
    } while (0)

enum { DUCKS = 2, NO_BUFFER = UINT32_MAX };

/* A worker without a network: its requests stay in the transport, and the events are made here. */
struct bench {
    struct dk_endpoint endpoint;
    struct worker_links links;
    struct worker_plan plan;
    struct worker_model model;
    struct fanout fanout;
    struct loader loader;
    struct dk_arena arena;
    uint8_t *file;
};

static void quiet(void *ctx, enum dk_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    (void)line;
}

/* One dense layer of zeros. */
static void open_checkpoint(struct bench *b)
{
    static const char *const parts[] = {"gate", "up", "down"};
    size_t each = (size_t)REPLY_WIDTH * REPLY_HIDDEN * sizeof(float);
    char header[1024];
    int n = sprintf(header, "{");

    for (int i = 0; i < 3; i++)
        n += sprintf(header + n,
                     "%s\"model.layers.0.mlp.%s_proj.weight\":{\"dtype\":\"F32\",\"shape\":[%d,%d],"
                     "\"data_offsets\":[%zu,%zu]}",
                     i ? "," : "", parts[i], i == 2 ? REPLY_HIDDEN : REPLY_WIDTH, i == 2 ? REPLY_WIDTH : REPLY_HIDDEN,
                     i * each, (i + 1) * each);
    n += sprintf(header + n, "}");
    b->file = calloc(1, 8 + (size_t)n + 3 * each);
    CHECK(b->file);
    b->file[0] = (uint8_t)n;
    b->file[1] = (uint8_t)(n >> 8);
    memcpy(b->file + 8, header, (size_t)n);
    CHECK(dk_checkpoint_from_memory(b->file, 8 + (size_t)n + 3 * each, "fuzz", &b->model.checkpoint, NULL) == 0);
}

static void bench_open(struct bench *b)
{
    struct worker_options options = {.node = {.port_kind = DK_PORT_AF_PACKET, .run_dir = "none"}};
    struct dk_identity identity = {.own = {.ipv4 = 1, .udp_port = 1, .instance = 1}, .mtu = 1500};
    struct worker_link_order orders[DUCKS];
    struct dk_transport_config c;

    memset(orders, 0, sizeof orders);
    dk_transport_defaults(&c);
    c.own = identity.own;
    c.mtu = identity.mtu;
    c.peers_max = DUCKS;
    CHECK(dk_endpoint_start(&b->endpoint, &c, NULL) == 0);
    CHECK(dk_arena_init(&b->arena, 65536) == 0);
    worker_links_init(&b->links, &b->endpoint, &options, &identity);
    b->plan = (struct worker_plan){.epoch = REPLY_EPOCH, .multiple_of = 32, .slot_count = DUCKS};
    for (uint32_t i = 0; i < DUCKS; i++) {
        orders[i].member_index = i;
        orders[i].addr = (struct dk_addr){.ipv4 = 2 + i, .udp_port = 1, .instance = 2 + i};
        snprintf(orders[i].name, sizeof orders[i].name, "duck-%u", i);
        memcpy(b->plan.slots[i].duck, orders[i].name, sizeof orders[i].name);
        b->plan.slots[i].member_index = i;
        b->plan.slots[i].instance = 2 + i;
    }
    CHECK(worker_links_follow(&b->links, orders, DUCKS) == 3);
    b->model.config = (struct dk_model_config){.hidden = REPLY_HIDDEN,
                                               .layers = 2,
                                               .intermediate = REPLY_WIDTH,
                                               .moe_intermediate = REPLY_WIDTH,
                                               .experts = 4,
                                               .top_k = REPLY_TOP_K,
                                               .layer_is_moe = {false, true}};
    b->fanout = (struct fanout){.plan = &b->plan, .config = &b->model.config, .links = &b->links};
    open_checkpoint(b);
}

static struct dk_transport_event event_of(uint8_t *data, size_t bytes, uint32_t peer, uint64_t request_id)
{
    return (struct dk_transport_event){.type = DK_EVENT_RESPONSE,
                                       .peer = peer,
                                       .request_id = request_id,
                                       .data = data,
                                       .bytes = bytes,
                                       .buffer = NO_BUFFER};
}

/* Both ducks give the same answer; if it is a good one the sums can be read to their end. */
static void reply_to_rows(struct bench *b, bool moe, uint8_t *data, size_t bytes)
{
    static float x[REPLY_ROWS * REPLY_HIDDEN], weights[REPLY_ROWS * REPLY_TOP_K];
    static int32_t ids[REPLY_ROWS * REPLY_TOP_K];
    float *y = malloc(sizeof x);
    struct dk_err err = {0};
    int rc = fanout_begin(&b->fanout, moe, REPLY_ROWS, x, moe ? ids : NULL, moe ? weights : NULL, 1000, &err);

    CHECK(y && rc == 0);
    for (uint32_t s = 0; s < DUCKS && rc == 0; s++) {
        struct dk_transport_event event = event_of(data, bytes, b->fanout.slots[s].peer, b->fanout.slots[s].request_id);
        bool taken;

        rc = fanout_on_event(&b->fanout, &event, &b->arena, &taken, &err);
        CHECK(taken);
        CHECK(rc == (s == DUCKS - 1) || (rc < 0 && err.rc == rc && strstr(err.text, "duck-0")));
    }
    if (rc == 1)
        fanout_sum(&b->fanout, y);
    fanout_abort(&b->fanout);
    CHECK(!b->fanout.running);
    free(y);
}

static void reply_to_piece(struct bench *b, uint8_t *data, size_t bytes)
{
    const struct loader_piece *piece = &b->loader.slots[0].pieces[0];
    struct dk_transport_event event;

    b->model.config.layers = 1;
    CHECK(loader_begin(&b->loader, &b->plan, &b->model, &b->links) == 0);
    CHECK(loader_poll(&b->loader, 1000) && piece->busy);
    event = event_of(data, bytes, b->links.link[0].peer, piece->request_id);
    CHECK(loader_on_event(&b->loader, &event, &b->arena) == 0);
    CHECK(!piece->busy);
    if (b->loader.state == LOADER_FAILED)
        CHECK(b->loader.err.rc < 0 && b->loader.err.text[0]);
    else
        CHECK(b->loader.state == LOADER_FEEDING && b->loader.bytes_done > 0);
    loader_stop(&b->loader);
    b->model.config.layers = 2;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct bench bench;
    void *copy = NULL;

    if (!size)
        return 0;
    if (!bench.endpoint.transport) {
        dk_log_setup(quiet, NULL, DK_LOG_ERROR, "fuzz");
        bench_open(&bench);
    }
    CHECK(posix_memalign(&copy, 64, size > 1 ? size - 1 : 1) == 0);
    memcpy(copy, data + 1, size - 1);
    switch (data[0] % REPLY_KINDS) {
    case REPLY_TO_PIECE:
        reply_to_piece(&bench, copy, size - 1);
        break;
    default:
        reply_to_rows(&bench, data[0] % REPLY_KINDS == REPLY_TO_MOE, copy, size - 1);
    }
    for (uint32_t i = 0; i < DUCKS; i++) /* the transport knows nothing of these answers and still waits */
        CHECK(worker_links_peer_lost(&bench.links, bench.links.link[i].peer) == (int)i);
    free(copy);
    return 0;
}
