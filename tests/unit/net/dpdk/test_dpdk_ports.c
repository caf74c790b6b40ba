/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "dpdk_peer.h"
#include "net_dpdk/dpdk_internal.h"

/* One process alone: opening and closing, errors, waiting. White-box where the outside cannot reach. */

static const struct dk_net_ops *const net_ops = &dk_net_dpdk;
static char dir[64], name[32];
static struct dk_net *net;

static void setup(void)
{
    peer_dir_make(dir);
    snprintf(name, sizeof name, "p%ld", (long)getpid());
}

static struct dk_net_config config_of(uint32_t ports)
{
    return (struct dk_net_config){.name = name, .run_dir = dir, .ports_max = ports, .frame_bytes = 9014};
}

static void open_net(uint32_t ports)
{
    const struct dk_net_config c = config_of(ports);
    struct dk_err err = {0};
    int rc = net_ops->open(&c, &net, &err);

    cr_assert_eq(rc, 0, "%s", err.text);
}

static struct dk_port_spec spec_of(enum dk_port_kind kind, uint32_t index)
{
    struct dk_port_spec s = {.kind = kind, .bell_index = index};

    snprintf(s.path, sizeof s.path, "%s/%u", dir, index);
    snprintf(s.bell_path, sizeof s.bell_path, "%s/bell", dir);
    return s;
}

static int add(const struct dk_port_spec *s, uint32_t *port, struct dk_err *err)
{
    uint8_t mac[6];
    uint32_t mtu;

    *err = (struct dk_err){0};
    return net_ops->port_add(net, s, port, mac, &mtu, err);
}

Test(ports, configurations_that_cannot_work_are_refused, .init = setup)
{
    struct dk_net_config c = config_of(33);
    struct dk_err err = {0};

    cr_assert_eq(net_ops->open(&c, &net, &err), -EINVAL);
    cr_assert(strstr(err.text, "32"), "%s", err.text);
    c.ports_max = 0;
    cr_assert_eq(net_ops->open(&c, &net, &err), -EINVAL);
    c = config_of(1);
    c.frame_bytes = 9015;
    cr_assert_eq(net_ops->open(&c, &net, &err), -EINVAL);
    c.frame_bytes = 63;
    cr_assert_eq(net_ops->open(&c, &net, &err), -EINVAL);
    open_net(1);
    net_ops->close(net);
    c = config_of(1);
    cr_assert_eq(net_ops->open(&c, &net, &err), -EALREADY);
    cr_assert_eq(peer_dir_leftovers(dir, name), 0);
}

Test(ports, wrong_specs_are_refused_and_leave_nothing, .init = setup)
{
    struct dk_port_spec s;
    struct dk_err err;
    uint32_t port;
    char path[160];
    FILE *f;

    open_net(1);
    s = spec_of(DK_PORT_VIRTIO_USER, 0);
    cr_assert_eq(add(&s, &port, &err), -ENOENT);
    s = spec_of(DK_PORT_VHOST, 0);
    strcat(s.path, ",queues=9");
    cr_assert_eq(add(&s, &port, &err), -EINVAL);
    s.path[0] = '\0';
    cr_assert_eq(add(&s, &port, &err), -EINVAL);
    memset(s.path, 'x', sizeof s.path); /* no end */
    cr_assert_eq(add(&s, &port, &err), -EINVAL);
    s = spec_of(DK_PORT_VHOST, 255);
    cr_assert_eq(add(&s, &port, &err), -EINVAL);
    s = spec_of(DK_PORT_VHOST, 0);
    memset(s.bell_path, 'x', sizeof s.bell_path);
    cr_assert_eq(add(&s, &port, &err), -EINVAL);
    s = spec_of(DK_PORT_VHOST, 0);
    snprintf(s.path, sizeof s.path, "%s/nowhere/0", dir);
    cr_assert_eq(add(&s, &port, &err), -ENOENT, "%s", err.text);
    s = spec_of(DK_PORT_VHOST, 0);
    snprintf(s.bell_path, sizeof s.bell_path, "%s/nowhere/bell", dir);
    cr_assert_eq(add(&s, &port, &err), -ENOENT, "%s", err.text);
    s = spec_of(DK_PORT_AF_PACKET, 0);
    snprintf(s.path, sizeof s.path, "nosuch0");
    cr_assert_eq(add(&s, &port, &err), getuid() == 0 ? -ENODEV : -EPERM, "%s", err.text);
    snprintf(s.path, sizeof s.path, "a-name-that-is-too-long");
    cr_assert_eq(add(&s, &port, &err), -EINVAL, "%s", err.text);
    s.kind = DK_PORT_SIM;
    cr_assert_eq(add(&s, &port, &err), -EINVAL);

    /* A file that is no socket stays. */
    s = spec_of(DK_PORT_VHOST, 7);
    f = fopen(s.path, "w");
    cr_assert_not_null(f);
    fclose(f);
    cr_assert_eq(add(&s, &port, &err), -EEXIST, "%s", err.text);
    cr_assert_eq(unlink(s.path), 0);
    snprintf(path, sizeof path, "%s.lock", s.path);
    cr_assert_neq(access(path, F_OK), 0);

    net_ops->close(net);
    cr_assert_eq(peer_dir_leftovers(dir, name), 0);
}

