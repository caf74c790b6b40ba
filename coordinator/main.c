/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "coordinator/options.h"
#include "coordinator/shell.h"

static uint64_t wall_clock_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

int main(int argc, char **argv)
{
    struct dk_coordinator_settings settings;
    struct dk_coordinator_options o;
    struct dk_err err = {0};

    if (dk_coordinator_settings_parse(argc - 1, argv + 1, &settings, &err) < 0) {
        fprintf(stderr, "coordinator: %s\n", err.text);
        return 2;
    }
    if (settings.help) {
        dk_coordinator_settings_help(stdout);
        return 0;
    }
    if (settings.version) {
        puts("coordinator " DUCKLLM_VERSION);
        return 0;
    }
    signal(SIGPIPE, SIG_IGN); /* a peer that goes away is an error code, not the end */
    dk_log_setup(NULL, NULL, settings.log, "coordinator");
    dk_coordinator_options_init(&o);
    o.step_rows = settings.step_rows;
    o.running_max = settings.running_max;
    o.queue_max = settings.queue_max;
    o.version = DUCKLLM_VERSION;
    o.epoch_base = wall_clock_ms();
    o.seed = dk_random_id();
    o.source = dk_model_source_files;
    if (dk_coordinator_run(&dk_control_nng, settings.listen, &o, &err) < 0) {
        fprintf(stderr, "coordinator: %s\n", err.text);
        return 1;
    }
    return 0;
}
