/* SPDX-License-Identifier: Apache-2.0 */
/* The control plane inside one process, with the contract of the real one: a call waits for its server to appear, is
 * given to a new server when the old one went away without an answer, and ends once.
 *
 * One lock guards everything; callbacks run without it, on whichever thread has something to do: the caller's, the
 * replier's, or the client's own one, which only exists to end calls in time. A thread that is in a callback already
 * does not start another one inside it (pump), so that a chain of calls and replies does not grow the stack. Closing
 * waits for callbacks of the closed object, hence must not happen inside one. */
#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "net/net.h"
#include "net/sim/sim.h"
#include "net/sim/sim_clock.h"

enum call_state {
    CALL_WAITS,    /* for a server with room */
    CALL_ASKED,    /* its request is with the server, or was forgotten there */
    CALL_FINISHED, /* on_reply is to be called */
};

struct sim_call {
    struct sim_call *next; /* all calls, oldest first */
    struct dk_control_client *client;
    enum call_state state;
    struct dk_control_server *server;   /* ASKED */
    struct dk_control_request *request; /* ASKED; NULL: forgotten by the server */
    uint64_t deadline_us;
    dk_control_on_reply *on_reply;
    void *ctx;
    int rc;
    uint8_t *data; /* the request's bytes, then the reply's */
    size_t bytes;
};

struct dk_control_request {
    struct dk_control_request *next;  /* of the server */
    struct dk_control_server *server; /* NULL: closed meanwhile */
    struct sim_call *call;            /* NULL: ended meanwhile */
    uint8_t *data;
    size_t bytes;
};

struct dk_control_server {
    struct dk_control_server *next;
    char *url;
    uint32_t parallel, outstanding;
    uint32_t busy; /* callbacks running */
    dk_control_on_request *on_request;
    void *ctx;
    struct dk_control_request *requests;
};

struct dk_control_client {
    struct dk_control_client *next;
    char *url;
    uint32_t busy;
    bool closing, has_thread;
    pthread_t thread;
    pthread_cond_t timer; /* the earliest deadline may have changed */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t idle = PTHREAD_COND_INITIALIZER; /* some busy fell */
static struct dk_control_server *servers;
static struct sim_call *calls;
static _Thread_local bool pumping;

static uint8_t *bytes_copy(const uint8_t *data, size_t bytes)
{
    uint8_t *copy = malloc(bytes ? bytes : 1);

    if (copy && bytes)
        memcpy(copy, data, bytes);
    return copy;
}

static struct dk_control_server *server_find(const char *url)
{
    struct dk_control_server *s = servers;

    while (s && strcmp(s->url, url) != 0)
        s = s->next;
    return s;
}

static void call_unlink(struct sim_call *call)
{
    struct sim_call **at = &calls;

    while (*at != call)
        at = &(*at)->next;
    *at = call->next;
}

static void call_finish(struct sim_call *call, int rc, uint8_t *data, size_t bytes)
{
    if (call->request)
        call->request->call = NULL;
    call->request = NULL;
    free(call->data);
    call->data = data;
    call->bytes = bytes;
    call->rc = rc;
    call->state = CALL_FINISHED;
}

/* Calls back without the lock and frees the call. */
static void call_end(struct sim_call *call)
{
    struct dk_control_client *client = call->client;

    call_unlink(call);
    client->busy++;
    pthread_mutex_unlock(&lock);
    call->on_reply(call->ctx, call->rc, call->data, call->bytes);
    free(call->data);
    free(call);
    pthread_mutex_lock(&lock);
    client->busy--;
    pthread_cond_broadcast(&idle);
}

static void call_ask(struct sim_call *call, struct dk_control_server *server)
{
    struct dk_control_request *request = calloc(1, sizeof *request);

    if (request)
        request->data = bytes_copy(call->data, call->bytes);
    if (!request || !request->data) {
        free(request);
        call_finish(call, -ENOMEM, NULL, 0);
        return;
    }
    request->bytes = call->bytes;
    request->server = server;
    request->call = call;
    request->next = server->requests;
    server->requests = request;
    server->outstanding++;
    server->busy++;
    call->state = CALL_ASKED;
    call->server = server;
    call->request = request;
    pthread_mutex_unlock(&lock);
    server->on_request(server->ctx, request, request->data, request->bytes);
    pthread_mutex_lock(&lock);
    server->busy--;
    pthread_cond_broadcast(&idle);
}

/* Runs all callbacks that are due. */
static void pump(void)
{
    if (pumping)
        return;
    pumping = true;
    pthread_mutex_lock(&lock);
    for (struct sim_call *call = calls; call;) {
        struct dk_control_server *server = NULL;

        if (call->state == CALL_WAITS)
            server = server_find(call->client->url);
        if (call->state == CALL_FINISHED) {
            call_end(call);
        } else if (server && server->outstanding < server->parallel) {
            call_ask(call, server);
        } else {
            call = call->next;
            continue;
        }
        call = calls; /* the list may be another one now */
    }
    pthread_mutex_unlock(&lock);
    pumping = false;
}

static int sim_listen(const char *url, uint32_t parallel, dk_control_on_request *on_request, void *ctx,
                      struct dk_control_server **out, struct dk_err *err)
{
    struct dk_control_server *s;

