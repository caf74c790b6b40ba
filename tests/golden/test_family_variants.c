/* SPDX-License-Identifier: Apache-2.0 */
/* The small models as other releases store them: other types, fused experts, no prefix, queries without a latent.
 * make_variants.py writes the folders. */
#include "golden_file.h"
#include "golden_models.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define LOGIT_LIMIT 1e-3

static void open_variant(struct local_model *m, const char *variant)
{
    struct local_options o = local_defaults();
    struct dk_err err = {0};
    char path[512];

    snprintf(path, sizeof(path), VARIANTS "/%s", variant);
    cr_assert_eq(local_open(m, path, &o, &err), 0, "%s: %s", variant, err.text);
}

static void last_logits(struct local_model *m, const struct golden_prompt *p, float *logits)
{
    cr_assert_eq(local_step(m, &(struct local_rows){1, 0, p->count, p->ids}, 1, false, logits), 0);
    dk_cache_release(m->cache, 1);
}

/* The last logits of all prompts of `model` against expected ones, which are in tests/fixtures/`golden`. */
static void check_variant(const char *model, const char *variant, const char *golden)
{
    struct golden_prompt prompts[GOLDEN_PROMPTS_MAX];
    uint32_t count = golden_prompts(model, prompts);
    struct golden_tensors tensors;
    struct local_model m;
    double largest = 0;
    float *logits;

    golden_tensors_open(&tensors, golden);
    open_variant(&m, variant);
    logits = malloc(m.config.vocab * sizeof(float));
    for (uint32_t p = 0; p < count; p++) {
        size_t vocab;
        float *expected = golden_tensor(&tensors, &vocab, "%s.last", prompts[p].name);

        cr_assert_eq(vocab, m.config.vocab);
        last_logits(&m, &prompts[p], logits);
        largest = fmax(largest, golden_difference(logits, expected, vocab));
        free(expected);
    }
    printf("%s: last logits of %u prompts differ by at most %.2e\n", variant, count, largest);
    cr_expect_leq(largest, LOGIT_LIMIT, "%s: %g", variant, largest);
    free(logits);
    local_close(&m);
    golden_tensors_close(&tensors);
    golden_prompts_free(prompts, count);
}

Test(family_variants, bf16_where_others_have_f32)
{
    check_variant("qwen3_5-fp8-tiny", "qwen3_5-fp8-tiny.bf16", FIXTURES "/recast/qwen3_5-fp8-tiny.bf16.safetensors");
}

Test(family_variants, f32_where_others_have_bf16)
{
    check_variant("qwen3_5-fp8-tiny", "qwen3_5-fp8-tiny.f32", FIXTURES "/recast/qwen3_5-fp8-tiny.f32.safetensors");
}

Test(family_variants, fused_experts)
{
    check_variant("qwen3_5_moe-fp8-tiny", "qwen3_5_moe-fp8-tiny.fuse",
                  FIXTURES "/recast/qwen3_5_moe-fp8-tiny.fuse.safetensors");
}

Test(family_variants, text_only)
{
    check_variant("qwen3_5-fp8-tiny", "qwen3_5-fp8-tiny.text", FIXTURES "/qwen3_5-fp8-tiny/golden/logits.safetensors");
    check_variant("qwen3_5_moe-fp8-tiny", "qwen3_5_moe-fp8-tiny.text",
                  FIXTURES "/qwen3_5_moe-fp8-tiny/golden/logits.safetensors");
}

Test(family_variants, queries_without_a_latent)
{
    struct golden_prompt prompts[GOLDEN_PROMPTS_MAX];
    uint32_t count = golden_prompts("deepseek_v3-fp8-tiny", prompts);
    struct local_model latent, plain;
    double largest = 0;
    float *a, *b;

    open_variant(&latent, "deepseek_v3-fp8-tiny.latent");
    open_variant(&plain, "deepseek_v3-fp8-tiny.plain");
    cr_assert_eq(latent.config.mla.q_rank, latent.config.hidden);
    cr_assert_eq(plain.config.mla.q_rank, 0);
    a = malloc(latent.config.vocab * sizeof(float));
    b = malloc(plain.config.vocab * sizeof(float));
    for (uint32_t p = 0; p < count; p++) {
        last_logits(&latent, &prompts[p], a);
        last_logits(&plain, &prompts[p], b);
        largest = fmax(largest, golden_difference(a, b, plain.config.vocab));
    }
    printf("queries with and without a latent: last logits of %u prompts differ by at most %.2e\n", count, largest);
    cr_expect_leq(largest, LOGIT_LIMIT, "%g", largest);
    free(a);
    free(b);
    local_close(&latent);
    local_close(&plain);
    golden_prompts_free(prompts, count);
}
