/* SPDX-License-Identifier: Apache-2.0 */
#include "net_namespace.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int text_write(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ssize_t written;

    if (fd < 0)
        return -errno;
    written = write(fd, text, strlen(text));
    close(fd);
    return written == (ssize_t)strlen(text) ? 0 : -EPERM;
}

/* Runs `ip` with these arguments. */
__attribute__((format(printf, 1, 2))) static int ip(const char *format, ...)
{
    char command[256] = "PATH=$PATH:/usr/sbin:/sbin ip ";
    size_t used = strlen(command);
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(command + used, sizeof command - used, format, arguments);
    va_end(arguments);
    return system(command) == 0 ? 0 : -EIO;
}

int net_namespace_enter(void)
{
    const unsigned uid = getuid(), gid = getgid();
    char map[64];
    int rc;

    if (unshare(CLONE_NEWNET) == 0)
        return 0;
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) < 0)
        return -errno;
    rc = text_write("/proc/self/setgroups", "deny");
    if (rc < 0)
        return rc;
    snprintf(map, sizeof map, "0 %u 1", uid);
    rc = text_write("/proc/self/uid_map", map);
    if (rc < 0)
        return rc;
    snprintf(map, sizeof map, "0 %u 1", gid);
    return text_write("/proc/self/gid_map", map);
}

int net_namespace_split(void)
{
    return unshare(CLONE_NEWNET) < 0 ? -errno : 0;
}

int net_namespace_bridge_add(const char *bridge, uint32_t mtu)
{
    int rc = ip("link add %s type bridge", bridge);

    if (rc == 0)
        rc = ip("link set %s mtu %u up", bridge, mtu);
    return rc;
}

void net_namespace_bridge_remove(const char *bridge)
{
    (void)ip("link del %s", bridge);
}

int net_namespace_cable_add(const char *bridge, uint32_t unique, pid_t pid, const char *name, uint8_t mac_end,
                            uint32_t mtu)
{
    int rc;

    /* Of a process that has ended: the kernel takes its cable away some time later. */
    (void)ip("link del dkc%u 2>/dev/null", unique);
    rc = ip("link add dkc%u mtu %u type veth peer name dkp%u mtu %u address 02:00:00:00:00:%02x", unique, mtu, unique,
            mtu, mac_end);

    if (rc == 0)
        rc = ip("link set dkc%u master %s up", unique, bridge);
    if (rc == 0)
        rc = ip("link set dkp%u netns %ld name %s", unique, (long)pid, name);
    return rc;
}

int net_namespace_up(const char *name)
{
    return ip("link set %s up", name);
}
