/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "dpdk_peer.h"

/* Worker and ducks on one host: vhost and virtio_user ports in processes of their own. */

static char dir[64], name[32];

static void setup(void)
{
    peer_dir_make(dir);
    snprintf(name, sizeof name, "t%ld", (long)getpid());
}

static struct peer_config config_of(uint32_t ports, uint32_t frames)
{
    return (struct peer_config){.dir = dir, .name = name, .ports = ports, .frames = frames};
}

/* A process that was killed leaves its run-time folder to the next one of its name; this makes such a next one. */
static void sweep(void)
{
    const struct peer_config c = config_of(1, 0);
    struct peer_report r;
    struct peer worker = peer_start(peer_worker, &c);

    cr_assert_eq(peer_expect(&worker, 'r'), 0);
    cr_assert_eq(peer_stop(&worker, &r), 0);
}

Test(vhost, frames_of_all_sizes_pass_both_ways_unchanged, .init = setup)
{
    const struct peer_config w = config_of(1, 0), d = config_of(1, 9014 - 60 + 1);
    struct peer worker = peer_start(peer_worker, &w), duck = peer_start(peer_duck, &d);
    struct peer_report rw, rd;
    int rc;

    cr_assert_eq(peer_expect(&duck, 'd'), 0);
    rc = peer_stop(&duck, &rd);
    cr_assert_eq(rc, 0, "duck ended with %d", rc);
    rc = peer_stop(&worker, &rw);
    cr_assert_eq(rc, 0, "worker ended with %d", rc);
    cr_assert_eq(rd.frames, d.frames);
    cr_assert_eq(rw.frames, d.frames);
    cr_assert_eq(rd.bad + rw.bad, 0);
    cr_assert_eq(rd.mtu, 9000);
    cr_assert_eq(rw.mtu, 9000);
    cr_assert_eq(rd.mac[0] & 3, 2, "a unicast address of our own");
    cr_assert(memcmp(rd.mac, rw.mac, 6) != 0);
    cr_assert_eq(rd.counters.frames_out, d.frames);
    cr_assert_eq(rd.counters.bytes_out, rw.counters.bytes_in);
    cr_assert_eq(rw.counters.bytes_out, rd.counters.bytes_in);
    cr_assert_eq(rd.counters.bytes_in, (uint64_t)(60 + 9014) * d.frames / 2);
    cr_assert_eq(rd.counters.send_full + rw.counters.send_full + rd.counters.no_buffer + rw.counters.no_buffer, 0);
    cr_assert_eq(peer_dir_leftovers(dir, name), 0);
}

Test(vhost, four_ducks_share_a_worker, .init = setup)
{
    struct peer_config w = config_of(4, 0), d[4];
    struct peer worker = peer_start(peer_worker, &w), ducks[4];
    struct peer_report r;

    for (uint32_t i = 0; i < 4; i++) {
        d[i] = config_of(1, 3000);
        d[i].index = i;
        ducks[i] = peer_start(peer_duck, &d[i]);
    }
    for (uint32_t i = 0; i < 4; i++) {
        int rc;

        cr_assert_eq(peer_expect(&ducks[i], 'd'), 0);
        rc = peer_stop(&ducks[i], &r);
        cr_assert_eq(rc, 0, "duck %u ended with %d", i, rc);
        cr_assert_eq(r.frames, 3000);
        cr_assert_eq(r.bad, 0);
    }
    cr_assert_eq(peer_stop(&worker, &r), 0);
    cr_assert_eq(r.frames, 4 * 3000);
    cr_assert_eq(r.bad, 0);
    cr_assert_eq(peer_dir_leftovers(dir, name), 0);
}

Test(vhost, worker_outlives_killed_ducks, .init = setup)
{
    struct peer_config w = config_of(2, 0), flood = config_of(1, 2000), steady = config_of(1, 20000),
                       next = config_of(1, 1000);
    struct peer worker = peer_start(peer_worker, &w), other;
    struct peer_report r;
    int rc;

    steady.index = 1;
    other = peer_start(peer_duck, &steady);
    for (int i = 0; i < 5; i++) {
        struct peer duck = peer_start(peer_flood, &flood), after;

        cr_assert_eq(peer_expect(&duck, 'f'), 0, "life %d", i);
        peer_kill(&duck);
        after = peer_start(peer_duck, &next);
        cr_assert_eq(peer_expect(&after, 'd'), 0, "life %d", i);
        rc = peer_stop(&after, &r);
        cr_assert_eq(rc, 0, "the duck after the killed one ended with %d in life %d", rc, i);
        cr_assert_eq(r.frames, 1000);
    }
    cr_assert_eq(peer_expect(&other, 'd'), 0);
    rc = peer_stop(&other, &r);
    cr_assert_eq(rc, 0, "the duck on the other port ended with %d", rc);
    cr_assert_eq(r.bad, 0, "the duck on the other port was disturbed");
    rc = peer_stop(&worker, &r);
    cr_assert_eq(rc, 0, "worker ended with %d", rc);
    sweep();
    cr_assert_eq(peer_dir_leftovers(dir, name), 0);
}

