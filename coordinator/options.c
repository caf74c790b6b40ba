/* SPDX-License-Identifier: Apache-2.0 */
#include "coordinator/options.h"

#include "base/options.h"
#include "plan/plan.h"

#define FIELD(name) offsetof(struct dk_coordinator_settings, name)

static const struct dk_option options[] = {
    {.name = "listen",
     .type = DK_OPT_TEXT,
     .offset = FIELD(listen),
     .value = "URL",
     .help = "address that nodes and clients dial: tcp://HOST:PORT or ipc://PATH"},
    {.name = "step-rows",
     .type = DK_OPT_U32,
     .offset = FIELD(step_rows),
     .value = "N",
     .help = "most rows (tokens) of one step; larger than --max-running",
     .least = 2,
     .most = DK_PLAN_ROWS_MAX},
    {.name = "max-running",
     .type = DK_OPT_U32,
     .offset = FIELD(running_max),
     .value = "N",
     .help = "most sequences that are worked on at a time; the attention-worker keeps a cache for each",
     .least = 1,
     .most = 1024},
    {.name = "queue",
     .type = DK_OPT_U32,
     .offset = FIELD(queue_max),
     .value = "N",
     .help = "most sequences that wait for their turn; further ones are refused",
     .least = 1,
     .most = 65536},
    {.name = "log-level",
     .type = DK_OPT_TEXT,
     .offset = FIELD(log_level),
     .value = "LEVEL",
     .help = "what is logged to standard error",
     .choices = "error|warn|info|debug"},
    {.name = "version", .type = DK_OPT_FLAG, .offset = FIELD(version), .help = "print the version and end"},
    {.name = "help", .type = DK_OPT_FLAG, .offset = FIELD(help), .help = "print this and end"},
    {0},
};

static const struct dk_coordinator_settings defaults = {
    .listen = "tcp://127.0.0.1:7717", .step_rows = 256, .running_max = 16, .queue_max = 64, .log_level = "info"};

int dk_coordinator_settings_parse(int argc, char **argv, struct dk_coordinator_settings *out, struct dk_err *err)
{
    int positional_count, rc;

    *out = defaults;
    rc = dk_options_parse(options, out, argc, argv, NULL, 0, &positional_count, err);
    if (rc < 0)
        return rc;
    dk_log_level_parse(out->log_level, &out->log); /* cannot fail: the table allows only these */
    if (out->step_rows <= out->running_max)
        return dk_err_set(err, -EINVAL,
                          "--step-rows %u must be larger than --max-running %u, so that new prompts get rows too",
                          out->step_rows, out->running_max);
    return 0;
}

void dk_coordinator_settings_help(FILE *out)
{
    fputs(
        "NAME\n"
        "  coordinator - takes requests, makes tokens and decides what the cluster computes next\n"
        "\n"
        "SYNOPSIS\n"
        "  coordinator [OPTION]...\n"
        "\n"
        "DESCRIPTION\n"
        "  The one process of a cluster that everybody dials: ducks and the attention-worker to join and to get their\n"
        "  work, clients (duckctl) to load a model, to send prompts and to read tokens. It holds no weights and needs\n"
        "  no privileges. It must be able to read the model's folder under the same path as the attention-worker.\n"
        "  It runs in the foreground. SIGINT or SIGTERM end it; calls that wait are then answered UNAVAILABLE.\n"
        "\n"
        "OPTIONS\n",
        out);
    dk_options_help(options, &defaults, out);
    fputs(
        "\n"
        "MEMORY\n"
        "  Bounded by the options: for each running or queued sequence 4 bytes a token of context, and its events "
        "that\n"
        "  the client has not read yet; for each running sequence that asks for logits up to 64 MiB of them. A client\n"
        "  that neither reads nor cancels for 60 s is cancelled.\n"
        "\n"
        "EXIT STATUS\n"
        "  0  ended by a signal, or --help or --version was given\n"
        "  1  could not start: the address is busy, for example\n"
        "  2  the command line is wrong\n"
        "\n"
        "EXAMPLES\n"
        "  coordinator\n"
        "  coordinator --listen tcp://0.0.0.0:7717 --max-running 32 --step-rows 512\n"
        "  coordinator --listen ipc:///run/duckllm/coordinator.sock --log-level debug\n",
        out);
}
