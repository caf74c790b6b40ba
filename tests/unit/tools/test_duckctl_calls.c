/* SPDX-License-Identifier: Apache-2.0 */
/* What duckctl does while it waits, against a coordinator that the test plays. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "captured.h"
#include "duckctl/duckctl.h"
#include "duckctl/notice.h"
#include "fake_coordinator.h"

static struct fake fake;

static void reply_status(struct dk_rpc_call *call, Dk__ClusterState state, const char *text)
{
    Dk__StatusReply r = DK__STATUS_REPLY__INIT;
    Dk__Status error = DK__STATUS__INIT;

    r.state = state;
    error.code = DK__CODE__UNAVAILABLE;
    error.text = (char *)(uintptr_t)text;
    r.error = text ? &error : NULL;
    dk_rpc_reply(call, &r.base);
}

static struct dk_rpc_client *dial(void)
{
    struct dk_rpc_client *c;
    struct dk_err err = {0};

    cr_assert_eq(dk_rpc_dial(&dk_control_nng, fake.url, &c, &err), 0, "%s", err.text);
    return c;
}

static int get_status(struct dk_rpc_client *c, struct dk_err *err)
{
    Dk__StatusRequest q = DK__STATUS_REQUEST__INIT;
    ProtobufCMessage *m;
    int rc = client_call(c, "GetStatus", &q.base, 60000, &m, err);

    cr_assert(rc < 0 ? !m : !!m);
    if (rc == 0)
        protobuf_c_message_free_unpacked(m, NULL);
    return rc;
}

/* ---- Ctrl-C */

static void interrupt_and_keep(struct fake *f, struct dk_rpc_call *call, const char *method, int number)
{
    (void)method, (void)number;
    fake_keep(f, call);
    interrupted = SIGINT;
}

Test(duckctl_calls, a_wait_ends_on_an_interrupt_and_a_late_answer_is_dropped)
{
    struct dk_rpc_client *c;
    struct dk_err err = {0};

    fake_open(&fake, interrupt_and_keep);
    c = dial();
    cr_assert_eq(get_status(c, &err), -EINTR);
    cr_assert_eq(err.rc, -EINTR);
    cr_assert(strstr(err.text, "GetStatus"), "%s", err.text);
    reply_status(fake_take(&fake), DK__CLUSTER_STATE__READY, NULL);
    interrupted = 0;
    cr_assert_eq(get_status(c, &err), -EINTR); /* and one whose end is the client's */
    dk_rpc_client_close(c);
    fake_close(&fake);
}

Test(duckctl_calls, after_an_interrupt_nothing_is_sent)
{
    struct dk_rpc_client *c;
    struct dk_err err = {0};

    fake_open(&fake, interrupt_and_keep);
    c = dial();
    interrupted = SIGTERM;
    cr_assert_eq(get_status(c, &err), -EINTR);
    cr_assert_eq(fake_calls(&fake, "GetStatus"), 0);
    dk_rpc_client_close(c);
    fake_close(&fake);
}

static void interrupt_reading(struct fake *f, struct dk_rpc_call *call, const char *method, int number)
{
    Dk__SubmitReply submitted = DK__SUBMIT_REPLY__INIT;
    Dk__CancelReply cancelled = DK__CANCEL_REPLY__INIT;

    (void)number;
    submitted.handle = 77;
    if (!strcmp(method, "GetStatus")) {
        reply_status(call, DK__CLUSTER_STATE__READY, NULL);
    } else if (!strcmp(method, "Submit")) {
        dk_rpc_reply(call, &submitted.base);
    } else if (!strcmp(method, "Read")) {
        interrupt_and_keep(f, call, method, number);
    } else {
        cr_assert_str_eq(method, "Cancel");
        cr_assert_eq(((const Dk__CancelRequest *)dk_rpc_request(call))->handle, 77);
        dk_rpc_reply(call, &cancelled.base);
    }
}

Test(duckctl_calls, an_interrupted_answer_is_cancelled)
{
    struct captured c;

    fake_open(&fake, interrupt_reading);
    c = captured_duckctl("generate", "--prompt", "x", "--coordinator", fake.url, NULL);
    cr_assert_eq(c.rc, EXIT_INTERRUPTED, "%d %s", c.rc, c.err);
    cr_assert(strstr(c.err, "cancelled"), "%s", c.err);
    cr_assert_eq(fake_calls(&fake, "Cancel"), 1);
    captured_free(&c);
    fake_close(&fake);
}

