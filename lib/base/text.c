/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text.h"

#include <string.h>

bool dk_text_copy(char *to, size_t size, const char *from)
{
    size_t n = from ? strlen(from) : 0, fits = n < size ? n : size - 1;

    if (fits)
        memcpy(to, from, fits);
    to[fits] = 0;
    return fits == n;
}
