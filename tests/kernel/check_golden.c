/* SPDX-License-Identifier: Apache-2.0 */
/* The MoE block of a small checkpoint against values of an outside reference (tests/fixtures): every ISA level, any
 * number of ducks, slices that cut scale blocks, uneven and empty parts. Partial sums are added in slot order.
 * check_golden LEVEL: 77 if this CPU cannot run the level, which ctest reports as skipped. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/kernel.h"
#include "model/checkpoint.h"
#include "plan/plan.h"

#define CHECK(condition, ...)                       \
    do {                                            \
        if (!(condition)) {                         \
            fprintf(stderr, "line %d: ", __LINE__); \
            fprintf(stderr, __VA_ARGS__);           \
            exit(1);                                \
        }                                           \
    } while (0)

#define DIR     FIXTURES "/qwen3-moe-fp8-tiny"
#define LAYERS  3
#define EXPERTS 16
#define HIDDEN  256
#define INTER   192
#define ROWS    19
#define TOP_K   4

struct golden {
    struct dk_checkpoint *model, *trace;
    uint8_t *trace_bytes;
};

static uint8_t *read_file(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data;

    CHECK(f, "%s: cannot open", path);
    CHECK(fseek(f, 0, SEEK_END) == 0, "%s: cannot seek", path);
    *bytes = (size_t)ftell(f);
    rewind(f);
    data = malloc(*bytes);
    CHECK(data && fread(data, 1, *bytes, f) == *bytes, "%s: cannot read", path);
    fclose(f);
    return data;
}

static void golden_open(struct golden *g)
{
    struct dk_err err = {0};
    size_t bytes;

    CHECK(dk_checkpoint_open(DIR, &g->model, &err) == 0, "%s", err.text);
    g->trace_bytes = read_file(DIR "/golden/trace.safetensors", &bytes);
    CHECK(dk_checkpoint_from_memory(g->trace_bytes, bytes, "trace", &g->trace, &err) == 0, "%s", err.text);
}

static void golden_close(struct golden *g)
{
    dk_checkpoint_close(g->model);
    dk_checkpoint_close(g->trace);
    free(g->trace_bytes);
}

/* A copy, because tensors in files are not aligned. */
static void *trace_tensor(struct golden *g, int layer, const char *name, size_t bytes)
{
    const struct dk_tensor *t;
    char full[64];
    void *copy = malloc(bytes);

    snprintf(full, sizeof full, "layer.%d.moe.%s", layer, name);
    t = dk_checkpoint_find(g->trace, full);
    CHECK(t && copy && t->bytes == bytes, "%s: missing or of another size", full);
    memcpy(copy, t->data, bytes);
    return copy;
}

static void source_of(struct golden *g, int layer, int expert, const char *part, uint32_t rows, uint32_t cols,
                      uint32_t row_begin, uint32_t col_begin, struct dk_matrix_source *src)
{
    const struct dk_tensor *w, *s;
    struct dk_err err = {0};
    char name[96];

    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.%s_proj.weight", layer, expert, part);
    CHECK(dk_checkpoint_get_weight(g->model, name, rows, cols, &w, &s, &err) == 0, "%s", err.text);
    CHECK(s, "%s: no scales", name);
    *src = (struct dk_matrix_source){
        .data = w->data + (size_t)row_begin * cols + col_begin,
        .type = w->type,
        .row_stride = cols,
        .row_origin = row_begin,
        .col_origin = col_begin,
        .scale_type = s->type,
        .scale_stride = s->shape[1],
    };
    src->scales = s->data + (row_begin / 128 * src->scale_stride + col_begin / 128) * dk_dtype_bytes(s->type);
}

static void load_slice(struct golden *g, int layer, struct dk_slice slice, struct dk_ffn *ffn)
{
    struct dk_err err = {0};

    for (int id = 0; id < EXPERTS; id++) {
        struct dk_matrix_source gate, up, down;
        uint32_t width = slice.end - slice.begin, half = width / 64 * 32;

        CHECK(dk_ffn_alloc(&ffn[id], DK_F8_E4M3, HIDDEN, width, slice.begin, 1) == 0, "no memory");
        /* In two pieces, as a duck is fed. */
        for (int piece = 0; piece < 2; piece++) {
            uint32_t begin = piece ? half : 0, end = piece ? width : half, at = slice.begin + begin;

            if (begin == end)
                continue;
            source_of(g, layer, id, "gate", INTER, HIDDEN, at, 0, &gate);
            source_of(g, layer, id, "up", INTER, HIDDEN, at, 0, &up);
            source_of(g, layer, id, "down", HIDDEN, INTER, 0, at, &down);
            CHECK(dk_ffn_pack(&ffn[id], begin, end, &gate, &up, &down, &err) == 0, "%s", err.text);
        }
    }
}

