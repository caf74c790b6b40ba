/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *const names[DK_ISA_COUNT] = {"ref", "avx2", "avx512"};

#if defined(__x86_64__)
/* Not every compiler's __builtin_cpu_supports knows "f16c": CPUID leaf 1, ECX bit 29. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;

    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

enum dk_isa dk_isa_best(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c()) {
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
            return DK_ISA_AVX512;
        return DK_ISA_AVX2;
    }
#endif
    return DK_ISA_REF;
}

const char *dk_isa_name(enum dk_isa isa)
{
    return (unsigned)isa < DK_ISA_COUNT ? names[isa] : "unknown";
}

int dk_isa_parse(const char *name, enum dk_isa *isa)
{
    if (!strcmp(name, "auto")) {
        *isa = dk_isa_best();
        return 0;
    }
    for (int i = 0; i < DK_ISA_COUNT; i++)
        if (!strcmp(name, names[i])) {
            *isa = (enum dk_isa)i;
            return *isa <= dk_isa_best() ? 0 : -ENOTSUP;
        }
    return -EINVAL;
}

unsigned dk_cpu_count(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return (unsigned)CPU_COUNT(&set);
    return 1;
}

uint64_t dk_ram_total_bytes(void)
{
    return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t dk_ram_free_bytes(void)
{
    FILE *f = fopen("/proc/meminfo", "r");
    unsigned long long kb = 0;
    char line[128];

    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &kb) == 1)
            break;
    if (f)
        fclose(f);
    return kb * 1024;
}
