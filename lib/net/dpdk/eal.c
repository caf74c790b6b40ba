/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_log.h>

#include "base/log.h"
#include "dpdk_internal.h"

/* DPDK's environment layer keeps its state in globals and cannot be started twice in a process, not even after its
 * clean-up. So this file has the back end's only globals.
 *
 * Without hugepages all memory comes from one block of fixed size that is asked for at the start (-m); it is shared
 * with the other side of a vhost link. With reserved hugepages the same amount is taken from them. */

enum { ARGS_MAX = 16, CPU_LIST_BYTES = 8192 };

static bool started;
static char file_prefix[64]; /* without the process id */
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char log_part[256], log_line[256]; /* the line being written; the last whole one */
static size_t log_used;
static atomic_int log_expected; /* > 0: failures are expected now */

/* ---- log ----------------------------------------------------------------------------------------------------- */

static void log_emit(void)
{
    log_part[log_used] = '\0';
    memcpy(log_line, log_part, sizeof log_line);
    log_used = 0;
    dk_log(atomic_load(&log_expected) > 0 ? DK_LOG_DEBUG : DK_LOG_WARN, "net.dpdk", "text=\"%s\"", log_line);
}

static ssize_t log_write(void *cookie, const char *data, size_t bytes)
{
    (void)cookie;
    pthread_mutex_lock(&log_lock);
    for (size_t i = 0; i < bytes; i++) {
        if (data[i] != '\n' && log_used < sizeof log_part - 1)
            log_part[log_used++] = data[i] == '"' ? '\'' : data[i];
        else if (data[i] == '\n' && log_used > 0)
            log_emit();
    }
    pthread_mutex_unlock(&log_lock);
    return (ssize_t)bytes;
}

/* The stream stays open for good: DPDK's vhost thread lives until the process ends and may write to it. */
static void log_route(void)
{
    static FILE *stream;

    if (!stream)
        stream = fopencookie(NULL, "w", (cookie_io_functions_t){.write = log_write});
    if (stream)
        rte_openlog_stream(stream);
}

void dk_eal_last_line(char *text, size_t bytes)
{
    pthread_mutex_lock(&log_lock);
    snprintf(text, bytes, "%s", log_line);
    pthread_mutex_unlock(&log_lock);
}

static void log_expect(bool on)
{
    if (on) {
        pthread_mutex_lock(&log_lock);
        log_line[0] = '\0';
        pthread_mutex_unlock(&log_lock);
    }
    atomic_fetch_add(&log_expected, on ? 1 : -1);
}

/* ---- run-time folder ----------------------------------------------------------------------------------------- */

/* "dk-<name>-": the part of the file prefix before the process id. */
static void prefix_make(char *prefix, size_t bytes, const char *name)
{
    size_t used = (size_t)snprintf(prefix, bytes, "dk-");

    for (; *name && used < bytes - 2; name++)
        prefix[used++] = isalnum((unsigned char)*name) || *name == '_' ? *name : '_';
    prefix[used++] = '-';
    prefix[used] = '\0';
}

/* Without shared configuration nothing is ever put into the run-time folder, so it can go at once: a process that is
 * killed later leaves none. */
static void runtime_dir_remove(void)
{
    const char *own = rte_eal_get_runtime_dir();

    if (own)
        (void)rmdir(own);
}

/* Removes the (empty) run-time folders of dead processes of this name, killed before they removed their own. */
static void runtime_dirs_clean(const char *prefix)
{
    const char *own = rte_eal_get_runtime_dir();
    char parent[512], path[1024];
    struct dirent *e;
    char *slash;
    DIR *d;

    if (!own || snprintf(parent, sizeof parent, "%s", own) >= (int)sizeof parent)
        return;
    slash = strrchr(parent, '/');
    if (!slash)
        return;
    *slash = '\0';
    d = opendir(parent);
    if (!d)
        return;
    while ((e = readdir(d)) != NULL) {
        char *end;
        long pid;

        if (strncmp(e->d_name, prefix, strlen(prefix)))
            continue;
        pid = strtol(e->d_name + strlen(prefix), &end, 10);
        if (*end || pid <= 0 || kill((pid_t)pid, 0) == 0 || errno != ESRCH)
            continue;
        snprintf(path, sizeof path, "%s/%s", parent, e->d_name);
        (void)rmdir(path);
    }
    closedir(d);
}