static void keep_all_but_status(struct fake *f, struct dk_rpc_call *call, const char *method, int number)
{
    if (!strcmp(method, "GetStatus") && number == 0)
        reply_status(call, DK__CLUSTER_STATE__READY, NULL);
    else
        interrupt_and_keep(f, call, method, number);
}

Test(duckctl_calls, every_verb_that_calls_ends_on_an_interrupt)
{
    static const char *const arguments[][4] = {{"status"},
                                               {"stats"},
                                               {"load", "--model", "/"},
                                               {"generate", "--ids", "1"},
                                               {"score", "--ids", "1"},
                                               {"tokenize", "--text", "x"},
                                               {"detokenize", "--ids", "1"},
                                               {"call", "Client/GetStats"}};

    for (size_t i = 0; i < sizeof arguments / sizeof *arguments; i++) {
        const char *const *a = arguments[i];
        struct captured c;

        interrupted = 0;
        fake_open(&fake, keep_all_but_status);
        if (!a[1])
            c = captured_duckctl(a[0], "--coordinator", fake.url, NULL);
        else if (!a[2])
            c = captured_duckctl(a[0], a[1], "--coordinator", fake.url, NULL);
        else
            c = captured_duckctl(a[0], a[1], a[2], "--coordinator", fake.url, NULL);
        cr_assert_eq(c.rc, EXIT_INTERRUPTED, "%s: %d %s%s", a[0], c.rc, c.out, c.err);
        captured_free(&c);
        interrupted = 0;
        c = captured_duckctl(a[0], a[1] ? a[1] : "--json", a[2] ? a[2] : "--json", "--json", "--coordinator", fake.url,
                             NULL);
        cr_assert_eq(c.rc, EXIT_INTERRUPTED);
        cr_assert(strstr(c.out, "\"CANCELLED\""), "%s: %s", a[0], c.out);
        captured_free(&c);
        fake_close(&fake);
    }
}

/* ---- stats */

static void tell_stats(struct fake *f, struct dk_rpc_call *call, const char *method, int number)
{
    Dk__StatsReply reply = DK__STATS_REPLY__INIT;
    Dk__StepTiming total = DK__STEP_TIMING__INIT;

    (void)f;
    (void)number;
    if (strcmp(method, "GetStats") != 0) {
        reply_status(call, DK__CLUSTER_STATE__READY, NULL);
        return;
    }
    total.has_wait_us = total.has_meanwhile_us = total.has_layer_operations = true;
    total.wait_us = 1234;
    total.meanwhile_us = 567;
    total.layer_operations = 10;
    reply.total = &total;
    dk_rpc_reply(call, &reply.base);
}

Test(duckctl_calls, stats_split_an_operation)
{
    struct captured c;

    fake_open(&fake, tell_stats);
    c = captured_duckctl("stats", "--coordinator", fake.url, NULL);
    cr_assert_eq(c.rc, EXIT_DONE, "%s", c.err);
    cr_assert(strstr(c.out, "  wait            123.4 us per layer operation\n"), "%s", c.out);
    cr_assert(strstr(c.out, "  meanwhile        56.7 us per layer operation\n"), "%s", c.out);
    captured_free(&c);
    c = captured_duckctl("stats", "--json", "--coordinator", fake.url, NULL);
    cr_assert(strstr(c.out, "\"wait_us\"") && strstr(c.out, "\"meanwhile_us\""), "%s", c.out);
    captured_free(&c);
    fake_close(&fake);
}

/* ---- what is waited for */

#define SILENT "duck 'duck-1' of the plan is silent"
#define LEFT   "duck 'duck-1' of the plan has left"

