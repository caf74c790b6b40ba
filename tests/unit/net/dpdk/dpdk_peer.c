/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "dpdk_peer.h"

static const struct dk_net_ops *const net_ops = &dk_net_dpdk;

enum { FRAME_LEAST = 60, FRAME_MOST = 9014, UNDER_WAY = 16, HANG_US = 20000000 };

/* ---- frames -------------------------------------------------------------------------------------------------- */

static uint8_t pattern(uint32_t number, uint32_t at)
{
    return (uint8_t)(number * 31 + at * 7 + (at >> 8));
}

/* The worker's address ends with 01, a duck's with 10 + its index. */
static uint8_t own_place;

/* An experimental ether type (IEEE 802, local experiments), the frame's number and length, then a pattern. */
void peer_frame_fill(struct dk_frame *f, uint32_t number, uint32_t bytes)
{
    memset(f->data, 0, 12);
    f->data[0] = f->data[6] = 0x02;
    f->data[5] = 0x01;
    f->data[11] = own_place;
    f->data[12] = 0x88;
    f->data[13] = 0xb5;
    memcpy(f->data + 14, &number, 4);
    memcpy(f->data + 18, &bytes, 4);
    for (uint32_t i = 22; i < bytes; i++)
        f->data[i] = pattern(number, i);
    f->bytes = bytes;
}

static void addresses_swap(struct dk_frame *f)
{
    uint8_t to[6];

    memcpy(to, f->data, 6);
    memcpy(f->data, f->data + 6, 6);
    memcpy(f->data + 6, to, 6);
}

static bool is_test_frame(const struct dk_frame *f)
{
    return f->bytes >= 22 && f->data[12] == 0x88 && f->data[13] == 0xb5;
}

bool peer_frame_good(const struct dk_frame *f)
{
    uint32_t number, bytes;

    if (f->bytes < 22)
        return false;
    memcpy(&number, f->data + 14, 4);
    memcpy(&bytes, f->data + 18, 4);
    if (bytes != f->bytes)
        return false;
    for (uint32_t i = 22; i < bytes; i++)
        if (f->data[i] != pattern(number, i))
            return false;
    return true;
}

static uint32_t size_of(uint32_t number, uint32_t most)
{
    return FRAME_LEAST + number % (most - FRAME_LEAST + 1);
}

/* ---- processes ----------------------------------------------------------------------------------------------- */

struct peer peer_start(peer_main *main, const struct peer_config *c)
{
    struct peer p = {-1, -1, -1};
    int down[2], up[2];

    if (pipe2(down, O_CLOEXEC) < 0 || pipe2(up, O_CLOEXEC) < 0)
        return p;
    fflush(NULL);
    p.pid = fork();
    if (p.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(down[1]);
        close(up[0]);
        _exit(main(c, down[0], up[1]));
    }
    close(down[0]);
    close(up[1]);
    p.to = down[1];
    p.from = up[0];
    return p;
}

int peer_expect(struct peer *p, char byte)
{
    char got;

    do {
        if (read(p->from, &got, 1) != 1)
            return -EPIPE;
    } while (got != byte);
    return 0;
}

/* The process has ended or will: its exit status as an errno-like number. */
static int peer_reap(struct peer *p)
{
    int status;

    close(p->to);
    close(p->from);
    if (waitpid(p->pid, &status, 0) != p->pid)
        return -ECHILD;
    if (WIFSIGNALED(status))
        return -1000 - WTERMSIG(status);
    return -WEXITSTATUS(status);
}

int peer_stop(struct peer *p, struct peer_report *r)
{
    int rc = 0;

    (void)!write(p->to, "q", 1);
    if (peer_expect(p, 'R') < 0 || read(p->from, r, sizeof *r) != sizeof *r)
        rc = -EPIPE;
    else
        rc = r->rc;
    if (rc)
        (void)peer_reap(p);
    else
        rc = peer_reap(p);
    return rc;
}

void peer_kill(struct peer *p)
{
    kill(p->pid, SIGKILL);
    (void)peer_reap(p);
}

bool peer_told(int in)
{
    struct pollfd fd = {.fd = in, .events = POLLIN};

    return poll(&fd, 1, 0) > 0;
}

int peer_report_send(int out, const struct peer_report *r)
{
    return write(out, "R", 1) == 1 && write(out, r, sizeof *r) == sizeof *r ? 0 : 1;
}

/* ---- bodies -------------------------------------------------------------------------------------------------- */

