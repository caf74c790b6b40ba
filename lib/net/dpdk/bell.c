/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "dpdk_internal.h"

/* Why no wake-up is lost: the sleeper sets its word, fences, looks for frames and only then sleeps; the sender makes
 * its frames visible, fences and looks at the word. Whatever the interleaving, one of them sees the other. A sender
 * that dies in between costs the sleeper its time limit, which is never long. */

enum { AWAKE = 0, PARKED = 1 };

static int bell_map(struct dk_bell *b, int fd, struct dk_err *err)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return dk_err_set(err, -errno, "bell file %s: %s", b->path, strerror(errno));
    /* A shorter file would make the mapping fault. */
    if (!S_ISREG(st.st_mode) || st.st_size < DK_BELL_BYTES)
        return dk_err_set(err, -ENOENT, "bell file %s is not one (yet): %lld bytes", b->path, (long long)st.st_size);
    b->map = mmap(NULL, DK_BELL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (b->map == MAP_FAILED) {
        b->map = NULL;
        return dk_err_set(err, -errno, "bell file %s cannot be mapped: %s", b->path, strerror(errno));
    }
    b->inode = st.st_ino;
    b->refs = 1;
    return 0;
}

/* Two workers with one bell would not hear each other's ducks. A maker holds a lock on its file while it lives. */
static int bell_check_free(const char *path, struct dk_err *err)
{
    int fd = open(path, O_RDWR | O_CLOEXEC), rc = 0;

    if (fd < 0)
        return 0;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
        rc = dk_err_set(err, -EADDRINUSE, "bell file %s belongs to another process that is alive", path);
    close(fd);
    return rc;
}

int dk_bell_make(struct dk_bell *b, const char *path, struct dk_err *err)
{
    char fresh[sizeof b->path + 16];
    int fd, rc;

    memset(b, 0, sizeof *b);
    snprintf(b->path, sizeof b->path, "%s", path);
    snprintf(fresh, sizeof fresh, "%s.%ld", path, (long)getpid());
    rc = bell_check_free(path, err);
    if (rc < 0)
        return rc;
    (void)unlink(fresh);
    fd = open(fresh, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return dk_err_set(err, -errno, "bell file %s cannot be made: %s", fresh, strerror(errno));
    if (ftruncate(fd, DK_BELL_BYTES) < 0) {
        rc = dk_err_set(err, -errno, "bell file %s cannot get its %d bytes: %s", fresh, DK_BELL_BYTES, strerror(errno));
        goto fail;
    }
    rc = flock(fd, LOCK_EX | LOCK_NB) < 0 ? -errno : bell_map(b, fd, err);
    if (rc < 0)
        goto fail;
    /* Whoever still has a dead worker's file mapped keeps that one: it must not wake this worker's ducks. */
    if (rename(fresh, path) < 0) {
        rc = dk_err_set(err, -errno, "bell file %s cannot be put in place: %s", path, strerror(errno));
        goto fail;
    }
    b->lock_fd = fd;
    b->made = true;
    return 0;
fail:
    close(fd);
    (void)unlink(fresh);
    dk_bell_close(b);
    return rc;
}

int dk_bell_join(struct dk_bell *b, const char *path, struct dk_err *err)
{
    int fd, rc;

    memset(b, 0, sizeof *b);
    snprintf(b->path, sizeof b->path, "%s", path);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return dk_err_set(err, -errno, "bell file %s: %s", path, strerror(errno));
    rc = bell_map(b, fd, err);
    close(fd);
    return rc;
}

void dk_bell_close(struct dk_bell *b)
{
    struct stat st;

    if (!b->map)
        return;
    munmap(b->map, DK_BELL_BYTES);
    if (b->made) {
        if (stat(b->path, &st) == 0 && st.st_ino == b->inode)
            (void)unlink(b->path);
        close(b->lock_fd);
    }
    memset(b, 0, sizeof *b);
}

_Atomic uint32_t *dk_bell_word(const struct dk_bell *b, uint32_t place)
{
    return (_Atomic uint32_t *)(void *)(b->map + (size_t)place * DK_BELL_STRIDE);
}

static long futex(_Atomic uint32_t *word, int op, uint32_t value, const struct timespec *timeout)
{
    return syscall(SYS_futex, (uint32_t *)(void *)word, op, value, timeout, NULL, 0);
}

void dk_bell_ring(_Atomic uint32_t *word)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(word, memory_order_relaxed) != AWAKE &&
        atomic_exchange_explicit(word, AWAKE, memory_order_seq_cst) != AWAKE)
        futex(word, FUTEX_WAKE, INT_MAX, NULL);
}

void dk_bell_arm(_Atomic uint32_t *word)
{
    atomic_store_explicit(word, PARKED, memory_order_seq_cst);
    atomic_thread_fence(memory_order_seq_cst);
}

bool dk_bell_sleep(_Atomic uint32_t *word, uint64_t timeout_us)
{
    const struct timespec timeout = {(time_t)(timeout_us / 1000000), (long)(timeout_us % 1000000) * 1000};

    futex(word, FUTEX_WAIT, PARKED, &timeout);
    return atomic_exchange_explicit(word, AWAKE, memory_order_seq_cst) == AWAKE;
}

void dk_bell_disarm(_Atomic uint32_t *word)
{
    atomic_store_explicit(word, AWAKE, memory_order_relaxed);
}
