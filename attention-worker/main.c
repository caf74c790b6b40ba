/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>

#include "base/log.h"
#include "attention-worker/control.h"
#include "attention-worker/options.h"
#include "attention-worker/engine.h"

struct start {
    const struct worker_options *options;
    struct worker_engine engine;
    struct dk_mailbox *reports;
    struct dk_err err;
    int rc;
    sem_t opened;
};

/* The data plane belongs to the thread that opens it. */
static void *engine_thread(void *arg)
{
    struct start *s = arg;

    s->rc = worker_engine_open(&s->engine, s->options, &dk_net_dpdk, s->reports, &s->err);
    sem_post(&s->opened);
    if (s->rc == 0)
        worker_engine_run(&s->engine);
    worker_engine_close(&s->engine);
    return NULL;
}

int main(int argc, char **argv)
{
    static struct start s;
    struct worker_control control = {0};
    struct worker_options options;
    struct dk_err err = {0};
    enum dk_log_level level;
    pthread_t thread;
    int rc = worker_options_parse(argc, argv, &options, &err);

    if (rc < 0) {
        fprintf(stderr, "attention-worker: %s\n", err.text);
        return 2;
    }
    if (options.help || options.version) {
        if (options.help)
            worker_options_help();
        else
            printf("attention-worker %s\n", DUCKLLM_VERSION);
        return 0;
    }
    signal(SIGPIPE, SIG_IGN);
    dk_log_level_parse(options.log_level, &level);
    dk_log_setup(NULL, NULL, level, options.name);
    rc = worker_control_open(&control, &options, &dk_control_nng, &err);
    if (rc == 0) {
        s.options = &options;
        s.reports = dk_loop_ev_mailbox(control.loop);
        sem_init(&s.opened, 0, 0);
        rc = -pthread_create(&thread, NULL, engine_thread, &s);
        if (rc == 0) {
            sem_wait(&s.opened);
            rc = s.rc;
            err = s.err;
            if (rc == 0) {
                dk_log(DK_LOG_INFO, "worker.start", "name=%s isa=%s threads=%u port=%s", options.name,
                       dk_isa_name(options.isa), options.threads, options.port);
                worker_control_run(&control, &s.engine);
                worker_engine_stop(&s.engine);
            }
            pthread_join(thread, NULL);
        }
    }
    worker_control_close(&control);
    if (rc < 0)
        fprintf(stderr, "attention-worker: %s\n", err.text);
    return rc < 0 ? 1 : 0;
}
