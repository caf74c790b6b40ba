/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "duckctl/duckctl.h"

static void help(FILE *out)
{
    fprintf(out, "usage: duckctl VERB [OPTION ...]\n\n"
                 "Controls a duckllm cluster: coordinator, attention-worker and ducks.\n\nverbs:\n");
    for (const struct verb *const *v = verbs; *v; v++) {
        char name[64];

        snprintf(name, sizeof name, "%s%s%s", (*v)->group ? (*v)->group : "", (*v)->group ? " " : "", (*v)->name);
        fprintf(out, "  %-16s %s\n", name, (*v)->summary);
    }
    fprintf(out, "\n`duckctl VERB --help` tells the options of a verb.\n\n"
                 "A verb talks to a cluster on this host (--name NAME, made by `duckctl local up`) or to any\n"
                 "coordinator (--coordinator URL).\n\n"
                 "exit codes: 0 done, 1 the cluster said no, 2 wrong usage, 3 cannot reach the cluster,\n"
                 "            130 interrupted\n");
}

/* The verb that argv names, and how many words its name has. */
static const struct verb *find(int argc, char **argv, int *words)
{
    for (const struct verb *const *v = verbs; *v; v++) {
        *words = (*v)->group ? 2 : 1;
        if (argc > *words && (!(*v)->group || !strcmp(argv[1], (*v)->group)) && !strcmp(argv[*words], (*v)->name))
            return *v;
    }
    return NULL;
}

/* What a verb printed must have arrived: a full disk is not a success. */
static int output_end(int rc)
{
    bool flushed;

    errno = 0;
    flushed = fflush(stdout) == 0;
    if (flushed && !ferror(stdout))
        return rc;
    if (rc == EXIT_DONE)
        fprintf(stderr, "duckctl: standard output: %s\n", flushed || !errno ? "not all was written" : strerror(errno));
    return rc == EXIT_DONE ? EXIT_REFUSED : rc;
}

int main(int argc, char **argv)
{
    const struct verb *v;
    struct dk_err err;
    int words;

    signal(SIGPIPE, SIG_IGN);
    dk_log_setup(NULL, NULL, DK_LOG_WARN, "duckctl");
    if (argc < 2 || !strcmp(argv[1], "--help") || !strcmp(argv[1], "help") || !strcmp(argv[1], "-h")) {
        help(argc < 2 ? stderr : stdout);
        return argc < 2 ? EXIT_USAGE : output_end(EXIT_DONE);
    }
    if (!strcmp(argv[1], "--version")) {
        printf("duckctl %s\n", DUCKLLM_VERSION);
        return output_end(EXIT_DONE);
    }
    v = find(argc, argv, &words);
    if (!v) {
        dk_err_set(&err, USAGE_ERROR, "unknown verb '%s%s%s'; `duckctl --help` lists them", argv[1],
                   argc > 2 && !strcmp(argv[1], "local") ? " " : "",
                   argc > 2 && !strcmp(argv[1], "local") ? argv[2] : "");
        return verb_fail(json_asked(argc, argv), &err);
    }
    return output_end(v->run(v, argc - 1 - words, argv + 1 + words));
}
