/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_PLAN_H
#define DK_PLAN_H

#include <stdint.h>

#include "base/error.h"
#include "model/config.h"

/* Which slice of the intermediate dimension each duck of a layer keeps. */

/* What the coordinator may ask for and the worker holds in fixed arrays. */
#define DK_PLAN_DUCKS_MAX     64u   /* of a cluster, and so of a plan */
#define DK_VHOST_DUCKS_MAX    31u   /* DPDK has 32 ports, and each duck on the worker's own host takes one */
#define DK_PLAN_ROWS_MAX      4096u /* of a step */
#define DK_PLAN_SEQUENCES_MAX 4096u /* in the worker's cache at a time */
#define DK_MODEL_DIR_MAX      511u  /* bytes of a model folder's path */

struct dk_slice {
    uint32_t begin, end; /* rows of gate and up; equal: an empty part */
};

/* Cuts [0, intermediate) into `ducks` contiguous parts in units of multiple_of; sizes differ by at most one unit,
 * larger ones first; the last unit may be short. -EINVAL: multiple_of is not a multiple of 32, or a count is 0. */
int dk_plan_slice(uint32_t intermediate, uint32_t multiple_of, uint32_t ducks, uint32_t index, struct dk_slice *out,
                  struct dk_err *err);

/* Bytes that a duck keeps resident for a slice of the whole model: packed weights of the dense layers and of the routed
 * experts, and their scales, for which there is room whether the weights are FP8 or not. 0 where dk_plan_slice() fails.
 */
uint64_t dk_plan_duck_bytes(const struct dk_model_config *c, uint32_t multiple_of, uint32_t ducks, uint32_t index,
                            uint32_t weight_bytes_per_element);

#endif
