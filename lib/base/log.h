/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_BASE_LOG_H
#define DK_BASE_LOG_H

enum dk_log_level { DK_LOG_ERROR, DK_LOG_WARN, DK_LOG_INFO, DK_LOG_DEBUG };

/* Receives one finished line without a newline. Any thread. */
typedef void dk_log_sink(void *ctx, enum dk_log_level level, const char *line);

/* Libraries never print: they call the sink. Until one is set, warnings and errors go to stderr.
 * Set once at start, before other threads. `program` is put before each line of the default sink. */
void dk_log_setup(dk_log_sink *sink, void *ctx, enum dk_log_level most, const char *program);

/* "error", "warn", "info" or "debug"; -EINVAL for others. */
int dk_log_level_parse(const char *name, enum dk_log_level *level);

extern enum dk_log_level dk_log_most; /* read through dk_log() only */

void dk_log_write(enum dk_log_level level, const char *id, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* dk_log(DK_LOG_INFO, "duck.join", "name=%s cores=%u", ...): a stable id, then key=value. Arguments are not
 * evaluated when the level is off. Text values that may contain spaces go in quotes. */
#define dk_log(level, id, ...)                    \
    do {                                          \
        if ((level) <= dk_log_most)               \
            dk_log_write(level, id, __VA_ARGS__); \
    } while (0)

#endif