Test(ports, all_of_a_workers_ports_come_and_go, .init = setup)
{
    struct dk_port_spec s;
    struct dk_err err;
    uint32_t port, ports[31];

    open_net(31);
    for (int round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < 31; i++) {
            s = spec_of(DK_PORT_VHOST, i);
            cr_assert_eq(add(&s, &ports[i], &err), 0, "port %u: %s", i, err.text);
            cr_assert_lt(ports[i], 31);
        }
        s = spec_of(DK_PORT_VHOST, 40);
        cr_assert_eq(add(&s, &port, &err), -ENOSPC);
        for (uint32_t i = 0; i < 31; i++)
            net_ops->port_remove(net, ports[(i * 7) % 31]);
        cr_assert_neq(access(s.bell_path, F_OK), 0, "the bell goes with the last port");
    }
    s = spec_of(DK_PORT_VHOST, 0);
    cr_assert_eq(add(&s, &port, &err), 0, "%s", err.text);
    net_ops->port_remove(net, port + 1);   /* not in use */
    net_ops->port_remove(net, UINT32_MAX); /* none of ours */
    net_ops->close(net);                   /* removes the port that is left */
    cr_assert_eq(peer_dir_leftovers(dir, name), 0);
}

Test(ports, sending_without_a_peer_drops_and_counts, .init = setup)
{
    struct dk_port_spec s = spec_of(DK_PORT_VHOST, 0);
    struct dk_err err;
    struct dk_frame f;
    uint32_t port;

    open_net(1);
    cr_assert_eq(add(&s, &port, &err), 0, "%s", err.text);
    for (int i = 0; i < 5000; i++) { /* more than there are frames */
        cr_assert_eq(net_ops->frame_get(net, &f), 0);
        cr_assert_eq(f.bytes, 9014);
        f.port = i % 10 ? port : 5; /* some to a port that is not there */
        f.bytes = 100;
        net_ops->send(net, &f);
    }
    net_ops->flush(net);
    cr_assert_eq(net_ops->counters(net)->send_full, 4500);
    cr_assert_eq(net_ops->counters(net)->frames_out, 0);
    net_ops->close(net);
    cr_assert_eq(peer_dir_leftovers(dir, name), 0);
}

Test(ports, frames_run_out_and_come_back, .init = setup)
{
    struct dk_frame *f = calloc(10000, sizeof *f);
    uint32_t got = 0;

    open_net(1);
    while (got < 10000 && net_ops->frame_get(net, &f[got]) == 0)
        got++;
    cr_assert_gt(got, 1024);
    cr_assert_lt(got, 10000);
    cr_assert_eq(net_ops->counters(net)->no_buffer, 1);
    net_ops->frame_put(net, &f[--got]);
    cr_assert_eq(net_ops->frame_get(net, &f[got++]), 0);
    while (got > 0)
        net_ops->frame_put(net, &f[--got]);
    net_ops->close(net);
    free(f);
    cr_assert_eq(peer_dir_leftovers(dir, name), 0);
}

static struct peer_config worker_config(void)
{
    return (struct peer_config){.dir = dir, .name = name, .ports = 1};
}

