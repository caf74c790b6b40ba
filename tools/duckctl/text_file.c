/* SPDX-License-Identifier: Apache-2.0 */
#include "duckctl/text_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_BYTES_MAX ((size_t)64 << 20)

int text_file_read(const char *option, const char *path, char **text, size_t *bytes, struct dk_err *err)
{
    FILE *f = strcmp(path, "-") ? fopen(path, "rb") : stdin;
    size_t room = 65536, n;
    int rc = 0;

    *bytes = 0;
    *text = NULL;
    if (!f)
        return dk_err_set(err, -errno, "%s %s: %s", option, path, strerror(errno));
    *text = malloc(room);
    if (!*text) {
        if (f != stdin)
            fclose(f);
        return dk_err_set(err, -ENOMEM, "%s %s: no memory for the text", option, path);
    }
    while ((n = fread(*text + *bytes, 1, room - *bytes - 1, f)) > 0) {
        char *larger;

        *bytes += n;
        if (room - *bytes > 1)
            continue;
        larger = room < TEXT_BYTES_MAX ? realloc(*text, room * 2) : NULL;
        if (!larger) {
            rc = dk_err_set(err, -E2BIG, "%s %s: more than %zu MiB", option, path, TEXT_BYTES_MAX >> 20);
            break;
        }
        *text = larger;
        room *= 2;
    }
    if (rc == 0 && ferror(f))
        rc = dk_err_set(err, -errno, "%s %s: %s", option, path, strerror(errno));
    if (f != stdin)
        fclose(f);
    (*text)[*bytes] = 0;
    return rc;
}
