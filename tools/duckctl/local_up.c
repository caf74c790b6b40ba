/* SPDX-License-Identifier: Apache-2.0 */
/* duckctl local up: starts coordinator, attention-worker and ducks on this host and loads a model. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/text.h"
#include "duckctl/cluster_dir.h"
#include "duckctl/duckctl.h"
#include "duckctl/namespaces.h"
#include "duckctl/processes.h"

#define START_WAIT_US 30000000u

struct up_settings {
    struct common_settings common;
    const char *model, *backend, *attention, *port, *net_fault, *isa, *listen, *log_level;
    uint32_t ducks, tp, multiple_of, context, threads, max_running, step_rows, dead_after_ms;
    bool allow_full;
};

static const struct up_settings defaults = {
    COMMON_DEFAULTS,     .backend = "cpu", .attention = "sparse", .port = "vhost",  .isa = "auto",
    .log_level = "info", .ducks = 4,       .max_running = 16,     .step_rows = 256, .multiple_of = 32};

#define F(f) offsetof(struct up_settings, f)
static const struct dk_option options[] = {
    {"model", DK_OPT_TEXT, F(model), "DIR", "Hugging Face model folder; absent: none is loaded", 0, 0, NULL, NULL},
    {"ducks", DK_OPT_U32, F(ducks), "N", "how many duck-firmware processes to start", 1, 31, NULL, NULL},
    {"tp", DK_OPT_U32, F(tp), "T", "how many ducks share each layer; absent: all", 1, 31, NULL, NULL},
    {"multiple-of", DK_OPT_U32, F(multiple_of), "M", "unit in which the intermediate dimension is cut", 32, 65536, NULL,
     NULL},
    {"context", DK_OPT_U32, F(context), "N", "longest sequence in tokens; absent: the model's own, at most 4096", 1,
     1 << 24, NULL, NULL},
    {"backend", DK_OPT_TEXT, F(backend), "NAME", "where attention runs", 0, 0, "cpu|cuda", NULL},
    ATTENTION_OPTIONS(struct up_settings),
    {"threads", DK_OPT_U32, F(threads), "N", "kernel threads of each process; absent: shared out over the CPUs", 1, 256,
     NULL, NULL},
    {"isa", DK_OPT_TEXT, F(isa), "NAME", "kernels to use", 0, 0, "auto|ref|avx2|avx512", NULL},
    {"port", DK_OPT_TEXT, F(port), "KIND", "data plane; af_packet makes network namespaces and needs root", 0, 0,
     "vhost|af_packet", NULL},
    {"net-fault", DK_OPT_TEXT, F(net_fault), "SPEC", "inject faults on the data plane, as drop=0.01,dup=0.01,seed=1", 0,
     0, NULL, NULL},
    {"listen", DK_OPT_TEXT, F(listen), "URL",
     "coordinator's address, as tcp://127.0.0.1:7717; absent: a socket of its own", 0, 0, NULL, NULL},
    {"max-running", DK_OPT_U32, F(max_running), "N", "sequences computed at the same time", 1, 1024, NULL, NULL},
    {"step-rows", DK_OPT_U32, F(step_rows), "N", "most rows in one step", 1, 4096, NULL, NULL},
    {"dead-after-ms", DK_OPT_U32, F(dead_after_ms), "MS", "silence after which a data-plane peer counts as dead", 100,
     600000, NULL, NULL},
    {"log-level", DK_OPT_TEXT, F(log_level), "LEVEL", "of the processes; logs are in the cluster's folder", 0, 0,
     "error|warn|info|debug", NULL},
    COMMON_OPTIONS(struct up_settings),
    {0},
};

struct up {
    const struct up_settings *settings;
    struct cluster_dir dir;
    struct cluster_record record;
    struct dk_rpc_client *client;
    Dk__LoadRequest load; /* but for the model */
    int lock;
};

/* argv of one program, built piece by piece. */
struct arguments {
    const char *v[48];
    char text[16][160];
    int count, texts;
};

static void add(struct arguments *a, const char *name, const char *value)
{
    a->v[a->count++] = name;
    a->v[a->count++] = value;
    a->v[a->count] = NULL;
}

static void add_number(struct arguments *a, const char *name, uint32_t value)
{
    snprintf(a->text[a->texts], sizeof a->text[0], "%u", value);
    add(a, name, a->text[a->texts++]);
}

