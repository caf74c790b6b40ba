/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <dirent.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "dpdk_internal.h"

/* A port on a kernel interface. The driver shares two rings with the kernel, one each way, of RING_FRAME_BYTES per
 * frame; a ring that is full drops silently, so it must hold what all ducks answer at once. */

enum {
    RING_BLOCK_BYTES = 36864, /* a multiple of the page and of the frame */
    RING_FRAME_BYTES = 9216,
    RING_FRAMES_MOST = 2048,
    RING_FRAMES_LEAST = 64,
};

/* What the kernel says of an interface. */
struct interface {
    int index;
    uint32_t mtu;
    uint8_t mac[6];
};

static int interface_read(const char *name, struct interface *out, struct dk_err *err)
{
    struct ifreq r = {0};
    int fd, rc;

    /* Protocol 0: this socket receives nothing; it only shows that the driver may open its own. */
    fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        rc = -errno;
        if (rc == -EPERM || rc == -EACCES)
            return dk_err_set(err, -EPERM,
                              "interface %s: raw frames need CAP_NET_RAW (run as root, or: setcap cap_net_raw+ep "
                              "PROGRAM, or inside: unshare -Urn)",
                              name);
        return dk_err_set(err, rc, "interface %s: %s", name, strerror(-rc));
    }
    memcpy(r.ifr_name, name, strnlen(name, sizeof r.ifr_name - 1)); /* r is zeroed */
    if (ioctl(fd, SIOCGIFINDEX, &r) < 0)
        goto fail;
    out->index = r.ifr_ifindex;
    if (ioctl(fd, SIOCGIFHWADDR, &r) < 0)
        goto fail;
    if (r.ifr_hwaddr.sa_family != ARPHRD_ETHER) {
        close(fd);
        return dk_err_set(err, -ENODEV, "interface %s is not an Ethernet interface", name);
    }
    memcpy(out->mac, r.ifr_hwaddr.sa_data, sizeof out->mac);
    if (ioctl(fd, SIOCGIFMTU, &r) < 0)
        goto fail;
    out->mtu = (uint32_t)r.ifr_mtu;
    if (ioctl(fd, SIOCGIFFLAGS, &r) < 0)
        goto fail;
    if (!(r.ifr_flags & IFF_UP))
        dk_log(DK_LOG_WARN, "net.interface.down", "name=%s", name);
    close(fd);
    return 0;
fail:
    rc = -errno;
    close(fd);
    if (rc == -ENODEV)
        return dk_err_set(err, rc, "there is no network interface %s", name);
    return dk_err_set(err, rc, "interface %s: %s", name, strerror(-rc));
}

/* The driver locks its rings in memory, and an ordinary user may lock only a little: asks by a mapping that never
 * gets pages. */
static bool lock_allowed(size_t bytes)
{
    void *probe = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0);

    if (probe == MAP_FAILED)
        return false;
    munmap(probe, bytes);
    return true;
}

static uint32_t ring_frames(const char *name)
{
    uint32_t frames = RING_FRAMES_MOST;

    while (frames > RING_FRAMES_LEAST && !lock_allowed((size_t)frames * RING_FRAME_BYTES * 2))
        frames -= RING_FRAMES_LEAST;
    if (frames < RING_FRAMES_MOST)
        dk_log(DK_LOG_WARN, "net.ring.small",
               "interface=%s frames=%u wanted=%d hint=\"raise the limit of locked memory (ulimit -l)\"", name, frames,
               RING_FRAMES_MOST);
    return frames;
}

static bool is_packet_socket_of(int fd, int interface_index)
{
    struct sockaddr_ll bound = {0};
    socklen_t bytes = sizeof bound;

    return getsockname(fd, (struct sockaddr *)&bound, &bytes) == 0 && bound.sll_family == AF_PACKET &&
           bound.sll_ifindex == interface_index;
}

/* The driver has no call that tells its socket: looks for it among this process's descriptors. -1: not found; then
 * the port is polled with short sleeps. */
static int driver_socket_find(const struct dk_net *net, int interface_index)
{
    DIR *d = opendir("/proc/self/fd");
    struct dirent *e;
    int found = -1;

    if (!d)
        return -1;
    while (found < 0 && (e = readdir(d)) != NULL) {
        int fd = (int)strtol(e->d_name, NULL, 10);
        bool known = e->d_name[0] == '.' || !is_packet_socket_of(fd, interface_index);

        for (uint32_t i = 0; i < net->ports_max && !known; i++)
            known = net->ports[i].used && net->ports[i].poll_fd == fd;
        if (!known)
            found = fd;
    }
    closedir(d);
    return found;
}

int dk_port_af_packet_add(struct dk_net *net, struct dk_port *p, const struct dk_port_spec *spec, uint8_t mac[6],
                          struct dk_err *err)
{
    struct interface interface = {0};
    char arguments[256];
    int rc;

    if (!dk_port_name_fits(spec->path, IFNAMSIZ))
        return dk_err_set(err, -EINVAL, "\"%.*s\" cannot be the name of a network interface", (int)sizeof spec->path,
                          spec->path);
    rc = interface_read(spec->path, &interface, err);
    if (rc < 0)
        return rc;
    snprintf(arguments, sizeof arguments, "iface=%s,blocksz=%d,framesz=%d,framecnt=%u,qdisc_bypass=1", spec->path,
             RING_BLOCK_BYTES, RING_FRAME_BYTES, ring_frames(spec->path));
    rc = dk_eal_device_add(p->vdev, arguments, &p->eth, err);
    if (rc < 0)
        return rc;
    /* The driver refuses to hear of an MTU above 1500 but passes the frames. */
    rc = dk_eal_port_start(p->eth, 0, net->pool, err);
    if (rc < 0) {
        dk_eal_device_remove(p->vdev, p->eth);
        return rc;
    }
    p->poll_fd = driver_socket_find(net, interface.index);
    p->mtu = interface.mtu < DK_DPDK_MTU_MAX ? interface.mtu : DK_DPDK_MTU_MAX;
    if (p->mtu > net->config.frame_bytes - RTE_ETHER_HDR_LEN)
        p->mtu = net->config.frame_bytes - RTE_ETHER_HDR_LEN;
    memcpy(mac, interface.mac, sizeof interface.mac);
    return 0;
}

void dk_port_af_packet_remove(struct dk_port *p)
{
    dk_eal_device_remove(p->vdev, p->eth);
}