Test(vhost, duck_outlives_killed_workers, .init = setup)
{
    for (int i = 0; i < 3; i++) {
        const struct peer_config w = config_of(1, 0), d = config_of(1, 2000);
        struct peer worker = peer_start(peer_worker, &w), duck = peer_start(peer_faithful_duck, &d);
        struct peer_report r;
        struct stat st;
        char socket_path[128];
        int rc;

        cr_assert_eq(peer_expect(&duck, 'f'), 0, "life %d", i);
        peer_kill(&worker);
        snprintf(socket_path, sizeof socket_path, "%s/0", dir);
        cr_assert_eq(stat(socket_path, &st), 0, "the killed worker left its socket");
        cr_assert_eq(peer_expect(&duck, 'l'), 0, "life %d", i);
        worker = peer_start(peer_worker, &w);
        cr_assert_eq(peer_expect(&duck, 'd'), 0, "life %d", i);
        rc = peer_stop(&duck, &r);
        cr_assert_eq(rc, 0, "duck ended with %d in life %d", rc, i);
        rc = peer_stop(&worker, &r);
        cr_assert_eq(rc, 0, "worker ended with %d in life %d", rc, i);
        cr_assert_eq(r.bad, 0);
    }
    cr_assert_eq(peer_dir_leftovers(dir, name), 0);
}

/* Connects, talks and leaves again and again in one life. */
static int returning_duck(const struct peer_config *c, int in, int out)
{
    struct peer_report r = {0};
    struct dk_net *net;
    uint32_t port;

    if (peer_open(c, &net) < 0)
        return 1;
    for (uint32_t i = 0; i < 10 && r.rc == 0; i++) {
        if (peer_port_add(net, c, false, 0, &port, r.mac, &r.mtu) < 0)
            return 2;
        r.rc = peer_exchange(net, port, i * c->frames, c->frames, 9014, 0, 20000000, &r);
        dk_net_dpdk.port_remove(net, port);
    }
    r.counters = *dk_net_dpdk.counters(net);
    dk_net_dpdk.close(net);
    return peer_report_send(out, &r);
}

Test(vhost, a_duck_leaves_and_comes_back, .init = setup)
{
    const struct peer_config w = config_of(1, 0), d = config_of(1, 300);
    struct peer worker = peer_start(peer_worker, &w), duck = peer_start(returning_duck, &d);
    struct peer_report rw, rd;
    int rc;

    rc = peer_stop(&duck, &rd);
    cr_assert_eq(rc, 0, "duck ended with %d", rc);
    cr_assert_eq(rd.frames, 10 * 300);
    cr_assert_eq(rd.bad, 0);
    cr_assert_eq(peer_stop(&worker, &rw), 0);
    cr_assert_eq(rw.frames, 10 * 300);
    cr_assert_eq(peer_dir_leftovers(dir, name), 0);
}

Test(vhost, idle_sides_park_and_are_woken, .init = setup)
{
    const struct peer_config w = config_of(1, 0);
    struct peer_config d = config_of(1, 100);
    struct peer worker, duck;
    struct peer_report rw, rd;

    d.pause_us = 2000;
    worker = peer_start(peer_worker, &w);
    duck = peer_start(peer_duck, &d);
    cr_assert_eq(peer_expect(&duck, 'd'), 0);
    cr_assert_eq(peer_stop(&duck, &rd), 0);
    cr_assert_eq(peer_stop(&worker, &rw), 0);
    cr_assert_eq(rd.frames, 100);
    cr_assert_gt(rw.counters.parks, 0);
    cr_assert_gt(rw.counters.wakeups, 0, "a frame must end the worker's sleep");
    cr_assert_leq(rw.counters.wakeups, rw.counters.parks);
    cr_assert_eq(peer_dir_leftovers(dir, name), 0);
}

/* Sends to a worker that does not read, then shows that it still has frames. */
static int full_duck(const struct peer_config *c, int in, int out)
{
    struct peer_report r = {0};
    struct dk_net *net;
    struct dk_frame f, held[512];
    uint32_t port, got = 0;

    if (peer_open(c, &net) < 0 || peer_port_add(net, c, false, 0, &port, r.mac, &r.mtu) < 0)
        return 1;
    for (uint32_t n = 0; n < c->frames; n++) {
        if (dk_net_dpdk.frame_get(net, &f) < 0)
            return 2;
        f.port = port;
        peer_frame_fill(&f, n, 1000);
        dk_net_dpdk.send(net, &f);
    }
    dk_net_dpdk.flush(net);
    while (got < 512 && dk_net_dpdk.frame_get(net, &held[got]) == 0)
        got++;
    r.frames = got;
    while (got > 0)
        dk_net_dpdk.frame_put(net, &held[--got]);
    (void)!write(out, "d", 1);
    r.counters = *dk_net_dpdk.counters(net);
    dk_net_dpdk.close(net);
    return peer_report_send(out, &r);
}

