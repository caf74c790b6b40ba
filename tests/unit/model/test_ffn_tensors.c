/* SPDX-License-Identifier: Apache-2.0 */
/* Where gate, up and down of a dense layer or an expert are. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "model/ffn_tensors.h"
#include "model_folder.h"

#define TENSOR(name, type, shape, begin, end) \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"
#define DENSE(down)                                                       \
    "{" TENSOR("model.layers.0.mlp.gate_proj.weight", "BF16", "[2,3]", 0, \
               12) "," TENSOR("model.layers.0.mlp.up_proj.weight", "BF16", "[2,3]", 12, 24) "," down "}"

static uint8_t *data;
static struct dk_checkpoint *ck;
static struct dk_ffn_tensors f;
static struct dk_err err;
/* Layer 0 is dense, layer 1 has experts. */
static const struct dk_model_config config = {
    .hidden = 3, .layers = 2, .intermediate = 2, .moe_intermediate = 4, .experts = 5, .layer_is_moe = {false, true}};

static void end(void)
{
    dk_checkpoint_close(ck);
    free(data);
}

TestSuite(ffn_tensors, .fini = end);

static void open_header(const char *header, size_t data_bytes)
{
    size_t bytes;

    end();
    memset(&err, 0, sizeof err);
    data = safetensors_make(header, data_bytes, &bytes);
    cr_assert_eq(dk_checkpoint_from_memory(data, bytes, "model.safetensors", &ck, &err), 0, "%s", err.text);
}

/* Weight i must be a BF16 matrix at that byte of the data. */
static void weight_at(unsigned i, uint64_t rows, uint64_t cols, uint64_t offset, const uint8_t *base)
{
    cr_expect_eq(f.weight[i].type, DK_BF16);
    cr_expect(f.weight[i].rank == 2 && f.weight[i].shape[0] == rows && f.weight[i].shape[1] == cols, "weight %u", i);
    cr_expect_eq(f.weight[i].bytes, rows * cols * 2, "weight %u", i);
    cr_expect_eq(f.weight[i].data - base, (ptrdiff_t)offset, "weight %u is at %td", i, f.weight[i].data - base);
    cr_expect_null(f.scale[i]);
}

static void unused_count(void *ctx, const struct dk_tensor *t)
{
    ++*(unsigned *)ctx;
}

static unsigned unused(void)
{
    unsigned n = 0;

    dk_checkpoint_unused(ck, unused_count, &n);
    return n;
}

Test(ffn_tensors, widths)
{
    cr_expect(dk_ffn_width(&config, 0) == 2 && dk_ffn_experts(&config, 0) == 1);
    cr_expect(dk_ffn_width(&config, 1) == 4 && dk_ffn_experts(&config, 1) == 5);
}

Test(ffn_tensors, dense)
{
    open_header(DENSE(TENSOR("model.layers.0.mlp.down_proj.weight", "BF16", "[3,2]", 24, 36)), 36);
    cr_assert_eq(dk_ffn_tensors_find(ck, &config, 0, 0, &f, &err), 0, "%s", err.text);
    weight_at(0, 2, 3, 0, f.weight[0].data);
    weight_at(1, 2, 3, 12, f.weight[0].data);
    weight_at(2, 3, 2, 24, f.weight[0].data);
    cr_expect_str_eq(f.weight[2].name, "model.layers.0.mlp.down_proj.weight");
    cr_expect_eq(unused(), 0);
}

Test(ffn_tensors, refused)
{
    open_header(DENSE(TENSOR("model.layers.0.mlp.down_proj.weight", "F32", "[3,2]", 24, 48)), 48);
    cr_expect_eq(dk_ffn_tensors_find(ck, &config, 0, 0, &f, &err), -ENOTSUP);
    expect_words(err.text, "'model.layers.0.mlp.gate_proj.weight'|BF16|'model.layers.0.mlp.down_proj.weight'|F32");
    open_header(DENSE(TENSOR("model.layers.0.mlp.down_proj.weight", "BF16", "[2,3]", 24, 36)), 36);
    cr_expect_eq(dk_ffn_tensors_find(ck, &config, 0, 0, &f, &err), -EINVAL);
    expect_words(err.text, "down_proj|[2, 3]|[3, 2]");
    cr_expect_eq(dk_ffn_tensors_find(ck, &config, 1, 3, &f, &err), -ENOENT);
    expect_words(err.text, "'model.layers.1.mlp.experts.3.gate_proj.weight'");
}

