/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_COORDINATOR_OPTIONS_H
#define DK_COORDINATOR_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"
#include "base/log.h"

/* The command line. Texts point into argv. */
struct dk_coordinator_settings {
    const char *listen;
    uint32_t step_rows, running_max, queue_max;
    const char *log_level;
    enum dk_log_level log; /* from log_level */
    bool version, help;
};

/* argv without the program's name. -EINVAL: err names the option and what it takes. */
int dk_coordinator_settings_parse(int argc, char **argv, struct dk_coordinator_settings *out, struct dk_err *err);
void dk_coordinator_settings_help(FILE *out);

#endif