Test(vhost, a_full_queue_drops_and_counts, .init = setup)
{
    struct peer_config w = config_of(1, 0), d = config_of(1, 2000);
    struct peer worker, duck;
    struct peer_report r;

    w.mute = true;
    worker = peer_start(peer_worker, &w);
    duck = peer_start(full_duck, &d);
    cr_assert_eq(peer_expect(&duck, 'd'), 0);
    cr_assert_eq(peer_stop(&duck, &r), 0);
    cr_assert_geq(r.counters.frames_out, 256, "the ring's size");
    cr_assert_leq(r.counters.frames_out, 256 + 32, "and what the worker stashed when it looked before parking");
    cr_assert_eq(r.counters.send_full, d.frames - r.counters.frames_out);
    cr_assert_eq(r.frames, 512, "dropped frames return to the pool");
    cr_assert_eq(peer_stop(&worker, &r), 0);
    cr_assert_eq(peer_dir_leftovers(dir, name), 0);
}

/* Sends with injected faults, never more than 64 frames ahead of the echoes, until all held frames have left. */
static int faulty_duck(const struct peer_config *c, int in, int out)
{
    struct peer_report r = {0};
    const struct dk_net_counters *n;
    struct dk_net *net;
    uint32_t port, sent = 0;
    uint64_t end_us = UINT64_MAX, now_us;

    if (peer_open(c, &net) < 0 || peer_port_add(net, c, false, 0, &port, r.mac, &r.mtu) < 0)
        return 1;
    n = dk_net_dpdk.counters(net);
    do {
        struct dk_frame frames[32], f;
        uint32_t got = dk_net_dpdk.recv(net, frames, 32);

        for (uint32_t i = 0; i < got; i++)
            dk_net_dpdk.frame_put(net, &frames[i]);
        if (sent < c->frames && n->frames_out - n->frames_in < 64 && dk_net_dpdk.frame_get(net, &f) == 0) {
            f.port = port;
            peer_frame_fill(&f, sent, 60 + sent % 2000);
            dk_net_dpdk.send(net, &f);
            sent++;
        }
        dk_net_dpdk.flush(net);
        now_us = dk_now_us();
        if (sent == c->frames && end_us == UINT64_MAX)
            end_us = now_us + 50000; /* longer than any frame is held back */
        dk_net_dpdk.wait(net, sent < c->frames, now_us, now_us + 1000);
    } while (now_us < end_us || n->frames_in < n->frames_out);
    (void)!write(out, "d", 1);
    r.counters = *n;
    dk_net_dpdk.close(net);
    return peer_report_send(out, &r);
}

Test(vhost, injected_faults_are_counted_and_real, .init = setup)
{
    struct peer_config w = config_of(1, 0), d = config_of(1, 4000);
    struct peer worker, duck;
    struct peer_report rw, rd;
    int rc;

    d.faults = (struct dk_net_faults){
        .drop = 0.1, .dup = 0.05, .reorder = 0.1, .corrupt = 0.05, .delay = 0.1, .delay_us = 2000, .seed = 11};
    worker = peer_start(peer_worker, &w);
    duck = peer_start(faulty_duck, &d);
    cr_assert_eq(peer_expect(&duck, 'd'), 0);
    rc = peer_stop(&duck, &rd);
    cr_assert_eq(rc, 0, "duck ended with %d", rc);
    cr_assert_eq(peer_stop(&worker, &rw), 0);
    cr_assert_gt(rd.counters.fault_dropped, 0);
    cr_assert_gt(rd.counters.fault_duplicated, 0);
    cr_assert_gt(rd.counters.fault_reordered, 0);
    cr_assert_gt(rd.counters.fault_corrupted, 0);
    cr_assert_gt(rd.counters.fault_delayed, 0);
    cr_assert_eq(rd.counters.send_full, 0);
    cr_assert_eq(rd.counters.frames_out, d.frames - rd.counters.fault_dropped + rd.counters.fault_duplicated);
    cr_assert_eq(rw.counters.frames_in, rd.counters.frames_out);
    cr_assert_gt(rw.bad, 0);
    cr_assert_leq(rw.bad, rd.counters.fault_corrupted, "bits in the 14 bytes of header do not show");
    cr_assert_eq(peer_dir_leftovers(dir, name), 0);
}
