/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>

#include "base/log.h"
#include "duck-firmware/heartbeat.h"
#include "duck-firmware/options.h"
#include "duck-firmware/poll.h"

struct start {
    const struct duck_options *options;
    struct duck_engine engine;
    struct dk_mailbox *reports;
    struct dk_err err;
    int rc;
    sem_t opened;
};

/* The data plane belongs to the thread that opens it. */
static void *engine_thread(void *arg)
{
    struct start *s = arg;

    s->rc = duck_engine_open(&s->engine, s->options, &dk_net_dpdk, s->reports, &s->err);
    sem_post(&s->opened);
    if (s->rc == 0)
        duck_engine_run(&s->engine);
    duck_engine_close(&s->engine);
    return NULL;
}

int main(int argc, char **argv)
{
    static struct start s;
    struct duck_heartbeat heartbeat = {0};
    struct duck_options options;
    struct dk_err err = {0};
    enum dk_log_level level;
    pthread_t thread;
    int rc = duck_options_parse(argc, argv, &options, &err);

    if (rc < 0) {
        fprintf(stderr, "duck-firmware: %s\n", err.text);
        return 2;
    }
    if (options.help || options.version) {
        if (options.help)
            duck_options_help();
        else
            printf("duck-firmware %s\n", DUCKLLM_VERSION);
        return 0;
    }
    signal(SIGPIPE, SIG_IGN);
    dk_log_level_parse(options.log_level, &level);
    dk_log_setup(NULL, NULL, level, options.name);
    rc = duck_heartbeat_open(&heartbeat, &options, &dk_control_nng, &err);
    if (rc == 0) {
        s.options = &options;
        s.reports = dk_loop_ev_mailbox(heartbeat.loop);
        sem_init(&s.opened, 0, 0);
        rc = -pthread_create(&thread, NULL, engine_thread, &s);
        if (rc == 0) {
            sem_wait(&s.opened);
            rc = s.rc;
            err = s.err;
            if (rc == 0) {
                dk_log(DK_LOG_INFO, "duck.start", "name=%s isa=%s threads=%u memory_gb_s=%.1f port=%s", options.name,
                       dk_isa_name(options.isa), options.threads, (double)s.engine.memory_bytes_per_s / 1e9,
                       options.port);
                duck_heartbeat_run(&heartbeat, &s.engine);
                duck_engine_stop(&s.engine);
            }
            pthread_join(thread, NULL);
        }
    }
    duck_heartbeat_close(&heartbeat);
    if (rc < 0)
        fprintf(stderr, "duck-firmware: %s\n", err.text);
    return rc < 0 ? 1 : 0;
}
