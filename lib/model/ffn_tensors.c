/* SPDX-License-Identifier: Apache-2.0 */
#include "model/ffn_tensors.h"

#include <stdio.h>
#include <string.h>

static const char *const parts[3] = {"gate_proj", "up_proj", "down_proj"};

uint32_t dk_ffn_width(const struct dk_model_config *c, uint32_t layer)
{
    return c->layer_is_moe[layer] ? c->moe_intermediate : c->intermediate;
}

uint32_t dk_ffn_experts(const struct dk_model_config *c, uint32_t layer)
{
    return c->layer_is_moe[layer] ? c->experts : 1;
}

/* gate and up [width][hidden], down [hidden][width]. */
static int separate_find(struct dk_checkpoint *ck, const char *prefix, uint64_t hidden, uint64_t width,
                         struct dk_ffn_tensors *out, struct dk_err *err)
{
    for (uint32_t i = 0; i < 3; i++) {
        const struct dk_tensor *w;
        char name[160];
        int rc;

        snprintf(name, sizeof name, "%s.%s.weight", prefix, parts[i]);
        rc = dk_checkpoint_get_weight(ck, name, i < 2 ? width : hidden, i < 2 ? hidden : width, &w, &out->scale[i],
                                      err);
        if (rc < 0)
            return rc;
        out->weight[i] = *w;
    }
    return 0;
}

/* Matrix `index` of the `count` of the same size that lie one behind the other in t. */
static struct dk_tensor matrix_of(const struct dk_tensor *t, uint64_t index, uint64_t count, uint64_t rows,
                                  uint64_t cols)
{
    struct dk_tensor m = *t;

    m.rank = 2;
    memset(m.shape, 0, sizeof m.shape);
    m.shape[0] = rows;
    m.shape[1] = cols;
    m.bytes = t->bytes / count;
    m.data = t->data + index * m.bytes;
    return m;
}

static int fused_find(struct dk_checkpoint *ck, const char *prefix, const struct dk_model_config *c, uint32_t expert,
                      struct dk_ffn_tensors *out, struct dk_err *err)
{
    const uint64_t hidden = c->hidden, width = c->moe_intermediate, experts = c->experts;
    const uint64_t gate_up_shape[3] = {experts, 2 * width, hidden}, down_shape[3] = {experts, hidden, width};
    const struct dk_tensor *gate_up, *down;
    char name[160];
    int rc;

    snprintf(name, sizeof name, "%s.gate_up_proj", prefix);
    rc = dk_checkpoint_get_shape(ck, name, 3, gate_up_shape, 0, &gate_up, err);
    if (rc < 0)
        return rc;
    snprintf(name, sizeof name, "%s.down_proj", prefix);
    rc = dk_checkpoint_get_shape(ck, name, 3, down_shape, 0, &down, err);
    if (rc < 0)
        return rc;
    out->weight[0] = matrix_of(gate_up, 2ull * expert, 2 * experts, width, hidden);
    out->weight[1] = matrix_of(gate_up, 2ull * expert + 1, 2 * experts, width, hidden);
    out->weight[2] = matrix_of(down, expert, experts, hidden, width);
    return 0;
}

static int types_check(const struct dk_ffn_tensors *t, struct dk_err *err)
{
    for (uint32_t i = 1; i < 3; i++)
        if (t->weight[i].type != t->weight[0].type)
            return dk_err_set(err, -ENOTSUP,
                              "%s: tensors '%s' (%s) and '%s' (%s) must be of one type; convert one of them",
                              t->weight[i].file, t->weight[0].name, dk_dtype_name(t->weight[0].type), t->weight[i].name,
                              dk_dtype_name(t->weight[i].type));
    return 0;
}

int dk_ffn_tensors_find(struct dk_checkpoint *ck, const struct dk_model_config *c, uint32_t layer, uint32_t expert,
                        struct dk_ffn_tensors *out, struct dk_err *err)
{
    char prefix[96], fused[128];
    int rc;

    memset(out, 0, sizeof *out);
    snprintf(prefix, sizeof prefix, "model.layers.%u.mlp%s", layer, c->layer_is_moe[layer] ? ".experts" : "");
    snprintf(fused, sizeof fused, "%s.gate_up_proj", prefix);
    if (c->layer_is_moe[layer] && dk_checkpoint_find(ck, fused)) {
        rc = fused_find(ck, prefix, c, expert, out, err);
    } else {
        if (c->layer_is_moe[layer])
            snprintf(prefix, sizeof prefix, "model.layers.%u.mlp.experts.%u", layer, expert);
        rc = separate_find(ck, prefix, c->hidden, dk_ffn_width(c, layer), out, err);
    }
    return rc < 0 ? rc : types_check(out, err);
}
