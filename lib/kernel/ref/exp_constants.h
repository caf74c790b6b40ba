/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_KERNEL_EXP_CONSTANTS_H
#define DK_KERNEL_EXP_CONSTANTS_H

/* e^x, one formula for every variant. x = n ln2 + r, n the nearest integer to x / ln2 (found by adding and taking away
 * a number so large that the sum has no fraction bits), |r| <= ln2 / 2. ln2 is given in two parts, the first short
 * enough that n times it is exact. e^r = 1 + (r + r^2 q(r)), q interpolates (e^r - 1 - r) / r^2 in the Chebyshev nodes
 * of the interval (relative error 1e-8). Then times 2^n in two factors, so that results below the normal range are
 * rounded once. Arguments are limited to where the result is 0 or infinite anyway; NaN stays NaN. Largest error found
 * against libm: 1 ulp (tests/kernel). */
#define DK_EXP_LIMIT  110.0f
#define DK_EXP_LOG2E  0x1.715476p+0f
#define DK_EXP_ROUND  0x1.8p+23f
#define DK_EXP_LN2_HI 0x1.62e4p-1f
#define DK_EXP_LN2_LO 0x1.7f7d1cp-20f
#define DK_EXP_Q0     0x1p-1f
#define DK_EXP_Q1     0x1.5554dcp-3f
#define DK_EXP_Q2     0x1.555518p-5f
#define DK_EXP_Q3     0x1.120be2p-7f
#define DK_EXP_Q4     0x1.6d117cp-10f

#endif
