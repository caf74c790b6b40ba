/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_PLAN_H
#define DK_PLAN_H

#include <stdint.h>

#include "base/error.h"
#include "model/config.h"

/* Which slice of the intermediate dimension each duck of a layer keeps. */

struct dk_slice {
    uint32_t begin, end; /* rows of gate and up; equal: an empty part */
};

/* Cuts [0, intermediate) into `ducks` contiguous parts in units of multiple_of; sizes differ by at most one unit,
 * larger ones first; the last unit may be short. -EINVAL: multiple_of is not a multiple of 32, or a count is 0. */
int dk_plan_slice(uint32_t intermediate, uint32_t multiple_of, uint32_t ducks, uint32_t index, struct dk_slice *out,
                  struct dk_err *err);

/* Bytes that a duck keeps resident for a slice of the whole model (packed weights and scales). */
uint64_t dk_plan_duck_bytes(const struct dk_model_config *c, uint32_t multiple_of, uint32_t ducks, uint32_t index,
                            uint32_t weight_bytes_per_element);

#endif
