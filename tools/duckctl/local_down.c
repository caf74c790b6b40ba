/* SPDX-License-Identifier: Apache-2.0 */
/* duckctl local down and list. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "duckctl/cluster_dir.h"
#include "duckctl/duckctl.h"
#include "duckctl/namespaces.h"
#include "duckctl/processes.h"

struct down_settings {
    struct common_settings common;
    bool all;
};

static const struct down_settings defaults = {COMMON_DEFAULTS};

static const struct dk_option down_options[] = {
    {"all", DK_OPT_FLAG, offsetof(struct down_settings, all), NULL, "end every local cluster of this user", 0, 0, NULL,
     NULL},
    COMMON_OPTIONS(struct down_settings),
    {0},
};

static const struct dk_option list_options[] = {COMMON_OPTIONS(struct down_settings), {0}};

/* Calls fn for each cluster folder of this user. */
static void each_cluster(void (*fn)(void *ctx, const struct cluster_dir *d), void *ctx)
{
    struct cluster_dir any, d;
    struct dirent *e;
    DIR *dir;

    if (cluster_dir_name(&any, "default", NULL) < 0 || !(dir = opendir(any.base)))
        return;
    while ((e = readdir(dir)))
        if (e->d_name[0] != '.' && cluster_dir_name(&d, e->d_name, NULL) == 0)
            fn(ctx, &d);
    closedir(dir);
}

static int down(const struct cluster_dir *d, int *killed, struct dk_err *err)
{
    struct cluster_record r;
    int rc = cluster_record_read(d, &r, err);

    if (rc < 0)
        return rc;
    *killed = processes_stop(&r);
    if (r.namespaces)
        namespaces_remove(r.network, r.namespaces);
    cluster_dir_remove(d);
    return 0;
}

struct ended {
    int ended, killed;
    struct dk_err err; /* of the last cluster that could not be ended */
};

static void down_each(void *ctx, const struct cluster_dir *d)
{
    struct ended *e = ctx;
    struct dk_err err;
    int killed, rc = down(d, &killed, &err);

    if (rc == 0) {
        e->ended++;
        e->killed += killed;
    } else if (rc != -ENOENT) {
        e->err = err;
    }
}

static int run_down(const struct verb *self, int argc, char **argv)
{
    struct down_settings s;
    struct cluster_dir d;
    struct ended e = {0};
    int rc = verb_begin(self, &s, sizeof s, argc, argv, NULL, 0, NULL);

    if (rc >= 0)
        return rc;
    if (s.all)
        each_cluster(down_each, &e);
    else if (cluster_dir_name(&d, s.common.name, &e.err) == 0 && down(&d, &e.killed, &e.err) == 0)
        e.ended = 1;
    if (e.err.rc < 0)
        return verb_fail(s.common.json, &e.err);
    if (s.common.json)
        print_json(json_pack("{s:i,s:i}", "ended", e.ended, "killed", e.killed));
    else
        fprintf(stderr, "%d cluster%s ended%s\n", e.ended, e.ended == 1 ? "" : "s",
                e.killed ? "; some processes did not answer SIGTERM and were killed" : "");
    return EXIT_DONE;
}

static void list_each(void *ctx, const struct cluster_dir *d)
{
    json_t *list = ctx;
    struct cluster_record r;
    unsigned alive = 0;

    if (cluster_record_read(d, &r, NULL) < 0)
        return;
    for (unsigned i = 0; i < r.process_count; i++)
        alive += cluster_process_alive(&r.processes[i]);
    json_array_append_new(list, json_pack("{s:s,s:s,s:s,s:i,s:i}", "name", d->name, "coordinator", r.url, "dir",
                                          d->path, "processes", (int)r.process_count, "alive", (int)alive));
}

static int run_list(const struct verb *self, int argc, char **argv)
{
    struct down_settings s;
    json_t *list, *item;
    size_t i;
    int rc = verb_begin(self, &s, sizeof s, argc, argv, NULL, 0, NULL);

    if (rc >= 0)
        return rc;
    list = json_array();
    each_cluster(list_each, list);
    if (s.common.json) {
        print_json(json_pack("{s:o}", "clusters", list));
        return EXIT_DONE;
    }
    if (!json_array_size(list))
        printf("no local clusters\n");
    json_array_foreach(list, i, item)
        printf("%-20s %lld of %lld processes alive  %s\n", json_string_value(json_object_get(item, "name")),
               (long long)json_integer_value(json_object_get(item, "alive")),
               (long long)json_integer_value(json_object_get(item, "processes")),
               json_string_value(json_object_get(item, "coordinator")));
    json_decref(list);
    return EXIT_DONE;
}

const struct verb verb_local_down = {
    .group = "local",
    .name = "down",
    .arguments = "[--name NAME | --all] [OPTION ...]",
    .summary = "End a cluster on this host and remove everything it made.",
    .options = down_options,
    .defaults = &defaults,
    .run = run_down,
};

const struct verb verb_local_list = {
    .group = "local",
    .name = "list",
    .arguments = "[--json]",
    .summary = "List this user's clusters on this host.",
    .options = list_options,
    .defaults = &defaults,
    .run = run_list,
};
