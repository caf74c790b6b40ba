/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "net/net.h"
#include "net/sim/sim.h"

static const struct dk_control_ops *const ops = &dk_control_sim;

struct ends {
    struct dk_control_request *held[16];
    uint32_t held_count;
    bool hold;
    uint32_t requests, replies;
    int rc;
    char text[64];
};

static void on_request(void *ctx, struct dk_control_request *request, const uint8_t *data, size_t bytes)
{
    struct ends *e = ctx;

    e->requests++;
    if (e->hold)
        e->held[e->held_count++] = request;
    else
        ops->reply(request, data, bytes);
}

static void on_reply(void *ctx, int rc, const uint8_t *data, size_t bytes)
{
    struct ends *e = ctx;

    e->replies++;
    e->rc = rc;
    e->text[0] = 0;
    if (rc == 0) {
        memcpy(e->text, data, bytes);
        e->text[bytes] = 0;
    }
}

static uint64_t fake_us;

static uint64_t fake_now(void *ctx)
{
    return fake_us;
}

static void call(struct dk_control_client *c, struct ends *e, const char *text)
{
    cr_assert_eq(ops->call(c, (const uint8_t *)text, strlen(text), 1000, on_reply, e), 0);
}

static void hold_nothing(struct ends *e)
{
    while (e->held_count > 0)
        ops->reply(e->held[--e->held_count], (const uint8_t *)"late", 4);
}

Test(control_sim, a_call_has_its_reply)
{
    struct ends e = {0};
    struct dk_control_server *s, *again;
    struct dk_control_client *c;
    struct dk_err err = {0};

    cr_assert_eq(ops->listen("ipc://x", 4, on_request, &e, &s, &err), 0);
    cr_assert_eq(ops->listen("ipc://x", 4, on_request, &e, &again, &err), -EADDRINUSE);
    cr_assert_eq(ops->dial("ipc://x", &c, &err), 0);
    call(c, &e, "hello");
    cr_assert(e.replies == 1 && e.rc == 0 && !strcmp(e.text, "hello"));
    call(c, &e, "");
    cr_assert(e.replies == 2 && e.rc == 0 && !strcmp(e.text, ""));
    cr_assert_eq(ops->call(c, NULL, DK_CONTROL_BYTES_MAX + 1, 1, on_reply, &e), -EMSGSIZE);
    ops->client_close(c);
    ops->server_close(s);
}

Test(control_sim, no_more_than_parallel_at_a_time)
{
    struct ends e = {.hold = true};
    struct dk_control_server *s;
    struct dk_control_client *c;

    cr_assert_eq(ops->listen("x", 2, on_request, &e, &s, NULL), 0);
    cr_assert_eq(ops->dial("x", &c, NULL), 0);
    for (int i = 0; i < 5; i++)
        call(c, &e, "q");
    cr_assert_eq(e.requests, 2);
    ops->reply(e.held[0], (const uint8_t *)"a", 1);
    cr_assert(e.replies == 1 && e.requests == 3);
    e.held[0] = e.held[2];
    e.held_count = 2;
    while (e.replies < 5)
        hold_nothing(&e);
    cr_assert_eq(e.requests, 5);
    ops->client_close(c);
    ops->server_close(s);
}

Test(control_sim, a_call_waits_for_its_server_and_outlives_one)
{
    struct ends e = {.hold = true};
    struct dk_control_server *s;
    struct dk_control_client *c;

    cr_assert_eq(ops->dial("x", &c, NULL), 0);
    call(c, &e, "one");
    call(c, &e, "two");
    cr_assert_eq(e.requests, 0);
    cr_assert_eq(ops->listen("x", 4, on_request, &e, &s, NULL), 0);
    cr_assert_eq(e.requests, 2);
    ops->reply(e.held[0], NULL, 0); /* forgotten */
    cr_assert_eq(e.replies, 0);
    ops->server_close(s);
    ops->reply(e.held[1], (const uint8_t *)"too late", 8);
    cr_assert_eq(e.replies, 0);
    e.hold = false;
    cr_assert_eq(ops->listen("x", 4, on_request, &e, &s, NULL), 0);
    cr_assert_eq(e.replies, 2);
    cr_assert_eq(e.requests, 4);
    ops->client_close(c);
    ops->server_close(s);
}

