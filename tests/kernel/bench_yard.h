/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_YARD_H
#define BENCH_YARD_H

#include <stddef.h>
#include <stdint.h>

#include "base/cpu.h"

/* What the benchmarks of attention share: a clock, data, and a yardstick. */

double bench_seconds(void);
double bench_median(double *values, uint32_t count); /* sorts them */
float *bench_noise(size_t n);                        /* in [-1, 1), 64-byte aligned; free() it */

/* 10^9 multiply-adds per second on data in the first-level cache at an ISA level, by compiled vectors: 15 KiB of
 * elements, times a factor, are added to many sums. */
double bench_yard(enum dk_isa isa);

#endif
