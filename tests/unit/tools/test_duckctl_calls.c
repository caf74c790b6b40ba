/* SPDX-License-Identifier: Apache-2.0 */
/* What duckctl does while it waits, against a coordinator that the test plays. */
#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>
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
        fake_close(&fake);
    }
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