/* ---- start --------------------------------------------------------------------------------------------------- */

/* "0@(0,1,5)": one lcore that may run on every CPU this thread may run on. The default would pin it to one CPU. */
static int lcores_make(char *text, size_t bytes)
{
    cpu_set_t set;
    size_t used;
    int rest;

    if (sched_getaffinity(0, sizeof set, &set) < 0)
        return -errno;
    used = (size_t)snprintf(text, bytes, "--lcores=0@(");
    rest = CPU_COUNT(&set);
    for (int cpu = 0; cpu < CPU_SETSIZE && rest > 0 && used + 8 < bytes; cpu++)
        if (CPU_ISSET(cpu, &set))
            used += (size_t)snprintf(text + used, bytes - used, "%d%s", cpu, --rest ? "," : ")");
    return rest ? -E2BIG : 0;
}

static uint64_t number_read(const char *path)
{
    unsigned long long n = 0;
    FILE *f = fopen(path, "re");

    if (!f)
        return 0;
    if (fscanf(f, "%llu", &n) != 1)
        n = 0;
    fclose(f);
    return n;
}

/* Two virtio rings for each of up to 4 ports (vhost and af_packet copy and keep nothing), frames queued for all of
 * them, and as much again for the caller, the stash, and frames held back by injected faults. */
static uint32_t pool_frames(uint32_t ports_max)
{
    uint32_t rings = ports_max < 4 ? ports_max : 4;

    return 1024 + rings * 2 * DK_VIRTIO_RING_FRAMES + ports_max * DK_DPDK_QUEUE_FRAMES;
}

static bool hugepages_free(uint32_t memory_mb)
{
    return number_read("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages") * 2 >= memory_mb + 16;
}

/* A start that finds too few hugepages fails for good, and several processes may start at the same time and all see
 * the same pages free. So they take turns, by a lock on the folder that they share. -1: no lock, no hugepages. */
