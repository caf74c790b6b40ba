/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCKCTL_NOTICE_H
#define DUCKCTL_NOTICE_H

#include <stdbool.h>
#include <stddef.h>

#include "wire/wire.h"

/* What a cluster that does not get on waits for, in one line for a person. Each change is told once. */
struct notice {
    char said[400];
};

/* True: the text differs from the one of the call before, and is worth showing. */
bool notice_changed(struct notice *n, const char *text);
/* "DEGRADED: duck 'duck-1' of the plan is silent; waiting for it", or why an answer does not come while READY. */
void notice_text(const Dk__StatusReply *r, char *out, size_t size);

#endif
