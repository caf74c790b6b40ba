/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/options.h"

struct settings {
    bool verbose;
    const char *backend;
    uint32_t threads;
    uint64_t bytes;
    double rate;
    struct dk_option_list duck;
};

static bool threads_given;

static const struct dk_option table[] = {
    {.name = "verbose", .type = DK_OPT_FLAG, .offset = offsetof(struct settings, verbose), .help = "say more"},
    {.name = "backend",
     .type = DK_OPT_TEXT,
     .offset = offsetof(struct settings, backend),
     .value = "NAME",
     .help = "where attention runs",
     .choices = "cpu|cuda"},
    {.name = "threads",
     .type = DK_OPT_U32,
     .offset = offsetof(struct settings, threads),
     .value = "N",
     .help = "kernel threads",
     .least = 1,
     .most = 64,
     .given = &threads_given},
    {.name = "bytes",
     .type = DK_OPT_U64,
     .offset = offsetof(struct settings, bytes),
     .help = "of the cache",
     .least = 0,
     .most = 1e15},
    {.name = "rate",
     .type = DK_OPT_DOUBLE,
     .offset = offsetof(struct settings, rate),
     .help = "of loss",
     .least = 0,
     .most = 1},
    {.name = "duck", .type = DK_OPT_LIST, .offset = offsetof(struct settings, duck), .value = "ADDR", .help = "a duck"},
    {0},
};

static struct settings s;
static struct dk_err err;
static const char *rest[2];
static int rest_count;

/* line: arguments with one space between them. */
static int parse(const char *line)
{
    static char copy[4096];
    char *argv[256], *save = NULL;
    int argc = 0;

    snprintf(copy, sizeof copy, "%s", line);
    for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save))
        argv[argc++] = w;
    s = (struct settings){.backend = "cpu", .threads = 4, .rate = 0.5};
    memset(&err, 0, sizeof err);
    threads_given = false;
    return dk_options_parse(table, &s, argc, argv, rest, 2, &rest_count, &err);
}

Test(options, nothing_given_keeps_the_defaults)
{
    cr_assert_eq(parse(""), 0);
    cr_expect(!s.verbose && !strcmp(s.backend, "cpu") && s.threads == 4 && s.rate == 0.5 && s.duck.count == 0);
    cr_expect_not(threads_given);
    cr_expect_eq(rest_count, 0);
}

Test(options, both_spellings_and_positional)
{
    cr_assert_eq(parse("one --threads 8 --backend=cuda --verbose --bytes=123456789012 --rate 1e-3 two"), 0, "%s",
                 err.text);
    cr_expect(s.verbose && !strcmp(s.backend, "cuda") && s.threads == 8 && s.bytes == 123456789012 && s.rate == 1e-3);
    cr_expect(threads_given);
    cr_assert_eq(rest_count, 2);
    cr_expect_str_eq(rest[0], "one");
    cr_expect_str_eq(rest[1], "two");
}

Test(options, limits_are_inside)
{
    cr_expect_eq(parse("--threads 1 --rate 0"), 0);
    cr_expect(s.threads == 1 && s.rate == 0);
    cr_expect_eq(parse("--threads 64 --rate 1"), 0);
    cr_expect(s.threads == 64 && s.rate == 1);
}

Test(options, last_one_counts_and_lists_collect)
{
    cr_assert_eq(parse("--threads 2 --threads 3 --duck a --duck=b"), 0);
    cr_expect_eq(s.threads, 3);
    cr_assert_eq(s.duck.count, 2);
    cr_expect_str_eq(s.duck.items[0], "a");
    cr_expect_str_eq(s.duck.items[1], "b");
}

Test(options, double_dash_ends_options)
{
    cr_assert_eq(parse("-- --threads -"), 0, "%s", err.text);
    cr_expect_eq(s.threads, 4);
    cr_assert_eq(rest_count, 2);
    cr_expect_str_eq(rest[0], "--threads");
    cr_expect_str_eq(rest[1], "-");
}

Test(options, refused)
{
    static const struct {
        const char *line, *words[3];
    } cases[] = {
        {"--nothing", {"--nothing", "unknown"}},
        {"--thread 3", {"--thread", "unknown"}},
        {"--threadsX=3", {"--threadsX", "unknown"}},
        {"-t 3", {"-t", "--name"}},
        {"--threads", {"--threads", "needs a value", "N"}},
        {"--threads=", {"--threads", "1 to 64"}},
        {"--threads 0", {"--threads", "'0'", "1 to 64"}},
        {"--threads 65", {"--threads", "'65'", "1 to 64"}},
        {"--threads -1", {"--threads", "'-1'", "1 to 64"}},
        {"--threads +1", {"--threads", "'+1'"}},
        {"--threads 3x", {"--threads", "'3x'"}},
        {"--threads 0x10", {"--threads", "'0x10'"}},
        {"--threads 99999999999999999999999", {"--threads", "1 to 64"}},
        {"--threads 4294967297", {"--threads", "1 to 64"}},
        {"--bytes 1e3", {"--bytes", "'1e3'"}},
        {"--rate 1.01", {"--rate", "0 to 1"}},
        {"--rate nan", {"--rate", "0 to 1"}},
        {"--rate inf", {"--rate", "0 to 1"}},
        {"--rate x", {"--rate", "0 to 1"}},
        {"--backend gpu", {"--backend", "'gpu'", "cpu|cuda"}},
        {"--backend cp", {"--backend", "'cp'"}},
        {"--backend cpu|cuda", {"--backend", "'cpu|cuda'"}},
        {"--verbose=yes", {"--verbose", "no value"}},
        {"a b c", {"unexpected", "'c'"}},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_expect_eq(parse(cases[i].line), -EINVAL, "accepted: %s", cases[i].line);
        cr_expect_eq(err.rc, -EINVAL);
        for (size_t k = 0; k < 3 && cases[i].words[k]; k++)
            cr_expect(strstr(err.text, cases[i].words[k]), "%s: \"%s\" does not say \"%s\"", cases[i].line, err.text,
                      cases[i].words[k]);
    }
}

Test(options, full_list)
{
    char line[1024] = "";

    for (int i = 0; i < 32; i++)
        strcat(line, "--duck d ");
    cr_expect_eq(parse(line), 0, "%s", err.text);
    cr_expect_eq(s.duck.count, 32);
    strcat(line, "--duck d");
    cr_expect_eq(parse(line), -EINVAL);
    cr_expect(strstr(err.text, "--duck") && strstr(err.text, "32"));
}

Test(options, help_lists_everything_with_defaults)
{
    struct settings defaults = {.backend = "cpu", .threads = 4, .rate = 0.5};
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);

    dk_options_help(table, &defaults, out);
    fclose(out);
    for (const struct dk_option *o = table; o->name; o++) {
        cr_expect(strstr(text, o->name), "%s", o->name);
        cr_expect(strstr(text, o->help), "%s", o->help);
    }
    cr_expect(strstr(text, "(cpu|cuda) [cpu]"), "%s", text);
    cr_expect(strstr(text, "[4]"), "%s", text);
    free(text);
}
