/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/plan.h"

#include <stddef.h>

#include "model/ffn_tensors.h"

#define PANEL_ROWS 32u /* of a packed matrix; a slice starts at a panel */
#define RUN_COLS   128u

static uint64_t units_of(uint64_t count, uint64_t unit)
{
    return (count + unit - 1) / unit;
}

int dk_plan_slice(uint32_t intermediate, uint32_t multiple_of, uint32_t ducks, uint32_t index, struct dk_slice *out,
                  struct dk_err *err)
{
    uint64_t units, each, larger, begin, end;

    out->begin = out->end = 0;
    if (multiple_of == 0 || multiple_of % PANEL_ROWS)
        return dk_err_set(err, -EINVAL, "slices in units of %u: the unit must be a multiple of %u", multiple_of,
                          PANEL_ROWS);
    if (intermediate == 0)
        return dk_err_set(err, -EINVAL, "an intermediate size of 0 cannot be cut");
    if (index >= ducks)
        return dk_err_set(err, -EINVAL, "slice %u of %u: there is no such slice", index, ducks);
    units = units_of(intermediate, multiple_of);
    each = units / ducks;
    larger = units % ducks; /* the first ones have one unit more */
    begin = (index * each + (index < larger ? index : larger)) * multiple_of;
    end = begin + (each + (index < larger)) * multiple_of;
    out->begin = (uint32_t)(begin < intermediate ? begin : intermediate);
    out->end = (uint32_t)(end < intermediate ? end : intermediate);
    return 0;
}

/* A packed matrix as lib/kernel lays it out: pairs of panels of 32 rows, and a float for each panel and each run of at
 * most 128 columns, whether the weights are scaled or not. */
static uint64_t matrix_bytes(uint64_t pairs, uint64_t cols, uint64_t runs, uint32_t element_bytes)
{
    return pairs * 2 * (PANEL_ROWS * cols * element_bytes + runs * sizeof(float));
}

/* gate and up [width][hidden], whose panels alternate; down [hidden][width], whose first column may lie inside a run.
 */
static uint64_t ffn_bytes(const struct dk_model_config *c, struct dk_slice s, uint32_t element_bytes)
{
    uint64_t width = s.end - s.begin;

    if (width == 0)
        return 0;
    return matrix_bytes(units_of(width, PANEL_ROWS), c->hidden, units_of(c->hidden, RUN_COLS), element_bytes) +
           matrix_bytes(units_of(c->hidden, 2 * PANEL_ROWS), width, units_of(s.end, RUN_COLS) - s.begin / RUN_COLS,
                        element_bytes);
}

uint64_t dk_plan_duck_bytes(const struct dk_model_config *c, uint32_t multiple_of, uint32_t ducks, uint32_t index,
                            uint32_t weight_bytes_per_element)
{
    struct dk_slice dense = {0}, expert = {0};
    uint64_t bytes = 0;

    if (c->intermediate)
        dk_plan_slice(c->intermediate, multiple_of, ducks, index, &dense, NULL);
    if (c->moe_intermediate)
        dk_plan_slice(c->moe_intermediate, multiple_of, ducks, index, &expert, NULL);
    for (uint32_t i = 0; i < c->layers; i++)
        bytes += dk_ffn_experts(c, i) * ffn_bytes(c, c->layer_is_moe[i] ? expert : dense, weight_bytes_per_element);
    return bytes;
}
