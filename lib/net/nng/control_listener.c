/* SPDX-License-Identifier: Apache-2.0 */
#include "control_listener.h"

#include <fcntl.h>
#include <netdb.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG      128
#define LOCK_TRIES   200
#define LOCK_WAIT_US 10000

static int fail_errno(struct dk_err *err, const char *url, int rc)
{
    if (rc == -EADDRINUSE)
        return dk_err_set(err, rc,
                          "%s is in use: another program answers there already. End it, or choose another "
                          "address",
                          url);
    if (rc == -EADDRNOTAVAIL)
        return dk_err_set(err, rc,
                          "%s: this host has no such address; use one of its own, or tcp://0.0.0.0:PORT for "
                          "all of them",
                          url);
    if (!strncmp(url, "ipc://", 6) && (rc == -ENOENT || rc == -ENOTDIR || rc == -EACCES || rc == -EPERM))
        return dk_err_set(err, rc, "%s: %s; the folder must exist and this user be allowed to read and write in it",
                          url, strerror(-rc));
    return dk_err_set(err, rc, "%s: cannot listen: %s", url, strerror(-rc));
}

/* Locks the socket's folder while it is found out whether the file is stale, so that of two programs that start at
 * once neither removes the other's fresh socket. The lock is on the folder because it leaves no file behind. -EBUSY:
 * somebody holds it for seconds. */
static int folder_lock(const char *path, int *out)
{
    const char *slash = strrchr(path, '/');
    char folder[sizeof((struct control_listener *)NULL)->path] = "/";
    int fd;

    if (slash > path)
        memcpy(folder, path, (size_t)(slash - path));
    fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    for (int i = 0; flock(fd, LOCK_EX | LOCK_NB) < 0; i++) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            break; /* a file system without locks: then there is only the check */
        if (i == LOCK_TRIES) {
            close(fd);
            return -EBUSY;
        }
        usleep(LOCK_WAIT_US);
    }
    *out = fd;
    return 0;
}

/* Whether somebody serves the socket file: 0: nobody any more; -EADDRINUSE: yes. Connecting and leaving again does no
 * harm to our servers. */
static int socket_probe(const struct sockaddr_un *address)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), rc = -EADDRINUSE;

    if (fd < 0)
        return -errno;
    if (connect(fd, (const struct sockaddr *)address, sizeof *address) < 0) {
        if (errno == ECONNREFUSED || errno == ENOENT)
            rc = 0;
        else if (errno == EACCES || errno == EPERM)
            rc = -errno;
    }
    close(fd);
    return rc;
}

static int ipc_open(struct control_listener *l, const char *url, struct dk_err *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int rc, lock = -1;
    struct stat st;

    l->ipc = true;
    memcpy(l->path, url + 6, strlen(url + 6) + 1);
    memcpy(address.sun_path, l->path, strlen(l->path));
    rc = folder_lock(l->path, &lock);
    if (rc == -EBUSY)
        return dk_err_set(err, rc, "%s: another program keeps a lock on the socket's folder; choose another folder",
                          url);
    if (rc < 0)
        return fail_errno(err, url, rc);
    if (lstat(l->path, &st) == 0) {
        if (!S_ISSOCK(st.st_mode)) {
            close(lock);
            return dk_err_set(err, -EADDRINUSE,
                              "%s: there is a file of that name, which is no socket; choose another path", url);
        }
        rc = socket_probe(&address);
        if (rc == 0 && unlink(l->path) < 0 && errno != ENOENT)
            rc = -errno;
        if (rc < 0)
            goto out;
    }
    l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->fd < 0 || bind(l->fd, (const struct sockaddr *)&address, sizeof address) < 0) {
        rc = -errno;
        goto out;
    }
    if (listen(l->fd, BACKLOG) < 0 || lstat(l->path, &st) < 0) {
        rc = -errno;
        unlink(l->path);
        goto out;
    }
    l->device = st.st_dev;
    l->inode = st.st_ino;
out:
    close(lock);
    return rc < 0 ? fail_errno(err, url, rc) : 0;
}

static int tcp_open(struct control_listener *l, const char *url, struct dk_err *err)
{
    const char *host = url + 6, *port = strrchr(host, ':') + 1;
    size_t host_bytes = (size_t)(port - 1 - host);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *found;
    char name[256];
    int one = 1, rc = 0;

    if (host_bytes >= 2 && host[0] == '[' && host[host_bytes - 1] == ']') { /* IPv6 */
        host++;
        host_bytes -= 2;
    }
    if (host_bytes >= sizeof name)
        return fail_errno(err, url, -EADDRNOTAVAIL);
    memcpy(name, host, host_bytes);
    name[host_bytes] = 0;
    if (getaddrinfo(!host_bytes || !strcmp(name, "*") ? NULL : name, port, &hints, &found))
        return fail_errno(err, url, -EADDRNOTAVAIL);
    l->fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->fd < 0 || setsockopt(l->fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) < 0 ||
        bind(l->fd, found->ai_addr, found->ai_addrlen) < 0 || listen(l->fd, BACKLOG) < 0)
        rc = -errno;
    freeaddrinfo(found);
    return rc < 0 ? fail_errno(err, url, rc) : 0;
}

int control_listener_open(struct control_listener *l, const char *url, struct dk_err *err)
{
    int rc;

    memset(l, 0, sizeof *l);
    l->fd = -1;
    rc = !strncmp(url, "ipc://", 6) ? ipc_open(l, url, err) : tcp_open(l, url, err);
    if (rc < 0 && l->fd >= 0) {
        close(l->fd);
        l->fd = -1;
    }
    return rc;
}

void control_listener_close(struct control_listener *l)
{
    struct stat st;

    if (l->fd < 0)
        return;
    /* While it is still served nobody takes the file for a stale one and puts another in its place. */
    if (l->ipc && lstat(l->path, &st) == 0 && st.st_dev == l->device && st.st_ino == l->inode)
        unlink(l->path);
    close(l->fd);
    l->fd = -1;
}
