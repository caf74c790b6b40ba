/* SPDX-License-Identifier: Apache-2.0 */
#include "duckctl/processes.h"

#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "duckctl/duckctl.h"

#define ARGS_MAX     64
#define TERM_WAIT_US 5000000u

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

static int program_path(const char *program, char *out, size_t size, struct dk_err *err)
{
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

    if (n < 0)
        return dk_err_set(err, -errno, "/proc/self/exe: %s", strerror(errno));
    self[n] = 0;
    if (snprintf(out, size, "%s/%s", dirname(self), program) >= (int)size || access(out, X_OK) < 0)
        return dk_err_set(err, -ENOENT,
                          "%s is not there: build the whole project, or install all its programs together", out);
    return 0;
}

/* In the child: never returns. */
static void become(const char *const *argv, const char *log, const char *dir, int recorded)
{
    char go;
    int out = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600), in = open("/dev/null", O_RDONLY);

    /* Nothing runs that is not in the record: if duckctl is killed before that, the pipe ends and so do we. */
    if (read(recorded, &go, 1) != 1)
        _exit(1);
    setsid();
    dup2(in, 0);
    dup2(out, 1);
    dup2(out, 2);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    /* DPDK makes its folder there: its own choice is left behind, and for ordinary users may be another user's. */
    setenv("RUNTIME_DIRECTORY", dir, 1);
    execvp(argv[0], (char *const *)(uintptr_t)argv);
    dprintf(2, "%s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

int process_start(const struct cluster_dir *d, struct cluster_record *r, const char *name, const char *program,
                  const char *netns, const char *const *argv, struct dk_err *err)
{
    const char *full[ARGS_MAX];
    char path[4096], log[128];
    struct cluster_process *p;
    int recorded[2], n = 0, rc = program_path(program, path, sizeof path, err);

    if (rc < 0)
        return rc;
    if (r->process_count == CLUSTER_PROCESSES_MAX)
        return dk_err_set(err, -ENOSPC, "too many processes");
    if (netns) {
        full[n++] = "ip";
        full[n++] = "netns";
        full[n++] = "exec";
        full[n++] = netns;
    }
    full[n++] = path;
    while (*argv && n < ARGS_MAX - 1)
        full[n++] = *argv++;
    full[n] = NULL;
    snprintf(log, sizeof log, "%s/%s.log", d->path, name);
    p = &r->processes[r->process_count];
    memset(p, 0, sizeof *p);
    dk_text_copy(p->name, sizeof p->name, name);
    if (pipe2(recorded, O_CLOEXEC) < 0)
        return dk_err_set(err, -errno, "%s: %s", program, strerror(errno));
    p->pid = fork();
    if (p->pid == 0) {
        close(recorded[1]);
        become(full, log, d->path, recorded[0]);
    }
    rc = p->pid < 0 ? dk_err_set(err, -errno, "%s: %s", program, strerror(errno)) : 0;
    close(recorded[0]);
    if (rc == 0) {
        p->started = cluster_process_started(p->pid);
        r->process_count++;
        rc = cluster_record_write(d, r, err);
    }
    if (rc == 0 && write(recorded[1], "", 1) != 1)
        rc = dk_err_set(err, -errno, "%s: %s", program, strerror(errno));
    close(recorded[1]);
    return rc;
}

static void log_tail(const struct cluster_dir *d, const char *name, char *out, size_t size)
{
    char path[128], text[400];
    const char *p;
    FILE *f;
    size_t n;

    out[0] = 0;
    snprintf(path, sizeof path, "%s/%s.log", d->path, name);
    f = fopen(path, "r");
    if (!f)
        return;
    if (fseek(f, -(long)(sizeof text - 1), SEEK_END) < 0)
        rewind(f);
    n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    while (n && text[n - 1] == '\n')
        n--;
    text[n] = 0;
    p = strrchr(text, '\n');
    dk_text_copy(out, size, p ? p + 1 : text);
}

/* As who may repair it: the caller's arguments, the host (a port, memory, permissions), or the program. */
static int rc_of_end(int status)
{
    if (WIFSIGNALED(status))
        return -ECHILD;
    return WEXITSTATUS(status) == EXIT_USAGE ? USAGE_ERROR : -EBUSY;
}

int processes_check(const struct cluster_dir *d, const struct cluster_record *r, struct dk_err *err)
{
    for (unsigned i = 0; i < r->process_count; i++) {
        char tail[300];
        int status;

        if (waitpid(r->processes[i].pid, &status, WNOHANG) != r->processes[i].pid)
            continue;
        log_tail(d, r->processes[i].name, tail, sizeof tail);
        return dk_err_set(err, rc_of_end(status), "%s ended with %s %d: %s", r->processes[i].name,
                          WIFSIGNALED(status) ? "signal" : "exit code",
                          WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), tail);
    }
    return 0;
}

/* Reaps it when it is our child; a cluster's processes usually are not. */
static bool gone(const struct cluster_process *p)
{
    waitpid(p->pid, NULL, WNOHANG);
    return !cluster_process_alive(p);
}

static void wait_gone(const struct cluster_record *r, unsigned first, uint64_t wait_us)
{
    uint64_t end_us = dk_now_us() + wait_us;

    for (unsigned i = first; i < r->process_count; i++)
        while (!gone(&r->processes[i]) && dk_now_us() < end_us)
            nap();
}

int processes_stop(const struct cluster_record *r)
{
    int killed = 0;

    /* The coordinator is the first of the record: the others still say goodbye to it. */
    for (unsigned i = 1; i < r->process_count; i++)
        if (cluster_process_alive(&r->processes[i]))
            kill(r->processes[i].pid, SIGTERM);
    wait_gone(r, 1, TERM_WAIT_US);
    if (r->process_count && cluster_process_alive(&r->processes[0]))
        kill(r->processes[0].pid, SIGTERM);
    wait_gone(r, 0, TERM_WAIT_US);
    for (unsigned i = 0; i < r->process_count; i++)
        if (cluster_process_alive(&r->processes[i])) {
            kill(r->processes[i].pid, SIGKILL);
            killed++;
        }
    wait_gone(r, 0, TERM_WAIT_US);
    return killed;
}

int command_run(struct dk_err *err, const char *const *argv)
{
    char text[300] = "";
    int pipe_fds[2], status;
    size_t used = 0;
    ssize_t n;
    pid_t pid;

    if (pipe2(pipe_fds, O_CLOEXEC) < 0 || (pid = fork()) < 0)
        return dk_err_set(err, -errno, "%s: %s", argv[0], strerror(errno));
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setpgid(0, 0); /* Ctrl-C is for us: what was begun here is finished, above all when it tidies up */
        dup2(pipe_fds[1], 1);
        dup2(pipe_fds[1], 2);
        execvp(argv[0], (char *const *)(uintptr_t)argv);
        dprintf(2, "%s: %s", argv[0], strerror(errno));
        _exit(127);
    }
    close(pipe_fds[1]);
    while (used < sizeof text - 1 && (n = read(pipe_fds[0], text + used, sizeof text - 1 - used)) > 0)
        used += (size_t)n;
    close(pipe_fds[0]);
    text[used] = 0;
    while (used && text[used - 1] == '\n')
        text[--used] = 0;
    if (waitpid(pid, &status, 0) < 0 || !WIFEXITED(status) || WEXITSTATUS(status))
        return dk_err_set(err, -EIO, "`%s %s %s ...` failed: %s", argv[0], argv[1], argv[2], text);
    return 0;
}
