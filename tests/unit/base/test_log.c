/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"

struct sink {
    unsigned lines;
    enum dk_log_level level;
    char last[2048];
};

static void keep(void *ctx, enum dk_log_level level, const char *line)
{
    struct sink *s = ctx;

    s->lines++;
    s->level = level;
    snprintf(s->last, sizeof s->last, "%s", line);
}

static unsigned evaluated;

static unsigned argument(void)
{
    return ++evaluated;
}

Test(log, line)
{
    struct sink s = {0};

    dk_log_setup(keep, &s, DK_LOG_INFO, "test");
    dk_log(DK_LOG_INFO, "duck.join", "name=%s cores=%u", "d1", 8u);
    cr_expect_eq(s.lines, 1);
    cr_expect_eq(s.level, DK_LOG_INFO);
    cr_expect_str_eq(s.last, "duck.join name=d1 cores=8");
}

Test(log, levels_that_are_off_cost_nothing)
{
    for (int most = DK_LOG_ERROR; most <= DK_LOG_DEBUG; most++) {
        struct sink s = {0};

        evaluated = 0;
        dk_log_setup(keep, &s, (enum dk_log_level)most, NULL);
        for (int level = DK_LOG_ERROR; level <= DK_LOG_DEBUG; level++)
            dk_log((enum dk_log_level)level, "id", "n=%u", argument());
        cr_expect_eq(s.lines, (unsigned)most + 1);
        cr_expect_eq(evaluated, (unsigned)most + 1);
    }
}

Test(log, long_lines_are_cut)
{
    struct sink s = {0};
    char text[3000];

    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = 0;
    dk_log_setup(keep, &s, DK_LOG_INFO, NULL);
    dk_log(DK_LOG_INFO, "id", "%s", text);
    cr_expect_eq(s.lines, 1);
    cr_expect(strlen(s.last) > 500 && strlen(s.last) < sizeof text);
    cr_expect(!strncmp(s.last, "id xxx", 6));
}

Test(log, level_names)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    enum dk_log_level level;

    for (int i = 0; i < 4; i++) {
        cr_expect_eq(dk_log_level_parse(names[i], &level), 0);
        cr_expect_eq((int)level, i);
    }
    cr_expect_eq(dk_log_level_parse("", &level), -EINVAL);
    cr_expect_eq(dk_log_level_parse("Info", &level), -EINVAL);
    cr_expect_eq(dk_log_level_parse("information", &level), -EINVAL);
}

Test(log, default_sink_names_program_and_level, .init = cr_redirect_stderr)
{
    char text[512];
    size_t n;

    dk_log_setup(NULL, NULL, DK_LOG_WARN, "duck-firmware");
    dk_log(DK_LOG_WARN, "id.of.it", "a=%d", 1);
    dk_log(DK_LOG_INFO, "id.of.it", "a=%d", 2);
    fflush(stderr);
    n = fread(text, 1, sizeof text - 1, cr_get_redirected_stderr());
    text[n] = 0;
    cr_expect(strstr(text, " warn  duck-firmware id.of.it a=1\n"), "%s", text);
    cr_expect_null(strstr(text, "a=2"));
}
