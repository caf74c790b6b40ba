/* SPDX-License-Identifier: Apache-2.0 */
/* The server of the control plane among clients that leave at the wrong moment, send nonsense or never read: the calls
 * of good clients must not notice, new clients must find it, and nothing may be left behind. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "rpc_fixture.h"

#define LONG_MS      60000
#define GREETING     "\0SP\0\0\x30\0\0"
#define RUDE_THREADS 4
#define RUDE_ROUNDS  75
#define VICTIMS      12

static void echo(void *ctx, struct dk_control_request *request, const uint8_t *data, size_t bytes)
{
    (void)ctx;
    dk_control_nng.reply(request, data, bytes);
}

/* A folder of its own, so that removing it proves that nothing is left there. */
static void place_make(char folder[64], char url[128], const char *scheme)
{
    strcpy(folder, "/tmp/dk_storm_XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
    if (!strcmp(scheme, "ipc"))
        snprintf(url, 128, "ipc://%s/s", folder);
    else
        fixture_url(url, scheme);
}

/* The socket address of a url, for raw sockets. */
struct raw {
    union {
        struct sockaddr any;
        struct sockaddr_in in;
        struct sockaddr_un un;
    } address;
    socklen_t bytes;
};

static struct raw raw_address(const char *url)
{
    struct raw raw;

    memset(&raw, 0, sizeof raw);
    if (!strncmp(url, "ipc://", 6)) {
        cr_assert_lt(strlen(url + 6), sizeof raw.address.un.sun_path);
        raw.address.un.sun_family = AF_UNIX;
        memcpy(raw.address.un.sun_path, url + 6, strlen(url + 6));
        raw.bytes = sizeof raw.address.un;
    } else {
        raw.address.in.sin_family = AF_INET;
        raw.address.in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        raw.address.in.sin_port = htons((uint16_t)strtoul(strrchr(url, ':') + 1, NULL, 10));
        raw.bytes = sizeof raw.address.in;
    }
    return raw;
}

static int connect_raw(const char *url)
{
    struct raw raw = raw_address(url);
    int fd = socket(raw.address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    cr_assert_eq(connect(fd, &raw.address.any, raw.bytes), 0);
    return fd;
}

static int bind_raw(const char *url)
{
    struct raw raw = raw_address(url);
    int fd = socket(raw.address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    cr_assert_eq(bind(fd, &raw.address.any, raw.bytes), 0);
    return fd;
}

/* What a call asks, and that the answer is the same. */
struct asked {
    struct outcome o;
    uint8_t *data;
    size_t bytes;
};

static void on_answer(void *ctx, int rc, const uint8_t *data, size_t bytes)
{
    struct asked *a = ctx;

    pthread_mutex_lock(&a->o.lock);
    a->o.ended++;
    a->o.rc = rc ? rc : bytes != a->bytes || memcmp(data, a->data, bytes) ? -EBADMSG : 0;
    pthread_cond_broadcast(&a->o.changed);
    pthread_mutex_unlock(&a->o.lock);
}

static void asked_init(struct asked *a, size_t bytes, uint64_t seed)
{
    struct dk_rng rng = {seed};

    outcome_init(&a->o);
    a->data = malloc(bytes);
    a->bytes = bytes;
    for (size_t i = 0; i < bytes; i++)
        a->data[i] = (uint8_t)dk_rng_next(&rng);
}

static void ask(struct dk_control_client *c, struct asked *a)
{
    cr_assert_eq(dk_control_nng.call(c, a->data, a->bytes, LONG_MS, on_answer, a), 0);
}

static struct dk_control_client *dial(const char *url)
{
    struct dk_control_client *c;
    struct dk_err err = {0};

    cr_assert_eq(dk_control_nng.dial(url, &c, &err), 0, "%s", err.text);
    return c;
}

static void expect_answer(const char *url)
{
    struct dk_control_client *c = dial(url);
    struct asked a;

    asked_init(&a, 10000, 1);
    ask(c, &a);
    outcome_wait(&a.o, 1);
    cr_assert_eq(a.o.rc, 0);
    dk_control_nng.client_close(c);
    free(a.data);
}

static struct dk_control_server *serve(const char *url)
{
    struct dk_control_server *s;
    struct dk_err err = {0};

    cr_assert_eq(dk_control_nng.listen(url, 4, echo, NULL, &s, &err), 0, "%s", err.text);
    return s;
}

static void write_some(int fd, const void *data, size_t bytes)
{
    if (send(fd, data, bytes, MSG_NOSIGNAL) < 0)
        cr_assert(errno == EPIPE || errno == ECONNRESET, "errno %d", errno);
}

struct rude {
    pthread_t thread;
    const char *url;
    uint64_t seed;
};

static void *rude_run(void *arg)
{
    struct rude *r = arg;
    struct dk_rng rng = {r->seed};

    for (int i = 0; i < RUDE_ROUNDS; i++) {
        struct linger at_once = {1, 0};
        int fd = connect_raw(r->url);

        switch (dk_rng_next(&rng) % 7) {
        case 0:
        case 1: /* leaves at once */
            break;
        case 2: /* half a greeting */
            write_some(fd, GREETING, 1 + dk_rng_next(&rng) % 7);
            break;
        case 3: /* another protocol */
            write_some(fd, "GET / HTTP/1.1\r\n\r\n", 18);
            break;
        case 4: /* half a message */
            write_some(fd, GREETING "\1\0\0\0\0\0\0\0\x20\x80\0\0\1", 21);
            break;
        case 5: /* half closed, then reset: on tcp the server's next write ends with EPIPE */
            shutdown(fd, SHUT_WR);
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
            break;
        default: /* bytes at random */
            for (int k = 0; k < 4; k++) {
                uint64_t word = dk_rng_next(&rng);

                write_some(fd, &word, sizeof word);
            }
        }
        close(fd);
    }
    return NULL;
}

/* Processes that dial, call and leave without an end, once they are let off. Made before this process has threads. */
struct victim {
    pid_t pid;
    int go;
};

static void victim_make(struct victim *v, const char *url)
{
    int ends[2];
    char byte;

    cr_assert_eq(pipe(ends), 0);
    v->go = ends[1];
    v->pid = fork();
    cr_assert_geq(v->pid, 0);
    if (v->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* also when the test fails */
        close(ends[1]);
        if (read(ends[0], &byte, 1) != 1)
            _exit(1);
        for (;;)
            expect_answer(url);
    }
    close(ends[0]);
}

static void storm_on(const char *scheme)
{
    struct rude rude[RUDE_THREADS];
    struct victim victims[VICTIMS];
    struct dk_control_client *clients[3];
    struct dk_control_server *s;
    struct asked asked[3];
    char folder[64], url[128];
    uint32_t calls = 0;

    place_make(folder, url, scheme);
    for (int i = 0; i < VICTIMS; i++)
        victim_make(&victims[i], url);
    s = serve(url);
    for (int i = 0; i < 3; i++) {
        clients[i] = dial(url);
        asked_init(&asked[i], 10240, (uint64_t)i);
    }
    for (uint64_t i = 0; i < RUDE_THREADS; i++) {
        rude[i] = (struct rude){.url = url, .seed = i};
        cr_assert_eq(pthread_create(&rude[i].thread, NULL, rude_run, &rude[i]), 0);
    }
    for (int v = 0; v < VICTIMS; v++) {
        uint64_t until_us = dk_now_us() + 1000u + 7919u * (uint64_t)v % 25000u;

        cr_assert_eq(write(victims[v].go, "", 1), 1);
        do { /* the good ones work while it dials, and is killed somewhere in between */
            calls++;
            for (int i = 0; i < 3; i++)
                ask(clients[i], &asked[i]);
            for (int i = 0; i < 3; i++) {
                outcome_wait(&asked[i].o, calls);
                cr_assert_eq(asked[i].o.rc, 0, "call %u", calls);
            }
        } while (dk_now_us() < until_us);
        kill(victims[v].pid, SIGKILL);
        cr_assert_eq(waitpid(victims[v].pid, NULL, 0), victims[v].pid);
        close(victims[v].go);
        expect_answer(url);
    }
    for (int i = 0; i < RUDE_THREADS; i++)
        pthread_join(rude[i].thread, NULL);
    for (int i = 0; i < 5; i++)
        expect_answer(url);
    for (int i = 0; i < 3; i++) {
        dk_control_nng.client_close(clients[i]);
        cr_assert_eq(asked[i].o.ended, calls, "each call ends once");
        free(asked[i].data);
    }
    dk_control_nng.server_close(s);
    cr_assert_eq(rmdir(folder), 0, "something is left in %s", folder);
}

Test(control_storm, calls_on_ipc_survive)
{
    storm_on("ipc");
}

Test(control_storm, calls_on_tcp_survive)
{
    storm_on("tcp");
}

/* Servers that leave before they greet make NNG's dialer give up; ours must find the next server all the same. */
static void dialer_survives(const char *scheme)
{
    struct pollfd waiting = {.events = POLLIN};
    struct dk_control_client *c;
    struct dk_control_server *s;
    char folder[64], url[128];
    struct asked a;

    place_make(folder, url, scheme);
    waiting.fd = bind_raw(url);
    cr_assert_eq(listen(waiting.fd, 8), 0);
    c = dial(url);
    asked_init(&a, 100, 1);
    ask(c, &a);
    for (int i = 0; i < 20 && poll(&waiting, 1, i ? 300 : -1) == 1; i++) { /* until it has given up */
        struct linger at_once = {1, 0};
        int peer = accept(waiting.fd, NULL, NULL);

        setsockopt(peer, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        close(peer);
    }
    close(waiting.fd);
    s = serve(url); /* a stale file, too */
    outcome_wait(&a.o, 1);
    cr_assert_eq(a.o.rc, 0);
    dk_control_nng.client_close(c);
    dk_control_nng.server_close(s);
    free(a.data);
    cr_assert_eq(rmdir(folder), 0);
}

Test(control_storm, client_on_ipc_outlives_servers_that_do_not_greet)
{
    dialer_survives("ipc");
}

Test(control_storm, client_on_tcp_outlives_servers_that_do_not_greet)
{
    dialer_survives("tcp");
}

/* Messages that no socket buffer holds, both ways at once. */
static void long_messages_on(const char *scheme)
{
    struct dk_control_client *c;
    struct dk_control_server *s;
    struct asked asked[6];
    char folder[64], url[128];

    place_make(folder, url, scheme);
    s = serve(url);
    c = dial(url);
    for (size_t i = 0; i < 6; i++) {
        asked_init(&asked[i], (3u << 20) + 1000 * i + 1, i);
        ask(c, &asked[i]);
    }
    for (int i = 0; i < 6; i++) {
        outcome_wait(&asked[i].o, 1);
        cr_assert_eq(asked[i].o.rc, 0);
        free(asked[i].data);
    }
    dk_control_nng.client_close(c);
    dk_control_nng.server_close(s);
    cr_assert_eq(rmdir(folder), 0);
}

Test(control_storm, long_messages_pass_on_ipc)
{
    long_messages_on("ipc");
}

Test(control_storm, long_messages_pass_on_tcp)
{
    long_messages_on("tcp");
}

Test(control_storm, client_that_never_reads_blocks_nobody)
{
    static uint8_t request[9 + 4 + 60000] = {1, 0, 0, 0, 0, 0, 0, (4 + 60000) >> 8, (4 + 60000) & 255, 0x80};
    struct dk_control_server *s;
    struct dk_control_client *c;
    char folder[64], url[128];
    struct asked a;
    int fd;

    place_make(folder, url, "ipc");
    s = serve(url);
    fd = connect_raw(url);
    write_some(fd, GREETING, 8);
    for (int i = 0; i < 200; i++) /* until nothing more is taken of it */
        if (send(fd, request, sizeof request, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof request)
            break;
    c = dial(url);
    asked_init(&a, 1000, 1);
    for (uint32_t i = 1; i <= 20; i++) {
        ask(c, &a);
        outcome_wait(&a.o, i);
        cr_assert_eq(a.o.rc, 0);
    }
    dk_control_nng.client_close(c);
    dk_control_nng.server_close(s);
    close(fd);
    free(a.data);
    cr_assert_eq(rmdir(folder), 0);
}

/* The bytes of a call, as another implementation of the protocol would send them: byte by byte, through a device. */
Test(control_storm, bytes_are_those_of_the_protocol)
{
    static const uint8_t request[] = "\1\0\0\0\0\0\0\0\x0b\0\0\0\7\x80\1\2\3abc";
    static const uint8_t expected[] = "\0SP\0\0\x31\0\0\1\0\0\0\0\0\0\0\x0b\0\0\0\7\x80\1\2\3abc";
    struct dk_control_server *s;
    char folder[64], url[128];
    uint8_t answer[28];
    int fd;

    place_make(folder, url, "ipc");
    s = serve(url);
    fd = connect_raw(url);
    write_some(fd, GREETING, 8);
    for (size_t i = 0; i < 20; i++)
        write_some(fd, request + i, 1);
    cr_assert_eq(recv(fd, answer, 28, MSG_WAITALL), 28);
    cr_assert_eq(memcmp(answer, expected, 28), 0);
    close(fd);
    dk_control_nng.server_close(s);
    cr_assert_eq(rmdir(folder), 0);
}

/* Servers that start at once at the place of a dead one: one of them gets it. */
struct starter {
    pthread_t thread;
    const char *url;
    struct dk_control_server *server;
    int rc;
};

static void *starter_run(void *arg)
{
    struct starter *t = arg;
    struct dk_err err = {0};

    t->rc = dk_control_nng.listen(t->url, 4, echo, NULL, &t->server, &err);
    return NULL;
}

Test(control_storm, one_of_many_starters_wins)
{
    char folder[64], url[128];

    place_make(folder, url, "ipc");
    for (int round = 0; round < 30; round++) {
        struct starter starters[6];
        int won = 0;

        close(bind_raw(url));
        for (int i = 0; i < 6; i++) {
            starters[i] = (struct starter){.url = url};
            cr_assert_eq(pthread_create(&starters[i].thread, NULL, starter_run, &starters[i]), 0);
        }
        for (int i = 0; i < 6; i++) {
            pthread_join(starters[i].thread, NULL);
            cr_assert(starters[i].rc == 0 || starters[i].rc == -EADDRINUSE, "%d", starters[i].rc);
            won += starters[i].rc == 0;
        }
        cr_assert_eq(won, 1);
        expect_answer(url);
        for (int i = 0; i < 6; i++)
            dk_control_nng.server_close(starters[i].rc == 0 ? starters[i].server : NULL);
        cr_assert_neq(access(url + 6, F_OK), 0);
    }
    cr_assert_eq(rmdir(folder), 0);
}