static void degraded_then_done(struct fake *f, struct dk_rpc_call *call, const char *method, int number)
{
    Dk__SubmitReply submitted = DK__SUBMIT_REPLY__INIT;
    Dk__ReadReply read = DK__READ_REPLY__INIT;
    Dk__Event token = DK__EVENT__INIT, end = DK__EVENT__INIT, *events[] = {&token, &end};

    if (!strcmp(method, "GetStatus")) {
        reply_status(call, number ? DK__CLUSTER_STATE__DEGRADED : DK__CLUSTER_STATE__READY,
                     !number      ? NULL
                     : number < 4 ? SILENT
                                  : LEFT);
    } else if (!strcmp(method, "Submit")) {
        dk_rpc_reply(call, &submitted.base);
    } else {
        int asked = 0;

        for (int i = 0; f->seen[i].method[0]; i++)
            if (!strcmp(f->seen[i].method, "GetStatus"))
                asked = f->seen[i].calls;
        token.cursor = 1;
        token.has_token = true;
        token.text = (char *)(uintptr_t) "Quack.";
        end.cursor = 2;
        end.has_finish = true;
        end.finish = DK__FINISH_REASON__STOP;
        read.events = events;
        read.n_events = asked > 5 ? 2 : 0;
        if (!read.n_events)
            usleep(20000);
        dk_rpc_reply(call, &read.base);
    }
}

Test(duckctl_calls, generate_tells_what_it_waits_for_once_per_change)
{
    struct captured c;
    const char *silent, *left;

    fake_open(&fake, degraded_then_done);
    c = captured_duckctl("generate", "--prompt", "x", "--coordinator", fake.url, NULL);
    cr_assert_eq(c.rc, EXIT_DONE, "%d %s", c.rc, c.err);
    cr_assert_str_eq(c.out, "Quack.\n");
    silent = strstr(c.err, "waiting: DEGRADED: " SILENT "\n");
    left = strstr(c.err, "waiting: DEGRADED: " LEFT "\n");
    cr_assert(silent && left && silent < left, "%s", c.err);
    cr_assert_eq(occurrences(c.err, "waiting: "), 2, "%s", c.err);
    captured_free(&c);
    fake_close(&fake);
}

Test(duckctl_calls, a_notice_names_the_state)
{
    Dk__StatusReply r = DK__STATUS_REPLY__INIT;
    Dk__Status error = DK__STATUS__INIT;
    struct notice n = {0};
    char text[400];

    r.state = DK__CLUSTER_STATE__READY;
    r.running = 16;
    r.queued = 3;
    notice_text(&r, text, sizeof text);
    cr_assert_str_eq(text, "READY: 16 running, 3 queued");
    cr_assert(notice_changed(&n, text));
    cr_assert(!notice_changed(&n, text));
    r.queued = 0;
    notice_text(&r, text, sizeof text);
    cr_assert(notice_changed(&n, text));
    r.state = DK__CLUSTER_STATE__LOADING;
    notice_text(&r, text, sizeof text);
    cr_assert(strstr(text, "LOADING: "), "%s", text);
    r.error = &error;
    error.text = (char *)(uintptr_t) "the attention-worker has not joined";
    notice_text(&r, text, sizeof text);
    cr_assert_str_eq(text, "LOADING: the attention-worker has not joined");
    cr_assert(!notice_changed(&n, ""));
}

static void loading_then_ready(struct fake *f, struct dk_rpc_call *call, const char *method, int number)
{
    static const char *const texts[] = {NULL, "the worker has not joined", "the worker has not joined", SILENT, SILENT};
    Dk__LoadReply loaded = DK__LOAD_REPLY__INIT;

    (void)f;
    if (!strcmp(method, "Load"))
        dk_rpc_reply(call, &loaded.base);
    else if (number < 5)
        reply_status(call, DK__CLUSTER_STATE__LOADING, texts[number]);
    else
        reply_status(call, DK__CLUSTER_STATE__READY, NULL);
}

Test(duckctl_calls, load_tells_what_it_waits_for_once_per_change)
{
    struct captured c;

    fake_open(&fake, loading_then_ready);
    c = captured_duckctl("load", "--model", "/", "--coordinator", fake.url, NULL);
    cr_assert_eq(c.rc, EXIT_DONE, "%d %s", c.rc, c.err);
    cr_assert_str_eq(c.err, "loading the model\nwaiting: the worker has not joined\nwaiting: " SILENT "\nready\n");
    captured_free(&c);
    fake_close(&fake);

    fake_open(&fake, loading_then_ready);
    c = captured_duckctl("load", "--model", "/", "--json", "--coordinator", fake.url, NULL);
    cr_assert_eq(c.rc, EXIT_DONE);
    cr_assert_str_eq(c.err, "");
    cr_assert_str_eq(c.out, "{\"model\":\"/\",\"ready\":true}\n");
    captured_free(&c);
    fake_close(&fake);
}

