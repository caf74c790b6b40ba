/* SPDX-License-Identifier: Apache-2.0 */
#include "duckctl/cluster_dir.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "duckctl/duckctl.h"
#include "duckctl/namespaces.h"

#define LOCK_NAME "up.lock"

int cluster_dir_name(struct cluster_dir *d, const char *name, struct dk_err *err)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    struct stat st;
    size_t n = strlen(name);

    memset(d, 0, sizeof *d);
    for (const char *p = name; *p; p++)
        if (!isalnum((unsigned char)*p) && *p != '-' && *p != '_')
            n = 0;
    if (n < 1 || n > 20)
        return dk_err_set(err, USAGE_ERROR, "--name '%s': 1 to 20 letters, digits, '-' and '_'", name);
    dk_text_copy(d->name, sizeof d->name, name);
    if (runtime && runtime[0] == '/' && strlen(runtime) < 32 && stat(runtime, &st) == 0 && st.st_uid == getuid())
        snprintf(d->base, sizeof d->base, "%.32s/duckllm", runtime);
    else
        snprintf(d->base, sizeof d->base, "/tmp/duckllm-%u", (unsigned)getuid());
    snprintf(d->path, sizeof d->path, "%.40s/%.20s", d->base, d->name);
    return 0;
}

/* The base folder must be ours alone: its sockets carry no passwords. */
static int base_create(const struct cluster_dir *d, struct dk_err *err)
{
    struct stat st;

    if (mkdir(d->base, 0700) < 0 && errno != EEXIST)
        return dk_err_set(err, -errno, "%s: %s", d->base, strerror(errno));
    if (lstat(d->base, &st) < 0 || !S_ISDIR(st.st_mode) || st.st_uid != getuid() || (st.st_mode & 077))
        return dk_err_set(err, -EPERM,
                          "%s must be a folder that belongs to you and that nobody else may enter: remove it", d->base);
    return 0;
}

static void remove_contents(const char *path, const char *but)
{
    DIR *dir = opendir(path);
    struct dirent *e;

    while (dir && (e = readdir(dir))) {
        char file[400];

        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") || (but && !strcmp(e->d_name, but)))
            continue;
        snprintf(file, sizeof file, "%s/%s", path, e->d_name);
        if (unlink(file) < 0 && errno == EISDIR) {
            remove_contents(file, NULL);
            rmdir(file);
        }
    }
    if (dir)
        closedir(dir);
}

void cluster_dir_remove(const struct cluster_dir *d)
{
    remove_contents(d->path, NULL);
    rmdir(d->path);
    rmdir(d->base); /* goes only when it is empty */
}

/* A file of its own: the cluster's programs lock the folder itself. -EEXIST: another `up` has it, or has just removed
 * the folder with it. */
static int lock_take(const struct cluster_dir *d, int *lock, struct dk_err *err)
{
    char path[96];
    struct stat st;

    snprintf(path, sizeof path, "%s/" LOCK_NAME, d->path);
    *lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (*lock < 0)
        return dk_err_set(err, -errno, "%s: %s", path, strerror(errno));
    if (flock(*lock, LOCK_EX | LOCK_NB) == 0 && fstat(*lock, &st) == 0 && st.st_nlink)
        return 0;
    close(*lock);
    return dk_err_set(err, -EEXIST, "cluster '%s' is being started by another duckctl", d->name);
}

int cluster_dir_create(struct cluster_dir *d, int *lock, struct dk_err *err)
{
    struct cluster_record r;
    int rc = base_create(d, err);

    if (rc < 0)
        return rc;
    if (mkdir(d->path, 0700) < 0 && errno != EEXIST)
        return dk_err_set(err, -errno, "%s: %s", d->path, strerror(errno));
    rc = lock_take(d, lock, err);
    if (rc < 0)
        return rc;
    rc = cluster_record_read(d, &r, err);
    if (rc < 0 && rc != -ENOENT) {
        close(*lock);
        return rc;
    }
    for (unsigned i = 0; i < r.process_count; i++)
        if (cluster_process_alive(&r.processes[i])) {
            close(*lock);
            return dk_err_set(err, -EEXIST,
                              "cluster '%s' is running (%s, pid %d): `duckctl local down --name %s` ends it, or "
                              "choose another --name",
                              d->name, r.processes[i].name, (int)r.processes[i].pid, d->name);
        }
    if (r.namespaces)
        namespaces_remove(r.network, r.namespaces);
    remove_contents(d->path, LOCK_NAME);
    return 0;
}

