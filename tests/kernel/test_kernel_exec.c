/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "kernel/exec.h"

#define PARTS 5

struct job {
    struct dk_exec *e;
    uint32_t stage[PARTS]; /* plain, so that a thread sanitizer sees a missing barrier */
    uint32_t bad;
    uint32_t runs[PARTS];
    uint32_t parts;
};

static void count_part(void *arg, uint32_t part, uint32_t parts)
{
    struct job *j = arg;

    j->runs[part]++;
    if (part == 0)
        j->parts = parts;
}

Test(kernel_exec, every_part_runs_once)
{
    for (uint32_t threads = 1; threads <= PARTS; threads++) {
        struct job j = {0};

        cr_assert_eq(dk_exec_open(threads, false, &j.e), 0);
        cr_assert_eq(dk_exec_threads(j.e), threads);
        for (uint32_t i = 0; i < 300; i++) {
            dk_exec_run(j.e, count_part, &j);
            for (uint32_t p = 0; p < PARTS; p++)
                cr_assert_eq(j.runs[p], p < threads ? i + 1 : 0);
            cr_assert_eq(j.parts, threads);
            if (i % 100 == 50)
                usleep(2000); /* long enough for the helpers to fall asleep: both ways of waking are used */
        }
        dk_exec_close(j.e);
    }
}

/* Everybody sees everybody's last stage on the other side of a barrier. */
static void stages_part(void *arg, uint32_t part, uint32_t parts)
{
    struct job *j = arg;

    for (uint32_t stage = 1; stage <= 50; stage++) {
        j->stage[part] = stage;
        if (stage % 25 == part)
            usleep(1000);
        dk_exec_barrier(j->e, part);
        for (uint32_t p = 0; p < parts; p++)
            if (j->stage[p] != stage)
                j->runs[part]++;
        dk_exec_barrier(j->e, part);
    }
}

Test(kernel_exec, barrier)
{
    for (uint32_t threads = 1; threads <= PARTS; threads++) {
        struct job j = {0};

        cr_assert_eq(dk_exec_open(threads, false, &j.e), 0);
        for (int i = 0; i < 5; i++)
            dk_exec_run(j.e, stages_part, &j);
        for (uint32_t p = 0; p < PARTS; p++)
            cr_assert_eq(j.runs[p], 0);
        dk_exec_close(j.e);
    }
}

static void pinned_part(void *arg, uint32_t part, uint32_t parts)
{
    struct job *j = arg;
    cpu_set_t set;

    sched_getaffinity(0, sizeof set, &set);
    j->runs[part] = (uint32_t)CPU_COUNT(&set);
}

Test(kernel_exec, pins_and_gives_back)
{
    cpu_set_t before, after;
    struct job j = {0};

    cr_assert_eq(sched_getaffinity(0, sizeof before, &before), 0);
    cr_assert_eq(dk_exec_open(3, true, &j.e), 0);
    dk_exec_run(j.e, pinned_part, &j);
    for (int p = 0; p < 3; p++)
        cr_assert_eq(j.runs[p], 1);
    dk_exec_close(j.e);
    cr_assert_eq(sched_getaffinity(0, sizeof after, &after), 0);
    cr_assert(CPU_EQUAL(&before, &after));
}

Test(kernel_exec, ranges_cover_everything_once)
{
    for (uint32_t count = 0; count < 40; count++)
        for (uint32_t parts = 1; parts < 9; parts++) {
            uint32_t at = 0;

            for (uint32_t part = 0; part < parts; part++) {
                uint32_t begin, end;

                dk_exec_range(count, part, parts, &begin, &end);
                cr_assert_eq(begin, at);
                cr_assert(end >= begin && end - begin <= count / parts + 1);
                at = end;
            }
            cr_assert_eq(at, count);
        }
}

Test(kernel_exec, closing_nothing)
{
    dk_exec_close(NULL);
}
