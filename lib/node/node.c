/* SPDX-License-Identifier: Apache-2.0 */
#include "node/node.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define INTERVAL_FIRST_US 200000u
#define BEAT_TIMEOUT_MS   2000u
#define LEAVE_TIMEOUT_MS  300u
#define MAILBOX_MESSAGES  256u

/* ---- heartbeats */

static void fill_node(const struct dk_node *n, Dk__NodeInfo *node, Dk__DataAddress *address)
{
    const struct dk_identity *id = n->engine->identity(n->engine_ctx);
    const struct dk_node_options *o = n->options;

    dk_addr_to_wire(&id->own, id->mtu, address);
    dk__node_info__init(node);
    node->name = (char *)(uintptr_t)o->name;
    node->kind = n->control->kind;
    node->host = (char *)(uintptr_t)n->host;
    node->isa = (char *)(uintptr_t)dk_isa_name(o->isa);
    node->version = (char *)(uintptr_t)DUCKLLM_VERSION;
    node->port_kind = o->port_kind == DK_PORT_AF_PACKET ? DK__PORT_KIND__AF_PACKET : DK__PORT_KIND__VHOST;
    node->address = address;
#define SET(field, v) (node->has_##field = true, node->field = (v))
    SET(pid, (uint32_t)getpid());
    SET(cores, dk_cpu_count());
    SET(kernel_threads, o->threads);
    SET(ram_total_bytes, dk_ram_total_bytes());
    SET(ram_free_bytes, dk_ram_free_bytes());
#undef SET
}

static void on_beat(void *ctx, uint64_t now_us)
{
    struct dk_node *n = ctx;
    Dk__HeartbeatRequest q = DK__HEARTBEAT_REQUEST__INIT;
    Dk__NodeInfo node;
    Dk__DataAddress address;

    dk_timer_arm(dk_loop_ev_timers(n->loop), &n->beat, now_us + n->interval_us);
    if (n->heartbeat.in_flight)
        return;
    fill_node(n, &node, &address);
    q.node = &node;
    n->control->fill(n->control_ctx, &node, &q);
    dk_node_call_start(&n->heartbeat, n->client, &q.base);
}

static void on_beat_end(void *ctx, int rc, ProtobufCMessage **reply, uint64_t now_us)
{
    struct dk_node *n = ctx;
    const Dk__HeartbeatReply *r = (const Dk__HeartbeatReply *)*reply;

    if (rc < 0)
        return; /* the timer tries again */
    if (r->interval_ms >= 10 && r->interval_ms <= 60000)
        n->interval_us = r->interval_ms * 1000u;
    n->control->on_reply(n->control_ctx, r);
}

void dk_node_beat_now(struct dk_node *n, uint64_t now_us)
{
    dk_timer_arm(dk_loop_ev_timers(n->loop), &n->beat, now_us);
}

static void leave(struct dk_node *n)
{
    Dk__LeaveRequest q = DK__LEAVE_REQUEST__INIT;
    ProtobufCMessage *reply;
    struct dk_err err = {0};

    q.name = (char *)(uintptr_t)n->options->name;
    q.instance = n->engine->identity(n->engine_ctx)->own.instance;
    if (dk_rpc_call(n->client, &dk__membership__descriptor, "Leave", &q.base, LEAVE_TIMEOUT_MS, &reply, &err) == 0)
        protobuf_c_message_free_unpacked(reply, NULL);
}

/* ---- the loop */

static void on_message(void *ctx, void *message, uint64_t now_us)
{
    struct dk_node *n = ctx;

    if (!dk_node_call_is_wake(message))
        n->control->on_news(n->control_ctx, message, now_us);
}

static void on_turn(void *ctx, uint64_t now_us)
{
    struct dk_node *n = ctx;

    dk_node_call_turn(&n->heartbeat, now_us);
    if (n->control->on_turn)
        n->control->on_turn(n->control_ctx, now_us);
}

static void on_signal(void *ctx, int signal)
{
    struct dk_node *n = ctx;

    dk_log(DK_LOG_INFO, "node.end", "name=%s signal=%d", n->options->name, signal);
    dk_loop_ev_stop(n->loop);
}

/* ---- the engine's thread */

struct engine_thread {
    struct dk_node *node;
    sem_t opened, may_close;
    struct dk_err err;
    int rc;
};

