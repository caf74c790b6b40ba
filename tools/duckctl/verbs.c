/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "duckctl/duckctl.h"

const struct verb *const verbs[] = {
    &verb_local_up,   &verb_local_down, &verb_local_list, &verb_status,     &verb_stats,
    &verb_load,       &verb_generate,   &verb_score,      &verb_inspect,    &verb_tokenize,
    &verb_detokenize, &verb_call,       &verb_describe,   &verb_completion, NULL,
};

_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "a signal handler sets it");
atomic_int interrupted;

static void on_interrupt(int signal)
{
    interrupted = signal;
}

void catch_interrupts(void)
{
    struct sigaction a = {.sa_handler = on_interrupt};

    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
}

static void help(const struct verb *v)
{
    printf("usage: duckctl %s%s%s%s%s\n\n%s\n\noptions [default]:\n", v->group ? v->group : "", v->group ? " " : "",
           v->name, *v->arguments ? " " : "", v->arguments, v->summary);
    dk_options_help(v->options, v->defaults, stdout);
    if (v->details)
        printf("\n%s\n", v->details);
    printf("\nexit codes: 0 done, 1 the cluster said no, 2 wrong usage, 3 cannot reach the cluster, 130 interrupted\n");
}

static bool json_wanted; /* by the verb that runs */

bool json_asked(int argc, char **argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--"); i++)
        if (!strcmp(argv[i], "--json"))
            return true;
    return false;
}

static void print_error(const char *code, const char *text)
{
    json_t *error = json_pack("{s:{s:s,s:s}}", "error", "code", code, "text", text);

    /* Arguments and file names in a text may be any bytes; JSON is UTF-8. */
    if (!error)
        error = json_pack("{s:{s:s,s:s}}", "error", "code", code, "text",
                          "an argument is not UTF-8; the command without --json tells which");
    print_json(error);
}

int verb_usage(const struct verb *v, const char *text)
{
    if (json_wanted)
        print_error(dk_code_name(DK__CODE__INVALID_ARGUMENT), text);
    else
        fprintf(stderr, "duckctl %s%s%s: %s\n(`duckctl %s%s%s --help` tells more)\n", v->group ? v->group : "",
                v->group ? " " : "", v->name, text, v->group ? v->group : "", v->group ? " " : "", v->name);
    return EXIT_USAGE;
}

int text_check(const char *what, const char *text, struct dk_err *err)
{
    json_t *s = text ? json_string(text) : NULL; /* takes UTF-8 only */
    int rc = !text || s ? 0 : dk_err_set(err, USAGE_ERROR, "%s: the text is not UTF-8", what);

    json_decref(s);
    return rc;
}

int verb_begin(const struct verb *v, void *settings, size_t settings_bytes, int argc, char **argv,
               const char **positional, int positional_most, int *positional_count)
{
    const struct common_settings *common = settings;
    struct dk_err err = {0};
    int count = 0;

    json_wanted = json_asked(argc, argv);
    memcpy(settings, v->defaults, settings_bytes);
    if (dk_options_parse(v->options, settings, argc, argv, positional, positional_most, &count, &err) < 0)
        return verb_usage(v, err.text);
    if (positional_count)
        *positional_count = count;
    if (common->help) {
        help(v);
        return EXIT_DONE;
    }
    if (v->group && common->coordinator)
        return verb_usage(v, "--coordinator reaches other clusters; this verb is for those of this host, by --name");
    return -1;
}

void print_json(json_t *value)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_REAL_PRECISION(9));

    puts(text ? text : "null");
    free(text);
    json_decref(value);
}

int verb_fail(bool json, const struct dk_err *err)
{
    bool unreachable = err->rc == -ECONNREFUSED || err->rc == -ETIMEDOUT, usage = err->rc == USAGE_ERROR;

    if (json)
        print_error(unreachable         ? "UNREACHABLE"
                    : usage             ? dk_code_name(DK__CODE__INVALID_ARGUMENT)
                    : err->rc == -EINTR ? dk_code_name(DK__CODE__CANCELLED)
                                        : dk_code_name(dk_code_from_errno(err->rc)),
                    err->text);
    else
        fprintf(stderr, "duckctl: %s\n", err->text);
    if (err->rc == -EINTR)
        return EXIT_INTERRUPTED;
    return unreachable ? EXIT_UNREACHABLE : usage ? EXIT_USAGE : EXIT_REFUSED;
}