Test(ports, a_served_socket_is_refused_and_a_dead_ones_is_replaced, .init = setup)
{
    struct peer_config c = worker_config();
    struct peer other = peer_start(peer_worker, &c);
    struct dk_port_spec s = spec_of(DK_PORT_VHOST, 0);
    struct stat before, after;
    struct dk_err err;
    uint32_t port;

    cr_assert_eq(peer_expect(&other, 'r'), 0);
    open_net(2);
    cr_assert_eq(add(&s, &port, &err), -EADDRINUSE, "%s", err.text);
    cr_assert_eq(access(s.path, F_OK), 0, "the living worker's socket was removed");
    peer_kill(&other);
    /* A socket that is there and not served is as good as not there. */
    s.kind = DK_PORT_VIRTIO_USER;
    cr_assert_eq(add(&s, &port, &err), -ENOENT, "%s", err.text);
    cr_assert_eq(access(s.path, F_OK), 0);
    s.kind = DK_PORT_VHOST; /* takes the dead one's things over */
    cr_assert_eq(stat(s.bell_path, &before), 0);
    cr_assert_eq(add(&s, &port, &err), 0, "%s", err.text);
    cr_assert_eq(stat(s.bell_path, &after), 0);
    cr_assert_neq(before.st_ino, after.st_ino, "a dead worker's bell is not used again");
    net_ops->close(net);
    cr_assert_eq(peer_dir_leftovers(dir, name), 0);
}

Test(ports, run_time_folders_of_dead_processes_are_removed, .init = setup)
{
    const char *base = getuid() == 0 ? "/var/run" : getenv("XDG_RUNTIME_DIR");
    const struct peer_config c = worker_config();
    char parent[128], stale[256], living[256];
    struct peer worker;
    struct peer_report r;
    pid_t dead = fork();

    if (dead == 0)
        _exit(0);
    cr_assert_eq(waitpid(dead, NULL, 0), dead);
    snprintf(parent, sizeof parent, "%s/dpdk", base ? base : "/tmp");
    (void)mkdir(parent, 0700);
    snprintf(stale, sizeof stale, "%s/dk-%s-%ld", parent, name, (long)dead);
    snprintf(living, sizeof living, "%s/dk-%s-1", parent, name);
    cr_assert_eq(mkdir(stale, 0700), 0);
    cr_assert_eq(mkdir(living, 0700), 0);
    worker = peer_start(peer_worker, &c);
    cr_assert_eq(peer_expect(&worker, 'r'), 0);
    cr_assert_eq(peer_stop(&worker, &r), 0);
    cr_assert_neq(access(stale, F_OK), 0);
    cr_assert_eq(access(living, F_OK), 0);
    cr_assert_eq(rmdir(living), 0);
    cr_assert_eq(peer_dir_leftovers(dir, name), 0);
}

/* ---- waiting ------------------------------------------------------------------------------------------------- */

static void wait_until_parked(uint64_t parks)
{
    while (net_ops->counters(net)->parks < parks) {
        uint64_t now_us = dk_now_us();

        net_ops->wait(net, false, now_us, now_us + 1000);
    }
}

Test(ports, an_idle_wait_spins_then_parks_and_ends_at_its_deadline, .init = setup)
{
    uint64_t now_us;

    open_net(1);
    now_us = dk_now_us();
    net_ops->wait(net, true, now_us, now_us + 1000000);
    net_ops->wait(net, false, now_us, now_us);
    net_ops->wait(net, false, now_us, 1); /* long ago */
    cr_assert_eq(net_ops->counters(net)->parks, 0);
    wait_until_parked(3);
    cr_assert_eq(net_ops->counters(net)->wakeups, 0);
    net_ops->close(net);
    cr_assert_eq(peer_dir_leftovers(dir, name), 0);
}

Test(ports, busy_polling_never_parks, .init = setup)
{
    struct dk_net_config c = config_of(1);
    struct dk_err err = {0};

    c.busy_poll = true;
    cr_assert_eq(net_ops->open(&c, &net, &err), 0, "%s", err.text);
    for (int i = 0; i < 2000; i++) {
        uint64_t now_us = dk_now_us();

        net_ops->wait(net, false, now_us, now_us + 1000000);
    }
    cr_assert_eq(net_ops->counters(net)->parks, 0);
    net_ops->close(net);
    cr_assert_eq(peer_dir_leftovers(dir, name), 0);
}

static atomic_bool ringing;

static void *ring_on(void *arg)
{
    while (atomic_load(&ringing)) {
        net_ops->wake(net);
        usleep(500);
    }
    return NULL;
}

