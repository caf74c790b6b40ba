/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps a server's address answering. NNG 1.5 needs help with two things:
 *
 * It goes deaf. A peer that connects and closes before NNG has greeted it makes the greeting fail with EPIPE, which NNG
 * calls NNG_ECLOSED and takes for the listener's own end: it accepts nobody any more (nng:src/core/listener.c,
 * listener_accept_cb; nng:src/platform/posix/posix_debug.c). Any `nc -U`, or a client that is killed at the wrong moment,
 * does that. So a watch looks at the listener's error counter. When it moved, the watch connects to itself, as a
 * well-behaved client; when that connection is not accepted until the next look, it makes a new listener for the address.
 *
 * It looks for a living server at an ipc address in just that way, by connecting and closing: a second server, started
 * by mistake, would silence the first. So NNG only ever binds a name that nobody else uses, and the socket is renamed to
 * its public path here, after a look for a living server that greets. The rename also replaces a deaf listener without
 * touching its connections. */
#include "control_listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "control_nng.h"

#define WATCH_MS    500
#define GREETING_MS 500 /* for an unknown server to greet */
#define SUFFIX_MOST 24  /* ".<pid>-<generation>" */

/* What a REQ socket says first (nng:docs, the SP TCP mapping); REP's greeting has the same length. */
static const uint8_t greeting[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};

/* Connects without waiting; the greeting follows. -1: nobody listens (errno). */
static int greet(const struct sockaddr *address, socklen_t bytes)
{
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    int error = 0;

    if (fd < 0)
        return -1;
    if (connect(fd, address, bytes) < 0) {
        socklen_t error_bytes = sizeof error;

        error = errno;
        if (error == EINPROGRESS && poll(&p, 1, GREETING_MS) == 1)
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes);
    }
    if (error) {
        close(fd);
        errno = error;
        return -1;
    }
    if (send(fd, greeting, sizeof greeting, MSG_NOSIGNAL) < 0)
        dk_log(DK_LOG_DEBUG, "control.greeting", "errno=%d", errno);
    return fd;
}

static struct sockaddr_un unix_address(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    memcpy(a.sun_path, path, strnlen(path, sizeof a.sun_path - 1));
    return a;
}

/* 0: the file is a dead process's socket. -EADDRINUSE: it is alive, or no socket at all. */
static int path_judge(const struct control_listener *l, struct dk_err *err)
{
    struct sockaddr_un a = unix_address(l->path);
    struct stat st;
    uint8_t answer[sizeof greeting];
    struct pollfd p = {.events = POLLIN};

    if (lstat(l->path, &st) == 0 && !S_ISSOCK(st.st_mode))
        return dk_err_set(err, -EADDRINUSE, "%s: there is a file of that name, which is no socket; choose another path",
                          l->url);
    p.fd = greet((struct sockaddr *)&a, sizeof a);
    if (p.fd < 0 && (errno == ECONNREFUSED || errno == ENOENT))
        return 0;
    if (p.fd >= 0) {
        if (poll(&p, 1, GREETING_MS) == 1) /* its greeting is out: closing does it no harm now */
            (void)!read(p.fd, answer, sizeof answer);
        close(p.fd);
    }
    return dk_err_set(err, -EADDRINUSE,
                      "%s is in use: another program answers there already. End it, or choose another address", l->url);
}

static void address_of(const struct control_listener *l, char url[sizeof l->url + SUFFIX_MOST])
{
    if (*l->path)
        snprintf(url, sizeof l->url + SUFFIX_MOST, "ipc://%s.%d-%u", l->path, (int)getpid(), l->generation);
    else
        snprintf(url, sizeof l->url + SUFFIX_MOST, "%s", l->url);
}

/* Makes NNG's listener; an ipc one still under its private name. NNG's error. */
static int listener_start(struct control_listener *l, nng_listener *out)
{
    char url[sizeof l->url + SUFFIX_MOST];
    int rv;

    l->generation++;
    address_of(l, url);
    if (*l->path)
        unlink(url + 6); /* of an earlier process with our number */
    rv = nng_listener_create(out, l->socket, url);
    if (rv)
        return rv;
    if (!*l->path && ((rv = nng_listener_set_bool(*out, NNG_OPT_TCP_NODELAY, true)) ||
                      (rv = nng_listener_set_bool(*out, NNG_OPT_TCP_KEEPALIVE, true))))
        goto fail;
    rv = nng_listener_start(*out, 0);
    if (rv)
        goto fail;
    return 0;

fail:
    nng_listener_close(*out);
    return rv;
}

