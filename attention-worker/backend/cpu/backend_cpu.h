/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_BACKEND_CPU_H
#define DK_BACKEND_CPU_H

#include "attention-worker/backend/backend.h"
#include "kernel/kernel.h"

/* The threads and kernels of a back end of dk_backend_cpu, for other math between its calls (a feed-forward on the same
 * host). Owned by the back end. */
struct dk_exec *dk_backend_cpu_exec(struct dk_backend *b);
const struct dk_kernels *dk_backend_cpu_kernels(const struct dk_backend *b);

#endif