static int start_coordinator(struct up *u, struct dk_err *err)
{
    const struct up_settings *s = u->settings;
    struct arguments a = {0};

    add(&a, "--listen", u->record.url);
    add(&a, "--log-level", s->log_level);
    add_number(&a, "--max-running", s->max_running);
    add_number(&a, "--step-rows", s->step_rows);
    return process_start(&u->dir, &u->record, "coordinator", "coordinator", NULL, a.v, err);
}

/* node 0 is the worker, 1 + i duck i. */
static int start_node(struct up *u, unsigned node, struct dk_err *err)
{
    const struct up_settings *s = u->settings;
    bool packet = !strcmp(s->port, "af_packet");
    uint32_t cpus = dk_cpu_count(), threads = node ? cpus / s->ducks : cpus;
    struct arguments a = {0};
    char name[32], ns[64];

    if (node)
        snprintf(name, sizeof name, "duck-%u", node - 1);
    else
        dk_text_copy(name, sizeof name, "worker");
    namespace_name(u->record.network, node, ns, sizeof ns);
    add(&a, "--coordinator", u->record.url);
    add(&a, "--name", name);
    add(&a, "--run-dir", u->dir.path);
    add(&a, "--log-level", s->log_level);
    add(&a, "--isa", s->isa);
    add(&a, "--port", s->port);
    add_number(&a, "--threads", s->threads ? s->threads : threads ? threads : 1);
    if (packet)
        add(&a, "--interface", "eth0");
    if (s->net_fault)
        add(&a, "--net-fault", s->net_fault);
    if (s->dead_after_ms)
        add_number(&a, "--dead-after-ms", s->dead_after_ms);
    return process_start(&u->dir, &u->record, name, node ? "duck-firmware" : "attention-worker", packet ? ns : NULL,
                         a.v, err);
}

static int still_alive(void *ctx, struct dk_err *err)
{
    struct up *u = ctx;

    if (interrupted)
        return dk_err_set(err, -EINTR, "interrupted");
    return processes_check(&u->dir, &u->record, err);
}

/* How many live nodes the coordinator knows; negative: it does not answer yet. */
static int nodes_alive(struct up *u)
{
    Dk__StatusRequest q = DK__STATUS_REQUEST__INIT;
    Dk__StatusReply *r;
    ProtobufCMessage *m;
    struct dk_err err;
    int alive = 0;

    if (client_call(u->client, "GetStatus", &q.base, 500, &m, &err) < 0)
        return -1;
    r = (Dk__StatusReply *)m;
    for (size_t i = 0; i < r->n_nodes; i++)
        alive += r->nodes[i]->alive;
    protobuf_c_message_free_unpacked(m, NULL);
    return alive;
}

