/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "dpdk_internal.h"

/* Both ends of a shared-memory link on one host. The worker serves a socket per duck (vhost), through which the duck
 * (virtio_user) hands it file descriptors of its memory; frames then travel through rings in that memory.
 *
 * Death of the other side: the vhost driver's own thread notices that a socket closed and detaches the rings, and
 * attaches those of the next duck that connects; the port stays. The virtio_user driver does not come back by itself:
 * its port has to be removed and added again. */

/* ---- lock: who serves a socket ------------------------------------------------------------------------------- */

static void lock_path_make(char *text, size_t bytes, const char *socket_path)
{
    snprintf(text, bytes, "%s.lock", socket_path);
}

/* The lock goes when its process dies, so a socket whose lock can be had is stale. */
static int lock_take(const char *socket_path, struct dk_err *err)
{
    char path[128];

    lock_path_make(path, sizeof path, socket_path);
    for (;;) {
        struct stat held, there;
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600), rc;

        if (fd < 0)
            return dk_err_set(err, -errno, "lock file %s: %s", path, strerror(errno));
        if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
            rc = errno == EWOULDBLOCK ? -EADDRINUSE : -errno;
            close(fd);
            return dk_err_set(err, rc, "socket %s is served by another process that is alive (lock %s)", socket_path,
                              path);
        }
        /* Its last owner may have removed the file after we opened it: then this lock keeps nobody out. */
        if (fstat(fd, &held) == 0 && stat(path, &there) == 0 && held.st_ino == there.st_ino)
            return fd;
        close(fd);
    }
}

static void lock_release(const char *socket_path, int fd)
{
    char path[128];

    lock_path_make(path, sizeof path, socket_path);
    (void)unlink(path);
    close(fd);
}

/* Removes a dead process's socket, but nothing that is not a socket. */
static int socket_clear(const char *path, struct dk_err *err)
{
    struct stat st;

    if (lstat(path, &st) < 0)
        return errno == ENOENT ? 0 : dk_err_set(err, -errno, "socket %s: %s", path, strerror(errno));
    if (!S_ISSOCK(st.st_mode))
        return dk_err_set(err, -EEXIST, "%s is there already and is no socket", path);
    if (unlink(path) < 0)
        return dk_err_set(err, -errno, "stale socket %s cannot be removed: %s", path, strerror(errno));
    return 0;
}

/* ---- bells --------------------------------------------------------------------------------------------------- */

static int bell_open(struct dk_net *net, struct dk_port *p, const struct dk_port_spec *spec, struct dk_err *err)
{
    struct dk_bell *free_place = NULL;
    const bool serves = p->kind == DK_PORT_VHOST;
    int rc;

    if (!spec->bell_path[0])
        return 0;
    for (uint32_t i = 0; i < RTE_MAX_ETHPORTS; i++) {
        struct dk_bell *b = &net->bells[i];

        if (!b->map) {
            free_place = free_place ? free_place : b;
        } else if (serves && b->made && !strcmp(b->path, spec->bell_path)) {
            b->refs++;
            p->bell = b;
            goto words;
        }
    }
    /* There are as many places as ports. */
    rc = serves ? dk_bell_make(free_place, spec->bell_path, err) : dk_bell_join(free_place, spec->bell_path, err);
    if (rc < 0)
        return rc;
    p->bell = free_place;
words:
    p->own_word = dk_bell_word(p->bell, serves ? 0 : 1 + spec->bell_index);
    p->peer_word = dk_bell_word(p->bell, serves ? 1 + spec->bell_index : 0);
    if (!serves) /* an earlier duck may have died in its sleep */
        dk_bell_disarm(p->own_word);
    return 0;
}

static void bell_release(struct dk_port *p)
{
    if (p->bell && --p->bell->refs == 0)
        dk_bell_close(p->bell);
    p->bell = NULL;
}

/* ---- ports --------------------------------------------------------------------------------------------------- */

static int spec_check(const struct dk_port_spec *spec, struct dk_err *err)
{
    if (!dk_port_name_fits(spec->path, sizeof spec->path))
        return dk_err_set(err, -EINVAL,
                          "socket path \"%.*s\" must have 1 to 99 characters without commas, brackets and quotes",
                          (int)sizeof spec->path, spec->path);
    if (!memchr(spec->bell_path, '\0', sizeof spec->bell_path))
        return dk_err_set(err, -EINVAL, "bell path is longer than 99 characters");
    if (spec->bell_index >= DK_BELL_PLACES - 1)
        return dk_err_set(err, -EINVAL, "bell index %u is not below %d", spec->bell_index, DK_BELL_PLACES - 1);
    return 0;
}

