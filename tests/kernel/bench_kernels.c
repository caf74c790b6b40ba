/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel_cases.h"

int bench_kernels(void)
{
    return 0;
}