static void loading_fails(struct fake *f, struct dk_rpc_call *call, const char *method, int number)
{
    Dk__LoadReply loaded = DK__LOAD_REPLY__INIT;

    (void)f;
    if (!strcmp(method, "Load"))
        dk_rpc_reply(call, &loaded.base);
    else
        reply_status(call, number ? DK__CLUSTER_STATE__FAILED : DK__CLUSTER_STATE__EMPTY,
                     number ? "no tokenizer" : NULL);
}

Test(duckctl_calls, a_failed_load_tells_why_once)
{
    struct captured c;

    fake_open(&fake, loading_fails);
    c = captured_duckctl("load", "--model", "/", "--coordinator", fake.url, NULL);
    cr_assert_eq(c.rc, EXIT_REFUSED);
    cr_assert_str_eq(c.err, "loading the model\nduckctl: the model cannot be loaded: no tokenizer\n");
    captured_free(&c);
    fake_close(&fake);
}

/* ---- scores */

static Dk__FinishReason score_finish;
static uint32_t score_id; /* of the last position */

/* Ids 5, 6, 7; the scores of positions 1 and 2 come in an event each. */
static void scoring(struct fake *f, struct dk_rpc_call *call, const char *method, int number)
{
    static uint32_t prompt[] = {5, 6, 7};
    Dk__SubmitReply submitted = DK__SUBMIT_REPLY__INIT;
    Dk__DetokenizeReply text = DK__DETOKENIZE_REPLY__INIT;
    Dk__ReadReply read = DK__READ_REPLY__INIT;
    Dk__Status error = DK__STATUS__INIT;
    Dk__Event one = DK__EVENT__INIT, two = DK__EVENT__INIT, end = DK__EVENT__INIT, *events[] = {&one, &two, &end};
    Dk__TokenScore a = DK__TOKEN_SCORE__INIT, b = DK__TOKEN_SCORE__INIT, *as[] = {&a}, *bs[] = {&b};
    Dk__TokenLogprob top = DK__TOKEN_LOGPROB__INIT, *tops[] = {&top};

    (void)f;
    if (!strcmp(method, "GetStatus")) {
        reply_status(call, DK__CLUSTER_STATE__READY, NULL);
    } else if (!strcmp(method, "Submit")) {
        const Dk__SubmitRequest *q = (const Dk__SubmitRequest *)dk_rpc_request(call);

        cr_assert(q->score && !q->has_max_tokens && q->n_stop == 0);
        submitted.prompt_ids = prompt;
        submitted.n_prompt_ids = 3;
        dk_rpc_reply(call, &submitted.base);
    } else if (!strcmp(method, "Detokenize")) {
        char word[32];

        snprintf(word, sizeof word, "\n%u", ((const Dk__DetokenizeRequest *)dk_rpc_request(call))->ids[0]);
        text.text = word;
        dk_rpc_reply(call, &text.base);
    } else {
        one.cursor = 1;
        a.id = 6;
        a.logprob = -0.5f;
        top.id = 9;
        top.logprob = -0.25f;
        a.top = tops;
        a.n_top = 1;
        one.scores = as;
        one.n_scores = 1;
        two.cursor = 2;
        b.id = score_id;
        b.logprob = -1.5f;
        two.scores = bs;
        two.n_scores = 1;
        end.cursor = 3;
        end.has_finish = true;
        end.finish = score_finish;
        error.code = DK__CODE__UNAVAILABLE;
        error.text = (char *)(uintptr_t) "duck 'duck-1' is lost";
        end.error = score_finish == DK__FINISH_REASON__ERROR ? &error : NULL;
        read.events = events + number;
        read.n_events = number ? 2 : 1;
        dk_rpc_reply(call, &read.base);
    }
}

static struct captured run_score(const char *option, Dk__FinishReason finish, uint32_t id)
{
    struct captured c;

    score_finish = finish;
    score_id = id;
    fake_open(&fake, scoring);
    c = captured_duckctl("score", "--text", "x", option, "--coordinator", fake.url, NULL);
    fake_close(&fake);
    return c;
}

