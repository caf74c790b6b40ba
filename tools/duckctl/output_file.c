/* SPDX-License-Identifier: Apache-2.0 */
#include "duckctl/output_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINKS_MAX 40 /* as in Linux, path_resolution(7) */

int output_file_error(const struct output_file *f, struct dk_err *err)
{
    int code = errno ? errno : EIO; /* a stream may fail without a word why */

    return dk_err_set(err, -code, "%s %s: %s", f->option, f->path, strerror(code));
}

/* Where the link at path leads to. NULL: errno says why; EINVAL: it is no link, ENOENT: nothing is there. */
static char *link_target(const char *path)
{
    const char *slash = strrchr(path, '/');
    char to[PATH_MAX], *target;
    ssize_t n = readlink(path, to, sizeof to);

    if (n == sizeof to)
        errno = ENAMETOOLONG;
    if (n < 0 || n == sizeof to)
        return NULL;
    if (to[0] == '/' || !slash)
        return strndup(to, (size_t)n);
    return asprintf(&target, "%.*s%.*s", (int)(slash + 1 - path), path, (int)n, to) < 0 ? NULL : target;
}

/* A name in a folder that exists, the folder without links. Takes path over. NULL: errno says why. */
static char *place_in_folder(char *path)
{
    char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *folder, *place = NULL;

    if (!*name) {
        free(path);
        errno = ENOENT;
        return NULL;
    }
    if (slash)
        *slash = 0;
    folder = realpath(!slash ? "." : slash == path ? "/" : path, NULL);
    if (folder && asprintf(&place, "%s/%s", strcmp(folder, "/") ? folder : "", name) < 0)
        place = NULL;
    free(folder);
    free(path);
    return place;
}

/* Where the file is to be in the end: behind symbolic links, so that they stay. One path for one file, however it is
 * named. NULL: errno says why. */
static char *place_of(const char *path, bool exists)
{
    char *at;

    if (exists)
        return access(path, W_OK) == 0 ? realpath(path, NULL) : NULL;
    at = strdup(path);
    for (int links = 0; at; links++) {
        char *next = links < LINKS_MAX ? link_target(at) : NULL;

        if (!next && links < LINKS_MAX && (errno == EINVAL || errno == ENOENT))
            return place_in_folder(at);
        if (links == LINKS_MAX)
            errno = ELOOP;
        free(at);
        at = next;
    }
    return NULL;
}

/* The owner and the rights of the older file, if there is one, otherwise those of any new file. */
static int give_rights(int fd, const struct stat *old)
{
    mode_t mode, mask;

    if (!old) {
        mask = umask(0);
        umask(mask);
        return fchmod(fd, 0666 & ~mask);
    }
    mode = old->st_mode & 0777;
    /* Only root gives files away. Where the group cannot stay, its rights do not go to another one. */
    if (fchown(fd, old->st_uid, old->st_gid) < 0 && fchown(fd, (uid_t)-1, old->st_gid) < 0)
        mode &= ~(mode_t)S_IRWXG;
    return fchmod(fd, mode);
}

/* A file of its own beside the target: nobody else's is touched, nor that of another run. */
static FILE *temporary_open(struct output_file *f, const struct stat *old)
{
    int name_at = (int)(strrchr(f->target, '/') + 1 - f->target), fd, failure;
    FILE *file = NULL;

    /* With a long name, the first part of it. */
    if (asprintf(&f->temporary, "%.*s%.240s.XXXXXX", name_at, f->target, f->target + name_at) < 0) {
        f->temporary = NULL;
        return NULL;
    }
    fd = mkostemp(f->temporary, O_CLOEXEC);
    if (fd < 0)
        return NULL;
    if (give_rights(fd, old) == 0)
        file = fdopen(fd, "wb");
    if (!file) {
        failure = errno;
        close(fd);
        unlink(f->temporary);
        errno = failure;
    }
    return file;
}

int output_file_open(struct output_file *f, const char *option, const char *path, struct dk_err *err)
{
    struct stat st;
    bool exists = stat(path, &st) == 0, missing = !exists && errno == ENOENT;
    int rc;

    memset(f, 0, sizeof *f);
    f->option = option;
    f->path = path;
    if (!exists && !missing)
        return output_file_error(f, err);
    if (exists && !S_ISREG(st.st_mode)) {
        f->file = fopen(path, "wb");
        return f->file ? 0 : output_file_error(f, err);
    }
    f->target = place_of(path, exists);
    if (f->target)
        f->file = temporary_open(f, exists ? &st : NULL);
    if (f->file)
        return 0;
    rc = output_file_error(f, err);
    free(f->target);
    free(f->temporary);
    f->target = f->temporary = NULL;
    return rc;
}

bool output_file_same(const struct output_file *a, const struct output_file *b)
{
    return a->target && b->target && !strcmp(a->target, b->target);
}

int output_file_finish(struct output_file *f, bool complete, struct dk_err *err)
{
    int rc = 0;

    if (!f->file)
        return 0;
    if (fclose(f->file) != 0 && complete)
        rc = output_file_error(f, err);
    if (rc == 0 && complete && f->temporary && rename(f->temporary, f->target) < 0)
        rc = output_file_error(f, err);
    if (f->temporary && (rc < 0 || !complete))
        unlink(f->temporary);
    free(f->target);
    free(f->temporary);
    f->file = NULL;
    f->target = f->temporary = NULL;
    return rc;
}
