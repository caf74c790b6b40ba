/* SPDX-License-Identifier: Apache-2.0 */
/* A Concurrency Kit ring with one consumer, whose producers take turns by a mutex. The ring could be shared by
 * producers without one, but there each waits, spinning, for those that came before it: with more threads than cores,
 * one that is preempted in between makes the others burn their time slices, and a push then took milliseconds (four
 * producers on two busy cores: 80,000 pushes in 0.05 s or in minutes). On a mutex they sleep. The consumer never locks.
 *
 * The ring orders its memory with inline assembly, which ThreadSanitizer cannot see. Under it the ring's own accesses
 * are ignored, and a release before each push and an acquire after each pop tell it what the ring guarantees: all that
 * a producer wrote before pushing is visible to the consumer.
 */
#include "actor/actor.h"

#include <ck_ring.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define DK_TSAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(DK_TSAN)
#include <sanitizer/tsan_interface.h>
void AnnotateIgnoreReadsBegin(const char *file, int line); /* of the sanitizer's run-time, in no header */
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);

static void ring_enter(void)
{
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}

static void ring_leave(void)
{
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}
#else
#define ring_enter()         ((void)0)
#define ring_leave()         ((void)0)
#define __tsan_release(ring) ((void)0)
#define __tsan_acquire(ring) ((void)0)
#endif

struct dk_mailbox {
    ck_ring_t ring;
    pthread_mutex_t producers;
    void (*wake)(void *ctx);
    void *ctx;
    ck_ring_buffer_t slots[];
};

int dk_mailbox_open(uint32_t capacity, void (*wake)(void *ctx), void *ctx, struct dk_mailbox **out)
{
    struct dk_mailbox *m;
    uint32_t slots = 2 * capacity; /* a ring keeps one slot free, and its length is a power of two */

    if (!capacity || capacity & (capacity - 1) || capacity > 1u << 24)
        return -EINVAL;
    m = aligned_alloc(CK_MD_CACHELINE,
                      (sizeof *m + slots * sizeof *m->slots + CK_MD_CACHELINE - 1) / CK_MD_CACHELINE * CK_MD_CACHELINE);
    if (!m)
        return -ENOMEM;
    ck_ring_init(&m->ring, slots);
    pthread_mutex_init(&m->producers, NULL);
    m->wake = wake;
    m->ctx = ctx;
    *out = m;
    return 0;
}

void dk_mailbox_close(struct dk_mailbox *m)
{
    if (!m)
        return;
    pthread_mutex_destroy(&m->producers);
    free(m);
}

int dk_mailbox_push(struct dk_mailbox *m, void *message)
{
    bool fits;

    pthread_mutex_lock(&m->producers);
    __tsan_release(&m->ring);
    ring_enter();
    fits = ck_ring_enqueue_spsc(&m->ring, m->slots, message);
    ring_leave();
    pthread_mutex_unlock(&m->producers);
    if (!fits)
        return -EAGAIN;
    if (m->wake)
        m->wake(m->ctx);
    return 0;
}

void *dk_mailbox_pop(struct dk_mailbox *m)
{
    void *message;
    bool any;

    ring_enter();
    any = ck_ring_dequeue_spsc(&m->ring, m->slots, &message);
    ring_leave();
    if (!any)
        return NULL;
    __tsan_acquire(&m->ring);
    return message;
}
