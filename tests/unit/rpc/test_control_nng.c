/* SPDX-License-Identifier: Apache-2.0 */
/* The NNG control plane below rpc: addresses, stale sockets, and peers that do not speak its protocol. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "rpc_fixture.h"

#define LONG_MS 60000

static void echo(void *ctx, struct dk_control_request *request, const uint8_t *data, size_t bytes)
{
    (void)ctx;
    dk_control_nng.reply(request, data ? data : (const uint8_t *)"", bytes);
}

static int listen_on(const char *url, struct dk_control_server **s, struct dk_err *err)
{
    memset(err, 0, sizeof *err);
    return dk_control_nng.listen(url, 4, echo, NULL, s, err);
}

static void on_echo(void *ctx, int rc, const uint8_t *data, size_t bytes)
{
    struct outcome *o = ctx;

    pthread_mutex_lock(&o->lock);
    o->ended++;
    o->rc = rc;
    snprintf(o->text, sizeof o->text, "%.*s", (int)bytes, data ? (const char *)data : "");
    pthread_cond_broadcast(&o->changed);
    pthread_mutex_unlock(&o->lock);
}

/* The server at url answers a new client. */
static void expect_answer(const char *url)
{
    struct dk_control_client *c;
    struct dk_err err = {0};
    struct outcome o;

    outcome_init(&o);
    cr_assert_eq(dk_control_nng.dial(url, &c, &err), 0, "%s", err.text);
    cr_assert_eq(dk_control_nng.call(c, (const uint8_t *)"hello", 5, LONG_MS, on_echo, &o), 0);
    outcome_wait(&o, 1);
    cr_assert_eq(o.rc, 0);
    cr_assert_str_eq(o.text, "hello");
    dk_control_nng.client_close(c);
}

static void busy_on(const char *scheme)
{
    struct dk_control_server *a, *b = NULL;
    struct dk_err err;
    char url[128];

    fixture_url(url, scheme);
    cr_assert_eq(listen_on(url, &a, &err), 0, "%s", err.text);
    for (int i = 0; i < 10; i++) {
        cr_assert_eq(listen_on(url, &b, &err), -EADDRINUSE);
        cr_assert(strstr(err.text, url) && strstr(err.text, "choose another"), "%s", err.text);
        cr_assert_null(b);
    }
    expect_answer(url); /* the first one is unharmed */
    dk_control_nng.server_close(a);
    cr_assert_eq(listen_on(url, &a, &err), 0, "%s", err.text);
    expect_answer(url);
    dk_control_nng.server_close(a);
}

Test(control_nng, busy_tcp_port_is_said_with_the_way_out)
{
    busy_on("tcp");
}

Test(control_nng, live_ipc_socket_is_not_taken)
{
    busy_on("ipc");
}

static struct sockaddr_un unix_address(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    cr_assert_lt(strlen(path), sizeof a.sun_path);
    memcpy(a.sun_path, path, strlen(path));
    return a;
}

