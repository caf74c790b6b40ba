/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum dk_log_level dk_log_most = DK_LOG_WARN;

static const char *const level_names[] = {"error", "warn", "info", "debug"};
static const char *program_name = "duckllm";

static void stderr_sink(void *ctx, enum dk_log_level level, const char *line)
{
    struct timespec ts;
    struct tm tm;
    char stamp[32];

    clock_gettime(CLOCK_REALTIME, &ts);
    localtime_r(&ts.tv_sec, &tm);
    strftime(stamp, sizeof stamp, "%H:%M:%S", &tm);
    fprintf(stderr, "%s.%03ld %-5s %s %s\n", stamp, ts.tv_nsec / 1000000, level_names[level], program_name, line);
}

static dk_log_sink *current_sink = stderr_sink;
static void *current_ctx;

void dk_log_setup(dk_log_sink *sink, void *ctx, enum dk_log_level most, const char *program)
{
    current_sink = sink ? sink : stderr_sink;
    current_ctx = ctx;
    dk_log_most = most;
    if (program)
        program_name = program;
}

int dk_log_level_parse(const char *name, enum dk_log_level *level)
{
    for (unsigned i = 0; i < sizeof level_names / sizeof *level_names; i++)
        if (!strcmp(name, level_names[i])) {
            *level = (enum dk_log_level)i;
            return 0;
        }
    return -EINVAL;
}

void dk_log_write(enum dk_log_level level, const char *id, const char *format, ...)
{
    char line[1024];
    va_list ap;
    int n = snprintf(line, sizeof line, "%s ", id);

    if (n < 0 || (size_t)n >= sizeof line)
        return;
    va_start(ap, format);
    vsnprintf(line + n, sizeof line - (size_t)n, format, ap);
    va_end(ap);
    current_sink(current_ctx, level, line);
}
