/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "net/net.h"
#include "rpc/rpc.h"
#include "wire/wire.h"

/* The program itself, over NNG. Long time limits only guard against hanging. */

static char folder[] = "/tmp/coordinator-test-XXXXXX";
static char url[100];
static char output[100];

static void start(void)
{
    cr_assert_not_null(mkdtemp(folder));
    snprintf(url, sizeof url, "ipc://%s/c.sock", folder);
    snprintf(output, sizeof output, "%s/output", folder);
}

static void stop(void)
{
    char path[120];

    snprintf(path, sizeof path, "%s/c.sock", folder);
    unlink(path);
    unlink(output);
    rmdir(folder);
}

TestSuite(program, .init = start, .fini = stop, .timeout = 120);

static pid_t run(const char *const *arguments)
{
    pid_t pid = fork();

    cr_assert_geq(pid, 0);
    if (pid == 0) {
        const char *argv[12] = {BIN_DIR "/coordinator"};

        for (int i = 0; arguments[i]; i++)
            argv[i + 1] = arguments[i];
        if (!freopen(output, "w", stdout) || dup2(fileno(stdout), 2) < 0)
            _exit(126);
        execv(argv[0], (char **)(uintptr_t)argv);
        _exit(127);
    }
    return pid;
}

static int exit_status(pid_t pid)
{
    int status;

    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert(WIFEXITED(status), "it crashed");
    return WEXITSTATUS(status);
}

static void assert_output(const char *part)
{
    static char text[20000];
    FILE *f = fopen(output, "r");

    cr_assert_not_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    cr_assert(strstr(text, part), "'%s' is not in: %s", part, text);
}

Test(program, help_version_and_wrong_options)
{
    cr_assert_eq(exit_status(run((const char *[]){"--help", NULL})), 0);
    assert_output("--max-running N");
    assert_output("EXAMPLES");
    cr_assert_eq(exit_status(run((const char *[]){"--version", NULL})), 0);
    assert_output("coordinator 0.");
    cr_assert_eq(exit_status(run((const char *[]){"--listne", "x", NULL})), 2);
    assert_output("unknown option '--listne'");
    cr_assert_eq(exit_status(run((const char *[]){"--max-running", "0", NULL})), 2);
    assert_output("--max-running: '0' is not a whole number from 1 to 1024");
    cr_assert_eq(exit_status(run((const char *[]){"--max-running", "300", NULL})), 2);
    assert_output("--step-rows 256 must be larger than --max-running 300");
    cr_assert_eq(exit_status(run((const char *[]){"--listen", "nonsense", NULL})), 1);
    assert_output("nonsense");
}

struct waiting {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool done;
    int rc;
    char text[500];
};

static void on_done(void *ctx, int rc, ProtobufCMessage *reply, const struct dk_err *err)
{
    struct waiting *w = ctx;

    pthread_mutex_lock(&w->lock);
    w->done = true;
    w->rc = rc;
    if (rc < 0)
        snprintf(w->text, sizeof w->text, "%s", err->text);
    pthread_cond_signal(&w->ended);
    pthread_mutex_unlock(&w->lock);
    if (reply)
        protobuf_c_message_free_unpacked(reply, NULL);
}