static int turn_take(const char *run_dir)
{
    int fd = run_dir ? open(run_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;

    if (fd >= 0 && flock(fd, LOCK_EX) < 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static int eal_start(const char *prefix, const char *run_dir, uint32_t memory_mb, struct dk_err *err)
{
    const int turn = hugepages_free(memory_mb) ? turn_take(run_dir) : -1;
    const bool huge = turn >= 0 && hugepages_free(memory_mb);
    char prefix_arg[128], memory_arg[32], lcores[CPU_LIST_BYTES], line[256];
    char *argv[ARGS_MAX];
    sigset_t all, before;
    int argc = 0, rc;

    rc = lcores_make(lcores, sizeof lcores);
    if (rc < 0) {
        if (turn >= 0)
            close(turn);
        return dk_err_set(err, rc, "DPDK: the list of CPUs cannot be made");
    }
    snprintf(prefix_arg, sizeof prefix_arg, "--file-prefix=%s%ld", prefix, (long)getpid());
    snprintf(memory_arg, sizeof memory_arg, "-m%u", memory_mb);
    argv[argc++] = (char *)(uintptr_t) "duckllm";
    if (huge) {
        argv[argc++] = (char *)(uintptr_t) "--in-memory";
        argv[argc++] = (char *)(uintptr_t) "--single-file-segments";
    } else {
        argv[argc++] = (char *)(uintptr_t) "--no-huge";
        argv[argc++] = (char *)(uintptr_t) "--no-shconf";
    }
    argv[argc++] = (char *)(uintptr_t) "--iova-mode=va";
    argv[argc++] = memory_arg;
    argv[argc++] = (char *)(uintptr_t) "--no-pci";
    argv[argc++] = (char *)(uintptr_t) "--no-telemetry";
    argv[argc++] = (char *)(uintptr_t) "--log-level=error";
    argv[argc++] = prefix_arg;
    argv[argc++] = lcores;
    argv[argc] = NULL;

    /* DPDK's own threads must not take the program's signals. */
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    log_expect(true);
    rc = rte_eal_init(argc, argv);
    log_expect(false);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (turn >= 0)
        close(turn);
    if (rc < 0) {
        dk_eal_last_line(line, sizeof line);
        return dk_err_set(err, -EIO, "DPDK did not start with %u MB of %s memory: %s (%s)", memory_mb,
                          huge ? "hugepage" : "ordinary", rte_strerror(rte_errno), line);
    }
    dk_log(DK_LOG_INFO, "net.dpdk.start", "memory_mb=%u hugepages=%s", memory_mb, huge ? "yes" : "no");
    return 0;
}

int dk_eal_open(const char *name, const char *run_dir, uint32_t ports_max, struct rte_mempool **pool,
                struct dk_err *err)
{
    const uint32_t frames = pool_frames(ports_max);
    const uint64_t pool_bytes = (uint64_t)frames * (DK_DPDK_FRAME_ROOM + RTE_PKTMBUF_HEADROOM + 512);
    uint32_t memory_mb = ports_max <= 4 ? 64 : 128;
    int rc;

    if (started)
        return dk_err_set(err, -EALREADY, "DPDK can be started only once in a process");
    if (ports_max < 1 || ports_max > RTE_MAX_ETHPORTS)
        return dk_err_set(err, -EINVAL, "DPDK has room for 1 to %d ports, not %u", RTE_MAX_ETHPORTS, ports_max);
    if (pool_bytes + (16u << 20) > (uint64_t)memory_mb << 20)
        memory_mb = (uint32_t)(pool_bytes >> 20) + 16;

    started = true;
    log_route();
    prefix_make(file_prefix, sizeof file_prefix, name);
    rc = eal_start(file_prefix, run_dir, memory_mb, err);
    if (rc < 0)
        return rc;
    runtime_dir_remove();
    runtime_dirs_clean(file_prefix);
    *pool = rte_pktmbuf_pool_create("dk_frames", frames, 256, 0, RTE_PKTMBUF_HEADROOM + DK_DPDK_FRAME_ROOM,
                                    SOCKET_ID_ANY);
    if (!*pool) {
        rc = dk_err_set(err, -ENOMEM, "DPDK: no memory for %u frames: %s", frames, rte_strerror(rte_errno));
        dk_eal_close(NULL);
        return rc;
    }
    return 0;
}

void dk_eal_close(struct rte_mempool *pool)
{
    rte_mempool_free(pool);
    log_expect(true);
    rte_eal_cleanup();
    log_expect(false);
    runtime_dirs_clean(file_prefix); /* of those that died meanwhile */
}

/* ---- devices ------------------------------------------------------------------------------------------------- */

int dk_eal_device_add(const char *vdev, const char *arguments, uint16_t *eth, struct dk_err *err)
{
    sigset_t all, before;
    char line[256];
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    log_expect(true);
    rc = rte_eal_hotplug_add("vdev", vdev, arguments);
    if (rc >= 0)
        rc = rte_eth_dev_get_port_by_name(vdev, eth);
    log_expect(false);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc < 0) {
        dk_eal_last_line(line, sizeof line);
        return dk_err_set(err, -EIO, "DPDK device %s,%s: %s (%s)", vdev, arguments, strerror(-rc), line);
    }
    return 0;
}

int dk_eal_port_start(uint16_t eth, uint32_t mtu, struct rte_mempool *pool, struct dk_err *err)
{
    const struct rte_eth_conf conf = {.rxmode.mtu = mtu};
    uint16_t rx_frames = DK_VIRTIO_RING_FRAMES, tx_frames = DK_VIRTIO_RING_FRAMES;
    sigset_t all, before;
    char line[256];
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    log_expect(true);
    rc = rte_eth_dev_configure(eth, 1, 1, &conf);
    if (rc >= 0)
        rc = rte_eth_dev_adjust_nb_rx_tx_desc(eth, &rx_frames, &tx_frames);
    if (rc >= 0)
        rc = rte_eth_rx_queue_setup(eth, 0, rx_frames, SOCKET_ID_ANY, NULL, pool);
    if (rc >= 0)
        rc = rte_eth_tx_queue_setup(eth, 0, tx_frames, SOCKET_ID_ANY, NULL);
    if (rc >= 0)
        rc = rte_eth_dev_start(eth);
    log_expect(false);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc < 0) {
        dk_eal_last_line(line, sizeof line);
        return dk_err_set(err, -EIO, "DPDK port %u did not start: %s (%s)", eth, strerror(-rc), line);
    }
    return 0;
}

void dk_eal_device_remove(const char *vdev, uint16_t eth)
{
    log_expect(true);
    (void)rte_eth_dev_stop(eth);
    (void)rte_eth_dev_close(eth);
    (void)rte_eal_hotplug_remove("vdev", vdev);
    log_expect(false);
}
