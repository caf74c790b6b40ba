/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc_fixture.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void fixture_url(char url[128], const char *scheme)
{
    if (!strcmp(scheme, "ipc")) {
        static int count;

        snprintf(url, 128, "ipc:///tmp/dk_rpc_%d_%d.sock", (int)getpid(), count++);
    } else {
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t bytes = sizeof a;
        int fd = socket(AF_INET, SOCK_STREAM, 0);

        cr_assert_eq(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
        cr_assert_eq(getsockname(fd, (struct sockaddr *)&a, &bytes), 0);
        close(fd);
        snprintf(url, 128, "tcp://127.0.0.1:%u", ntohs(a.sin_port));
    }
}

static void on_call(void *ctx, struct dk_rpc_call *call)
{
    struct fixture *f = ctx;
    const char *name = dk_rpc_method(call)->name;

    pthread_mutex_lock(&f->lock);
    f->runs++;
    if (!strcmp(name, "GetStatus")) {
        cr_assert_lt(f->held_count, sizeof f->held / sizeof *f->held);
        f->held[f->held_count++] = call;
        call = NULL;
    }
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    if (!call)
        return;
    if (!strcmp(name, "Detokenize")) {
        const Dk__DetokenizeRequest *q = (const Dk__DetokenizeRequest *)dk_rpc_request(call);
        Dk__DetokenizeReply reply = DK__DETOKENIZE_REPLY__INIT;
        char text[32];

        snprintf(text, sizeof text, "%zu", q->n_ids);
        reply.text = text;
        dk_rpc_reply(call, &reply.base);
    } else if (!strcmp(name, "Tokenize")) { /* as many ids as the text says */
        const Dk__TokenizeRequest *q = (const Dk__TokenizeRequest *)dk_rpc_request(call);
        Dk__TokenizeReply reply = DK__TOKENIZE_REPLY__INIT;

        reply.n_ids = strtoul(q->text, NULL, 10);
        reply.ids = calloc(reply.n_ids + 1, sizeof *reply.ids);
        for (size_t i = 0; i < reply.n_ids; i++)
            reply.ids[i] = 0x80000000u | (uint32_t)i; /* five bytes each */
        dk_rpc_reply(call, &reply.base);
        free(reply.ids);
    } else {
        dk_rpc_fail(call, -EBUSY, "no model is loaded; load one with duckctl load");
    }
}

void fixture_listen(struct fixture *f)
{
    static const ProtobufCServiceDescriptor *services[] = {&dk__client__descriptor, NULL};
    struct dk_err err = {0};

    cr_assert_eq(dk_rpc_listen(&dk_control_nng, f->url, services, on_call, f, &f->server, &err), 0, "%s", err.text);
}

void fixture_open(struct fixture *f, const char *scheme)
{
    struct dk_err err = {0};

    memset(f, 0, sizeof *f);
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->changed, NULL);
    fixture_url(f->url, scheme);
    fixture_listen(f);
    cr_assert_eq(dk_rpc_dial(&dk_control_nng, f->url, &f->client, &err), 0, "%s", err.text);
}

void fixture_close(struct fixture *f)
{
    dk_rpc_client_close(f->client);
    fixture_release(f);
    dk_rpc_server_close(f->server);
}

void fixture_wait_held(struct fixture *f, uint32_t count)
{
    pthread_mutex_lock(&f->lock);
    while (f->held_count < count)
        pthread_cond_wait(&f->changed, &f->lock);
    pthread_mutex_unlock(&f->lock);
}

void fixture_release(struct fixture *f)
{
    struct dk_rpc_call *held[64];
    uint32_t count;

    pthread_mutex_lock(&f->lock);
    count = f->held_count;
    memcpy(held, f->held, sizeof held);
    f->held_count = 0;
    pthread_mutex_unlock(&f->lock);
    for (uint32_t i = 0; i < count; i++) {
        Dk__StatusReply reply = DK__STATUS_REPLY__INIT;

        reply.state = DK__CLUSTER_STATE__READY;
        dk_rpc_reply(held[i], &reply.base);
    }
}

int fixture_detokenize(struct dk_rpc_client *c, size_t ids, uint32_t timeout_ms, struct dk_err *err)
{
    Dk__DetokenizeRequest q = DK__DETOKENIZE_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    int rc;

    q.n_ids = ids;
    q.ids = malloc((ids + 1) * sizeof *q.ids);
    for (size_t i = 0; i < ids; i++)
        q.ids[i] = 0xf0000000u | (uint32_t)i;
    rc = dk_rpc_call(c, &dk__client__descriptor, "Detokenize", &q.base, timeout_ms, &reply, err);
    free(q.ids);
    cr_assert_eq(rc == 0, reply != NULL);
    if (reply) {
        cr_assert_eq(strtoul(((Dk__DetokenizeReply *)reply)->text, NULL, 10), ids);
        protobuf_c_message_free_unpacked(reply, NULL);
    }
    return rc;
}

void outcome_init(struct outcome *o)
{
    memset(o, 0, sizeof *o);
    pthread_mutex_init(&o->lock, NULL);
    pthread_cond_init(&o->changed, NULL);
}

void outcome_wait(struct outcome *o, uint32_t ended)
{
    pthread_mutex_lock(&o->lock);
    while (o->ended < ended)
        pthread_cond_wait(&o->changed, &o->lock);
    pthread_mutex_unlock(&o->lock);
}

void outcome_done(void *ctx, int rc, ProtobufCMessage *reply, const struct dk_err *err)
{
    struct outcome *o = ctx;

    cr_assert_eq(rc == 0, reply != NULL);
    if (reply) {
        cr_assert_eq(((Dk__StatusReply *)reply)->state, DK__CLUSTER_STATE__READY);
        protobuf_c_message_free_unpacked(reply, NULL);
    }
    pthread_mutex_lock(&o->lock);
    o->ended++;
    o->rc = rc;
    snprintf(o->text, sizeof o->text, "%s", err->text);
    pthread_cond_broadcast(&o->changed);
    pthread_mutex_unlock(&o->lock);
}

int fixture_get_status(struct dk_rpc_client *c, uint32_t timeout_ms, struct outcome *o)
{
    Dk__StatusRequest q = DK__STATUS_REQUEST__INIT;
    struct dk_err err = {0};

    return dk_rpc_call_start(c, &dk__client__descriptor, "GetStatus", &q.base, timeout_ms, outcome_done, o, &err);
}