Test(duckctl_calls, scores_as_a_table)
{
    struct captured c = run_score("--logprobs=1", DK__FINISH_REASON__STOP, 7);

    cr_assert_eq(c.rc, EXIT_DONE, "%d %s", c.rc, c.err);
    cr_assert(strstr(c.out, "       1         6  \"\\n6\"                -0.50000  9 \"\\n9\" -0.25000\n"), "%s",
              c.out);
    cr_assert(strstr(c.out, "       2         7  \"\\n7\"                -1.50000\n"), "%s", c.out);
    cr_assert(strstr(c.out, "\ntotal NLL 2.00000 over 2 tokens, mean 1.00000, perplexity 2.71828\n"), "%s", c.out);
    captured_free(&c);
}

Test(duckctl_calls, scores_as_json)
{
    struct captured c = run_score("--json", DK__FINISH_REASON__STOP, 7);

    cr_assert_eq(c.rc, EXIT_DONE, "%d %s", c.rc, c.out);
    cr_assert_str_eq(c.err, "");
    cr_assert_str_eq(c.out, "{\"ids\":[5,6,7],\"scores\":[{\"position\":1,\"id\":6,\"logprob\":-0.5,\"top\":[{\"id\":9,"
                            "\"logprob\":-0.25}]},{\"position\":2,\"id\":7,\"logprob\":-1.5,\"top\":[]}],\"nll\":2.0,"
                            "\"tokens\":2}\n");
    captured_free(&c);
}

Test(duckctl_calls, scores_that_are_not_the_prompts)
{
    struct captured c = run_score("--json", DK__FINISH_REASON__STOP, 8);

    cr_assert_eq(c.rc, EXIT_REFUSED);
    cr_assert(strstr(c.out, "position 2 is of token 8, not of the prompt's 7"), "%s", c.out);
    captured_free(&c);
    c = run_score("--json", DK__FINISH_REASON__ERROR, 7);
    cr_assert_eq(c.rc, EXIT_REFUSED);
    cr_assert(strstr(c.out, "UNAVAILABLE") && strstr(c.out, "duck-1"), "%s", c.out);
    captured_free(&c);
}

/* ---- what a request holds */

static char tools_seen[200], messages_seen[200];
static Dk__AttentionMode mode_seen;
static bool allow_seen;

