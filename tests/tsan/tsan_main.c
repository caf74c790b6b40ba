/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the registered tests one after another, each in a process of its own. */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "criterion/criterion.h"

static struct tsan_suite *suites;
static struct tsan_test *tests;
static int failures;

void tsan_add_suite(struct tsan_suite *s)
{
    s->next = suites;
    suites = s;
}

void tsan_add_test(struct tsan_test *t)
{
    t->next = tests;
    tests = t;
}

void tsan_failed(bool fatal, const char *file, int line, const char *condition)
{
    failures++;
    if (file)
        fprintf(stderr, "%s:%d: failed: %s\n", file, line, condition);
    if (fatal)
        exit(1);
}

static int run(const struct tsan_test *t)
{
    struct tsan_settings settings = t->settings;
    double timeout = 240;
    int status;
    pid_t pid;

    for (const struct tsan_suite *s = suites; s; s = s->next)
        if (!strcmp(s->name, t->suite)) {
            settings.init = settings.init ? settings.init : s->settings.init;
            settings.fini = settings.fini ? settings.fini : s->settings.fini;
        }
    pid = fork();
    if (pid == 0) {
        alarm((unsigned)timeout);
        if (settings.init)
            settings.init();
        t->run();
        if (settings.fini)
            settings.fini();
        exit(failures ? 1 : 0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) < 0)
        return 1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(void)
{
    int tested = 0, failing = 0;

    for (const struct tsan_test *t = tests; t; t = t->next) {
        int code;

        if (t->settings.disabled)
            continue;
        tested++;
        code = run(t);
        if (code) {
            failing++;
            fprintf(stderr, "[FAIL] %s::%s: exit code %d\n", t->suite, t->name, code);
        }
    }
    fprintf(stderr, "[====] Synthesis: Tested: %d | Passing: %d | Failing: %d | Crashing: 0\n", tested,
            tested - failing, failing);
    return failing || !tested ? 1 : 0;
}
