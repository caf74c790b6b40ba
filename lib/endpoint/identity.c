/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "endpoint/endpoint.h"

#define VHOST_MTU   9000u
#define PORTS_TRIED 200u

/* -EADDRNOTAVAIL: the interface has no IPv4 address. */
static int interface_ipv4(const char *interface, uint32_t *ipv4)
{
    struct ifaddrs *list;
    int rc = -EADDRNOTAVAIL;

    if (getifaddrs(&list) < 0)
        return -errno;
    for (struct ifaddrs *a = list; a && rc < 0; a = a->ifa_next)
        if (a->ifa_addr && a->ifa_addr->sa_family == AF_INET && !strcmp(a->ifa_name, interface)) {
            *ipv4 = ntohl(((struct sockaddr_in *)(void *)a->ifa_addr)->sin_addr.s_addr);
            rc = 0;
        }
    freeifaddrs(list);
    return rc;
}

/* Binds a UDP socket that nobody reads and that stays open as long as the process. */
static int reserve(uint32_t ipv4, uint16_t udp_port)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons(udp_port), .sin_addr.s_addr = htonl(ipv4)};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), least = 1;

    if (fd < 0)
        return -errno;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &least, sizeof least);
    if (bind(fd, (struct sockaddr *)&sa, sizeof sa) < 0) {
        int rc = -errno;

        close(fd);
        return rc;
    }
    return 0;
}

int dk_endpoint_identify(struct dk_endpoint *e, enum dk_port_kind kind, const char *interface, uint32_t udp_port,
                         uint32_t vhost_ipv4, struct dk_identity *out, struct dk_err *err)
{
    struct dk_port_spec spec = {.kind = kind};
    uint32_t last = udp_port + PORTS_TRIED;
    int rc;

    memset(out, 0, sizeof *out);
    out->own.instance = (uint32_t)dk_random_id() | 1;
    out->own.udp_port = (uint16_t)udp_port;
    if (kind != DK_PORT_AF_PACKET) {
        out->own.mac[0] = 0x02; /* locally administered */
        memcpy(out->own.mac + 2, &out->own.instance, 4);
        out->own.ipv4 = vhost_ipv4;
        out->mtu = VHOST_MTU;
        return 0;
    }
    snprintf(spec.path, sizeof spec.path, "%s", interface);
    rc = e->ops->port_add(e->net, &spec, &out->port, out->own.mac, &out->mtu, err);
    if (rc < 0)
        return rc;
    if (interface_ipv4(interface, &out->own.ipv4) < 0) {
        out->own.ipv4 = 0xa9fe0000u | (uint32_t)out->own.mac[4] << 8 | out->own.mac[5];
        return 0;
    }
    while ((rc = reserve(out->own.ipv4, (uint16_t)udp_port)) == -EADDRINUSE && udp_port < last)
        udp_port++;
    if (rc < 0)
        return dk_err_set(err, rc, "interface %s: no UDP port from %u to %u can be had: %s; try --udp-port", interface,
                          out->own.udp_port, last, strerror(-rc));
    out->own.udp_port = (uint16_t)udp_port;
    return 0;
}