    if (parallel == 0)
        return dk_err_set(err, -EINVAL, "a server needs room for one request");
    s = calloc(1, sizeof *s);
    if (s)
        s->url = strdup(url);
    if (!s || !s->url) {
        free(s);
        return dk_err_set(err, -ENOMEM, "no memory to listen on %s", url);
    }
    s->parallel = parallel;
    s->on_request = on_request;
    s->ctx = ctx;
    pthread_mutex_lock(&lock);
    if (server_find(url)) {
        pthread_mutex_unlock(&lock);
        free(s->url);
        free(s);
        return dk_err_set(err, -EADDRINUSE, "%s is in use", url);
    }
    *out = s;
    s->next = servers;
    servers = s;
    pthread_mutex_unlock(&lock);
    pump();
    return 0;
}

static void sim_server_close(struct dk_control_server *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&lock);
    for (struct dk_control_server **at = &servers; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
    while (s->busy > 0)
        pthread_cond_wait(&idle, &lock);
    for (struct dk_control_request *r = s->requests; r; r = r->next) {
        r->server = NULL; /* its holder frees it with reply */
        r->call = NULL;
    }
    for (struct sim_call *call = calls; call; call = call->next)
        if (call->state == CALL_ASKED && call->server == s) {
            call->state = CALL_WAITS; /* for the next server of this url */
            call->request = NULL;
        }
    pthread_mutex_unlock(&lock);
    free(s->url);
    free(s);
}

static void sim_reply(struct dk_control_request *request, const uint8_t *data, size_t bytes)
{
    uint8_t *copy = data ? bytes_copy(data, bytes) : NULL;

    pthread_mutex_lock(&lock);
    if (request->server) {
        struct dk_control_request **at = &request->server->requests;

        while (*at != request)
            at = &(*at)->next;
        *at = request->next;
        request->server->outstanding--;
    }
    if (request->call && !data)
        request->call->request = NULL;
    else if (request->call)
        call_finish(request->call, copy ? 0 : -ENOMEM, copy, copy ? bytes : 0);
    else
        free(copy);
    pthread_mutex_unlock(&lock);
    free(request->data);
    free(request);
    pump();
}

static uint64_t deadline_of(const struct dk_control_client *client)
{
    uint64_t deadline_us = UINT64_MAX;

    for (struct sim_call *call = calls; call; call = call->next)
        if ((!client || call->client == client) && call->state != CALL_FINISHED && call->deadline_us < deadline_us)
            deadline_us = call->deadline_us;
    return deadline_us;
}

static void expire(const struct dk_control_client *client, uint64_t now_us)
{
    for (struct sim_call *call = calls; call; call = call->next)
        if ((!client || call->client == client) && call->state != CALL_FINISHED && call->deadline_us <= now_us)
            call_finish(call, -ETIMEDOUT, NULL, 0);
}

uint64_t dk_control_sim_deadline(void)
{
    uint64_t deadline_us;

    pthread_mutex_lock(&lock);
    deadline_us = deadline_of(NULL);
    pthread_mutex_unlock(&lock);
    return deadline_us;
}

void dk_control_sim_expire(void)
{
    pthread_mutex_lock(&lock);
    expire(NULL, sim_now_us());
    pthread_mutex_unlock(&lock);
    pump();
}

static void *timer_main(void *ctx)
{
    struct dk_control_client *client = ctx;

    pthread_mutex_lock(&lock);
    while (!client->closing) {
        uint64_t deadline_us = deadline_of(client);

        if (deadline_us > sim_now_us()) {
            sim_cond_wait_until(&client->timer, &lock, deadline_us);
            continue;
        }
        expire(client, sim_now_us());
        pthread_mutex_unlock(&lock);
        pump();
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static int sim_dial(const char *url, struct dk_control_client **out, struct dk_err *err)
{
    struct dk_control_client *c = calloc(1, sizeof *c);

    if (c)
        c->url = strdup(url);
    if (!c || !c->url) {
        free(c);
        return dk_err_set(err, -ENOMEM, "no memory to dial %s", url);
    }
    sim_cond_init(&c->timer);
    if (!sim_clock_is_own()) {
        int rc = pthread_create(&c->thread, NULL, timer_main, c);

        if (rc != 0) {
            pthread_cond_destroy(&c->timer);
            free(c->url);
            free(c);
            return dk_err_set(err, -rc, "no thread to dial %s", url);
        }
        c->has_thread = true;
    }
    *out = c;
    return 0;
}

static struct sim_call *call_of(const struct dk_control_client *c)
{
    struct sim_call *call = calls;

    while (call && call->client != c)
        call = call->next;
    return call;
}

static void sim_client_close(struct dk_control_client *c)
{
    struct sim_call *call;

    if (!c)
        return;
    pthread_mutex_lock(&lock);
    c->closing = true;
    pthread_cond_signal(&c->timer);
    while ((call = call_of(c))) {
        if (call->state != CALL_FINISHED)
            call_finish(call, -ECANCELED, NULL, 0);
        call_end(call);
    }
    while (c->busy > 0)
        pthread_cond_wait(&idle, &lock);
    pthread_mutex_unlock(&lock);
    if (c->has_thread)
        pthread_join(c->thread, NULL);
    pthread_cond_destroy(&c->timer);
    free(c->url);
    free(c);
}

static int sim_call(struct dk_control_client *c, const uint8_t *data, size_t bytes, uint32_t timeout_ms,
                    dk_control_on_reply *on_reply, void *ctx)
{
    struct sim_call *call, **at = &calls;

    if (bytes > DK_CONTROL_BYTES_MAX)
        return -EMSGSIZE;
    call = calloc(1, sizeof *call);
    if (call)
        call->data = bytes_copy(data, bytes);
    if (!call || !call->data) {
        free(call);
        return -ENOMEM;
    }
    call->client = c;
    call->bytes = bytes;
    call->deadline_us = sim_now_us() + (uint64_t)timeout_ms * 1000;
    call->on_reply = on_reply;
    call->ctx = ctx;
    pthread_mutex_lock(&lock);
    if (c->closing) {
        pthread_mutex_unlock(&lock);
        free(call->data);
        free(call);
        return -ECANCELED;
    }
    while (*at)
        at = &(*at)->next;
    *at = call;
    pthread_cond_signal(&c->timer);
    pthread_mutex_unlock(&lock);
    pump();
    return 0;
}

const struct dk_control_ops dk_control_sim = {
    .name = "sim",
    .listen = sim_listen,
    .server_close = sim_server_close,
    .reply = sim_reply,
    .dial = sim_dial,
    .client_close = sim_client_close,
    .call = sim_call,
};
