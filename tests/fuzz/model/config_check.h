/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_CONFIG_CHECK_H
#define DK_CONFIG_CHECK_H

#include <stdbool.h>
#include <stddef.h>

#include "model/config.h"

/* Parses a copy of exact size, and aborts when what comes out breaks a promise of model/config.h: what is accepted is
 * within the limits that the rest of the code computes with, what is refused has a reason and leaves nothing behind.
 * Log lines are made and
 * dropped. True: accepted. reason: of a refusal; may be NULL. */
bool config_check(const char *json, size_t bytes, struct dk_err *reason);

#endif
