/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "net/faults.h"

Test(faults, parse_takes_every_name)
{
    struct dk_net_faults f;
    struct dk_err err = {0};

    cr_assert_eq(
        dk_net_faults_parse("drop=0.01,dup=0.02,reorder=1,corrupt=1e-3,delay=0.1,delay_us=500,seed=7", &f, &err), 0);
    cr_assert(f.drop == 0.01 && f.dup == 0.02 && f.reorder == 1 && f.corrupt == 0.001 && f.delay == 0.1 &&
              f.delay_us == 500 && f.seed == 7);
    cr_assert_eq(dk_net_faults_parse("", &f, &err), 0);
    cr_assert(f.drop == 0 && f.seed == 0);
    cr_assert_eq(dk_net_faults_parse("seed=18446744073709551615", &f, NULL), 0);
    cr_assert_eq(f.seed, UINT64_MAX);
}

Test(faults, parse_refuses_with_a_reason)
{
    static const char *const bad[] = {
        "drop",
        "drop=",
        "drop=2",
        "drop=-0.1",
        "drop=nan",
        "drop=0.1x",
        "loss=0.1",
        "drop=0.1,",
        ",drop=0.1",
        "seed=-1",
        "seed=1.5",
        "delay_us=4294967296",
        "=1",
        "drop=inf",
        "drop=0.1;dup=0.2",
        "seed=18446744073709551616",
        "drop=0.0000000000000000000000000000000000000000000000000000000000000000001",
    };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct dk_net_faults f = {.seed = 77};
        struct dk_err err = {0};

        cr_assert_eq(dk_net_faults_parse(bad[i], &f, &err), -EINVAL, "%s", bad[i]);
        cr_assert(err.rc == -EINVAL && err.text[0], "%s", bad[i]);
        cr_assert_eq(f.seed, 77, "%s: nothing is changed", bad[i]);
    }
}

/* Frames are numbered; the device writes down what leaves it. */
struct device {
    uint8_t bytes[4096][8];
    uint32_t made, passed, dropped;
    uint32_t order[4096];
    bool damaged[4096];
    bool no_copies;
    struct dk_net_counters counters;
    struct dk_fault_injector injector;
};

static void frame_make(struct device *d, uint32_t number, struct dk_frame *f)
{
    cr_assert_lt(d->made, 4096);
    *f = (struct dk_frame){.data = d->bytes[d->made++], .bytes = 8, .port = number % 2};
    memcpy(f->data, &number, 4);
    memcpy(f->data + 4, &number, 4);
}

static void on_pass(void *ctx, struct dk_frame *f)
{
    struct device *d = ctx;
    uint32_t first, second;

    memcpy(&first, f->data, 4);
    memcpy(&second, f->data + 4, 4);
    d->damaged[d->passed] = first != second;
    if (first != second)
        cr_assert_eq(__builtin_popcount(first ^ second), 1, "one bit is turned");
    d->order[d->passed++] = first < second ? first : second;
}

static void on_drop(void *ctx, struct dk_frame *f)
{
    struct device *d = ctx;

    d->dropped++;
}

static int on_copy(void *ctx, const struct dk_frame *from, struct dk_frame *to)
{
    struct device *d = ctx;

    if (d->no_copies)
        return -EAGAIN;
    frame_make(d, 0, to);
    memcpy(to->data, from->data, 8);
    to->port = from->port;
    return 0;
}

static const struct dk_fault_ops ops = {on_pass, on_drop, on_copy};

static struct device *device_open(struct dk_net_faults faults)
{
    struct device *d = calloc(1, sizeof *d);

    cr_assert(d);
    dk_faults_init(&d->injector, &faults, &d->counters, &ops, d);
    return d;
}

static void send_some(struct device *d, uint32_t from, uint32_t count)
{
    for (uint32_t i = from; i < from + count; i++) {
        struct dk_frame f;

        frame_make(d, i, &f);
        dk_faults_send(&d->injector, &f, i);
    }
}

Test(faults, none_changes_nothing)
{
    struct device *d = device_open((struct dk_net_faults){0});

    cr_assert_not(dk_faults_active(&d->injector));
    send_some(d, 0, 100);
    cr_assert_eq(d->passed, 100);
    for (uint32_t i = 0; i < 100; i++)
        cr_assert(d->order[i] == i && !d->damaged[i]);
    cr_assert_eq(dk_faults_deadline(&d->injector), UINT64_MAX);
    free(d);
}

