/* SPDX-License-Identifier: Apache-2.0 */
/* Options, help, usage errors and completion of every verb. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "captured.h"
#include "duckctl/duckctl.h"

struct invocation {
    const struct verb *verb;
    char *argv[2];
    int argc;
};

static int run_invocation(void *ctx)
{
    struct invocation *i = ctx;

    return i->verb->run(i->verb, i->argc, i->argv);
}

static struct captured run(const struct verb *v, const char *one, const char *two)
{
    struct invocation i = {.verb = v, .argv = {(char *)(uintptr_t)one, (char *)(uintptr_t)two}};

    i.argc = two ? 2 : 1;
    return captured_run(run_invocation, &i);
}

static void full_name(const struct verb *v, char *out, size_t size)
{
    snprintf(out, size, "%s%s%s", v->group ? v->group : "", v->group ? " " : "", v->name);
}

Test(verbs, help_names_every_option)
{
    for (const struct verb *const *v = verbs; *v; v++) {
        struct captured c = run(*v, "--help", NULL);
        char name[64], text[128];

        full_name(*v, name, sizeof name);
        snprintf(text, sizeof text, "usage: duckctl %s ", name);
        cr_assert_eq(c.rc, EXIT_DONE, "%s", name);
        cr_assert_eq(strncmp(c.out, text, strlen(text)), 0, "%s", c.out);
        cr_assert(strstr(c.out, (*v)->summary));
        for (const struct dk_option *o = (*v)->options; o->name; o++) {
            snprintf(text, sizeof text, "\n  --%s ", o->name);
            cr_assert_eq(occurrences(c.out, text), 1, "%s: %d times: %s", name, occurrences(c.out, text), o->name);
            cr_assert(o->help && *o->help, "%s --%s has no help", name, o->name);
            cr_assert(o->type == DK_OPT_FLAG || o->value, "%s --%s: no word for its value", name, o->name);
        }
        cr_assert_str_eq(c.err, "");
        captured_free(&c);
    }
}

Test(verbs, the_defaults_are_allowed)
{
    for (const struct verb *const *v = verbs; *v; v++)
        for (const struct dk_option *o = (*v)->options; o->name; o++) {
            const void *field = (const char *)(*v)->defaults + o->offset;
            const char *text = o->type == DK_OPT_TEXT ? *(const char *const *)field : NULL;
            uint32_t number = o->type == DK_OPT_U32 ? *(const uint32_t *)field : 0;

            cr_assert(!number || (number >= o->least && number <= o->most), "%s --%s", (*v)->name, o->name);
            cr_assert(!text || !o->choices || strstr(o->choices, text), "%s --%s", (*v)->name, o->name);
        }
}

Test(verbs, unknown_options_and_words_are_usage_errors)
{
    for (const struct verb *const *v = verbs; *v; v++) {
        struct captured c = run(*v, "--feathers", NULL);
        char name[64], text[128];

        full_name(*v, name, sizeof name);
        snprintf(text, sizeof text, "duckctl %s: ", name);
        cr_assert_eq(c.rc, EXIT_USAGE, "%s", name);
        cr_assert(!strncmp(c.err, text, strlen(text)) && strstr(c.err, "--feathers"), "%s", c.err);
        cr_assert_str_eq(c.out, "");
        captured_free(&c);
        c = run(*v, "--feathers", "--json");
        cr_assert_eq(c.rc, EXIT_USAGE, "%s", name);
        cr_assert_eq(strstr(c.out, "{\"error\":{\"code\":\"INVALID_ARGUMENT\","), c.out, "%s", c.out);
        cr_assert_str_eq(c.err, "");
        captured_free(&c);
    }
}

#define NO NULL
static const struct {
    const char *words[7];
    const char *says;
} wrong[] = {
    {{"local", "up", "--ducks", "0"}, "--ducks"},
    {{"local", "up", "--ducks", "32"}, "--ducks"},
    {{"local", "up", "--tp", "5"}, "--tp cannot be larger than --ducks"},
    {{"local", "up", "--port", "carrier"}, "--port"},
    {{"local", "up", "--name", "a b"}, "--name"},
    {{"local", "up", "--coordinator", "tcp://127.0.0.1:1"}, "--coordinator"},
    {{"local", "up", "--port", "af_packet", "--listen=tcp://127.0.0.1:7717"}, "--listen"},
    {{"local", "up", "--port", "af_packet", "--listen=tcp://0.0.0.0:7717"}, "--listen"},
    {{"local", "down", "--coordinator", "tcp://127.0.0.1:1"}, "--coordinator"},
    {{"local", "down", "now"}, "now"},
    {{"load"}, "--model"},
    {{"load", "--model", "/", "--attention", "half"}, "--attention"},
    {{"load", "--model", "/", "--allow-full"}, "--allow-full goes with --attention full"},
    {{"local", "up", "--allow-full"}, "--allow-full goes with --attention full"},
    {{"generate"}, "exactly one of"},
    {{"generate", "--prompt", "x", "--ids", "1"}, "exactly one of"},
    {{"generate", "--prompt", "x", "--system", "y"}, "--system"},
    {{"generate", "--ids", "1", "--thinking", "on"}, "--thinking"},
    {{"generate", "--chat", "x", "--thinking", "perhaps"}, "--thinking"},
    {{"generate", "--ids", "1,x"}, "--ids"},
    {{"generate", "--ids", "1", "--max-tokens", "0"}, "--max-tokens"},
    {{"generate", "--ids", "1", "--temperature", "-1"}, "--temperature"},
    {{"generate", "--ids", "1", "--top-p", "1.5"}, "--top-p"},
    {{"generate", "--prompt", "\xff"}, "--prompt"},
    {{"generate", "--chat", "\xff"}, "--chat"},
    {{"generate", "--ids", "1", "--stop", "\xff"}, "--stop"},
    {{"generate", "--seed"}, "--seed"},
    {{"generate", "--ids", "1", "--trace-layers", "0"}, "--trace-out"},
    {{"generate", "--ids", "1", "--tools", "x.json"}, "--tools"},
    {{"score"}, "exactly one of --text, --file, --ids"},
    {{"score", "--text", "x", "--file", "y"}, "exactly one of"},
    {{"score", "--text", "\xff"}, "--text"},
    {{"score", "--ids", "1,"}, "--ids"},
    {{"score", "--ids", "1", "--logprobs", "21"}, "--logprobs"},
    {{"score", "--ids", "1", "--system", "y"}, "--system"},
    {{"inspect"}, "folder"},
    {{"inspect", "/", "--multiple-of", "33"}, "--multiple-of"},
    {{"inspect", "/", "--ducks", "65"}, "--ducks"},
    {{"inspect", "/", "more"}, "more"},
    {{"tokenize"}, "exactly one of"},
    {{"tokenize", "--text", "x", "--file", "y"}, "exactly one of"},
    {{"detokenize"}, "--ids"},
    {{"detokenize", "--ids", ""}, "--ids"},
    {{"call"}, "method"},
    {{"call", "Client/Fly"}, "Client/Fly"},
    {{"call", "Client/Tokenize", "{"}, "Client/Tokenize"},
    {{"call", "Client/Tokenize", "{\"txt\":1}"}, "txt"},
    {{"describe", "Pond"}, "Pond"},
    {{"completion", "fish"}, "bash"},
};

Test(verbs, wrong_arguments_are_usage_errors_that_name_them)
{
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const char *const *w = wrong[i].words;
        struct captured c = captured_duckctl(w[0], w[1], w[2], w[3], w[4], w[5], NO);

        cr_assert_eq(c.rc, EXIT_USAGE, "%s %s: %d %s", w[0], w[1] ? w[1] : "", c.rc, c.err);
        cr_assert(strstr(c.err, wrong[i].says), "%s %s: %s", w[0], w[1] ? w[1] : "", c.err);
        cr_assert_str_eq(c.out, "");
        captured_free(&c);
    }
}

Test(verbs, a_cluster_that_is_not_there)
{
    struct captured c;

    setenv("XDG_RUNTIME_DIR", "/tmp/dk-no-such-folder", 1);
    c = captured_duckctl("status", "--name", "no-such-pond", NULL);
    cr_assert_eq(c.rc, EXIT_UNREACHABLE);
    cr_assert(strstr(c.err, "no-such-pond"), "%s", c.err);
    captured_free(&c);
    c = captured_duckctl("local", "down", "--name", "no-such-pond", NULL);
    cr_assert_eq(c.rc, EXIT_REFUSED);
    cr_assert(strstr(c.err, "no-such-pond"), "%s", c.err);
    captured_free(&c);
}

static int fail(void *ctx)
{
    return verb_fail(false, ctx);
}

Test(verbs, exit_codes)
{
    static const struct {
        int rc, code;
    } cases[] = {{-ECONNREFUSED, EXIT_UNREACHABLE}, {-ETIMEDOUT, EXIT_UNREACHABLE}, {-ETIME, EXIT_REFUSED},
                 {-EHOSTUNREACH, EXIT_REFUSED},     {-EINTR, EXIT_INTERRUPTED},     {USAGE_ERROR, EXIT_USAGE},
                 {-EINVAL, EXIT_REFUSED},           {-ENOENT, EXIT_REFUSED}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dk_err err = {.rc = cases[i].rc, .text = "why"};
        struct captured c = captured_run(fail, &err);

        cr_assert_eq(c.rc, cases[i].code, "%d: %d", cases[i].rc, c.rc);
        cr_assert_str_eq(c.err, "duckctl: why\n");
        captured_free(&c);
    }
}

/* The script is what a shell takes, and offers what the tables say. */
Test(verbs, completion)
{
    struct captured c = captured_duckctl("completion", "bash", NULL);
    FILE *shell;

    cr_assert_eq(c.rc, EXIT_DONE);
    for (const struct verb *const *v = verbs; *v; v++) {
        char name[64], arm[80], *begin, *end;

        full_name(*v, name, sizeof name);
        snprintf(arm, sizeof arm, "    \"%s\") ", name);
        begin = strstr(c.out, arm);
        cr_assert(begin, "%s is not completed", name);
        end = strchr(begin, '\n');
        *end = 0;
        for (const struct dk_option *o = (*v)->options; o->name; o++) {
            snprintf(arm, sizeof arm, "--%s ", o->name);
            cr_assert(strstr(begin, arm), "%s: no --%s", name, o->name);
        }
        *end = '\n';
    }
    cr_assert(strstr(c.out, "    \"load --attention\") COMPREPLY=($(compgen -W \"sparse full\" "));
    cr_assert(strstr(c.out, "    \"score --thinking\") COMPREPLY=($(compgen -W \"on off\" "));
    shell = popen("bash -n", "w");
    cr_assert(shell);
    fputs(c.out, shell);
    cr_assert_eq(pclose(shell), 0, "bash does not take it");
    captured_free(&c);
}
