/* SPDX-License-Identifier: Apache-2.0 */
/* Calls over NNG on real sockets: errors, restarts, lost peers, large bodies, many clients. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rpc_fixture.h"

#define LONG_MS 60000 /* only a hang makes a call take so long */

static const char *const schemes[] = {"ipc", "tcp"};

#define BOTH(name)                             \
    static void name##_on(const char *scheme); \
    Test(rpc, name##_ipc)                      \
    {                                          \
        name##_on(schemes[0]);                 \
    }                                          \
    Test(rpc, name##_tcp)                      \
    {                                          \
        name##_on(schemes[1]);                 \
    }                                          \
    static void name##_on(const char *scheme)

BOTH(call_answers)
{
    struct dk_err err = {0};
    struct fixture f;

    fixture_open(&f, scheme);
    for (size_t i = 0; i < 50; i++)
        cr_assert_eq(fixture_detokenize(f.client, i, LONG_MS, &err), 0, "%s", err.text);
    cr_assert_eq(f.runs, 50);
    fixture_close(&f);
    if (!strcmp(scheme, "ipc"))
        cr_assert_neq(access(f.url + 6, F_OK), 0, "the socket's file must be gone after a close");
}

BOTH(large_bodies_pass_both_ways)
{
    struct dk_err err = {0};
    Dk__TokenizeRequest q = DK__TOKENIZE_REQUEST__INIT;
    ProtobufCMessage *m = NULL;
    Dk__TokenizeReply *reply;
    struct fixture f;

    fixture_open(&f, scheme);
    cr_assert_eq(fixture_detokenize(f.client, 2200000, LONG_MS, &err), 0, "%s", err.text); /* 11 MB */
    q.text = "2200000";
    cr_assert_eq(dk_rpc_call(f.client, &dk__client__descriptor, "Tokenize", &q.base, LONG_MS, &m, &err), 0, "%s",
                 err.text);
    reply = (Dk__TokenizeReply *)m;
    cr_assert_eq(reply->n_ids, 2200000);
    for (size_t i = 0; i < reply->n_ids; i++)
        cr_assert_eq(reply->ids[i], 0x80000000u | (uint32_t)i);
    protobuf_c_message_free_unpacked(m, NULL);
    fixture_close(&f);
}

Test(rpc, oversize_is_refused_at_both_ends)
{
    Dk__DetokenizeRequest q = DK__DETOKENIZE_REQUEST__INIT;
    Dk__TokenizeRequest t = DK__TOKENIZE_REQUEST__INIT;
    struct dk_err err = {0};
    ProtobufCMessage *m;
    struct fixture f;

    fixture_open(&f, "ipc");
    q.n_ids = 54u << 20; /* 270 MB */
    q.ids = malloc(q.n_ids * sizeof *q.ids);
    memset(q.ids, 0xff, q.n_ids * sizeof *q.ids);
    cr_assert_eq(dk_rpc_call(f.client, &dk__client__descriptor, "Detokenize", &q.base, LONG_MS, &m, &err), -EMSGSIZE);
    cr_assert(strstr(err.text, "longer than a message may be"), "%s", err.text);
    free(q.ids);
    cr_assert_eq(f.runs, 0);

    t.text = "56623104";
    cr_assert_eq(dk_rpc_call(f.client, &dk__client__descriptor, "Tokenize", &t.base, LONG_MS, &m, &err), -ENOSPC);
    cr_assert(strstr(err.text, "ask for less"), "%s", err.text);
    cr_assert_eq(fixture_detokenize(f.client, 3, LONG_MS, &err), 0, "%s", err.text);
    fixture_close(&f);
}

Test(rpc, failure_has_code_and_text)
{
    Dk__CancelRequest q = DK__CANCEL_REQUEST__INIT;
    struct dk_err err = {0};
    ProtobufCMessage *m;
    struct fixture f;

    fixture_open(&f, "ipc");
    q.handle = 5;
    cr_assert_eq(dk_rpc_call(f.client, &dk__client__descriptor, "Cancel", &q.base, LONG_MS, &m, &err), -EBUSY);
    cr_assert_str_eq(err.text, "no model is loaded; load one with duckctl load");
    cr_assert_eq(err.rc, -EBUSY);
    cr_assert_null(m);
    fixture_close(&f);
}

Test(rpc, service_that_is_not_offered_is_unimplemented)
{
    Dk__NextStepRequest q = DK__NEXT_STEP_REQUEST__INIT;
    struct dk_err err = {0};
    ProtobufCMessage *m;
    struct fixture f;

    fixture_open(&f, "ipc");
    q.worker = "w";
    cr_assert_eq(dk_rpc_call(f.client, &dk__attention__descriptor, "NextStep", &q.base, LONG_MS, &m, &err), -ENOSYS);
    cr_assert(strstr(err.text, "Attention/NextStep") && strstr(err.text, "Client/Submit"), "%s", err.text);
    cr_assert_eq(f.runs, 0);
    fixture_close(&f);
}

Test(rpc, wrong_use_of_the_client_is_refused)
{
    Dk__DetokenizeRequest q = DK__DETOKENIZE_REQUEST__INIT;
    Dk__TokenizeRequest incomplete = DK__TOKENIZE_REQUEST__INIT;
    struct dk_err err = {0};
    ProtobufCMessage *m;
    struct fixture f;

    fixture_open(&f, "ipc");
    cr_assert_eq(dk_rpc_call(f.client, &dk__client__descriptor, "Nothing", &q.base, 100, &m, &err), -EINVAL);
    cr_assert_eq(dk_rpc_call(f.client, &dk__client__descriptor, "Submit", &q.base, 100, &m, &err), -EINVAL);
    cr_assert(strstr(err.text, "takes a SubmitRequest, not a DetokenizeRequest"), "%s", err.text);
    cr_assert_eq(dk_rpc_call(f.client, &dk__client__descriptor, "Tokenize", &incomplete.base, 100, &m, &err), -EINVAL);
    cr_assert_eq(f.runs, 0);
    fixture_close(&f);
}

BOTH(nobody_there_is_said_with_the_address)
{
    struct dk_rpc_client *c;
    struct dk_err err = {0};
    char url[128];

    fixture_url(url, scheme);
    cr_assert_eq(dk_rpc_dial(&dk_control_nng, url, &c, &err), 0, "%s", err.text);
    cr_assert_eq(fixture_detokenize(c, 1, 300, &err), -ECONNREFUSED);
    cr_assert(strstr(err.text, url) && strstr(err.text, "is the coordinator running"), "%s", err.text);
    dk_rpc_client_close(c);
}

Test(rpc, silent_server_is_a_timeout)
{
    struct outcome o;
    struct fixture f;

    fixture_open(&f, "ipc");
    outcome_init(&o);
    cr_assert_eq(fixture_detokenize(f.client, 1, LONG_MS, NULL), 0);
    cr_assert_eq(fixture_get_status(f.client, 200, &o), 0);
    outcome_wait(&o, 1);
    cr_assert_eq(o.rc, -ETIMEDOUT);
    cr_assert(strstr(o.text, "Client/GetStatus") && strstr(o.text, f.url), "%s", o.text);
    fixture_close(&f);
}

BOTH(call_before_the_server_is_up_waits_for_it)
{
    struct dk_rpc_client *c;
    struct dk_err err = {0};
    struct fixture f = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    struct outcome o;

    fixture_url(f.url, scheme);
    outcome_init(&o);
    cr_assert_eq(dk_rpc_dial(&dk_control_nng, f.url, &c, &err), 0, "%s", err.text);
    cr_assert_eq(fixture_get_status(c, LONG_MS, &o), 0);
    cr_assert_eq(fixture_detokenize(c, 1, 100, &err), -ECONNREFUSED); /* dialling failed meanwhile */
    fixture_listen(&f);
    fixture_wait_held(&f, 1);
    fixture_release(&f);
    outcome_wait(&o, 1);
    cr_assert_eq(o.rc, 0, "%s", o.text);
    f.client = c;
    fixture_close(&f);
}

BOTH(restarted_server_gets_the_call_again)
{
    struct dk_rpc_call *orphan;
    struct dk_err err = {0};
    struct outcome o;
    struct fixture f;

    fixture_open(&f, scheme);
    outcome_init(&o);
    cr_assert_eq(fixture_get_status(f.client, LONG_MS, &o), 0);
    fixture_wait_held(&f, 1);
    orphan = f.held[0];
    f.held_count = 0;
    dk_rpc_server_close(f.server);
    fixture_listen(&f);
    fixture_wait_held(&f, 1); /* the same call, at the new server */
    dk_rpc_fail(orphan, -EIO, "dropped: its server is closed");
    fixture_release(&f);
    outcome_wait(&o, 1);
    cr_assert_eq(o.rc, 0, "%s", o.text);
    cr_assert_eq(f.runs, 2);
    cr_assert_eq(fixture_detokenize(f.client, 2, LONG_MS, &err), 0, "%s", err.text);
    fixture_close(&f);
}

BOTH(client_that_goes_in_mid_call_harms_nobody)
{
    struct dk_rpc_client *other;
    struct dk_err err = {0};
    struct outcome o;
    struct fixture f;

    fixture_open(&f, scheme);
    outcome_init(&o);
    cr_assert_eq(dk_rpc_dial(&dk_control_nng, f.url, &other, &err), 0);
    for (int i = 0; i < 8; i++)
        cr_assert_eq(fixture_get_status(other, LONG_MS, &o), 0);
    fixture_wait_held(&f, 8);
    dk_rpc_client_close(other);
    cr_assert_eq(o.ended, 8, "close ends every call, once");
    cr_assert_eq(o.rc, -ECANCELED);
    cr_assert(strstr(o.text, "closed while waiting"), "%s", o.text);
    fixture_release(&f);
    cr_assert_eq(fixture_detokenize(f.client, 3, LONG_MS, &err), 0, "%s", err.text);
    cr_assert_eq(o.ended, 8);
    fixture_close(&f);
}

Test(rpc, server_closes_with_calls_that_end_later)
{
    struct outcome o;
    struct fixture f;

    fixture_open(&f, "ipc");
    outcome_init(&o);
    for (int i = 0; i < 5; i++)
        cr_assert_eq(fixture_get_status(f.client, LONG_MS, &o), 0);
    fixture_wait_held(&f, 5);
    dk_rpc_server_close(f.server);
    f.server = NULL;
    fixture_release(&f); /* dropped */
    dk_rpc_client_close(f.client);
    cr_assert_eq(o.ended, 5);
    cr_assert_eq(o.rc, -ECANCELED);
}

struct hammer {
    const char *url;
    pthread_t thread;
    uint32_t good;
};

static void *hammer_run(void *arg)
{
    struct hammer *h = arg;
    struct dk_rpc_client *c;
    struct dk_err err = {0};

    cr_assert_eq(dk_rpc_dial(&dk_control_nng, h->url, &c, &err), 0);
    for (int i = 0; i < 40; i++)
        h->good += fixture_detokenize(c, (size_t)i * 7, LONG_MS, &err) == 0;
    dk_rpc_client_close(c);
    return NULL;
}

BOTH(many_clients_at_once)
{
    struct hammer hammers[16] = {0};
    struct fixture f;

    fixture_open(&f, scheme);
    for (int i = 0; i < 16; i++) {
        hammers[i].url = f.url;
        pthread_create(&hammers[i].thread, NULL, hammer_run, &hammers[i]);
    }
    for (int i = 0; i < 16; i++) {
        pthread_join(hammers[i].thread, NULL);
        cr_assert_eq(hammers[i].good, 40);
    }
    cr_assert_eq(f.runs, 640);
    fixture_close(&f);
}

Test(rpc, one_client_has_many_calls_outstanding)
{
    struct outcome o;
    struct fixture f;

    fixture_open(&f, "tcp");
    outcome_init(&o);
    for (int i = 0; i < 60; i++)
        cr_assert_eq(fixture_get_status(f.client, LONG_MS, &o), 0);
    fixture_wait_held(&f, 60);
    cr_assert_eq(fixture_detokenize(f.client, 9, LONG_MS, NULL), 0, "held calls do not stop others");
    fixture_release(&f);
    outcome_wait(&o, 60);
    cr_assert_eq(o.rc, 0);
    fixture_close(&f);
}

/* Opening and closing in every state must neither hang nor leak nor lose a callback. */
Test(rpc, open_and_close_over_and_over)
{
    for (int i = 0; i < 60; i++) {
        struct outcome o;
        struct fixture f;

        fixture_open(&f, i & 1 ? "ipc" : "tcp");
        outcome_init(&o);
        for (int j = 0; j < i % 5; j++)
            cr_assert_eq(fixture_get_status(f.client, LONG_MS, &o), 0);
        if (i % 3 == 0)
            cr_assert_eq(fixture_detokenize(f.client, 1, LONG_MS, NULL), 0);
        if (i % 7 == 0) {
            dk_rpc_server_close(f.server);
            f.server = NULL;
        }
        fixture_close(&f);
        cr_assert_eq(o.ended, (uint32_t)(i % 5));
    }
}