static void complain(const char *who, const struct dk_err *err)
{
    fprintf(stderr, "%s (process %ld): %s\n", who, (long)getpid(), err->text);
}

int peer_open(const struct peer_config *c, struct dk_net **net)
{
    const struct dk_net_config config = {
        .name = c->name,
        .run_dir = c->dir,
        .ports_max = c->ports ? c->ports : 1,
        .frame_bytes = FRAME_MOST,
        .faults = c->faults,
    };
    struct dk_err err = {0};
    int rc = net_ops->open(&config, net, &err);

    if (rc < 0)
        complain("open", &err);
    return rc;
}

int peer_port_add(struct dk_net *net, const struct peer_config *c, bool worker, uint32_t index, uint32_t *port,
                  uint8_t mac[6], uint32_t *mtu)
{
    struct dk_port_spec spec = {.kind = worker ? DK_PORT_VHOST : DK_PORT_VIRTIO_USER, .bell_index = index};
    uint64_t give_up_us = dk_now_us() + HANG_US;
    struct dk_err err = {0};
    int rc;

    if (c->interface) {
        spec.kind = DK_PORT_AF_PACKET;
        snprintf(spec.path, sizeof spec.path, "%s", c->interface);
    } else {
        snprintf(spec.path, sizeof spec.path, "%s/%u", c->dir, index);
        snprintf(spec.bell_path, sizeof spec.bell_path, "%s/bell", c->dir);
    }
    do {
        rc = net_ops->port_add(net, &spec, port, mac, mtu, &err);
        if (rc == -ENOENT)
            usleep(2000);
    } while (rc == -ENOENT && dk_now_us() < give_up_us);
    if (rc < 0)
        complain("port_add", &err);
    return rc;
}

int peer_worker(const struct peer_config *c, int in, int out)
{
    struct peer_report r = {0};
    uint8_t other_mac[6];
    uint32_t other_mtu;
    struct dk_net *net;

    if (peer_open(c, &net) < 0)
        return 1;
    for (uint32_t i = 0, port; i < c->ports; i++) {
        struct peer_config local = *c;

        if (c->mixed && i > 0)
            local.interface = NULL;
        if (peer_port_add(net, &local, true, i, &port, i ? other_mac : r.mac, i ? &other_mtu : &r.mtu) < 0)
            return 2;
    }
    (void)!write(out, "r", 1);
    for (bool stop = false; !stop;) {
        struct dk_frame frames[32];
        uint32_t count = c->mute ? 0 : net_ops->recv(net, frames, 32);
        uint64_t now_us;

        for (uint32_t i = 0; i < count; i++) {
            if (c->interface && !is_test_frame(&frames[i])) { /* the kernel's own */
                net_ops->frame_put(net, &frames[i]);
                continue;
            }
            r.frames++;
            r.bad += !peer_frame_good(&frames[i]);
            addresses_swap(&frames[i]);
            net_ops->send(net, &frames[i]);
        }
        net_ops->flush(net);
        stop = count == 0 && peer_told(in);
        now_us = dk_now_us();
        net_ops->wait(net, count > 0, now_us, now_us + 20000);
    }
    r.counters = *net_ops->counters(net);
    net_ops->close(net);
    return peer_report_send(out, &r);
}

int peer_exchange(struct dk_net *net, uint32_t port, uint32_t first, uint32_t count, uint32_t size_most,
                  uint32_t pause_us, uint64_t quiet_us, struct peer_report *r)
{
    uint32_t sent = 0, back = 0;
    uint64_t heard_us = dk_now_us(), now_us;

    while (back < count) {
        struct dk_frame frames[32], f;
        uint32_t got;

        while (sent < count && sent - back < (pause_us ? 1 : UNDER_WAY) && net_ops->frame_get(net, &f) == 0) {
            f.port = port;
            peer_frame_fill(&f, first + sent, size_of(first + sent, size_most));
            net_ops->send(net, &f);
            sent++;
            if (pause_us)
                usleep(pause_us);
        }
        net_ops->flush(net);
        got = net_ops->recv(net, frames, 32);
        now_us = dk_now_us();
        for (uint32_t i = 0; i < got; i++) {
            uint32_t number;

            if (is_test_frame(&frames[i])) {
                memcpy(&number, frames[i].data + 14, 4);
                if (number >= first && number < first + count) { /* not a late one of an exchange before */
                    r->bad += !peer_frame_good(&frames[i]) || number != first + back;
                    r->frames++;
                    back++;
                    heard_us = now_us;
                }
            }
            net_ops->frame_put(net, &frames[i]);
        }
        if (now_us - heard_us > quiet_us)
            return -ETIMEDOUT;
        net_ops->wait(net, got > 0, now_us, now_us + 20000);
    }
    return 0;
}

