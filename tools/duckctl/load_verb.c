/* SPDX-License-Identifier: Apache-2.0 */
/* duckctl load, and the waiting for a model to be ready. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "duckctl/duckctl.h"
#include "duckctl/notice.h"

#define LINE_US 2000000u /* between progress lines where no bar can be drawn */

struct load_settings {
    struct common_settings common;
    const char *model, *backend, *attention;
    uint32_t tp, multiple_of, context;
    bool no_wait, allow_full;
};

static const struct load_settings defaults = {COMMON_DEFAULTS, .backend = "cpu", .attention = "sparse",
                                              .multiple_of = 32};

#define F(f) offsetof(struct load_settings, f)
static const struct dk_option options[] = {
    {"model", DK_OPT_TEXT, F(model), "DIR", "Hugging Face model folder, as the worker's host sees it", 0, 0, NULL,
     NULL},
    {"tp", DK_OPT_U32, F(tp), "T", "how many ducks share each layer; absent: all that are there", 1, 64, NULL, NULL},
    {"multiple-of", DK_OPT_U32, F(multiple_of), "M", "unit in which the intermediate dimension is cut", 32, 65536, NULL,
     NULL},
    {"context", DK_OPT_U32, F(context), "N", "longest sequence in tokens; absent: the model's own, at most 4096", 1,
     1 << 24, NULL, NULL},
    {"backend", DK_OPT_TEXT, F(backend), "NAME", "where attention runs", 0, 0, "cpu|cuda", NULL},
    ATTENTION_OPTIONS(struct load_settings),
    {"no-wait", DK_OPT_FLAG, F(no_wait), NULL, "return at once; `duckctl status` tells the progress", 0, 0, NULL, NULL},
    COMMON_OPTIONS(struct load_settings),
    {0},
};

const char *attention_set(Dk__LoadRequest *q, const char *attention, bool allow_full)
{
    bool full = !strcmp(attention, "full");

    q->has_attention = true;
    q->attention = full ? DK__ATTENTION_MODE__FULL : DK__ATTENTION_MODE__SPARSE;
    q->has_allow_full = q->allow_full = allow_full;
    return allow_full && !full ? "--allow-full goes with --attention full" : NULL;
}

struct progress {
    bool quiet, terminal;
    bool bar; /* one is drawn, its line has no end yet */
    struct notice notice;
    uint64_t line_us; /* when the last line was written */
    int tenths;       /* that it told */
};

static void bar_end(struct progress *p)
{
    if (p->bar)
        fputc('\n', stderr);
    p->bar = false;
}

/* A bar on a terminal, lines elsewhere; what the loading waits for is a line of its own. */
static void show_progress(struct progress *p, const Dk__StatusReply *r)
{
    double done = r->load ? (double)r->load->bytes_done : 0, total = r->load ? (double)r->load->bytes_total : 0;
    int filled = total > 0 && done <= total ? (int)(30 * done / total) : 0;

    if (p->quiet || r->state == DK__CLUSTER_STATE__FAILED)
        return;
    if (r->error && r->error->text && notice_changed(&p->notice, r->error->text)) {
        bar_end(p);
        fprintf(stderr, "waiting: %s\n", r->error->text);
    }
    if (!(total > 0))
        return;
    if (p->terminal) {
        fprintf(stderr, "\rloading [%.*s%*s] %.1f of %.1f MB ", filled, "##############################", 30 - filled,
                "", done / 1e6, total / 1e6);
        p->bar = true;
    } else if (filled / 3 > p->tenths && dk_now_us() - p->line_us > LINE_US) {
        fprintf(stderr, "loading: %.1f of %.1f MB\n", done / 1e6, total / 1e6);
        p->tenths = filled / 3;
        p->line_us = dk_now_us();
    }
}

int wait_until_ready(struct dk_rpc_client *c, bool quiet, int (*alive)(void *ctx, struct dk_err *err), void *ctx,
                     struct dk_err *err)
{
    struct progress p = {.quiet = quiet, .terminal = isatty(2), .line_us = dk_now_us()};
    int rc;