/* Gives the newest listener's socket its public name. replace: the name is our own. */
static int publish(struct control_listener *l, bool replace, struct dk_err *err)
{
    char url[sizeof l->url + SUFFIX_MOST];
    int rc = 0;

    address_of(l, url);
    for (int tries = 0; tries < 3; tries++) {
        rc = renameat2(AT_FDCWD, url + 6, AT_FDCWD, l->path, replace ? 0 : RENAME_NOREPLACE) < 0 ? -errno : 0;
        if (rc == -EINVAL) /* a file system without RENAME_NOREPLACE */
            rc = access(l->path, F_OK) == 0 ? -EEXIST : rename(url + 6, l->path) < 0 ? -errno : 0;
        if (rc != -EEXIST)
            break;
        rc = path_judge(l, err);
        if (rc < 0)
            return rc;
        unlink(l->path);
    }
    if (rc < 0)
        return dk_err_set(err, rc, "%s: %s", l->url, strerror(-rc));
    if (lstat(l->path, &l->file) < 0)
        memset(&l->file, 0, sizeof l->file);
    return 0;
}

struct counters {
    uint64_t errors, accepted, pipes;
};

/* False: NNG was built without statistics, or has no such listener. */
static bool counters_read(nng_listener listener, struct counters *c)
{
    nng_stat *all, *part, *s;
    bool found = false;

    if (nng_stats_get(&all))
        return false;
    for (part = nng_stat_child(all); part && !found; part = nng_stat_next(part)) {
        if (strcmp(nng_stat_name(part), "listener"))
            continue;
        for (s = nng_stat_child(part); s; s = nng_stat_next(s)) {
            const char *name = nng_stat_name(s);
            uint64_t value = nng_stat_value(s);

            found |= !strcmp(name, "id") && (int)value == nng_listener_id(listener);
            if (!strcmp(name, "other"))
                c->errors = value;
            else if (!strcmp(name, "accept"))
                c->accepted = value;
            else if (!strcmp(name, "pipes"))
                c->pipes = value;
        }
    }
    nng_stats_free(all);
    return found;
}

/* Connects to our own address. -1: not possible. */
static int probe_start(const struct control_listener *l)
{
    nng_sockaddr bound;

    if (*l->path) {
        struct sockaddr_un a = unix_address(l->path);

        return greet((struct sockaddr *)&a, sizeof a);
    }
    if (nng_listener_get_addr(l->current, NNG_OPT_LOCADDR, &bound))
        return -1;
    if (bound.s_family == NNG_AF_INET) {
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = bound.s_in.sa_port};

        a.sin_addr.s_addr = bound.s_in.sa_addr ? bound.s_in.sa_addr : htonl(INADDR_LOOPBACK);
        return greet((struct sockaddr *)&a, sizeof a);
    }
    if (bound.s_family == NNG_AF_INET6) {
        struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_port = bound.s_in6.sa_port};

        memcpy(&a.sin6_addr, bound.s_in6.sa_addr, sizeof a.sin6_addr);
        if (!memcmp(&a.sin6_addr, &in6addr_any, sizeof in6addr_any))
            a.sin6_addr = in6addr_loopback;
        return greet((struct sockaddr *)&a, sizeof a);
    }
    return -1;
}

static void probe_end(struct control_listener *l)
{
    if (l->probe >= 0)
        close(l->probe);
    l->probe = -1;
}

/* A tcp port can have one listener only: the deaf one goes with its connections, and their clients dial again. */
static void replace(struct control_listener *l)
{
    nng_listener fresh;
    struct dk_err err = {0};
    int rv;

    dk_log(DK_LOG_WARN, "control.listener_deaf", "url=%s reason=\"NNG stopped accepting; listening anew\"", l->url);
    if (!*l->path)
        nng_listener_close(l->current);
    rv = listener_start(l, &fresh);
    if (rv == 0 && *l->path && publish(l, true, &err) < 0) {
        nng_listener_close(fresh);
        rv = NNG_EADDRINUSE;
    }
    if (rv) {
        dk_log(DK_LOG_ERROR, "control.listen_again", "url=%s reason=\"%s\"", l->url, nng_strerror(rv));
        return; /* tried again at the next look, as the probe is not accepted either */
    }
    if (*l->path && l->retired_count < sizeof l->retired / sizeof *l->retired)
        l->retired[l->retired_count++] = l->current;
    else if (*l->path)
        nng_listener_close(l->current);
    l->current = fresh;
    l->errors_seen = 0;
    l->state = KEEPER_WATCH;
}

