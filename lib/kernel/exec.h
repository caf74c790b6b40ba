/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_KERNEL_EXEC_H
#define DK_KERNEL_EXEC_H

#include <stdbool.h>
#include <stdint.h>

/* The kernel threads of one process: the caller is one of them. With one thread everything runs inline, which is
 * also the simulator's executor. */
struct dk_exec;

/* pin: thread i stays on the i-th CPU that the process may use (the caller too). -ENOMEM, -EAGAIN. */
int dk_exec_open(uint32_t threads, bool pin, struct dk_exec **out);
void dk_exec_close(struct dk_exec *e);
uint32_t dk_exec_threads(const struct dk_exec *e);

/* Runs fn(arg, part, parts) for part = 0..parts-1, parts = threads, at the same time, and returns when all are done.
 * Idle threads spin for a moment, then sleep on a futex. Only from the thread that opened it. */
void dk_exec_run(struct dk_exec *e, void (*fn)(void *arg, uint32_t part, uint32_t parts), void *arg);

/* Inside fn: returns when every part has come here. */
void dk_exec_barrier(struct dk_exec *e, uint32_t part);

/* The part'th of `parts` nearly equal ranges of 0..count. */
static inline void dk_exec_range(uint32_t count, uint32_t part, uint32_t parts, uint32_t *begin, uint32_t *end)
{
    *begin = (uint32_t)((uint64_t)count * part / parts);
    *end = (uint32_t)((uint64_t)count * (part + 1) / parts);
}

#endif
