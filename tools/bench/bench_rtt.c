/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/options.h"
#include "bench_link.h"
#include "net_namespace.h"

/* Round-trip times between a worker and its ducks, each a process of its own, over each kind of port: one request of
 * --bytes to each duck and a response of as many bytes from each, until the last has come. Prints, asserts nothing. */

struct settings {
    const char *port;
    uint32_t bytes, rounds, ducks, pause_us;
    bool help;
};

static const struct dk_option options[] = {
    {"port", DK_OPT_TEXT, offsetof(struct settings, port), "KIND", "which ports to measure", 0, 0,
     "all|vhost|af_packet", NULL},
    {"bytes", DK_OPT_U32, offsetof(struct settings, bytes), "N", "bytes of each request and response", 1, 4194304, NULL,
     NULL},
    {"rounds", DK_OPT_U32, offsetof(struct settings, rounds), "N", "measured round trips per line", 10, 10000000, NULL,
     NULL},
    {"ducks", DK_OPT_U32, offsetof(struct settings, ducks), "N", "ducks of the fan-out lines", 1, BENCH_DUCKS_MAX, NULL,
     NULL},
    {"pause-us", DK_OPT_U32, offsetof(struct settings, pause_us), "N",
     "microseconds between the rounds of the asleep lines", 1, 1000000, NULL, NULL},
    {"help", DK_OPT_FLAG, offsetof(struct settings, help), NULL, "show this", 0, 0, NULL, NULL},
    {NULL, 0, 0, NULL, NULL, 0, 0, NULL, NULL},
};

/* ---- processes ----------------------------------------------------------------------------------------------- */

struct process {
    pid_t pid;
    int to, from;
};

/* index BENCH_DUCKS_MAX: the worker. In a namespace the process waits for its cable before it starts. */
static int body(const struct bench_case *c, uint32_t index, int in, int out)
{
    char byte = 'n';

    if (c->interface && (net_namespace_split() < 0 || write(out, &byte, 1) != 1 || read(in, &byte, 1) != 1 ||
                         net_namespace_up(c->interface) < 0))
        return 9;
    return index == BENCH_DUCKS_MAX ? bench_worker(c, in, out) : bench_duck(c, index, in, out);
}

static int process_start(struct process *p, const struct bench_case *c, uint32_t index, uint32_t mtu)
{
    int down[2], up[2];
    char byte;

    if (pipe2(down, O_CLOEXEC) < 0 || pipe2(up, O_CLOEXEC) < 0)
        return -errno;
    fflush(NULL);
    p->pid = fork();
    if (p->pid < 0)
        return -errno;
    if (p->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(down[1]);
        close(up[0]);
        _exit(body(c, index, down[0], up[1]));
    }
    close(down[0]);
    close(up[1]);
    p->to = down[1];
    p->from = up[0];
    if (!c->interface)
        return 0;
    if (read(p->from, &byte, 1) != 1 ||
        net_namespace_cable_add("br0", index, p->pid, c->interface,
                                (uint8_t)(index == BENCH_DUCKS_MAX ? 1 : 0x10 + index), mtu) < 0 ||
        write(p->to, &byte, 1) != 1)
        return -EIO;
    return 0;
}

static void process_end(struct process *p, bool failed)
{
    if (p->pid <= 0)
        return;
    if (failed)
        kill(p->pid, SIGKILL);
    close(p->to);
    close(p->from);
    waitpid(p->pid, NULL, 0);
}

/* Runs one case: worker and ducks, each tells its address, gets the others', and the worker's result comes back. */
static int case_run(const struct bench_case *c, uint32_t mtu, struct bench_result *r)
{
    struct process worker = {0}, ducks[BENCH_DUCKS_MAX] = {0};
    struct dk_addr worker_addr, duck_addr[BENCH_DUCKS_MAX];
    const ssize_t all = (ssize_t)(c->ducks * sizeof duck_addr[0]);
    int rc;

    if (c->interface && net_namespace_bridge_add("br0", mtu) < 0)
        return -EIO;
    rc = process_start(&worker, c, BENCH_DUCKS_MAX, mtu);
    for (uint32_t i = 0; i < c->ducks && rc == 0; i++)
        rc = process_start(&ducks[i], c, i, mtu);
    if (rc == 0 && read(worker.from, &worker_addr, sizeof worker_addr) != sizeof worker_addr)
        rc = -EPIPE;
    for (uint32_t i = 0; i < c->ducks && rc == 0; i++)
        if (read(ducks[i].from, &duck_addr[i], sizeof duck_addr[i]) != sizeof duck_addr[i] ||
            write(ducks[i].to, &worker_addr, sizeof worker_addr) != sizeof worker_addr)
            rc = -EPIPE;
    if (rc == 0 && (write(worker.to, duck_addr, (size_t)all) != all || read(worker.from, r, sizeof *r) != sizeof *r))
        rc = -EPIPE;
    if (rc == 0)
        rc = r->rc;
    for (uint32_t i = 0; i < c->ducks; i++)
        process_end(&ducks[i], rc < 0);
    process_end(&worker, rc < 0);
    if (c->interface)
        net_namespace_bridge_remove("br0");
    return rc;
}

