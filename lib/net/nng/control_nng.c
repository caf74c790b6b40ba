/* SPDX-License-Identifier: Apache-2.0 */
#include "control_nng.h"

#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

int control_errno(int rv)
{
    static const struct {
        int nng, posix;
    } rows[] = {
        {NNG_EINTR, EINTR},          {NNG_ENOMEM, ENOMEM},           {NNG_EINVAL, EINVAL},
        {NNG_EBUSY, EBUSY},          {NNG_ETIMEDOUT, ETIMEDOUT},     {NNG_ECONNREFUSED, ECONNREFUSED},
        {NNG_ECLOSED, ECANCELED},    {NNG_EAGAIN, EAGAIN},           {NNG_ENOTSUP, ENOTSUP},
        {NNG_EADDRINUSE, EADDRINUSE}, {NNG_ESTATE, EPROTO},          {NNG_ENOENT, ENOENT},
        {NNG_EPROTO, EPROTO},        {NNG_EUNREACHABLE, EHOSTUNREACH}, {NNG_EADDRINVAL, EADDRNOTAVAIL},
        {NNG_EPERM, EPERM},          {NNG_EMSGSIZE, EMSGSIZE},       {NNG_ECONNABORTED, ECONNABORTED},
        {NNG_ECONNRESET, ECONNRESET}, {NNG_ECANCELED, ECANCELED},    {NNG_ENOFILES, EMFILE},
        {NNG_ENOSPC, ENOSPC},        {NNG_EEXIST, EEXIST},           {NNG_ECONNSHUT, EPIPE},
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

        if (!port || strspn(port + 1, "0123456789") != strlen(port + 1) || strlen(port + 1) < 1 ||
            strlen(port + 1) > 5 || atoi(port + 1) > 65535)
            return dk_err_set(err, -EINVAL, "%s: a tcp address is tcp://HOST:PORT with a port from 1 to 65535, for example tcp://127.0.0.1:7717",
                              url);
        return 0;
    }
    if (!strncmp(url, "ipc://", 6)) {
        if (url[6] != '/')
            return dk_err_set(err, -EINVAL, "%s: an ipc address is ipc:// and an absolute path, for example "
                              "ipc:///run/duckllm/coordinator.sock", url);
        if (strlen(url + 6) >= sizeof sun->sun_path)
            return dk_err_set(err, -EINVAL, "%s: the path of a socket may have %zu characters, this one has %zu; use a "
                              "shorter folder", url, sizeof sun->sun_path - 1, strlen(url + 6));
        return 0;
    }
    return dk_err_set(err, -EINVAL, "%s: the address of a control plane starts with tcp:// or ipc://", url);
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