static int wait_for_nodes(struct up *u, int wanted, struct dk_err *err)
{
    uint64_t end_us = dk_now_us() + START_WAIT_US;
    int alive = -1, rc;

    while ((alive = nodes_alive(u)) < wanted) {
        rc = still_alive(u, err);
        if (rc < 0)
            return rc;
        if (dk_now_us() > end_us)
            return dk_err_set(err, -ETIME, "only %d of %d nodes joined within 30 s; logs are in %s", alive, wanted,
                              u->dir.path);
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    return 0;
}

/* A text for verb_usage(), or NULL. */
static const char *load_make(const struct up_settings *s, Dk__LoadRequest *q)
{
    dk__load_request__init(q);
    q->has_tp = s->tp != 0;
    q->tp = s->tp;
    q->has_multiple_of = true;
    q->multiple_of = s->multiple_of;
    q->has_context = s->context != 0;
    q->context = s->context;
    q->backend = (char *)(uintptr_t)s->backend;
    return attention_set(q, s->attention, s->allow_full);
}

static int load(struct up *u, const char *model, struct dk_err *err)
{
    ProtobufCMessage *m;
    int rc;

    u->load.model_dir = (char *)(uintptr_t)model;
    rc = client_call(u->client, "Load", &u->load.base, 30000, &m, err);
    if (rc < 0)
        return rc;
    protobuf_c_message_free_unpacked(m, NULL);
    return wait_until_ready(u->client, u->settings->common.json, still_alive, u, err);
}

static void say(const struct up *u, const char *text)
{
    if (!u->settings->common.json)
        fprintf(stderr, "%s\n", text);
}

static int bring_up(struct up *u, const char *model, struct dk_err *err)
{
    unsigned nodes = 1 + u->settings->ducks;
    char text[160];
    int rc;

    if (u->settings->listen)
        dk_text_copy(u->record.url, sizeof u->record.url, u->settings->listen);
    else
        snprintf(u->record.url, sizeof u->record.url, "ipc://%s/control", u->dir.path);
    if (!strcmp(u->settings->port, "af_packet")) {
        u->record.namespaces = nodes;
        namespaces_network(&u->dir, u->record.network);
        rc = cluster_record_write(&u->dir, &u->record, err);
        if (rc == 0)
            rc = namespaces_create(u->record.network, nodes, err);
        if (rc < 0)
            return rc;
    }
    snprintf(text, sizeof text, "starting coordinator, attention-worker and %u duck%s as cluster '%s'",
             u->settings->ducks, u->settings->ducks == 1 ? "" : "s", u->dir.name);
    say(u, text);
    rc = start_coordinator(u, err);
    for (unsigned i = 0; rc == 0 && i < nodes; i++)
        rc = start_node(u, i, err);
    if (rc == 0)
        rc = dk_rpc_dial(&dk_control_nng, u->record.url, &u->client, err);
    if (rc == -EINVAL) {
        dk_err_prefix(err, "--listen");
        return err->rc = USAGE_ERROR;
    }
    if (rc == 0)
        rc = wait_for_nodes(u, (int)nodes, err);
    if (rc == 0 && model)
        rc = load(u, model, err);
    return rc;
}

static void take_down(struct up *u)
{
    processes_stop(&u->record);
    if (u->record.namespaces)
        namespaces_remove(u->record.network, u->record.namespaces);
    cluster_dir_remove(&u->dir);
}

static int run(const struct verb *self, int argc, char **argv)
{
    struct up_settings s;
    struct up u = {.settings = &s};
    struct dk_err err = {0};
    char model[PATH_MAX];
    const char *defect;
    int rc = verb_begin(self, &s, sizeof s, argc, argv, NULL, 0, NULL);

    if (rc >= 0)
        return rc;
    if (s.tp > s.ducks)
        return verb_usage(self, "--tp cannot be larger than --ducks");
    defect = load_make(&s, &u.load);
    if (defect)
        return verb_usage(self, defect);
    if (s.listen && !strcmp(s.port, "af_packet") && strncmp(s.listen, "ipc://", 6))
        return verb_usage(self,
                          "--port af_packet does not go with this --listen: its network namespaces reach no address "
                          "of the host; leave --listen out, or give a socket file as ipc:///PATH");
    if (s.model && !realpath(s.model, model)) {
        dk_err_set(&err, -ENOENT, "--model %s: %s", s.model, strerror(errno));
        return verb_fail(s.common.json, &err);
    }
    catch_interrupts();
    rc = cluster_dir_name(&u.dir, s.common.name, &err);
    if (rc == 0)
        rc = cluster_dir_create(&u.dir, &u.lock, &err);
    if (rc < 0)
        return verb_fail(s.common.json, &err);
    rc = bring_up(&u, s.model ? model : NULL, &err);
    dk_rpc_client_close(u.client);
    if (rc < 0)
        take_down(&u);
    close(u.lock);
    if (rc < 0)
        return verb_fail(s.common.json, &err);
    if (s.common.json)
        print_json(json_pack("{s:s,s:s,s:s,s:i}", "name", u.dir.name, "coordinator", u.record.url, "dir", u.dir.path,
                             "ducks", (int)s.ducks));
    else
        fprintf(stderr, "cluster '%s' is %s; `duckctl local down%s%s` ends it\n", u.dir.name,
                s.model ? "ready" : "up, without a model", strcmp(u.dir.name, "default") ? " --name " : "",
                strcmp(u.dir.name, "default") ? u.dir.name : "");
    return EXIT_DONE;
}

const struct verb verb_local_up = {
    .group = "local",
    .name = "up",
    .arguments = "[--model DIR] [--ducks N] [OPTION ...]",
    .summary = "Start a cluster on this host and load a model; returns when it is ready.",
    .options = options,
    .defaults = &defaults,
    .run = run,
    .details = "The processes go on in the background until `duckctl local down`. If anything fails, or on\n"
               "Ctrl-C, everything that was started is ended again. Without --model the cluster waits for\n"
               "`duckctl load`.",
};