/* ---- table --------------------------------------------------------------------------------------------------- */

static int line(const struct bench_case *c, const char *what, uint32_t mtu)
{
    struct bench_result r = {0};
    int rc = case_run(c, mtu, &r);

    if (rc < 0) {
        printf("%-26s %-9s failed: %s\n", what, c->raw ? "frames" : "messages", strerror(-rc));
        return rc;
    }
    printf("%-26s %-9s %-6s %5u %7u %9.1f %9.1f %9.1f %8llu %7llu\n", what, c->raw ? "frames" : "messages",
           c->pause_us ? "asleep" : (c->busy ? "busy" : "yield"), c->ducks, c->bytes, r.least_us, r.median_us, r.p99_us,
           (unsigned long long)r.parks, (unsigned long long)(r.retransmitted + r.send_full));
    fflush(stdout);
    return 0;
}

/* All lines of one kind of port. */
static int lines(const struct settings *s, const char *what, const char *dir, const char *interface, uint32_t mtu)
{
    const struct bench_case base = {
        .dir = dir, .interface = interface, .ducks = 1, .bytes = s->bytes, .rounds = s->rounds};
    int rc = 0;

    for (int i = 0; i < 5; i++) {
        struct bench_case c = base;

        c.raw = i == 0;
        c.busy = i == 2;
        if (i == 3)
            c.ducks = s->ducks;
        if (i == 4) {
            c.pause_us = s->pause_us;
            c.rounds = s->rounds / 10 + 1;
        }
        if (c.raw && c.bytes + 14 > mtu)
            c.bytes = mtu - 14;
        if (line(&c, what, mtu) < 0)
            rc = -EIO;
    }
    return rc;
}

/* In a process of its own, because it leaves the network of the others. */
static int af_packet_lines(const struct settings *s, const char *dir)
{
    int status;
    pid_t pid;

    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (net_namespace_enter() < 0) {
            printf("af_packet: not measured: this user may not make network namespaces\n");
            fflush(stdout);
            _exit(0);
        }
        status = lines(s, "af_packet veth, mtu 9000", dir, "dk0", 9000) < 0;
        status |= lines(s, "af_packet veth, mtu 1500", dir, "dk0", 1500) < 0;
        fflush(stdout);
        _exit(status);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -EIO;
}

int main(int argc, char **argv)
{
    const struct settings defaults = {.port = "all", .bytes = 8192, .rounds = 5000, .ducks = 4, .pause_us = 1000};
    struct settings s = defaults;
    char dir[] = "/tmp/bench_rtt-XXXXXX";
    struct dk_err err = {0};
    int rc = 0, count;

    if (dk_options_parse(options, &s, argc - 1, argv + 1, NULL, 0, &count, &err) < 0) {
        fprintf(stderr, "bench_rtt: %s\n", err.text);
        return 2;
    }
    if (s.help) {
        printf("bench_rtt: round-trip times of the data plane\n\n");
        dk_options_help(options, &defaults, stdout);
        return 0;
    }
    dk_log_setup(NULL, NULL, DK_LOG_ERROR, "bench_rtt");
    if (!mkdtemp(dir)) {
        fprintf(stderr, "bench_rtt: %s: %s\n", dir, strerror(errno));
        return 1;
    }
    printf("%-26s %-9s %-6s %5s %7s %9s %9s %9s %8s %7s\n", "port", "what", "wait", "ducks", "bytes", "least us",
           "median us", "p99 us", "parks", "repeats");
    if (strcmp(s.port, "af_packet"))
        rc = lines(&s, "vhost + virtio_user", dir, NULL, 9000);
    if (strcmp(s.port, "vhost") && af_packet_lines(&s, dir) < 0)
        rc = -EIO;
    (void)rmdir(dir);
    return rc < 0;
}