/* Closes the deaf listeners whose connections have all gone. */
static void retired_sweep(struct control_listener *l)
{
    for (uint32_t i = 0; i < l->retired_count;) {
        struct counters c = {0, 0, 0};

        if (counters_read(l->retired[i], &c) && c.pipes) {
            i++;
            continue;
        }
        nng_listener_close(l->retired[i]);
        l->retired[i] = l->retired[--l->retired_count];
    }
}

static void keeper_run(void *arg)
{
    struct control_listener *l = arg;
    struct counters c = {0, 0, 0};

    if (nng_aio_result(l->keeper))
        return;
    retired_sweep(l);
    if (!counters_read(l->current, &c))
        c.errors = l->state == KEEPER_WATCH ? l->errors_seen : l->errors_seen + 1; /* gone in a failed replace() */
    switch (l->state) {
    case KEEPER_WATCH:
        if (c.errors != l->errors_seen)
            l->state = KEEPER_PROBE; /* after a pause: NNG itself rests for 100 ms after some errors */
        break;
    case KEEPER_PROBE:
        l->errors_seen = c.errors;
        l->accepted_before = c.accepted;
        l->probe = probe_start(l);
        l->state = KEEPER_JUDGE;
        break;
    case KEEPER_JUDGE:
        probe_end(l);
        if (c.accepted != l->accepted_before)
            l->state = KEEPER_WATCH;
        else
            replace(l);
        break;
    }
    nng_sleep_aio(WATCH_MS, l->keeper);
}

int control_listener_open(struct control_listener *l, nng_socket socket, const char *url, struct dk_err *err)
{
    int rc, rv;

    memset(l, 0, sizeof *l);
    l->socket = socket;
    l->probe = -1;
    snprintf(l->url, sizeof l->url, "%s", url);
    if (!strncmp(url, "ipc://", 6)) {
        size_t most = sizeof l->path - 1 - SUFFIX_MOST;

        if (strlen(url + 6) > most)
            return dk_err_set(err, -EINVAL,
                              "%s: the path of a socket may have %zu characters, this one has %zu; use a shorter folder",
                              url, most, strlen(url + 6));
        snprintf(l->path, sizeof l->path, "%s", url + 6);
    }
    rv = listener_start(l, &l->current);
    rc = control_errno(rv);
    if (rc == 0 && *l->path) {
        rc = publish(l, false, err);
        if (rc < 0) {
            nng_listener_close(l->current); /* this removes the private name */
            return rc;
        }
    }
    if (rc == 0) {
        rc = control_errno(rv = nng_aio_alloc(&l->keeper, keeper_run, l));
        if (rc == 0) {
            nng_sleep_aio(WATCH_MS, l->keeper);
            return 0;
        }
    }
    if (rc == -EADDRINUSE)
        return dk_err_set(err, rc,
                          "%s is in use: another program answers there already. End it, or choose another address",
                          url);
    if (rc == -EADDRNOTAVAIL)
        return dk_err_set(err, rc,
                          "%s: this host has no such address; use one of its own, or tcp://0.0.0.0:PORT for all of "
                          "them",
                          url);
    if (rc == -ENOENT || rc == -EACCES || rc == -EPERM)
        return dk_err_set(err, rc, "%s: %s; the folder must exist and this user be allowed to write in it", url,
                          strerror(-rc));
    return dk_err_set(err, rc, "%s: cannot listen: %s", url, nng_strerror(rv));
}

void control_listener_close(struct control_listener *l)
{
    struct stat st;

    if (l->keeper) {
        nng_aio_stop(l->keeper);
        nng_aio_free(l->keeper);
        l->keeper = NULL;
        probe_end(l);
    }
    if (*l->path && l->file.st_ino && lstat(l->path, &st) == 0 && st.st_ino == l->file.st_ino &&
        st.st_dev == l->file.st_dev)
        unlink(l->path);
}
