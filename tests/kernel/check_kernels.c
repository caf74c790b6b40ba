/* SPDX-License-Identifier: Apache-2.0 */
/* check_kernels --isa LEVEL [--seed N]: checks one level's kernels. 0 all right; 1 not; 77 this CPU cannot run the
 * level, which ctest reports as skipped. check_kernels --bench and --count: see bench_kernels.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel_cases.h"

#define SKIPPED 77

int main(int argc, char **argv)
{
    const char *level = NULL;
    const struct dk_kernels *k;
    enum dk_isa isa;
    int rc;

    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--bench"))
            return bench_kernels();
        if (!strcmp(argv[i], "--count") && i + 1 < argc)
            return count_kernels((uint32_t)strtoul(argv[i + 1], NULL, 10));
        if (!strcmp(argv[i], "--isa") && i + 1 < argc)
            level = argv[++i];
        else if (!strcmp(argv[i], "--seed") && i + 1 < argc)
            cases_seed = strtoull(argv[++i], NULL, 0);
        else
            level = "?";
    }
    rc = level ? dk_isa_parse(level, &isa) : -EINVAL;
    if (rc == -ENOTSUP) {
        printf("skipped: this CPU cannot run %s\n", level);
        return SKIPPED;
    }
    if (rc < 0) {
        fprintf(stderr, "usage: %s --isa ref|avx2|avx512 [--seed N] | --bench | --count WIDTH\n", argv[0]);
        return 1;
    }
    k = dk_kernels_get(isa);
    check_codes(k);
    check_vectors(k);
    check_matrices(k);
    check_experts(k);
    printf("%s: %u comparisons, %u failures, seed %llu\n", level, cases_run, cases_failed,
           (unsigned long long)cases_seed);
    return cases_failed || !cases_run;
}
