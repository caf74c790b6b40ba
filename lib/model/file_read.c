/* SPDX-License-Identifier: Apache-2.0 */
#include "model/file_read.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int read_all(int fd, char *to, size_t bytes)
{
    size_t got = 0;

    while (got < bytes) {
        ssize_t n = read(fd, to + got, bytes - got);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            return -EIO; /* cut while it was being read */
        got += (size_t)n;
    }
    return 0;
}

int dk_file_read(const char *dir, const char *name, size_t bytes_max, char **out, size_t *bytes, struct dk_err *err)
{
    char path[4096];
    char *data = NULL;
    struct stat st;
    int fd, rc;

    *out = NULL;
    *bytes = 0;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, name) >= sizeof path)
        return dk_err_set(err, -ENAMETOOLONG, "%s/%s: the path is too long", dir, name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        rc = -errno;
        return dk_err_set(err, rc, "%s: %s", path, strerror(-rc));
    }
    if (fstat(fd, &st) < 0)
        rc = dk_err_set(err, -errno, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        rc = dk_err_set(err, S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL, "%s: not a file", path);
    else if ((uint64_t)st.st_size > bytes_max)
        rc = dk_err_set(err, -EFBIG, "%s: %lld bytes; at most %zu are expected of such a file", path,
                        (long long)st.st_size, bytes_max);
    else if (!(data = malloc((size_t)st.st_size + 1)))
        rc = dk_err_set(err, -ENOMEM, "%s: no memory for %lld bytes", path, (long long)st.st_size);
    else if ((rc = read_all(fd, data, (size_t)st.st_size)) < 0)
        dk_err_set(err, rc, "%s: %s", path, strerror(-rc));
    close(fd);
    if (rc < 0) {
        free(data);
        return rc;
    }
    data[st.st_size] = 0;
    *out = data;
    *bytes = (size_t)st.st_size;
    return 0;
}