static int stop_wait(int in)
{
    char byte;

    return read(in, &byte, 1) == 1 ? 0 : 3;
}

int peer_duck(const struct peer_config *c, int in, int out)
{
    struct peer_report r = {0};
    struct dk_net *net;
    uint32_t port;

    own_place = (uint8_t)(0x10 + c->index);
    if (peer_open(c, &net) < 0 || peer_port_add(net, c, false, c->index, &port, r.mac, &r.mtu) < 0)
        return 1;
    (void)!write(out, "r", 1);
    r.rc = peer_exchange(net, port, 0, c->frames, r.mtu + 14, c->pause_us, HANG_US, &r);
    (void)!write(out, "d", 1);
    if (stop_wait(in))
        return 3;
    r.counters = *net_ops->counters(net);
    net_ops->close(net);
    return peer_report_send(out, &r);
}

int peer_flood(const struct peer_config *c, int in, int out)
{
    struct peer_report r = {0};
    struct dk_net *net;
    uint32_t port;

    own_place = (uint8_t)(0x10 + c->index);
    if (peer_open(c, &net) < 0 || peer_port_add(net, c, false, c->index, &port, r.mac, &r.mtu) < 0)
        return 1;
    for (uint32_t n = 0;; n++) {
        struct dk_frame frames[32], f;
        uint32_t got = net_ops->recv(net, frames, 32);

        for (uint32_t i = 0; i < got; i++)
            net_ops->frame_put(net, &frames[i]);
        r.frames += got;
        if (net_ops->frame_get(net, &f) == 0) {
            f.port = port;
            peer_frame_fill(&f, n, size_of(n * 37, FRAME_MOST));
            net_ops->send(net, &f);
        }
        if (n % 8 == 0)
            net_ops->flush(net);
        if (r.frames > c->frames) { /* the traffic flows both ways */
            (void)!write(out, "f", 1);
            r.frames = 0;
        }
    }
}

int peer_faithful_duck(const struct peer_config *c, int in, int out)
{
    struct peer_report r = {0};
    struct dk_net *net;
    uint32_t port, first = 0;
    int rc;

    own_place = (uint8_t)(0x10 + c->index);
    if (peer_open(c, &net) < 0 || peer_port_add(net, c, false, c->index, &port, r.mac, &r.mtu) < 0)
        return 1;
    do {
        rc = peer_exchange(net, port, first, 64, FRAME_MOST, 0, 300000, &r);
        first += 64;
        if (first == 1024)
            (void)!write(out, "f", 1);
    } while (rc == 0);
    if (rc != -ETIMEDOUT)
        return 2;
    (void)!write(out, "l", 1); /* the loss was noticed */
    net_ops->port_remove(net, port);
    if (peer_port_add(net, c, false, c->index, &port, r.mac, &r.mtu) < 0)
        return 4;
    r.rc = peer_exchange(net, port, first, c->frames, FRAME_MOST, 0, HANG_US, &r);
    (void)!write(out, "d", 1);
    if (stop_wait(in))
        return 3;
    r.counters = *net_ops->counters(net);
    net_ops->close(net);
    return peer_report_send(out, &r);
}

/* ---- leftovers ----------------------------------------------------------------------------------------------- */

void peer_dir_make(char *path)
{
    snprintf(path, 64, "/tmp/dk-dpdk-XXXXXX");
    if (!mkdtemp(path))
        abort();
}

static int entries(const char *path, const char *prefix)
{
    DIR *d = opendir(path);
    struct dirent *e;
    int count = 0;

    if (!d)
        return 0;
    while ((e = readdir(d)) != NULL)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && !strncmp(e->d_name, prefix, strlen(prefix))) {
            fprintf(stderr, "left behind: %s/%s\n", path, e->d_name);
            count++;
        }
    closedir(d);
    return count;
}

int peer_dir_leftovers(const char *path, const char *name)
{
    const char *base = getuid() == 0 ? "/var/run" : getenv("XDG_RUNTIME_DIR");
    char runtime[256], prefix[64];
    int count = entries(path, "");

    snprintf(runtime, sizeof runtime, "%s/dpdk", base ? base : "/tmp");
    snprintf(prefix, sizeof prefix, "dk-%s", name);
    count += entries(runtime, prefix);
    if (rmdir(path) < 0)
        count++;
    return count;
}
