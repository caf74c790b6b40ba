/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCKCTL_ID_LIST_H
#define DUCKCTL_ID_LIST_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* "1,2,3" -> malloc'ed ids. what: the option, for the error. An empty text is an error. */
int id_list_parse(const char *text, const char *what, uint32_t **ids, size_t *count, struct dk_err *err);

#endif