#define UP   "model.language_model.layers.1.mlp.experts.gate_up_proj"
#define DOWN "model.language_model.layers.1.mlp.experts.down_proj"

/* gate_up [5][8][3]: 48 bytes an expert, gate first; down [5][3][4]: 24 bytes an expert. */
Test(ffn_tensors, fused_experts)
{
    const uint8_t *gate_up, *down;

    open_header("{" TENSOR(UP, "BF16", "[5,8,3]", 0, 240) "," TENSOR(DOWN, "BF16", "[5,3,4]", 240, 360) "}", 360);
    gate_up = dk_checkpoint_find(ck, UP)->data;
    down = dk_checkpoint_find(ck, DOWN)->data;
    for (uint32_t e = 0; e < 5; e++) {
        cr_assert_eq(dk_ffn_tensors_find(ck, &config, 1, e, &f, &err), 0, "%s", err.text);
        weight_at(0, 4, 3, 48 * e, gate_up);
        weight_at(1, 4, 3, 48 * e + 24, gate_up);
        weight_at(2, 3, 4, 24 * e, down);
        cr_expect_str_eq(f.weight[1].name, UP);
    }
}

Test(ffn_tensors, fused_experts_are_marked_used)
{
    open_header("{" TENSOR(UP, "BF16", "[5,8,3]", 0, 240) "," TENSOR(DOWN, "BF16", "[5,3,4]", 240, 360) "}", 360);
    cr_expect_eq(unused(), 2);
    cr_assert_eq(dk_ffn_tensors_find(ck, &config, 1, 0, &f, &err), 0, "%s", err.text);
    cr_expect_eq(unused(), 0);
}

Test(ffn_tensors, fused_experts_refused)
{
    open_header("{" TENSOR(UP, "BF16", "[5,8,3]", 0, 240) "}", 240);
    cr_expect_eq(dk_ffn_tensors_find(ck, &config, 1, 0, &f, &err), -ENOENT);
    expect_words(err.text, "experts.down_proj");
    open_header("{" TENSOR(UP, "BF16", "[5,3,8]", 0, 240) "," TENSOR(DOWN, "BF16", "[5,3,4]", 240, 360) "}", 360);
    cr_expect_eq(dk_ffn_tensors_find(ck, &config, 1, 0, &f, &err), -EINVAL);
    expect_words(err.text, "gate_up_proj|[5, 3, 8]|[5, 8, 3]");
    open_header("{" TENSOR(UP, "BF16", "[5,8,3]", 0, 240) "," TENSOR(DOWN, "F32", "[5,3,4]", 240, 480) "}", 480);
    cr_expect_eq(dk_ffn_tensors_find(ck, &config, 1, 0, &f, &err), -ENOTSUP);
    expect_words(err.text, "gate_up_proj|BF16|down_proj|F32");
    open_header("{" TENSOR(UP, "F8_E4M3", "[5,8,3]", 0, 120) "," TENSOR(DOWN, "BF16", "[5,3,4]", 120, 240) "}", 240);
    cr_expect_eq(dk_ffn_tensors_find(ck, &config, 1, 0, &f, &err), -EINVAL);
    expect_words(err.text, "gate_up_proj|F8_E4M3|BF16, F16 or F32");
}

/* Real files: an expert and a dense layer with their scales. */
Test(ffn_tensors, fp8)
{
    static const char dir[] = FIXTURES "/deepseek_v3-fp8-tiny";
    struct dk_model_config c;

    cr_assert_eq(dk_model_config_load(dir, &c, &err), 0, "%s", err.text);
    cr_assert_eq(dk_checkpoint_open(dir, &ck, &err), 0, "%s", err.text);
    for (uint32_t layer = 0; layer < 2; layer++) {
        cr_assert_eq(dk_ffn_tensors_find(ck, &c, layer, layer ? 31 : 0, &f, &err), 0, "%s", err.text);
        for (unsigned i = 0; i < 3; i++) {
            cr_expect_eq(f.weight[i].type, DK_F8_E4M3);
            cr_expect_eq(f.weight[i].shape[i < 2 ? 0 : 1], dk_ffn_width(&c, layer));
            cr_assert(f.scale[i]);
            cr_expect_eq(f.scale[i]->shape[0], (f.weight[i].shape[0] + 127) / 128);
        }
    }
    cr_expect_str_eq(f.scale[1]->name, "model.layers.1.mlp.experts.31.up_proj.weight_scale_inv");
}