/* The block's output with `ducks` ducks, all rows at once and then one by one. */
static void run_block(const struct dk_kernels *k, struct dk_exec *e, struct golden *g, int layer, uint32_t ducks,
                      uint32_t multiple_of, const float *in, const int32_t *ids, const float *weights, float *out)
{
    float *part = malloc(ROWS * HIDDEN * sizeof *part), *alone = malloc(HIDDEN * sizeof *alone);
    struct dk_ffn ffn[EXPERTS];

    memset(out, 0, ROWS * HIDDEN * sizeof *out);
    for (uint32_t slot = 0; slot < ducks; slot++) {
        struct dk_slice slice;
        void *scratch;

        CHECK(dk_plan_slice(INTER, multiple_of, ducks, slot, &slice, NULL) == 0, "no slice");
        load_slice(g, layer, slice, ffn);
        scratch = malloc(dk_moe_scratch_bytes(ROWS, TOP_K, EXPERTS, slice.end - slice.begin));
        CHECK(scratch && part && alone, "no memory");
        dk_moe(k, e, ffn, EXPERTS, ROWS, TOP_K, in, ids, weights, part, scratch);
        for (int i = 0; i < ROWS; i++) {
            dk_moe(k, e, ffn, EXPERTS, 1, TOP_K, in + i * HIDDEN, ids + i * TOP_K, weights + i * TOP_K, alone, scratch);
            CHECK(memcmp(alone, part + i * HIDDEN, HIDDEN * sizeof *alone) == 0,
                  "layer %d, %u ducks, slot %u: row %d alone differs", layer, ducks, slot, i);
        }
        for (int i = 0; i < ROWS * HIDDEN; i++)
            out[i] += part[i];
        free(scratch);
        for (int id = 0; id < EXPERTS; id++)
            dk_ffn_free(&ffn[id]);
    }
    free(part);
    free(alone);
}

static void check_layer(const struct dk_kernels *k, struct golden *g, int layer)
{
    static const uint32_t ducks[] = {1, 2, 3, 4, 6, 7};
    float *in = trace_tensor(g, layer, "in", ROWS * HIDDEN * 4),
          *want = trace_tensor(g, layer, "out", ROWS * HIDDEN * 4);
    float *weights = trace_tensor(g, layer, "expert_weights", ROWS * TOP_K * 4);
    int32_t *ids = trace_tensor(g, layer, "expert_ids", ROWS * TOP_K * 4);
    float *out = malloc(ROWS * HIDDEN * sizeof *out), *ref = malloc(ROWS * HIDDEN * sizeof *ref);
    struct dk_exec *e;

    CHECK(out && ref, "no memory");
    CHECK(dk_exec_open(2, false, &e) == 0, "no threads");
    for (size_t d = 0; d < sizeof ducks / sizeof *ducks; d++)
        for (uint32_t multiple_of = 32; multiple_of <= 64; multiple_of += 32) {
            double error = 0, size = 0;

            run_block(k, e, g, layer, ducks[d], multiple_of, in, ids, weights, out);
            for (int i = 0; i < ROWS * HIDDEN; i++) {
                error += ((double)out[i] - (double)want[i]) * ((double)out[i] - (double)want[i]);
                size += (double)want[i] * (double)want[i];
            }
            CHECK(sqrt(error / size) <= 1e-5, "%s: layer %d, %u ducks in units of %u: relative error %g",
                  dk_isa_name(dk_kernels_isa(k)), layer, ducks[d], multiple_of, sqrt(error / size));
            if (dk_kernels_isa(k) == DK_ISA_REF || layer || d % 3 != 1)
                continue;
            run_block(dk_kernels_get(DK_ISA_REF), e, g, layer, ducks[d], multiple_of, in, ids, weights, ref);
            CHECK(memcmp(out, ref, ROWS * HIDDEN * sizeof *out) == 0, "%s and the reference differ",
                  dk_isa_name(dk_kernels_isa(k)));
        }
    dk_exec_close(e);
    free(in);
    free(want);
    free(weights);
    free(ids);
    free(out);
    free(ref);
}

int main(int argc, char **argv)
{
    enum dk_isa isa;
    struct golden g;
    int rc = argc == 2 ? dk_isa_parse(argv[1], &isa) : -EINVAL;

    if (rc == -ENOTSUP) {
        printf("skipped: this CPU cannot run %s\n", argv[1]);
        return 77;
    }
    CHECK(rc == 0, "usage: check_golden ref|avx2|avx512");
    golden_open(&g);
    for (int layer = 0; layer < LAYERS; layer++)
        check_layer(dk_kernels_get(isa), &g, layer);
    golden_close(&g);
    return 0;
}
