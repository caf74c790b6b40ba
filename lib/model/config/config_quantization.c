/* SPDX-License-Identifier: Apache-2.0 */
/* FP8 in blocks of 128 x 128. Which tensors are quantised is not read from here (modules_to_not_convert): each tensor's
 * own type says it. */
#include <string.h>

#include "model/config/config_internal.h"

static void blocks_read(struct dk_json_reader *in)
{
    uint32_t block[2] = {0, 0}, count = 0;

    dk_json_need(in, "quant_method");
    dk_config_text_check(in, "quant_method", "fp8", "fp8", "only \"fp8\" is supported");
    dk_config_text_check(in, "fmt", "e4m3", "e4m3", "only \"e4m3\" is supported");
    dk_config_text_check(in, "activation_scheme", "dynamic", "dynamic", "only \"dynamic\" is supported");
    if (json_is_null(json_object_get(in->object, "weight_block_size"))) /* null, not absent */
        dk_json_refuse(in, -ENOTSUP, "weight_block_size",
                       "one scale for a whole tensor; only blocks of 128 x 128, [128,128], are supported");
    dk_json_need(in, "weight_block_size");
    if (dk_json_u32_list(in, "weight_block_size", DK_WIDTH_MAX, block, 2, &count) &&
        (block[0] != 128 || block[1] != 128))
        dk_json_refuse(in, -ENOTSUP, "weight_block_size", "only [128,128] is supported");
}

static void object_read(struct dk_json_reader *r, struct dk_model_config *c)
{
    struct dk_json_reader in;
    char where[600];

    if (dk_json_field(r, "compression_config"))
        dk_json_refuse(r, -ENOTSUP, "compression_config", "only a quantization_config of FP8 blocks is supported");
    if (!dk_json_enter(r, "quantization_config", &in, where, sizeof where))
        return;
    blocks_read(&in);
    c->scale_block = 128;
    dk_json_leave(r, &in);
}

void dk_config_quantization_read(struct dk_json_reader *r, const struct dk_json_reader *top, struct dk_model_config *c)
{
    static const char name[] = "quantization_config";
    const json_t *inner = dk_json_field(r, name), *outer = dk_json_field(top, name);
    struct dk_json_reader out = *top;

    if (inner && outer && !json_equal((json_t *)inner, (json_t *)outer))
        dk_json_refuse(r, -EINVAL, name, "the same field outside text_config says something else");
    object_read(r, c);
    out.rc = r->rc;
    object_read(&out, c);
    dk_json_leave(r, &out);
}