int dk_port_vhost_add(struct dk_net *net, struct dk_port *p, const struct dk_port_spec *spec, struct dk_err *err)
{
    char arguments[160];
    bool device = false;
    int rc;

    rc = spec_check(spec, err);
    if (rc < 0)
        return rc;
    p->lock_fd = lock_take(spec->path, err);
    if (p->lock_fd < 0)
        return p->lock_fd;
    snprintf(p->path, sizeof p->path, "%s", spec->path);
    rc = socket_clear(spec->path, err);
    if (rc < 0)
        goto fail;
    /* Before the socket: a duck that can connect finds the bell. */
    rc = bell_open(net, p, spec, err);
    if (rc < 0)
        goto fail;
    snprintf(arguments, sizeof arguments, "iface=%s", spec->path);
    rc = dk_eal_device_add(p->vdev, arguments, &p->eth, err);
    if (rc < 0)
        goto fail;
    device = true;
    rc = dk_eal_port_start(p->eth, DK_DPDK_MTU_MAX, net->pool, err);
    if (rc < 0)
        goto fail;
    p->mtu = net->config.frame_bytes - RTE_ETHER_HDR_LEN;
    return 0;
fail:
    if (device)
        dk_eal_device_remove(p->vdev, p->eth);
    bell_release(p);
    lock_release(p->path, p->lock_fd);
    return rc;
}

/* Whether somebody listens there. */
static int socket_probe(const char *path)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    struct stat st;
    int fd, rc;

    if (stat(path, &st) < 0)
        return -errno;
    if (!S_ISSOCK(st.st_mode))
        return -ENOTSOCK;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    snprintf(to.sun_path, sizeof to.sun_path, "%s", path);
    rc = connect(fd, (const struct sockaddr *)&to, sizeof to) < 0 ? -errno : 0;
    close(fd);
    return rc;
}

int dk_port_virtio_user_add(struct dk_net *net, struct dk_port *p, const struct dk_port_spec *spec, struct dk_err *err)
{
    char arguments[256];
    struct stat st;
    int rc, probe;

    rc = spec_check(spec, err);
    if (rc < 0)
        return rc;
    if (stat(spec->path, &st) < 0)
        return dk_err_set(err, -errno, "socket %s: %s", spec->path, strerror(errno));
    if (rte_mempool_avail_count(net->pool) < 2 * DK_VIRTIO_RING_FRAMES + DK_DPDK_BURST)
        return dk_err_set(err, -ENOSPC, "too few frames are left for another virtio_user port");
    rc = bell_open(net, p, spec, err);
    if (rc < 0)
        return rc;
    snprintf(arguments, sizeof arguments, "path=%s,queue_size=%d,mrg_rxbuf=1,in_order=1", spec->path,
             DK_VIRTIO_RING_FRAMES);
    rc = dk_eal_device_add(p->vdev, arguments, &p->eth, err);
    if (rc < 0)
        goto fail;
    rc = dk_eal_port_start(p->eth, DK_DPDK_MTU_MAX, net->pool, err);
    if (rc < 0) {
        dk_eal_device_remove(p->vdev, p->eth);
        goto fail;
    }
    p->mtu = net->config.frame_bytes - RTE_ETHER_HDR_LEN;
    return 0;
fail:
    bell_release(p);
    /* The driver does not say why. A socket that is there but not served is a dead worker's: try again later, as
     * when it is not there at all. */
    probe = socket_probe(spec->path);
    if (probe == -ECONNREFUSED || probe == -ENOENT)
        return dk_err_set(err, -ENOENT, "socket %s is not served", spec->path);
    if (probe < 0)
        return dk_err_set(err, probe, "socket %s: %s", spec->path, strerror(-probe));
    return rc;
}

void dk_port_vhost_remove(struct dk_net *net, struct dk_port *p)
{
    dk_eal_device_remove(p->vdev, p->eth);
    bell_release(p);
    if (p->kind == DK_PORT_VHOST)
        lock_release(p->path, p->lock_fd);
}
