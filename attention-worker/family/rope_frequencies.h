/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_WORKER_ROPE_FREQUENCIES_H
#define DK_WORKER_ROPE_FREQUENCIES_H

#include "model/config.h"

/* Rotation frequencies (arXiv 2104.09864) and what long-context scaling changes in them: linear interpolation
 * (arXiv 2306.15595), Llama 3.1's ramp (its model card), YaRN (arXiv 2309.00071). A frequency is the angle, in radians,
 * by which one position turns a pair of dimensions. Any thread; no state. */

/* inverse_frequency [c->dims / 2] f32: the caller's; the angle of pair i at position p is p * inverse_frequency[i].
 * Returns what cosines and sines are multiplied by: YaRN's attention factor, else 1. c is a checked configuration
 * (lib/model/config.h): dims is even and above 0, theta above 1, factor above 0, high_freq_factor above
 * low_freq_factor. */
float dk_rope_frequencies(const struct dk_rope_config *c, float *inverse_frequency);

/* What MLA's softmax scale is multiplied by: m(mscale_all_dim)^2 for YaRN, with m(s) = 0.1 s ln(factor) + 1; else 1
 * (DeepSeek-V2, arXiv 2405.04434, and the code of its release). Grouped-query attention does not use it. */
float dk_rope_softmax_factor(const struct dk_rope_config *c);

#endif
