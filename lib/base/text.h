/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_BASE_TEXT_H
#define DK_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* Copies a text into an array of `size` bytes, always terminated. False: it was cut. NULL counts as "". */
bool dk_text_copy(char *to, size_t size, const char *from);

#endif