Test(faults, dropping_and_doubling_follow_their_probability)
{
    struct device *d = device_open((struct dk_net_faults){.drop = 0.2, .dup = 0.1, .seed = 3});

    send_some(d, 0, 2000);
    cr_assert(d->counters.fault_dropped > 320 && d->counters.fault_dropped < 480);
    cr_assert(d->counters.fault_duplicated > 110 && d->counters.fault_duplicated < 210);
    cr_assert_eq(d->dropped, d->counters.fault_dropped);
    cr_assert_eq(d->passed, 2000 - d->counters.fault_dropped + d->counters.fault_duplicated);
    free(d);
}

Test(faults, no_buffer_no_duplicate)
{
    struct device *d = device_open((struct dk_net_faults){.dup = 1});

    d->no_copies = true;
    send_some(d, 0, 10);
    cr_assert_eq(d->passed, 10);
    cr_assert_eq(d->counters.fault_duplicated, 0);
    free(d);
}

Test(faults, damage_is_one_bit_and_counted)
{
    struct device *d = device_open((struct dk_net_faults){.corrupt = 0.5, .seed = 4});
    uint32_t damaged = 0;

    send_some(d, 0, 1000);
    for (uint32_t i = 0; i < 1000; i++)
        damaged += d->damaged[i];
    cr_assert_eq(damaged, d->counters.fault_corrupted);
    cr_assert(damaged > 400 && damaged < 600);
    free(d);
}

Test(faults, reordered_frames_are_overtaken_and_all_arrive)
{
    struct device *d = device_open((struct dk_net_faults){.reorder = 0.3, .seed = 5});
    bool seen[1000] = {0};
    uint32_t late = 0;

    send_some(d, 0, 1000);
    dk_faults_poll(&d->injector, 1000 + 1000);
    cr_assert_eq(d->passed, 1000);
    for (uint32_t i = 0; i < 1000; i++) {
        cr_assert_not(seen[d->order[i]]);
        seen[d->order[i]] = true;
        late += i > 0 && d->order[i] < d->order[i - 1];
    }
    cr_assert_gt(d->counters.fault_reordered, 200);
    cr_assert_gt(late, 150);
    free(d);
}

Test(faults, a_last_frame_is_not_held_for_ever)
{
    struct device *d = device_open((struct dk_net_faults){.reorder = 1});
    uint64_t due;

    send_some(d, 0, 1);
    cr_assert_eq(d->passed, 0);
    due = dk_faults_deadline(&d->injector);
    cr_assert_neq(due, UINT64_MAX);
    dk_faults_poll(&d->injector, due - 1);
    cr_assert_eq(d->passed, 0);
    dk_faults_poll(&d->injector, due);
    cr_assert_eq(d->passed, 1);
    cr_assert_eq(d->counters.fault_reordered, 0, "nothing overtook it");
    free(d);
}

Test(faults, delayed_frames_wait_their_time_and_the_queue_is_limited)
{
    struct device *d = device_open((struct dk_net_faults){.delay = 1, .delay_us = 500});

    send_some(d, 0, 100);
    cr_assert_eq(d->counters.fault_delayed, DK_FAULTS_HELD_MAX);
    cr_assert_eq(d->passed, 100 - DK_FAULTS_HELD_MAX, "a full queue lets frames pass");
    cr_assert_eq(dk_faults_deadline(&d->injector), 500);
    dk_faults_poll(&d->injector, 509);
    cr_assert_eq(d->passed, 100 - DK_FAULTS_HELD_MAX + 10);
    dk_faults_forget_port(&d->injector, 1);
    cr_assert_eq(d->dropped, 27);
    dk_faults_fini(&d->injector);
    cr_assert_eq(d->dropped, DK_FAULTS_HELD_MAX - 10);
    cr_assert_eq(d->injector.held_count, 0);
    free(d);
}

Test(faults, the_same_seed_gives_the_same_faults)
{
    struct dk_net_faults faults = {
        .drop = 0.1, .dup = 0.1, .reorder = 0.1, .corrupt = 0.1, .delay = 0.1, .delay_us = 20, .seed = 9};
    struct device *a = device_open(faults), *b = device_open(faults), *c;

    faults.seed = 10;
    c = device_open(faults);
    send_some(a, 0, 1000);
    send_some(b, 0, 1000);
    send_some(c, 0, 1000);
    cr_assert_eq(a->passed, b->passed);
    cr_assert(!memcmp(a->order, b->order, sizeof a->order));
    cr_assert(memcmp(a->order, c->order, sizeof a->order));
    free(a);
    free(b);
    free(c);
}