/* As a killed process leaves it: bound, and nobody listens. */
static void stale_make(const char *path)
{
    struct sockaddr_un a = unix_address(path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    cr_assert_eq(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    close(fd);
    cr_assert_eq(access(path, F_OK), 0);
}

Test(control_nng, stale_ipc_socket_is_replaced)
{
    struct dk_control_server *s;
    struct dk_err err;
    char url[128];

    fixture_url(url, "ipc");
    stale_make(url + 6);
    cr_assert_eq(listen_on(url, &s, &err), 0, "%s", err.text);
    expect_answer(url);
    dk_control_nng.server_close(s);
}

Test(control_nng, file_that_is_no_socket_is_kept)
{
    struct dk_control_server *s;
    struct dk_err err;
    struct stat st;
    char url[128];
    int fd;

    fixture_url(url, "ipc");
    fd = open(url + 6, O_CREAT | O_WRONLY, 0600);
    cr_assert_eq(write(fd, "data", 4), 4);
    close(fd);
    cr_assert_eq(listen_on(url, &s, &err), -EADDRINUSE);
    cr_assert(strstr(err.text, "no socket"), "%s", err.text);
    cr_assert_eq(stat(url + 6, &st), 0);
    cr_assert_eq(st.st_size, 4);
    unlink(url + 6);
}

Test(control_nng, bad_addresses_are_refused_with_an_example)
{
    static const struct {
        const char *url;
        int rc;
        const char *word;
    } cases[] = {
        {"", -EINVAL, "starts with tcp:// or ipc://"},
        {"http://127.0.0.1:80", -EINVAL, "starts with tcp:// or ipc://"},
        {"tcp://127.0.0.1", -EINVAL, "tcp://HOST:PORT"},
        {"tcp://127.0.0.1:", -EINVAL, "tcp://HOST:PORT"},
        {"tcp://127.0.0.1:70x", -EINVAL, "tcp://HOST:PORT"},
        {"tcp://127.0.0.1:65536", -EINVAL, "65535"},
        {"ipc://relative.sock", -EINVAL, "absolute path"},
        {"ipc:///tmp/"
         "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
         "012345",
         -EINVAL, "shorter folder"},
        {"ipc:///no/such/folder/x.sock", -ENOENT, "folder must exist"},
        {"tcp://203.0.113.7:7717", -EADDRNOTAVAIL, "no such address"}, /* RFC 5737: nobody's */
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dk_control_server *s;
        struct dk_err err;

        cr_assert_eq(listen_on(cases[i].url, &s, &err), cases[i].rc, "%s: %d %s", cases[i].url, err.rc, err.text);
        cr_assert(strstr(err.text, cases[i].word), "%s", err.text);
    }
}

static int connect_raw(const char *url)
{
    if (!strncmp(url, "ipc://", 6)) {
        struct sockaddr_un a = unix_address(url + 6);
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);

        cr_assert_eq(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
        return fd;
    } else {
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        int fd = socket(AF_INET, SOCK_STREAM, 0);

        a.sin_port = htons((uint16_t)strtoul(strrchr(url, ':') + 1, NULL, 10));
        cr_assert_eq(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
        return fd;
    }
}

static void garbage_on(const char *scheme)
{
    static const struct {
        const char *data;
        size_t bytes;
    } inputs[] = {
        {"GET / HTTP/1.1\r\n\r\n", 18},
        {"\0", 1},
        {"\0SP\0\0\x30\0\0", 8},                                            /* a good greeting, then nothing */
        {"\0SP\0\0\x30\0\0\xff\xff\xff\xff\xff\xff\xff\xff\xff", 17},       /* then an endless message */
        {"\0SP\0\0\x30\0\0\0\0\0\0\0\0\0\2ab", 18},                         /* too short for a request's number */
        {"\0SP\0\0\x30\0\0\1\0\0\0\0\0\0\0\2ab", 19},                       /* the same in the frame of ipc */
        {"\0SP\0\0\x10\0\0", 8},                                            /* another protocol of NNG */
        {"\0SP\0\0\x30\0\0\0\0\0\0\0\0\0\x0c\0\0\0\1\0\0\0\1\0\0\0\1", 28}, /* routing labels without an end */
    };
    struct dk_control_server *s;
    struct dk_err err;
    char url[128];

    fixture_url(url, scheme);
    cr_assert_eq(listen_on(url, &s, &err), 0, "%s", err.text);
    for (int round = 0; round < 4; round++) {
        int fds[sizeof inputs / sizeof *inputs];

        for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
            fds[i] = connect_raw(url);
            cr_assert_eq(send(fds[i], inputs[i].data, inputs[i].bytes, MSG_NOSIGNAL), (ssize_t)inputs[i].bytes);
        }
        expect_answer(url);
        for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
            close(fds[i]);
    }
    expect_answer(url);
    dk_control_nng.server_close(s);
}

Test(control_nng, garbage_on_ipc_does_no_harm)
{
    garbage_on("ipc");
}

Test(control_nng, garbage_on_tcp_does_no_harm)
{
    garbage_on("tcp");
}

/* A server that is no NNG: takes connections, answers nonsense. */
Test(control_nng, foreign_server_is_no_answer)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1, peer;
    struct dk_control_client *c;
    struct dk_err err = {0};
    struct outcome o;
    char url[128];

    fixture_url(url, "tcp");
    a.sin_port = htons((uint16_t)strtoul(strrchr(url, ':') + 1, NULL, 10));
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    cr_assert_eq(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    cr_assert_eq(listen(fd, 8), 0);
    outcome_init(&o);
    cr_assert_eq(dk_control_nng.dial(url, &c, &err), 0);
    cr_assert_eq(dk_control_nng.call(c, (const uint8_t *)"hello", 5, 400, on_echo, &o), 0);
    peer = accept(fd, NULL, NULL);
    cr_assert_eq(send(peer, "HTTP/1.1 400 Bad Request\r\n\r\n", 28, MSG_NOSIGNAL), 28);
    close(peer);
    outcome_wait(&o, 1);
    cr_assert_eq(o.rc, -ECONNREFUSED);
    dk_control_nng.client_close(c);
    close(fd);
}

/* A connection that ends before it was greeted makes NNG stop accepting: the server must come to answer again, and
 * calls that are in progress must not notice. */
static void survives_rude_peers(const char *scheme, bool reset)
{
    struct linger at_once = {1, 0};
    struct outcome o;
    struct fixture f;

    fixture_open(&f, scheme);
    outcome_init(&o);
    cr_assert_eq(fixture_get_status(f.client, LONG_MS, &o), 0);
    fixture_wait_held(&f, 1);
    for (int i = 0; i < 30; i++) {
        int fd = connect_raw(f.url);

        if (reset) {
            shutdown(fd, SHUT_WR);
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        }
        close(fd);
    }
    for (int i = 0; i < 3; i++) {
        struct dk_rpc_client *c;
        struct dk_err err = {0};

        cr_assert_eq(dk_rpc_dial(&dk_control_nng, f.url, &c, &err), 0, "%s", err.text);
        cr_assert_eq(fixture_detokenize(c, 5, LONG_MS, &err), 0, "%s", err.text);
        dk_rpc_client_close(c);
    }
    fixture_release(&f);
    outcome_wait(&o, 1);
    cr_assert_eq(o.rc, 0, "%s", o.text);
    cr_assert_eq(f.runs, 4, "no call ran twice");
    fixture_close(&f);
    if (!strcmp(scheme, "ipc"))
        cr_assert_neq(access(f.url + 6, F_OK), 0);
}

Test(control_nng, rude_peers_do_not_silence_an_ipc_server)
{
    survives_rude_peers("ipc", false);
}

Test(control_nng, rude_peers_do_not_silence_a_tcp_server)
{
    survives_rude_peers("tcp", true);
}

/* All slots wait for their replies: further requests queue, and are answered when one is free. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct dk_control_request *held[2];
    int count;
} pair = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, {NULL}, 0};

static void hold_two(void *ctx, struct dk_control_request *request, const uint8_t *data, size_t bytes)
{
    bool hold;

    pthread_mutex_lock(&pair.lock);
    hold = pair.count < 2;
    if (hold)
        pair.held[pair.count++] = request;
    pthread_cond_broadcast(&pair.changed);
    pthread_mutex_unlock(&pair.lock);
    if (!hold)
        dk_control_nng.reply(request, data, bytes);
}

Test(control_nng, more_requests_than_slots_wait)
{
    struct dk_control_server *s;
    struct dk_control_client *c;
    struct dk_err err = {0};
    struct outcome o;
    char url[128];

    fixture_url(url, "ipc");
    outcome_init(&o);
    cr_assert_eq(dk_control_nng.listen(url, 2, hold_two, NULL, &s, &err), 0);
    cr_assert_eq(dk_control_nng.dial(url, &c, &err), 0);
    for (int i = 0; i < 20; i++)
        cr_assert_eq(dk_control_nng.call(c, (const uint8_t *)"x", 1, LONG_MS, on_echo, &o), 0);
    pthread_mutex_lock(&pair.lock);
    while (pair.count < 2)
        pthread_cond_wait(&pair.changed, &pair.lock);
    pthread_mutex_unlock(&pair.lock);
    cr_assert_eq(o.ended, 0);
    dk_control_nng.reply(pair.held[0], (const uint8_t *)"x", 1);
    outcome_wait(&o, 19);
    dk_control_nng.reply(pair.held[1], NULL, 0); /* forgotten: the slot is free, its caller is not answered */
    dk_control_nng.client_close(c);
    cr_assert_eq(o.ended, 20);
    cr_assert_eq(o.rc, -ECANCELED);
    dk_control_nng.server_close(s);
}