Test(program, serves_calls_and_ends_on_a_signal)
{
    pid_t pid = run((const char *[]){"--listen", url, NULL}), second;
    struct dk_rpc_client *client;
    struct dk_err err = {0};
    Dk__StatusRequest q = DK__STATUS_REQUEST__INIT;
    Dk__SubmitRequest submit = DK__SUBMIT_REQUEST__INIT;
    ProtobufCMessage *reply;
    struct waiting w = {.lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};

    cr_assert_eq(dk_rpc_dial(&dk_control_nng, url, &client, &err), 0, "%s", err.text);
    cr_assert_eq(dk_rpc_call(client, &dk__client__descriptor, "GetStatus", &q.base, 60000, &reply, &err), 0, "%s",
                 err.text);
    cr_assert_eq(((Dk__StatusReply *)reply)->state, DK__CLUSTER_STATE__EMPTY);
    protobuf_c_message_free_unpacked(reply, NULL);
    submit.prompt_case = DK__SUBMIT_REQUEST__PROMPT_TEXT;
    submit.text = (char *)"x";
    cr_assert_lt(dk_rpc_call(client, &dk__client__descriptor, "Submit", &submit.base, 60000, &reply, &err), 0);
    cr_assert_eq(dk_code_from_errno(err.rc), DK__CODE__FAILED_PRECONDITION);
    cr_assert(strstr(err.text, "no model is loaded"), "%s", err.text);
    /* The address is taken. */
    second = run((const char *[]){"--listen", url, NULL});
    cr_assert_eq(exit_status(second), 1);
    assert_output(url);

    q.has_wait_ms = q.has_unlike = true;
    q.wait_ms = 100;
    q.unlike = DK__CLUSTER_STATE__EMPTY;
    cr_assert_eq(dk_rpc_call(client, &dk__client__descriptor, "GetStatus", &q.base, 60000, &reply, &err), 0);
    protobuf_c_message_free_unpacked(reply, NULL);
    q.wait_ms = 90000;
    cr_assert_eq(dk_rpc_call_start(client, &dk__client__descriptor, "GetStatus", &q.base, 90000, on_done, &w, &err), 0);
    q.wait_ms = 0;
    for (int i = 0; i < 5; i++) { /* behind the waiting one on the same connection */
        cr_assert_eq(dk_rpc_call(client, &dk__client__descriptor, "GetStatus", &q.base, 60000, &reply, &err), 0);
        protobuf_c_message_free_unpacked(reply, NULL);
    }
    cr_assert_not(w.done);
    kill(pid, SIGTERM);
    pthread_mutex_lock(&w.lock);
    while (!w.done)
        pthread_cond_wait(&w.ended, &w.lock);
    pthread_mutex_unlock(&w.lock);
    cr_assert_eq(dk_code_from_errno(w.rc), DK__CODE__UNAVAILABLE, "%s", w.text);
    cr_assert(strstr(w.text, "coordinator is ending"), "%s", w.text);
    cr_assert_eq(exit_status(pid), 0);
    dk_rpc_client_close(client);
}

/* ---- a token on its way through the real program, with nodes that only talk */

static struct dk_rpc_client *client;

static ProtobufCMessage *call(const ProtobufCServiceDescriptor *service, const char *method, const void *request)
{
    ProtobufCMessage *reply;
    struct dk_err err = {0};

    cr_assert_eq(dk_rpc_call(client, service, method, request, 60000, &reply, &err), 0, "%s: %s", method, err.text);
    return reply;
}

static uint64_t beat(const char *name, Dk__NodeKind kind, uint32_t instance, uint64_t ready_epoch)
{
    Dk__HeartbeatRequest q = DK__HEARTBEAT_REQUEST__INIT;
    Dk__NodeInfo n = DK__NODE_INFO__INIT;
    Dk__DataAddress address = DK__DATA_ADDRESS__INIT;
    Dk__LoadProgress load = DK__LOAD_PROGRESS__INIT;
    Dk__HeartbeatReply *r;
    uint8_t mac[6] = {2};
    uint64_t epoch;

    address.instance = instance;
    address.mtu = 9000;
    address.mac = (ProtobufCBinaryData){.data = mac, .len = 6};
    n.name = (char *)(uintptr_t)name;
    n.kind = kind;
    n.port_kind = DK__PORT_KIND__VHOST;
    n.address = &address;
    load.has_plan_epoch = load.has_ready = load.ready = true;
    load.plan_epoch = ready_epoch;
    q.node = &n;
    q.load = ready_epoch ? &load : NULL;
    r = (Dk__HeartbeatReply *)call(&dk__membership__descriptor, "Heartbeat", &q);
    epoch = r->plan ? r->plan->epoch : 0;
    dk__heartbeat_reply__free_unpacked(r, NULL);
    return epoch;
}

