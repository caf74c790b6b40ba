/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel threads.
 *
 * A job is announced by counting `job` up; helpers see the new number and run fn, the caller waits until `busy` is
 * zero. fn, arg and parts are written before job (release) and read after it (acquire), so they need no lock. Every
 * wait is the same: look a few times, give the CPU away a few times, then sleep on a futex. Whoever changes the word
 * wakes sleepers only if somebody says that he sleeps; both sides use sequentially consistent accesses, so either the
 * sleeper sees the new word or the waker sees the sleeper. */
#include "kernel/exec.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Looks before the first yield, and rounds of yielding before sleep: some 100 us together on an idle machine. */
#define LOOKS  32
#define ROUNDS 64

/* A word that is waited on, on a cache line of its own. */
struct word {
    _Alignas(64) atomic_uint value;
    atomic_uint sleepers;
};

struct dk_exec {
    struct word job;     /* counts jobs */
    struct word busy;    /* helpers that have not finished this job */
    struct word arrived; /* parts that stand at the barrier */
    struct word passed;  /* counts barriers */
    void (*fn)(void *arg, uint32_t part, uint32_t parts);
    void *arg;
    uint32_t threads;
    bool pin;
    atomic_bool stop;
    cpu_set_t cpus; /* those that the process may use */
    uint32_t started;
    struct helper {
        struct dk_exec *e;
        uint32_t part;
        pthread_t thread;
    } helpers[];
};

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Returns when the word is no longer `old`. */
static void word_wait(struct word *w, unsigned old)
{
    for (int round = 0; round < ROUNDS; round++) {
        for (int look = 0; look < LOOKS; look++) {
            if (atomic_load_explicit(&w->value, memory_order_acquire) != old)
                return;
            pause_cpu();
        }
        sched_yield();
    }
    atomic_fetch_add(&w->sleepers, 1);
    while (atomic_load(&w->value) == old)
        syscall(SYS_futex, &w->value, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    atomic_fetch_sub(&w->sleepers, 1);
}

static void word_wake(struct word *w)
{
    if (atomic_load(&w->sleepers))
        syscall(SYS_futex, &w->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Waits for zero: the word may pass through other values. */
static void word_wait_zero(struct word *w)
{
    unsigned now;

    while ((now = atomic_load(&w->value)) != 0)
        word_wait(w, now);
}

static void pin_thread(struct dk_exec *e, uint32_t part)
{
    int nth = (int)(part % (uint32_t)CPU_COUNT(&e->cpus));
    cpu_set_t one;

    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &e->cpus) && nth-- == 0) {
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            /* A refusal costs speed only. */
            (void)pthread_setaffinity_np(pthread_self(), sizeof one, &one);
            return;
        }
}

static void *helper_main(void *arg)
{
    struct helper *h = arg;
    struct dk_exec *e = h->e;
    unsigned seen = 0;

    if (e->pin)
        pin_thread(e, h->part);
    for (;;) {
        word_wait(&e->job, seen);
        seen++;
        if (atomic_load(&e->stop))
            return NULL;
        e->fn(e->arg, h->part, e->threads);
        if (atomic_fetch_sub(&e->busy.value, 1) == 1)
            word_wake(&e->busy);
    }
}

int dk_exec_open(uint32_t threads, bool pin, struct dk_exec **out)
{
    size_t bytes = sizeof(struct dk_exec) + (threads ? threads - 1 : 0) * sizeof(struct helper);
    struct dk_exec *e;
    int rc;

    *out = NULL;
    if (!threads)
        threads = 1;
    e = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    if (!e)
        return -ENOMEM;
    *e = (struct dk_exec){.threads = threads, .pin = pin};
    if (sched_getaffinity(0, sizeof e->cpus, &e->cpus) < 0 || CPU_COUNT(&e->cpus) == 0)
        e->pin = false;
    for (uint32_t i = 0; i + 1 < threads; i++) {
        struct helper *h = &e->helpers[i];

        h->e = e;
        h->part = i + 1;
        rc = -pthread_create(&h->thread, NULL, helper_main, h);
        if (rc < 0)
            goto fail;
        e->started++;
    }
    if (e->pin)
        pin_thread(e, 0);
    *out = e;
    return 0;

fail:
    dk_exec_close(e);
    return rc;
}

void dk_exec_close(struct dk_exec *e)
{
    if (!e)
        return;
    atomic_store(&e->stop, true);
    atomic_fetch_add(&e->job.value, 1);
    word_wake(&e->job);
    for (uint32_t i = 0; i < e->started; i++)
        pthread_join(e->helpers[i].thread, NULL);
    if (e->pin)
        (void)pthread_setaffinity_np(pthread_self(), sizeof e->cpus, &e->cpus);
    free(e);
}

uint32_t dk_exec_threads(const struct dk_exec *e)
{
    return e->threads;
}

void dk_exec_run(struct dk_exec *e, void (*fn)(void *arg, uint32_t part, uint32_t parts), void *arg)
{
    if (e->threads == 1) {
        fn(arg, 0, 1);
        return;
    }
    e->fn = fn;
    e->arg = arg;
    atomic_store(&e->busy.value, e->threads - 1);
    atomic_fetch_add(&e->job.value, 1);
    word_wake(&e->job);
    fn(arg, 0, e->threads);
    word_wait_zero(&e->busy);
}

void dk_exec_barrier(struct dk_exec *e, uint32_t part)
{
    unsigned passed;

    if (e->threads == 1)
        return;
    passed = atomic_load(&e->passed.value);
    if (atomic_fetch_add(&e->arrived.value, 1) + 1 == e->threads) {
        atomic_store(&e->arrived.value, 0);
        atomic_fetch_add(&e->passed.value, 1);
        word_wake(&e->passed);
    } else {
        word_wait(&e->passed, passed);
    }
}