unsigned long long cluster_process_started(pid_t pid)
{
    unsigned long long started = 0;
    char path[64], text[1024], *p;
    FILE *f;
    size_t n;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    f = fopen(path, "r");
    if (!f)
        return 0;
    n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    p = strrchr(text, ')'); /* the name in parentheses may contain anything */
    if (!p || p[2] == 'Z')
        return 0;
    p++;
    for (int field = 3; field < 22 && p; field++)
        p = strchr(p + 1, ' ');
    if (p)
        sscanf(p, " %llu", &started);
    return started;
}

bool cluster_process_alive(const struct cluster_process *p)
{
    return p->pid > 0 && p->started && cluster_process_started(p->pid) == p->started;
}

int cluster_record_write(const struct cluster_dir *d, const struct cluster_record *r, struct dk_err *err)
{
    json_t *list = json_array(), *root;
    char path[96], fresh[96];
    int rc;

    for (unsigned i = 0; i < r->process_count; i++)
        json_array_append_new(list,
                              json_pack("{s:s,s:i,s:I}", "name", r->processes[i].name, "pid", (int)r->processes[i].pid,
                                        "started", (json_int_t)r->processes[i].started));
    root = json_pack("{s:s,s:i,s:s,s:o}", "coordinator", r->url, "namespaces", (int)r->namespaces, "network",
                     r->network, "processes", list);
    snprintf(path, sizeof path, "%s/cluster.json", d->path);
    snprintf(fresh, sizeof fresh, "%s/cluster.new", d->path);
    rc = root ? json_dump_file(root, fresh, JSON_INDENT(1)) : -1;
    if (rc == 0)
        rc = rename(fresh, path); /* a reader sees the old one or the new one */
    json_decref(root);
    return rc < 0 ? dk_err_set(err, -EIO, "%s cannot be written", path) : 0;
}

static bool process_unpack(json_t *item, struct cluster_process *p)
{
    const char *name;
    json_int_t pid, started;

    if (json_unpack(item, "{s:s,s:I,s:I}", "name", &name, "pid", &pid, "started", &started) < 0 || pid < 1 ||
        pid > INT_MAX || started < 0 || !dk_text_copy(p->name, sizeof p->name, name))
        return false;
    p->pid = (pid_t)pid;
    p->started = (unsigned long long)started;
    return true;
}

/* The network's name becomes an argument of `ip netns del`: only a name that we make is taken. */
static bool network_ok(const struct cluster_record *r)
{
    size_t n = strlen(r->network);

    return !r->namespaces ||
           (n > 3 && !strncmp(r->network, "dk-", 3) &&
            strspn(r->network, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == n);
}

static bool record_unpack(json_t *root, struct cluster_record *r)
{
    const char *url, *network;
    json_t *list, *item;
    int namespaces;
    size_t i;

    if (json_unpack(root, "{s:s,s:i,s:s,s:o}", "coordinator", &url, "namespaces", &namespaces, "network", &network,
                    "processes", &list) < 0 ||
        !dk_text_copy(r->url, sizeof r->url, url) || !dk_text_copy(r->network, sizeof r->network, network) ||
        namespaces < 0 || namespaces > (int)CLUSTER_PROCESSES_MAX || !json_is_array(list) ||
        json_array_size(list) > CLUSTER_PROCESSES_MAX)
        return false;
    r->namespaces = (unsigned)namespaces;
    json_array_foreach(list, i, item)
    {
        if (!process_unpack(item, &r->processes[i]))
            return false;
        r->process_count++;
    }
    return network_ok(r);
}

int cluster_record_read(const struct cluster_dir *d, struct cluster_record *r, struct dk_err *err)
{
    char path[96];
    json_t *root;
    FILE *f;
    int rc = 0;

    memset(r, 0, sizeof *r);
    snprintf(path, sizeof path, "%s/cluster.json", d->path);
    f = fopen(path, "r");
    if (!f && errno != ENOENT && errno != ENOTDIR)
        return dk_err_set(err, -errno, "%s: %s", path, strerror(errno));
    if (!f)
        return dk_err_set(err, -ENOENT,
                          "there is no cluster '%s' on this host: `duckctl local up --name %s --model DIR` "
                          "starts one, --coordinator URL reaches others",
                          d->name, d->name);
    root = json_loadf(f, JSON_REJECT_DUPLICATES, NULL);
    fclose(f);
    if (!root || !record_unpack(root, r)) {
        memset(r, 0, sizeof *r);
        rc = dk_err_set(err, -EINVAL, "%s is damaged: end the cluster's processes and remove %s", path, d->path);
    }
    json_decref(root);
    return rc;
}
