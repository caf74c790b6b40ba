/* SPDX-License-Identifier: Apache-2.0 */
#include "duckctl/output_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int output_file_error(const struct output_file *f, struct dk_err *err)
{
    return dk_err_set(err, -errno, "%s %s: %s", f->option, f->path, strerror(errno));
}

/* Where the file is to be in the end: behind symbolic links, so that they stay. NULL: errno says why. */
static char *place_of(const char *path, bool exists)
{
    if (!exists)
        return strdup(path);
    return access(path, W_OK) == 0 ? realpath(path, NULL) : NULL;
}

int output_file_open(struct output_file *f, const char *option, const char *path, struct dk_err *err)
{
    struct stat st;
    bool exists = stat(path, &st) == 0;
    int rc;

    memset(f, 0, sizeof *f);
    f->option = option;
    f->path = path;
    if (exists && !S_ISREG(st.st_mode)) {
        f->file = fopen(path, "wb");
        return f->file ? 0 : output_file_error(f, err);
    }
    f->target = place_of(path, exists);
    if (f->target && asprintf(&f->temporary, "%s.tmp", f->target) < 0)
        f->temporary = NULL;
    f->file = f->temporary ? fopen(f->temporary, "wb") : NULL;
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
    struct stat s, t;

    return a->file && b->file && fstat(fileno(a->file), &s) == 0 && fstat(fileno(b->file), &t) == 0 &&
           S_ISREG(s.st_mode) && s.st_dev == t.st_dev && s.st_ino == t.st_ino;
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