Test(control_sim, time_ends_calls)
{
    struct ends e = {.hold = true};
    struct dk_control_server *s;
    struct dk_control_client *c;

    dk_sim_clock_set(fake_now, NULL);
    cr_assert_eq(ops->listen("x", 4, on_request, &e, &s, NULL), 0);
    cr_assert_eq(ops->dial("x", &c, NULL), 0);
    call(c, &e, "q");
    cr_assert_eq(dk_control_sim_deadline(), 1000000);
    fake_us = 999999;
    dk_control_sim_expire();
    cr_assert_eq(e.replies, 0);
    fake_us = 1000000;
    dk_control_sim_expire();
    cr_assert(e.replies == 1 && e.rc == -ETIMEDOUT);
    cr_assert_eq(dk_control_sim_deadline(), UINT64_MAX);
    hold_nothing(&e);
    cr_assert_eq(e.replies, 1, "a late reply goes nowhere");
    ops->client_close(c);
    ops->server_close(s);
    dk_sim_clock_set(NULL, NULL);
}

Test(control_sim, closing_cancels)
{
    struct ends e = {.hold = true};
    struct dk_control_server *s;
    struct dk_control_client *c;

    cr_assert_eq(ops->listen("x", 1, on_request, &e, &s, NULL), 0);
    cr_assert_eq(ops->dial("x", &c, NULL), 0);
    call(c, &e, "asked");
    call(c, &e, "waiting");
    ops->client_close(c);
    cr_assert(e.replies == 2 && e.rc == -ECANCELED);
    hold_nothing(&e);
    cr_assert_eq(e.replies, 2);
    ops->server_close(s);
    ops->server_close(NULL);
    ops->client_close(NULL);
}

/* Each reply starts the next call: the stack must not grow with their number. */
struct chain {
    struct dk_control_client *client;
    uint32_t left;
};

static void on_chain_reply(void *ctx, int rc, const uint8_t *data, size_t bytes)
{
    struct chain *c = ctx;

    cr_assert_eq(rc, 0);
    if (--c->left > 0)
        cr_assert_eq(ops->call(c->client, data, bytes, 1000, on_chain_reply, c), 0);
}

Test(control_sim, a_chain_of_calls_does_not_nest)
{
    struct ends e = {0};
    struct chain chain = {.left = 200000};
    struct dk_control_server *s;

    cr_assert_eq(ops->listen("x", 1, on_request, &e, &s, NULL), 0);
    cr_assert_eq(ops->dial("x", &chain.client, NULL), 0);
    cr_assert_eq(ops->call(chain.client, (const uint8_t *)"x", 1, 1000, on_chain_reply, &chain), 0);
    cr_assert_eq(chain.left, 0);
    ops->client_close(chain.client);
    ops->server_close(s);
}

/* ---- real clock, several threads -------------------------------------------------------------------------------- */

struct crowd {
    pthread_mutex_t lock;
    pthread_cond_t done;
    uint32_t ended, timed_out;
    struct dk_control_client *client;
};

static void on_crowd_request(void *ctx, struct dk_control_request *request, const uint8_t *data, size_t bytes)
{
    ops->reply(request, data[0] == 'd' ? NULL : data, bytes);
}

static void on_crowd_reply(void *ctx, int rc, const uint8_t *data, size_t bytes)
{
    struct crowd *c = ctx;

    pthread_mutex_lock(&c->lock);
    c->ended++;
    c->timed_out += rc == -ETIMEDOUT;
    pthread_cond_signal(&c->done);
    pthread_mutex_unlock(&c->lock);
}

static void *crowd_main(void *ctx)
{
    struct crowd *c = ctx;

    for (int i = 0; i < 500; i++)
        cr_assert_eq(
            ops->call(c->client, (const uint8_t *)(i % 100 ? "r" : "d"), 1, i % 100 ? 60000 : 5, on_crowd_reply, c), 0);
    return NULL;
}

Test(control_sim, threads_share_a_client, .timeout = 120)
{
    struct crowd c = {.lock = PTHREAD_MUTEX_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};
    struct dk_control_server *s;
    pthread_t threads[4];

    cr_assert_eq(ops->listen("x", 8, on_crowd_request, &c, &s, NULL), 0);
    cr_assert_eq(ops->dial("x", &c.client, NULL), 0);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, crowd_main, &c), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    pthread_mutex_lock(&c.lock);
    while (c.ended < 2000)
        pthread_cond_wait(&c.done, &c.lock);
    cr_assert_eq(c.timed_out, 20, "those that the server forgot");
    pthread_mutex_unlock(&c.lock);
    ops->client_close(c.client);
    ops->server_close(s);
}
