/* SPDX-License-Identifier: Apache-2.0 */
/* What an rpc server does with requests that come again and with bytes that are no request: the envelopes are made
 * here by hand and sent through the control plane below rpc. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "rpc_fixture.h"

#define LONG_MS 60000

/* The end of one control-plane call. */
struct answer {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool ended;
    int rc;
    Dk__RpcReply *reply;
};

static void on_answer(void *ctx, int rc, const uint8_t *data, size_t bytes)
{
    struct answer *a = ctx;

    pthread_mutex_lock(&a->lock);
    cr_assert(!a->ended);
    a->ended = true;
    a->rc = rc;
    a->reply = rc == 0 ? dk__rpc_reply__unpack(NULL, bytes, data) : NULL;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

static void send_bytes(struct dk_control_client *c, const void *data, size_t bytes, uint32_t timeout_ms,
                       struct answer *a)
{
    memset(a, 0, sizeof *a);
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    cr_assert_eq(dk_control_nng.call(c, data, bytes, timeout_ms, on_answer, a), 0);
}

static void send_request(struct dk_control_client *c, uint64_t request_id, const char *method, uint32_t version,
                         const ProtobufCBinaryData *body, uint32_t timeout_ms, struct answer *a)
{
    Dk__RpcRequest q = DK__RPC_REQUEST__INIT;
    uint8_t *packed;

    q.protocol_version = version;
    q.client_id = 0x1234567890abcdefu;
    q.request_id = request_id;
    q.method = (char *)method;
    if (body) {
        q.has_body = 1;
        q.body = *body;
    }
    packed = malloc(dk__rpc_request__get_packed_size(&q));
    send_bytes(c, packed, dk__rpc_request__pack(&q, packed), timeout_ms, a);
    free(packed);
}

static void answer_wait(struct answer *a)
{
    pthread_mutex_lock(&a->lock);
    while (!a->ended)
        pthread_cond_wait(&a->changed, &a->lock);
    pthread_mutex_unlock(&a->lock);
}

static void answer_free(struct answer *a)
{
    if (a->reply)
        dk__rpc_reply__free_unpacked(a->reply, NULL);
    a->reply = NULL;
}

/* Waits, checks the status and that the text contains `word`. */
static void expect(struct answer *a, uint64_t request_id, Dk__Code code, const char *word)
{
    answer_wait(a);
    cr_assert_eq(a->rc, 0);
    cr_assert_not_null(a->reply);
    cr_assert_eq(a->reply->request_id, request_id);
    cr_assert_eq(a->reply->status->code, code, "%s %s", dk_code_name(a->reply->status->code),
                 a->reply->status->text ? a->reply->status->text : "");
    if (word)
        cr_assert(strstr(a->reply->status->text, word), "%s", a->reply->status->text);
    answer_free(a);
}

static struct dk_control_client *dial(const struct fixture *f)
{
    struct dk_control_client *c;
    struct dk_err err = {0};

    cr_assert_eq(dk_control_nng.dial(f->url, &c, &err), 0, "%s", err.text);
    return c;
}

Test(rpc_wire, repeat_of_a_running_call_runs_once_and_the_newest_is_answered)
{
    struct dk_control_client *c;
    struct answer first, second, third, later;
    struct fixture f;

    fixture_open(&f, "tcp");
    c = dial(&f);
    send_request(c, 7, "Client/GetStatus", DK_PROTOCOL_VERSION, NULL, 1000, &first);
    fixture_wait_held(&f, 1);
    send_request(c, 7, "Client/GetStatus", DK_PROTOCOL_VERSION, NULL, 1000, &second);
    answer_wait(&second); /* both run out: nothing is sent to them, and they attached before the third comes */
    answer_wait(&first);
    cr_assert_eq(first.rc, -ETIMEDOUT);
    cr_assert_eq(second.rc, -ETIMEDOUT);
    send_request(c, 7, "dk.Client/GetStatus", DK_PROTOCOL_VERSION, NULL, LONG_MS, &third);
    /* A request sent after it on the same connection has been answered: the third is at the server. Should it only come
     * to be looked at after the release, it gets the kept reply. */
    send_request(c, 8, "Client/Nothing", DK_PROTOCOL_VERSION, NULL, LONG_MS, &later);
    expect(&later, 8, DK__CODE__UNIMPLEMENTED, "Client/Nothing");
    fixture_release(&f);
    expect(&third, 7, DK__CODE__OK, NULL);
    cr_assert_eq(f.runs, 1);

    send_request(c, 7, "Client/GetStatus", DK_PROTOCOL_VERSION, NULL, LONG_MS, &later); /* the kept reply */
    expect(&later, 7, DK__CODE__OK, NULL);
    cr_assert_eq(f.runs, 1);
    dk_control_nng.client_close(c);
    fixture_close(&f);
}

static void tokenize(struct dk_control_client *c, uint64_t request_id, char *ids, struct answer *a)
{
    Dk__TokenizeRequest q = DK__TOKENIZE_REQUEST__INIT;
    uint8_t packed[64];
    ProtobufCBinaryData body = {.data = packed};

    q.text = ids;
    body.len = dk__tokenize_request__pack(&q, packed);
    send_request(c, request_id, "Client/Tokenize", DK_PROTOCOL_VERSION, &body, LONG_MS, a);
    answer_wait(a);
}

Test(rpc_wire, last_256_replies_are_kept)
{
    struct dk_control_client *c;
    struct answer a;
    struct fixture f;

    fixture_open(&f, "ipc");
    c = dial(&f);
    for (uint64_t id = 1; id <= 257; id++) {
        tokenize(c, id, "3", &a);
        expect(&a, id, DK__CODE__OK, NULL);
    }
    cr_assert_eq(f.runs, 257);
    for (uint64_t id = 2; id <= 257; id++) {
        tokenize(c, id, "3", &a);
        cr_assert_not_null(a.reply);
        cr_assert(a.reply->has_body);
        expect(&a, id, DK__CODE__OK, NULL);
    }
    cr_assert_eq(f.runs, 257);
    tokenize(c, 1, "3", &a); /* too old: runs again */
    expect(&a, 1, DK__CODE__OK, NULL);
    cr_assert_eq(f.runs, 258);
    dk_control_nng.client_close(c);
    fixture_close(&f);
}

Test(rpc_wire, large_reply_is_kept_until_its_clients_next_request)
{
    struct dk_control_client *c;
    struct answer a;
    struct fixture f;

    fixture_open(&f, "ipc");
    c = dial(&f);
    for (int i = 0; i < 2; i++) {
        tokenize(c, 1, "300000", &a);
        cr_assert_gt(a.reply->body.len, 1u << 20);
        expect(&a, 1, DK__CODE__OK, NULL);
    }
    cr_assert_eq(f.runs, 1);
    cr_assert_eq(fixture_detokenize(f.client, 1, LONG_MS, NULL), 0); /* another client's request changes nothing */
    tokenize(c, 1, "300000", &a);
    expect(&a, 1, DK__CODE__OK, NULL);
    cr_assert_eq(f.runs, 2);
    tokenize(c, 2, "3", &a);
    expect(&a, 2, DK__CODE__OK, NULL);
    tokenize(c, 1, "300000", &a);
    expect(&a, 1, DK__CODE__OK, NULL);
    cr_assert_eq(f.runs, 4);
    dk_control_nng.client_close(c);
    fixture_close(&f);
}

Test(rpc_wire, bad_requests_get_typed_errors)
{
    uint8_t damaged[] = {0x0a, 0x7f, 'x'}, not_utf8[] = {0x0a, 0x02, 0xc3, 0x28};
    ProtobufCBinaryData body = {sizeof damaged, damaged}, text = {sizeof not_utf8, not_utf8};
    struct dk_control_client *c;
    struct answer a;
    struct fixture f;

    fixture_open(&f, "ipc");
    c = dial(&f);
    send_request(c, 1, "Client/Submit", DK_PROTOCOL_VERSION + 1, NULL, LONG_MS, &a);
    expect(&a, 1, DK__CODE__VERSION_MISMATCH, "version 2, this server 1");
    send_request(c, 2, "", DK_PROTOCOL_VERSION, NULL, LONG_MS, &a);
    expect(&a, 2, DK__CODE__UNIMPLEMENTED, "Client/Submit");
    send_request(c, 3, "Client/Submit/", DK_PROTOCOL_VERSION, NULL, LONG_MS, &a);
    expect(&a, 3, DK__CODE__UNIMPLEMENTED, NULL);
    send_request(c, 4, "Client/Tokenize", DK_PROTOCOL_VERSION, &body, LONG_MS, &a);
    expect(&a, 4, DK__CODE__DATA_LOSS, "Client/Tokenize");
    send_request(c, 5, "Client/Tokenize", DK_PROTOCOL_VERSION, NULL, LONG_MS, &a); /* text is required */
    expect(&a, 5, DK__CODE__DATA_LOSS, "TokenizeRequest");
    send_request(c, 6, "Client/Tokenize", DK_PROTOCOL_VERSION, &text, LONG_MS, &a);
    expect(&a, 6, DK__CODE__DATA_LOSS, "not UTF-8");
    send_bytes(c, "\xff\xff\xff", 3, LONG_MS, &a);
    expect(&a, 0, DK__CODE__DATA_LOSS, "no RpcRequest");
    send_bytes(c, NULL, 0, LONG_MS, &a);
    expect(&a, 0, DK__CODE__DATA_LOSS, "no RpcRequest");
    cr_assert_eq(f.runs, 0);
    cr_assert_eq(fixture_detokenize(f.client, 1, LONG_MS, NULL), 0);
    dk_control_nng.client_close(c);
    fixture_close(&f);
}

/* A server that answers everything with the same bytes. */
struct liar {
    const void *data;
    size_t bytes;
};

static void lie(void *ctx, struct dk_control_request *request, const uint8_t *data, size_t bytes)
{
    const struct liar *l = ctx;

    (void)data, (void)bytes;
    dk_control_nng.reply(request, l->data, l->bytes);
}

Test(rpc_wire, bad_replies_are_errors)
{
    static const struct {
        const char *data;
        size_t bytes;
        int rc;
        const char *word;
    } cases[] = {
        {"\xff\xff", 2, -EBADMSG, "no RpcReply"},
        {"", 0, -EBADMSG, "no RpcReply"},
        {"\x08\x63\x12\x02\x08\x00", 6, -EBADMSG, "another request"},
        {"\x08\x00\x12\x02\x08\x00", 6, -EBADMSG, "another request"},
        {"\x08\x00\x12\x02\x08\x0b", 6, -EPROTONOSUPPORT, "VERSION_MISMATCH"},
        {"\x08\x01\x12\x05\x08\x02\x12\x01q", 9, -ENOENT, "q"},
        {"\x08\x01\x12\x02\x08\x63", 6, -EIO, "UNKNOWN_CODE"},
        {"\x08\x01\x12\x02\x08\x00\x1a\x02\x0a\x7f", 10, -EBADMSG, "no DetokenizeReply"},
        {"\x08\x01\x12\x02\x08\x00\x1a\x03\x0a\x01\xff", 11, -EBADMSG, "UTF-8"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct liar l = {cases[i].data, cases[i].bytes};
        struct dk_control_server *s;
        struct dk_rpc_client *c;
        struct dk_err err = {0};
        char url[128];

        fixture_url(url, "ipc");
        cr_assert_eq(dk_control_nng.listen(url, 2, lie, &l, &s, &err), 0, "%s", err.text);
        cr_assert_eq(dk_rpc_dial(&dk_control_nng, url, &c, &err), 0);
        cr_assert_eq(fixture_detokenize(c, 1, LONG_MS, &err), cases[i].rc, "case %zu: %d %s", i, err.rc, err.text);
        cr_assert(strstr(err.text, cases[i].word), "case %zu: %s", i, err.text);
        dk_rpc_client_close(c);
        dk_control_nng.server_close(s);
    }
}