/* The data plane belongs to the thread that opens it. It is closed only when nobody can wake it any more. */
static void *engine_main(void *arg)
{
    struct engine_thread *t = arg;
    struct dk_node *n = t->node;

    t->rc = n->engine->open(n->engine_ctx, dk_loop_ev_mailbox(n->loop), &t->err);
    sem_post(&t->opened);
    if (t->rc == 0)
        n->engine->run(n->engine_ctx);
    sem_wait(&t->may_close);
    n->engine->close(n->engine_ctx);
    return NULL;
}

static int run_with_engine(struct dk_node *n, struct dk_err *err)
{
    struct engine_thread t = {.node = n};
    pthread_t thread;
    int rc;

    sem_init(&t.opened, 0, 0);
    sem_init(&t.may_close, 0, 0);
    rc = -pthread_create(&thread, NULL, engine_main, &t);
    if (rc < 0)
        return dk_err_set(err, rc, "no thread for the data plane: %s", strerror(-rc));
    sem_wait(&t.opened);
    if (t.rc == 0) {
        dk_log(DK_LOG_INFO, "node.start", "name=%s isa=%s threads=%u port=%s", n->options->name,
               dk_isa_name(n->options->isa), n->options->threads, n->options->port);
        dk_timer_arm(dk_loop_ev_timers(n->loop), &n->beat, 0);
        if (n->control->on_start)
            n->control->on_start(n->control_ctx, 0);
        dk_loop_ev_run(n->loop);
        leave(n);
        n->engine->stop(n->engine_ctx);
    } else {
        *err = t.err;
    }
    dk_rpc_client_close(n->client); /* no call ends after this: nothing wakes the engine or the loop */
    n->client = NULL;
    sem_post(&t.may_close);
    pthread_join(thread, NULL);
    sem_destroy(&t.opened);
    sem_destroy(&t.may_close);
    return t.rc;
}

int dk_node_run(struct dk_node *n, const struct dk_control_ops *plane, const struct dk_node_options *options,
                const struct dk_node_engine *engine, void *engine_ctx, const struct dk_node_control *control,
                void *control_ctx, struct dk_err *err)
{
    static const struct dk_loop_ev_handlers handlers = {on_message, on_turn, on_signal};
    void *news;
    int rc;

    memset(n, 0, sizeof *n);
    n->options = options;
    n->engine = engine;
    n->control = control;
    n->engine_ctx = engine_ctx;
    n->control_ctx = control_ctx;
    n->interval_us = INTERVAL_FIRST_US;
    gethostname(n->host, sizeof n->host - 1);
    rc = dk_loop_ev_open(&handlers, n, MAILBOX_MESSAGES, &n->loop);
    if (rc < 0)
        return dk_err_set(err, rc, "no memory for the control loop");
    n->beat = (struct dk_timer){.fire = on_beat, .ctx = n};
    n->heartbeat = (struct dk_node_call){.service = &dk__membership__descriptor,
                                         .method = "Heartbeat",
                                         .timeout_ms = BEAT_TIMEOUT_MS,
                                         .on_end = on_beat_end,
                                         .ctx = n,
                                         .wake = dk_loop_ev_mailbox(n->loop)};
    rc = dk_rpc_dial(plane, options->coordinator, &n->client, err);
    if (rc == 0)
        rc = run_with_engine(n, err);
    dk_rpc_client_close(n->client);
    dk_node_call_fini(&n->heartbeat);
    while ((news = dk_mailbox_pop(dk_loop_ev_mailbox(n->loop))))
        if (!dk_node_call_is_wake(news))
            control->free_news(news);
    dk_loop_ev_close(n->loop);
    n->loop = NULL;
    return rc;
}

int dk_node_begin(const char *program, const struct dk_node_options *o, int parse_rc, const struct dk_err *err,
                  void (*help)(void))
{
    if (parse_rc < 0) {
        fprintf(stderr, "%s: %s\n", program, err->text);
        return 2;
    }
    if (o->help || o->version) {
        if (o->help)
            help();
        else
            printf("%s %s\n", program, DUCKLLM_VERSION);
        return 0;
    }
    signal(SIGPIPE, SIG_IGN);
    dk_log_setup(NULL, NULL, o->log, o->name);
    return -1;
}