static void refuse_tools(struct fake *f, struct dk_rpc_call *call, const char *method, int number)
{
    (void)f, (void)number;
    if (!strcmp(method, "GetStatus")) {
        reply_status(call, DK__CLUSTER_STATE__READY, NULL);
    } else if (!strcmp(method, "Load")) {
        Dk__LoadReply loaded = DK__LOAD_REPLY__INIT;
        const Dk__LoadRequest *q = (const Dk__LoadRequest *)dk_rpc_request(call);

        mode_seen = q->attention;
        allow_seen = q->allow_full;
        dk_rpc_reply(call, &loaded.base);
    } else {
        const Dk__SubmitRequest *q = (const Dk__SubmitRequest *)dk_rpc_request(call);

        snprintf(tools_seen, sizeof tools_seen, "%s", q->tools_json ? q->tools_json : "none");
        snprintf(messages_seen, sizeof messages_seen, "%s", q->messages_json);
        dk_rpc_fail(call, -EINVAL,
                    !q->tools_json                ? "messages[0].role is missing"
                    : strstr(q->tools_json, "5]") ? "tools_json: tools[1] must be an object"
                                                  : "tools[0].function is missing");
    }
}

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    cr_assert(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

Test(duckctl_calls, tools_come_from_a_file_that_errors_name)
{
    char path[64];
    struct captured c;

    snprintf(path, sizeof path, "/tmp/dk-tools-%d.json", (int)getpid());
    write_file(path, "[ {\"type\": \"function\"} ]");
    fake_open(&fake, refuse_tools);
    c = captured_duckctl("generate", "--chat", "x", "--tools", path, "--coordinator", fake.url, NULL);
    cr_assert_eq(c.rc, EXIT_REFUSED);
    cr_assert_str_eq(tools_seen, "[{\"type\":\"function\"}]");
    cr_assert_str_eq(messages_seen, "[{\"role\":\"user\",\"content\":\"x\"}]");
    cr_assert(strstr(c.err, path) && strstr(c.err, "--tools") && strstr(c.err, "tools[0].function"), "%s", c.err);
    captured_free(&c);
    c = captured_duckctl("generate", "--messages", path, "--coordinator", fake.url, NULL);
    cr_assert(strstr(c.err, path) && strstr(c.err, "--messages") && strstr(c.err, "messages[0].role"), "%s", c.err);
    cr_assert_str_eq(tools_seen, "none");
    captured_free(&c);
    write_file(path, "[{}, 5]");
    c = captured_duckctl("generate", "--chat", "x", "--tools", path, "--coordinator", fake.url, NULL);
    cr_assert(strstr(c.err, ": tools[1] must be an object") && !strstr(c.err, "tools_json"), "%s", c.err);
    captured_free(&c);
    write_file(path, "[\n{]");
    c = captured_duckctl("generate", "--chat", "x", "--tools", path, "--coordinator", fake.url, NULL);
    cr_assert(strstr(c.err, path) && strstr(c.err, "line 2"), "%s", c.err);
    captured_free(&c);
    write_file(path, "{}");
    c = captured_duckctl("score", "--chat", "x", "--tools", path, "--coordinator", fake.url, NULL);
    cr_assert(strstr(c.err, path) && strstr(c.err, "must be an array of tools"), "%s", c.err);
    captured_free(&c);
    write_file(path, "[\"\xff\"]");
    c = captured_duckctl("score", "--messages", path, "--coordinator", fake.url, NULL);
    cr_assert_eq(c.rc, EXIT_REFUSED);
    cr_assert(strstr(c.err, path) && strstr(c.err, "line 1: unable to decode byte"), "%s", c.err);
    captured_free(&c);
    fake_close(&fake);
    unlink(path);
}

static void through_a_pipe(const char *option, const char *text)
{
    int ends[2], before = dup(0);
    struct captured c;

    cr_assert_eq(pipe(ends), 0);
    cr_assert_eq(write(ends[1], text, strlen(text)), (ssize_t)strlen(text));
    close(ends[1]);
    dup2(ends[0], 0);
    close(ends[0]);
    clearerr(stdin);
    if (!strcmp(option, "--tools"))
        c = captured_duckctl("generate", "--chat", "x", option, "-", "--coordinator", fake.url, NULL);
    else
        c = captured_duckctl("generate", option, "-", "--coordinator", fake.url, NULL);
    dup2(before, 0);
    close(before);
    cr_assert(strstr(c.err, " is missing"), "it reached the coordinator: %s", c.err);
    captured_free(&c);
}

Test(duckctl_calls, messages_and_tools_come_through_a_pipe)
{
    char path[64];
    struct captured c;

    fake_open(&fake, refuse_tools);
    through_a_pipe("--tools", "[{\"type\":\"function\"}]");
    cr_assert_str_eq(tools_seen, "[{\"type\":\"function\"}]");
    through_a_pipe("--messages", "[{\"role\":\"user\"}]");
    cr_assert_str_eq(messages_seen, "[{\"role\":\"user\"}]");
    c = captured_duckctl("generate", "--messages", "-", "--tools", "-", "--coordinator", fake.url, NULL);
    cr_assert_eq(c.rc, EXIT_USAGE);
    captured_free(&c);
    /* A file that cannot be read twice. */
    snprintf(path, sizeof path, "/tmp/dk-fifo-%d", (int)getpid());
    cr_assert_eq(mkfifo(path, 0600), 0);
    if (fork() == 0) {
        int f = open(path, O_WRONLY);

        _exit(write(f, "[{\"role\":\"fifo\"}]", 17) == 17 ? 0 : 1);
    }
    c = captured_duckctl("generate", "--messages", path, "--coordinator", fake.url, NULL);
    cr_assert_str_eq(messages_seen, "[{\"role\":\"fifo\"}]");
    captured_free(&c);
    fake_close(&fake);
    unlink(path);
}

/* ---- two files of one answer */

static void submitted_only(struct fake *f, struct dk_rpc_call *call, const char *method, int number)
{
    (void)f, (void)number;
    if (!strcmp(method, "GetStatus")) {
        reply_status(call, DK__CLUSTER_STATE__READY, NULL);
    } else if (!strcmp(method, "Submit")) {
        Dk__SubmitReply submitted = DK__SUBMIT_REPLY__INIT;

        dk_rpc_reply(call, &submitted.base);
    } else {
        Dk__CancelReply cancelled = DK__CANCEL_REPLY__INIT;

        cr_assert_str_eq(method, "Cancel", "nothing is read");
        dk_rpc_reply(call, &cancelled.base);
    }
}

Test(duckctl_calls, logits_and_trace_do_not_go_into_one_file)
{
    char path[64];
    struct captured c;

    snprintf(path, sizeof path, "/tmp/dk-both-%d", (int)getpid());
    fake_open(&fake, submitted_only);
    c = captured_duckctl("generate", "--ids", "1", "--logits-out", path, "--trace-out", path, "--coordinator", fake.url,
                         NULL);
    cr_assert_eq(c.rc, EXIT_USAGE);
    cr_assert(strstr(c.err, path) && strstr(c.err, "--logits-out and --trace-out"), "%s", c.err);
    captured_free(&c);
    cr_assert_eq(fake_calls(&fake, "Cancel"), 1);
    cr_assert(access(path, F_OK) < 0);
    fake_close(&fake);
}

Test(duckctl_calls, load_names_the_attention_mode)
{
    struct captured c;

    fake_open(&fake, refuse_tools);
    c = captured_duckctl("load", "--model", "/", "--coordinator", fake.url, NULL);
    cr_assert_eq(c.rc, EXIT_DONE);
    cr_assert(mode_seen == DK__ATTENTION_MODE__SPARSE && !allow_seen);
    captured_free(&c);
    c = captured_duckctl("load", "--model", "/", "--attention=full", "--coordinator", fake.url, NULL);
    cr_assert(mode_seen == DK__ATTENTION_MODE__FULL && !allow_seen);
    captured_free(&c);
    c = captured_duckctl("load", "--model=/", "--attention=full", "--allow-full", "--coordinator", fake.url, NULL);
    cr_assert(mode_seen == DK__ATTENTION_MODE__FULL && allow_seen);
    captured_free(&c);
    fake_close(&fake);
}

/* ---- exit codes */

static int refusal;

static void refuse(struct fake *f, struct dk_rpc_call *call, const char *method, int number)
{
    (void)f, (void)method;
    if (number == 0 && !strcmp(method, "GetStatus"))
        reply_status(call, DK__CLUSTER_STATE__READY, NULL);
    else
        dk_rpc_fail(call, refusal, "because");
}

Test(duckctl_calls, an_answer_is_no_transport_failure)
{
    static const struct {
        int rc;
        const char *code;
    } cases[] = {{-EINVAL, "INVALID_ARGUMENT"},   {-ENOENT, "NOT_FOUND"},         {-EBUSY, "FAILED_PRECONDITION"},
                 {-EAGAIN, "RESOURCE_EXHAUSTED"}, {-ECONNREFUSED, "UNAVAILABLE"}, {-EIO, "INTERNAL"}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char wanted[100];
        struct captured c;

        refusal = cases[i].rc;
        fake_open(&fake, refuse);
        c = captured_duckctl("tokenize", "--text", "x", "--json", "--coordinator", fake.url, NULL);
        snprintf(wanted, sizeof wanted, "{\"error\":{\"code\":\"%s\",\"text\":\"because\"}}\n", cases[i].code);
        cr_assert_str_eq(c.out, wanted);
        cr_assert_eq(c.rc, EXIT_REFUSED, "%s: %d", cases[i].code, c.rc);
        captured_free(&c);
        fake_close(&fake);
    }
}

Test(duckctl_calls, nobody_and_nonsense_as_a_coordinator)
{
    struct captured c = captured_duckctl("status", "--json", "--coordinator", "ipc:///tmp/dk-no-such-socket", NULL);

    cr_assert_eq(c.rc, EXIT_UNREACHABLE);
    cr_assert(strstr(c.out, "\"UNREACHABLE\"") && strstr(c.out, "dk-no-such-socket"), "%s", c.out);
    captured_free(&c);
    c = captured_duckctl("status", "--json", "--coordinator", "nonsense", NULL);
    cr_assert_eq(c.rc, EXIT_USAGE);
    cr_assert(strstr(c.out, "--coordinator") && strstr(c.out, "INVALID_ARGUMENT"), "%s", c.out);
    captured_free(&c);
}
