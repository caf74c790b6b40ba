/* SPDX-License-Identifier: Apache-2.0 */
/* NNG's back end of the control plane: the table of its functions, addresses, and the closing of a socket.
 *
 * Closing a socket in NNG 1.5 can hang: when a connection is closed between the arrival of a message's length and the
 * callback that goes on to read its body, that callback's next read is refused without an end, and NNG's one
 * reaping thread waits for it for ever (nng:src/sp/transport/tcp/tcp.c, tcptran_pipe_recv_cb; repaired in 1.6 by a
 * check of p->closed). So a close first lets what is under way arrive, which makes it rare, and then leaves the closing
 * to a thread for which the caller waits a limited time. By then the address is free and no context of the socket is
 * left; what a stuck close keeps is some memory. */
#include "control_nng.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"

int control_errno(int rv)
{
    static const struct {
        int nng, posix;
    } rows[] = {
        {NNG_EINTR, EINTR},
        {NNG_ENOMEM, ENOMEM},
        {NNG_EINVAL, EINVAL},
        {NNG_EBUSY, EBUSY},
        {NNG_ETIMEDOUT, ETIMEDOUT},
        {NNG_ECONNREFUSED, ECONNREFUSED},
        {NNG_ECLOSED, ECANCELED},
        {NNG_EAGAIN, EAGAIN},
        {NNG_ENOTSUP, ENOTSUP},
        {NNG_EADDRINUSE, EADDRINUSE},
        {NNG_ESTATE, EPROTO},
        {NNG_ENOENT, ENOENT},
        {NNG_EPROTO, EPROTO},
        {NNG_EUNREACHABLE, EHOSTUNREACH},
        {NNG_EADDRINVAL, EADDRNOTAVAIL},
        {NNG_EPERM, EPERM},
        {NNG_EMSGSIZE, EMSGSIZE},
        {NNG_ECONNABORTED, ECONNABORTED},
        {NNG_ECONNRESET, ECONNRESET},
        {NNG_ECANCELED, ECANCELED},
        {NNG_ENOFILES, EMFILE},
        {NNG_ENOSPC, ENOSPC},
        {NNG_EEXIST, EEXIST},
        {NNG_ECONNSHUT, EPIPE},
    };

    if (rv == 0)
        return 0;
    if (rv & NNG_ESYSERR)
        return -(rv & ~NNG_ESYSERR);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].nng == rv)
            return -rows[i].posix;
    return -EIO;
}

int control_url_check(const char *url, struct dk_err *err)
{
    const struct sockaddr_un *sun = NULL;

    if (!strncmp(url, "tcp://", 6)) {
        const char *port = strrchr(url + 6, ':');
        size_t digits = port ? strspn(port + 1, "0123456789") : 0;
        unsigned long number = digits >= 1 && digits <= 5 && !port[1 + digits] ? strtoul(port + 1, NULL, 10) : 0;

        if (number < 1 || number > 65535)
            return dk_err_set(
                err, -EINVAL,
                "%s: a tcp address is tcp://HOST:PORT with a port from 1 to 65535, for example tcp://127.0.0.1:7717",
                url);
        return 0;
    }
    if (!strncmp(url, "ipc://", 6)) {
        if (url[6] != '/')
            return dk_err_set(err, -EINVAL,
                              "%s: an ipc address is ipc:// and an absolute path, for example "
                              "ipc:///run/duckllm/coordinator.sock",
                              url);
        if (strlen(url + 6) >= sizeof sun->sun_path)
            return dk_err_set(err, -EINVAL,
                              "%s: the path of a socket may have %zu characters, this one has %zu; use a "
                              "shorter folder",
                              url, sizeof sun->sun_path - 1, strlen(url + 6));
        return 0;
    }
    return dk_err_set(err, -EINVAL, "%s: the address of a control plane starts with tcp:// or ipc://", url);
}

#define CLOSE_WAIT_MS   1000
#define CLOSE_SETTLE_US 3000

struct closing {
    nng_socket socket;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done, left; /* left: the caller waits no longer */
};

static void closing_free(struct closing *c)
{
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static void *closing_run(void *arg)
{
    struct closing *c = arg;
    bool left;

    nng_close(c->socket);
    pthread_mutex_lock(&c->lock);
    c->done = true;
    left = c->left;
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->lock);
    if (left)
        closing_free(c);
    return NULL;
}

void control_socket_close(nng_socket socket)
{
    static bool stuck_before; /* atomic: then each further close gets stuck behind the first */
    struct closing *c = calloc(1, sizeof *c);
    pthread_condattr_t monotonic;
    struct timespec until;
    pthread_t thread;
    long wait_ms;
    bool done;

    usleep(CLOSE_SETTLE_US);
    if (!c) {
        nng_close(socket);
        return;
    }
    c->socket = socket;
    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&c->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (pthread_create(&thread, NULL, closing_run, c)) {
        nng_close(socket);
        closing_free(c);
        return;
    }
    pthread_detach(thread);
    clock_gettime(CLOCK_MONOTONIC, &until);
    wait_ms = __atomic_load_n(&stuck_before, __ATOMIC_RELAXED) ? CLOSE_WAIT_MS / 20 : CLOSE_WAIT_MS;
    until.tv_nsec += wait_ms * 1000000l;
    until.tv_sec += until.tv_nsec / 1000000000l;
    until.tv_nsec %= 1000000000l;
    pthread_mutex_lock(&c->lock);
    while (!c->done && pthread_cond_timedwait(&c->changed, &c->lock, &until) == 0)
        ;
    done = c->done;
    c->left = true;
    pthread_mutex_unlock(&c->lock);
    if (done) {
        closing_free(c);
        return;
    }
    __atomic_store_n(&stuck_before, true, __ATOMIC_RELAXED);
    dk_log(DK_LOG_WARN, "control.close_stuck", "reason=\"NNG does not end a connection; going on without\"");
}

const struct dk_control_ops dk_control_nng = {
    .name = "nng",
    .listen = control_listen,
    .server_close = control_server_close,
    .reply = control_reply,
    .dial = control_dial,
    .client_close = control_client_close,
    .call = control_call,
};
