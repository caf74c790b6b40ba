/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_BASE_CPU_H
#define DK_BASE_CPU_H

#include <stdint.h>

/* Instruction set levels that have kernels of their own. Each includes what its kernels use beside the name. */
enum dk_isa {
    DK_ISA_REF,    /* plain C */
    DK_ISA_AVX2,   /* AVX2, FMA, F16C */
    DK_ISA_AVX512, /* AVX-512 F, BW, VL, DQ on top */
    DK_ISA_COUNT
};

/* The highest level that this CPU and operating system run. */
enum dk_isa dk_isa_best(void);
const char *dk_isa_name(enum dk_isa isa); /* "ref", "avx2", "avx512" */
/* "auto" gives the best. -EINVAL: no such name; -ENOTSUP: this CPU cannot run it. */
int dk_isa_parse(const char *name, enum dk_isa *isa);

unsigned dk_cpu_count(void); /* CPUs that this process may run on; at least 1 */
uint64_t dk_ram_total_bytes(void);
uint64_t dk_ram_free_bytes(void); /* available without swapping */

#endif