/* With and without a bell: the word that is slept on differs. */
Test(ports, another_thread_wakes_a_parked_wait, .init = setup)
{
    struct dk_port_spec s = spec_of(DK_PORT_VHOST, 0);
    struct dk_err err;
    pthread_t thread;
    uint32_t port;

    open_net(1);
    for (int round = 0; round < 3; round++) {
        uint64_t before = net_ops->counters(net)->wakeups;

        if (round == 1)
            cr_assert_eq(add(&s, &port, &err), 0, "%s", err.text);
        if (round == 2)
            net_ops->port_remove(net, port);
        atomic_store(&ringing, true);
        cr_assert_eq(pthread_create(&thread, NULL, ring_on, NULL), 0);
        while (net_ops->counters(net)->wakeups < before + 5) {
            uint64_t now_us = dk_now_us();

            net_ops->wait(net, false, now_us, UINT64_MAX);
        }
        atomic_store(&ringing, false);
        pthread_join(thread, NULL);
    }
    net_ops->close(net);
    cr_assert_eq(peer_dir_leftovers(dir, name), 0);
}

Test(ports, a_wake_before_the_wait_ends_it, .init = setup)
{
    uint64_t parks;

    open_net(1);
    wait_until_parked(1);
    parks = net_ops->counters(net)->parks;
    for (int i = 0; i < 100; i++) {
        net_ops->wake(net);
        net_ops->wait(net, false, dk_now_us(), UINT64_MAX);
    }
    cr_assert_eq(net_ops->counters(net)->parks, parks);
    net_ops->close(net);
    cr_assert_eq(peer_dir_leftovers(dir, name), 0);
}

/* ---- white-box ----------------------------------------------------------------------------------------------- */

Test(ports, frames_in_pieces_are_joined_if_they_fit, .init = setup)
{
    struct rte_mbuf *m[3];

    open_net(1);
    for (uint32_t size = 1000; size <= 5000; size += 4000) { /* 3000 bytes fit in one buffer, 15000 do not */
        for (int i = 0; i < 3; i++) {
            m[i] = rte_pktmbuf_alloc(net->pool);
            cr_assert_not_null(m[i]);
            memset(rte_pktmbuf_append(m[i], (uint16_t)size), 'a' + i, size);
        }
        cr_assert_eq(rte_pktmbuf_chain(m[1], m[2]), 0);
        cr_assert_eq(rte_pktmbuf_chain(m[0], m[1]), 0);
        cr_assert_eq(dk_dpdk_flatten(m[0]), size == 1000);
        if (size == 1000) {
            cr_assert_eq(m[0]->data_len, 3000);
            for (uint32_t i = 0; i < 3000; i++)
                cr_assert_eq(rte_pktmbuf_mtod(m[0], char *)[i], (char)('a' + i / 1000));
        }
        rte_pktmbuf_free(m[0]);
    }
    net_ops->close(net);
    cr_assert_eq(peer_dir_leftovers(dir, name), 0);
}

Test(bell, ring_and_sleep, .init = setup)
{
    struct dk_bell made = {0}, joined = {0}, other = {0};
    struct dk_err err = {0};
    _Atomic uint32_t *here, *there;
    char path[128];
    FILE *f;

    snprintf(path, sizeof path, "%s/bell", dir);
    cr_assert_eq(dk_bell_join(&joined, path, &err), -ENOENT);
    f = fopen(path, "w"); /* half made: too short to be mapped */
    cr_assert_not_null(f);
    fputs("short", f);
    fclose(f);
    cr_assert_eq(dk_bell_join(&joined, path, &err), -ENOENT);
    cr_assert_eq(dk_bell_make(&made, path, &err), 0, "%s", err.text);
    cr_assert_eq(dk_bell_join(&joined, path, &err), 0, "%s", err.text);
    here = dk_bell_word(&made, 5);
    there = dk_bell_word(&joined, 5);
    cr_assert_neq((void *)here, (void *)there);

    dk_bell_arm(here);
    cr_assert_eq(atomic_load(there), 1);
    cr_assert_not(dk_bell_sleep(here, 1000), "nobody rang");
    cr_assert_eq(atomic_load(there), 0);
    dk_bell_arm(here);
    dk_bell_ring(there);
    cr_assert(dk_bell_sleep(here, 60000000), "a ring between arming and sleeping must not be lost");
    dk_bell_ring(there); /* nobody sleeps: nothing happens */
    cr_assert_eq(atomic_load(here), 0);

    cr_assert_eq(dk_bell_make(&other, path, &err), -EADDRINUSE, "its maker lives");
    cr_assert_eq(access(path, F_OK), 0);
    dk_bell_close(&made);
    cr_assert_neq(access(path, F_OK), 0);
    dk_bell_close(&made);
    atomic_store(there, 0); /* the one who joined still has its memory */
    dk_bell_close(&joined);
    cr_assert_eq(peer_dir_leftovers(dir, name), 0);
}