/* Heartbeats before each try, so that a slow machine does not make the nodes silent for long. */
static Dk__NextStepReply *pull(uint64_t epoch, Dk__StepResult *result)
{
    for (;;) {
        Dk__NextStepRequest q = DK__NEXT_STEP_REQUEST__INIT;
        Dk__NextStepReply *r;

        beat("duck-1", DK__NODE_KIND__DUCK, 1, 0);
        beat("worker", DK__NODE_KIND__WORKER, 2, epoch);
        q.worker = (char *)"worker";
        q.instance = 2;
        q.has_plan_epoch = true;
        q.plan_epoch = epoch;
        q.result = result;
        r = (Dk__NextStepReply *)call(&dk__attention__descriptor, "NextStep", &q);
        if (r->step)
            return r;
        dk__next_step_reply__free_unpacked(r, NULL);
    }
}

Test(program, a_prompt_becomes_a_step_and_its_result_an_event)
{
    pid_t pid = run((const char *[]){"--listen", url, NULL});
    struct dk_err err = {0};
    Dk__LoadRequest load = DK__LOAD_REQUEST__INIT;
    Dk__SubmitRequest submit = DK__SUBMIT_REQUEST__INIT;
    Dk__ReadRequest read = DK__READ_REQUEST__INIT;
    Dk__StepResult result = DK__STEP_RESULT__INIT;
    Dk__SequenceResult one = DK__SEQUENCE_RESULT__INIT, *all[] = {&one};
    Dk__SubmitReply *opened;
    Dk__NextStepReply *step;
    Dk__ReadReply *events;
    uint64_t epoch;

    cr_assert_eq(dk_rpc_dial(&dk_control_nng, url, &client, &err), 0, "%s", err.text);
    beat("duck-1", DK__NODE_KIND__DUCK, 1, 0);
    load.model_dir = (char *)FIXTURES "/qwen3-tiny";
    protobuf_c_message_free_unpacked(call(&dk__client__descriptor, "Load", &load), NULL);
    epoch = beat("worker", DK__NODE_KIND__WORKER, 2, 0);
    submit.prompt_case = DK__SUBMIT_REQUEST__PROMPT_TEXT;
    submit.text = (char *)"What";
    opened = (Dk__SubmitReply *)call(&dk__client__descriptor, "Submit", &submit);
    cr_assert_eq(opened->n_prompt_ids, 1);
    cr_assert_eq(opened->prompt_ids[0], 392u);
    step = pull(epoch, NULL);
    cr_assert_eq(step->step->sequences[0]->tokens[0], 392u);
    one.sequence_id = opened->handle;
    one.has_token = true;
    one.token = 964; /* the end token */
    result.step_id = step->step->step_id;
    result.n_sequences = 1;
    result.sequences = all;
    dk__next_step_reply__free_unpacked(step, NULL);
    submit.text = (char *)"next"; /* so that the result is answered with a step */
    protobuf_c_message_free_unpacked(call(&dk__client__descriptor, "Submit", &submit), NULL);
    step = pull(epoch, &result);
    cr_assert_eq(step->step->n_released, 1);
    dk__next_step_reply__free_unpacked(step, NULL);
    read.handle = opened->handle;
    read.has_wait_ms = true;
    read.wait_ms = 60000;
    events = (Dk__ReadReply *)call(&dk__client__descriptor, "Read", &read);
    cr_assert_eq(events->n_events, 2);
    cr_assert_eq(events->events[0]->token, 964u);
    cr_assert_eq(events->events[1]->finish, DK__FINISH_REASON__STOP);
    dk__read_reply__free_unpacked(events, NULL);
    dk__submit_reply__free_unpacked(opened, NULL);
    dk_rpc_client_close(client);
    kill(pid, SIGINT);
    cr_assert_eq(exit_status(pid), 0);
}