    if (!quiet && !p.terminal)
        fprintf(stderr, "loading the model\n");
    for (;;) {
        Dk__StatusRequest q = DK__STATUS_REQUEST__INIT;
        ProtobufCMessage *m;
        Dk__StatusReply *r;
        Dk__ClusterState state;

        q.has_wait_ms = q.has_unlike = true;
        q.wait_ms = 100;
        q.unlike = DK__CLUSTER_STATE__LOADING;
        rc = client_call(c, "GetStatus", &q.base, 5000, &m, err);
        if (rc < 0)
            break;
        r = (Dk__StatusReply *)m;
        state = r->state;
        show_progress(&p, r);
        if (state == DK__CLUSTER_STATE__FAILED)
            rc = dk_err_set(err, r->error ? dk_errno_from_code(r->error->code) : -EIO, "the model cannot be loaded: %s",
                            r->error && r->error->text ? r->error->text : "no reason given");
        protobuf_c_message_free_unpacked(m, NULL);
        if (rc < 0 || state == DK__CLUSTER_STATE__READY)
            break;
        rc = alive ? alive(ctx, err) : interrupted ? dk_err_set(err, -EINTR, "interrupted") : 0;
        if (rc < 0)
            break;
    }
    bar_end(&p);
    return rc;
}

static int run(const struct verb *self, int argc, char **argv)
{
    struct load_settings s;
    Dk__LoadRequest q = DK__LOAD_REQUEST__INIT;
    struct dk_rpc_client *client = NULL;
    ProtobufCMessage *m;
    struct dk_err err = {0};
    char path[PATH_MAX];
    const char *defect;
    int rc = verb_begin(self, &s, sizeof s, argc, argv, NULL, 0, NULL);

    if (rc >= 0)
        return rc;
    if (!s.model)
        return verb_usage(self, "--model DIR is needed");
    defect = attention_set(&q, s.attention, s.allow_full);
    if (defect)
        return verb_usage(self, defect);
    q.model_dir = realpath(s.model, path) ? path : (char *)(uintptr_t)s.model; /* may exist on the worker's host only */
    if (q.model_dir[0] != '/') {
        dk_err_set(&err, -errno, "--model %s: %s; a folder that only the cluster's hosts see needs its absolute path",
                   s.model, strerror(errno));
        return verb_fail(s.common.json, &err);
    }
    q.has_tp = s.tp != 0;
    q.tp = s.tp;
    q.has_multiple_of = true;
    q.multiple_of = s.multiple_of;
    q.has_context = s.context != 0;
    q.context = s.context;
    q.backend = (char *)(uintptr_t)s.backend;
    rc = target_open(&s.common, &client, &err);
    if (rc == 0)
        rc = client_call(client, "Load", &q.base, 30000, &m, &err);
    if (rc == 0) {
        protobuf_c_message_free_unpacked(m, NULL);
        if (!s.no_wait)
            rc = wait_until_ready(client, s.common.json, NULL, NULL, &err);
    }
    dk_rpc_client_close(client);
    if (rc < 0)
        return verb_fail(s.common.json, &err);
    if (s.common.json)
        print_json(json_pack("{s:s,s:b}", "model", q.model_dir, "ready", !s.no_wait));
    else
        fprintf(stderr, "%s\n", s.no_wait ? "loading" : "ready");
    return EXIT_DONE;
}

const struct verb verb_load = {
    .name = "load",
    .arguments = "--model DIR [OPTION ...]",
    .summary = "Make a running cluster load a model, and wait until it is ready.",
    .options = options,
    .defaults = &defaults,
    .run = run,
    .details = "Models with an indexer (DeepSeek-V3.2) attend to the index_topk positions that it selects. With\n"
               "--attention full they attend to all of them: the same up to index_topk positions, where such a\n"
               "load ends; --allow-full lets it go on, to compare.",
};
