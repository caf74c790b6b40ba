/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "actor/actor.h"

Test(mailbox, capacity_must_be_a_power_of_two)
{
    struct dk_mailbox *m;

    cr_assert_eq(dk_mailbox_open(0, NULL, NULL, &m), -EINVAL);
    cr_assert_eq(dk_mailbox_open(3, NULL, NULL, &m), -EINVAL);
    cr_assert_eq(dk_mailbox_open(1u << 25, NULL, NULL, &m), -EINVAL);
}

static void count_wake(void *ctx)
{
    ++*(int *)ctx;
}

Test(mailbox, keeps_order_and_refuses_when_full)
{
    for (uint32_t capacity = 1; capacity <= 64; capacity *= 2) {
        struct dk_mailbox *m;
        int wakes = 0;
        char items[200];
        uint32_t pushed = 0;

        cr_assert_eq(dk_mailbox_open(capacity, count_wake, &wakes, &m), 0);
        for (int round = 0; round < 3; round++) { /* over the ring's end too */
            cr_assert_null(dk_mailbox_pop(m));
            for (pushed = 0; dk_mailbox_push(m, &items[pushed]) == 0; pushed++)
                cr_assert_lt(pushed, 2 * capacity);
            cr_assert_geq(pushed, capacity);
            cr_assert_eq(dk_mailbox_push(m, items), -EAGAIN);
            for (uint32_t i = 0; i < pushed; i++)
                cr_assert_eq(dk_mailbox_pop(m), &items[i]);
        }
        cr_assert_eq(wakes, 3 * (int)pushed, "a refused push wakes nobody");
        dk_mailbox_close(m);
    }
}

#define PRODUCERS 4
#define EACH      20000

struct item {
    uint32_t producer, number;
    uint32_t check; /* written before the push without any atomics: the mailbox must carry it over */
};

struct producer {
    struct dk_mailbox *mailbox;
    pthread_t thread;
    uint32_t index, refused;
};

static void *produce(void *arg)
{
    struct producer *p = arg;

    for (uint32_t i = 0; i < EACH; i++) {
        struct item *it = malloc(sizeof *it);

        it->producer = p->index;
        it->number = i;
        it->check = i * 2654435761u ^ p->index;
        while (dk_mailbox_push(p->mailbox, it) == -EAGAIN) {
            p->refused++;
            sched_yield();
        }
    }
    return NULL;
}

Test(mailbox, four_producers_lose_and_reorder_nothing, .timeout = 120)
{
    struct producer producers[PRODUCERS] = {0};
    uint32_t next[PRODUCERS] = {0};
    struct dk_mailbox *m;

    cr_assert_eq(dk_mailbox_open(64, NULL, NULL, &m), 0);
    for (uint32_t i = 0; i < PRODUCERS; i++) {
        producers[i].mailbox = m;
        producers[i].index = i;
        pthread_create(&producers[i].thread, NULL, produce, &producers[i]);
    }
    for (uint32_t got = 0; got < PRODUCERS * EACH;) {
        struct item *it = dk_mailbox_pop(m);

        if (!it) {
            sched_yield();
            continue;
        }
        cr_assert_lt(it->producer, PRODUCERS);
        cr_assert_eq(it->number, next[it->producer]++);
        cr_assert_eq(it->check, it->number * 2654435761u ^ it->producer);
        free(it);
        got++;
    }
    for (uint32_t i = 0; i < PRODUCERS; i++)
        pthread_join(producers[i].thread, NULL);
    cr_assert_null(dk_mailbox_pop(m));
    dk_mailbox_close(m);
}
