/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int dk_err_set(struct dk_err *err, int rc, const char *format, ...)
{
    if (err) {
        va_list ap;

        err->rc = rc;
        va_start(ap, format);
        vsnprintf(err->text, sizeof err->text, format, ap);
        va_end(ap);
    }
    return rc;
}

int dk_err_prefix(struct dk_err *err, const char *format, ...)
{
    char old[sizeof err->text], place[sizeof err->text / 2];
    va_list ap;

    if (!err)
        return 0;
    memcpy(old, err->text, sizeof old);
    va_start(ap, format);
    vsnprintf(place, sizeof place, format, ap);
    va_end(ap);
    if (snprintf(err->text, sizeof err->text, "%s: %s", place, old) < 0)
        err->text[0] = 0;
    return err->rc;
}
