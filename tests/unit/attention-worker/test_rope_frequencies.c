/* SPDX-License-Identifier: Apache-2.0 */
/* Frequencies and factors as transformers computes them: the output of tests/oracle/rope_goldens.py. */
#include "attention-worker/family/rope_frequencies.h"

#include <criterion/criterion.h>
#include <math.h>

#define PAIRS_MAX 64

static const float qwen3[64] = {
    0x1p+0f,         0x1.9c975ap-1f,  0x1.4c7bcp-1f,   0x1.0beddep-1f,  0x1.afd136p-2f,  0x1.5bf9fep-2f,
    0x1.186a08p-2f,  0x1.c3f06ap-3f,  0x1.6c310ep-3f,  0x1.257b22p-3f,  0x1.d8ffacp-4f,  0x1.7d298cp-4f,
    0x1.33281ap-4f,  0x1.ef0a26p-5f,  0x1.8eec7ep-5f,  0x1.41783ap-5f,  0x1.030dc6p-5f,  0x1.a1835p-6f,
    0x1.507316p-6f,  0x1.0f201p-6f,   0x1.b4f7e4p-7f,  0x1.6020a4p-7f,  0x1.1bc25ap-7f,  0x1.c9548cp-8f,
    0x1.708938p-8f,  0x1.28fb5cp-8f,  0x1.dea41cp-9f,  0x1.81b58ap-9f,  0x1.36d21ap-9f,  0x1.f4f1ep-10f,
    0x1.93aeb8p-10f, 0x1.454deep-10f, 0x1.0624dep-10f, 0x1.a67e5p-11f,  0x1.547688p-11f, 0x1.125c04p-11f,
    0x1.ba2e4ap-12f, 0x1.6453f4p-12f, 0x1.1f24e4p-12f, 0x1.cec924p-13f, 0x1.74eea6p-13f, 0x1.2c8648p-13f,
    0x1.e459c4p-14f, 0x1.864f6ap-14f, 0x1.3a8748p-14f, 0x1.faeba8p-15f, 0x1.987f7cp-15f, 0x1.492f56p-15f,
    0x1.094564p-15f, 0x1.ab8882p-16f, 0x1.58863ap-16f, 0x1.15a1dap-16f, 0x1.bf749ep-17f, 0x1.68941cp-17f,
    0x1.2291c6p-17f, 0x1.d44e64p-18f, 0x1.796182p-18f, 0x1.301c04p-18f, 0x1.ea20ep-19f,  0x1.8af756p-19f,
    0x1.3e47c8p-19f, 0x1.007bd8p-19f, 0x1.9d5ef2p-20f, 0x1.4d1c98p-20f,
};

static const float qwen3_5[32] = {
    0x1p+0f,         0x1.356656p-1f,  0x1.75f036p-2f,  0x1.c3f06ap-3f,  0x1.111aeep-3f,  0x1.4a12acp-4f,
    0x1.8eec7ep-5f,  0x1.e222eep-6f,  0x1.235a72p-6f,  0x1.6020a4p-7f,  0x1.a9942ap-8f,  0x1.012cfap-8f,
    0x1.36d21ap-9f,  0x1.77a7dap-10f, 0x1.c603c4p-11f, 0x1.125c04p-11f, 0x1.4b96cp-12f,  0x1.90c182p-13f,
    0x1.e459c4p-14f, 0x1.24b0fcp-14f, 0x1.61bea4p-15f, 0x1.ab8882p-16f, 0x1.025b56p-16f, 0x1.383f88p-17f,
    0x1.796182p-18f, 0x1.c8198cp-19f, 0x1.139e94p-19f, 0x1.4d1c98p-20f, 0x1.9298aep-21f, 0x1.e6933ap-22f,
    0x1.26091cp-22f, 0x1.635e88p-23f,
};

static const float linear[64] = {
    0x1.555556p-2f,  0x1.27951ep-2f,  0x1.ffed82p-3f,  0x1.bb4faap-3f,  0x1.7fe446p-3f,  0x1.4c6fbep-3f,
    0x1.1fe0cep-3f,  0x1.f2959ep-4f,  0x1.afc19ep-4f,  0x1.75e2b6p-4f,  0x1.43c584p-4f,  0x1.185fe6p-4f,
    0x1.e596bep-5f,  0x1.a480aap-5f,  0x1.6c23e8p-5f,  0x1.3b551ep-5f,  0x1.111112p-5f,  0x1.d8ee96p-6f,
    0x1.998acep-6f,  0x1.62a622p-6f,  0x1.331d02p-6f,  0x1.09f2fep-6f,  0x1.cc9ae2p-7f,  0x1.8ede16p-7f,
    0x1.5967b2p-7f,  0x1.2b1bc2p-7f,  0x1.03046ap-7f,  0x1.c09972p-8f,  0x1.847898p-8f,  0x1.5066eep-8f,
    0x1.234feep-8f,  0x1.f8882ep-9f,  0x1.b4e81ap-9f,  0x1.7a5878p-9f,  0x1.47a24p-9f,   0x1.1bb81cp-9f,
    0x1.eb61ap-10f,  0x1.a984cap-10f, 0x1.707be8p-10f, 0x1.3f1812p-10f, 0x1.1452f6p-10f, 0x1.de92d2p-11f,
    0x1.9e6d78p-11f, 0x1.66e128p-11f, 0x1.36c6ep-11f,  0x1.0d1f26p-11f, 0x1.d2197ap-12f, 0x1.93a026p-12f,
    0x1.5d867ep-12f, 0x1.2ead2ep-12f, 0x1.061b66p-12f, 0x1.c5f36p-13f,  0x1.891ae6p-13f, 0x1.546a3ap-13f,
    0x1.26c986p-13f, 0x1.fe8ce8p-14f, 0x1.ba1e56p-14f, 0x1.7edbdap-14f, 0x1.4b8ac6p-14f, 0x1.1f1a86p-14f,
    0x1.f13e32p-15f, 0x1.ae983ap-15f, 0x1.74e13p-15f,  0x1.42e682p-15f,
};

static const float llama3_1[64] = {
    0x1p+0f,         0x1.a11582p-1f,  0x1.53c38cp-1f,  0x1.14c708p-1f,  0x1.c2ef78p-2f,  0x1.6f56fap-2f,
    0x1.2b3dc6p-2f,  0x1.e788c2p-3f,  0x1.8d276p-3f,   0x1.43874p-3f,   0x1.078d4p-3f,   0x1.ad6338p-4f,
    0x1.5dc95ap-4f,  0x1.1cf13p-4f,   0x1.d03ccep-5f,  0x1.7a2d08p-5f,  0x1.34119p-5f,   0x1.f5ea7ep-6f,
    0x1.98de92p-6f,  0x1.4d1272p-6f,  0x1.0f5386p-6f,  0x1.ba0dd8p-7f,  0x1.681adap-7f,  0x1.2558fep-7f,
    0x1.ddee9ep-8f,  0x1.8554ecp-8f,  0x1.3d2804p-8f,  0x1.025c6ap-8f,  0x1.a4ee4p-9f,   0x1.1bfa0cp-9f,
    0x1.67a23ap-10f, 0x1.c12f3cp-11f, 0x1.132ba4p-11f, 0x1.47e21p-12f,  0x1.765ba4p-13f, 0x1.90d10cp-14f,
    0x1.46831ap-14f, 0x1.09fb7ep-14f, 0x1.b15902p-15f, 0x1.610332p-15f, 0x1.1f91fp-15f,  0x1.d484dep-16f,
    0x1.7da9e8p-16f, 0x1.36e8eap-16f, 0x1.fa8b86p-17f, 0x1.9ca3eap-17f, 0x1.5024d6p-17f, 0x1.11d41ep-17f,
    0x1.be2188p-18f, 0x1.6b6d0ep-18f, 0x1.280d96p-18f, 0x1.e257p-19f,   0x1.88ec2p-19f,  0x1.4014d2p-19f,
    0x1.04be68p-19f, 0x1.a8d01p-20f,  0x1.5a0f4ep-20f, 0x1.19e8p-20f,   0x1.cb4a9ap-21f, 0x1.76258ep-21f,
    0x1.30c94ep-21f, 0x1.f09184p-22f, 0x1.94836p-22f,  0x1.4985fep-22f,
};

static const float deepseek_v3[32] = {
    0x1p+0f,         0x1.7ff222p-1f,  0x1.1feb34p-1f,  0x1.afd136p-2f,  0x1.43d136p-2f,  0x1.e5a846p-3f,
    0x1.6c310ep-3f,  0x1.111aeep-3f,  0x1.99999ap-4f,  0x1.33281ap-4f,  0x1.ccab84p-5f,  0x1.3f8b74p-5f,
    0x1.b86436p-6f,  0x1.2d1b86p-6f,  0x1.97e506p-7f,  0x1.111aeep-7f,  0x1.6872b2p-8f,  0x1.d2e0ccp-9f,
    0x1.26d42cp-9f,  0x1.67459ap-10f, 0x1.9e7c6ep-11f, 0x1.b32624p-12f, 0x1.74eea6p-13f, 0x1.17a8e2p-15f,
    0x1.a36e2ep-16f, 0x1.3a8746p-16f, 0x1.d7b9ep-17f,  0x1.61bea2p-17f, 0x1.094566p-17f, 0x1.8dd9bap-18f,
    0x1.2a5884p-18f, 0x1.bf749ep-19f,
};

static const float qwen2_5_yarn[64] = {
    0x1p+0f,         0x1.9c975ap-1f,  0x1.4c7bcp-1f,   0x1.0beddep-1f,  0x1.afd136p-2f,  0x1.5bf9fep-2f,
    0x1.186a08p-2f,  0x1.c3f06ap-3f,  0x1.6c310ep-3f,  0x1.257b22p-3f,  0x1.d8ffacp-4f,  0x1.7d298cp-4f,
    0x1.33281ap-4f,  0x1.ef0a26p-5f,  0x1.8eec7ep-5f,  0x1.41783ap-5f,  0x1.030dc6p-5f,  0x1.a1835p-6f,
    0x1.507316p-6f,  0x1.0f201p-6f,   0x1.b4f7e4p-7f,  0x1.6020a4p-7f,  0x1.1bc25ap-7f,  0x1.c9548cp-8f,
    0x1.6046eep-8f,  0x1.0ec71p-8f,   0x1.9f4aap-9f,   0x1.3da49p-9f,   0x1.e483bep-10f, 0x1.70578p-10f,
    0x1.17040ep-10f, 0x1.a4fb7p-11f,  0x1.3c1d64p-11f, 0x1.d832dp-12f,  0x1.5e7a04p-12f, 0x1.02387cp-12f,
    0x1.79277cp-13f, 0x1.107c6ep-13f, 0x1.847d34p-14f, 0x1.103a14p-14f, 0x1.74eea6p-15f, 0x1.2c8648p-15f,
    0x1.e459c4p-16f, 0x1.864f6ap-16f, 0x1.3a8748p-16f, 0x1.faeba8p-17f, 0x1.987f7cp-17f, 0x1.492f56p-17f,
    0x1.094564p-17f, 0x1.ab8882p-18f, 0x1.58863ap-18f, 0x1.15a1dap-18f, 0x1.bf749ep-19f, 0x1.68941cp-19f,
    0x1.2291c6p-19f, 0x1.d44e64p-20f, 0x1.796182p-20f, 0x1.301c04p-20f, 0x1.ea20ep-21f,  0x1.8af756p-21f,
    0x1.3e47c8p-21f, 0x1.007bd8p-21f, 0x1.9d5ef2p-22f, 0x1.4d1c98p-22f,
};

static const float yarn_wide_ramp[16] = {
    0x1p+0f,        0x1.1feb34p-1f,  0x1.43d136p-2f,  0x1.6c310ep-3f,  0x1.99999ap-4f, 0x1.ccab84p-5f,
    0x1.030dc6p-5f, 0x1.235a72p-6f,  0x1.47ae14p-7f,  0x1.708938p-8f,  0x1.9e7c7p-9f,  0x1.d22a5p-10f,
    0x1.e6d6cp-11f, 0x1.f96bb8p-12f, 0x1.0488bcp-12f, 0x1.0a6152p-13f,
};

static const float yarn_untruncated[32] = {
    0x1p+0f,         0x1.60ca6ap-1f,  0x1.e62d44p-2f,  0x1.4eff54p-2f,  0x1.cda7f4p-3f,  0x1.3e19fap-3f,
    0x1.b65f3cp-4f,  0x1.2e0ec8p-4f,  0x1.a04328p-5f,  0x1.03bbaap-5f,  0x1.3cc8ep-6f,   0x1.7bd928p-7f,
    0x1.bd508p-8f,   0x1.f9fc28p-9f,  0x1.127006p-9f,  0x1.13eefp-10f,  0x1.dea878p-12f, 0x1.0f3372p-13f,
    0x1.415b8cp-15f, 0x1.badbf8p-16f, 0x1.31265p-16f,  0x1.a485f4p-17f, 0x1.21c258p-17f, 0x1.8f5056p-18f,
    0x1.132518p-18f, 0x1.7b2c8ep-19f, 0x1.05448ap-19f, 0x1.680cdp-20f,  0x1.f02e5p-21f,  0x1.55e4p-21f,
    0x1.d727d6p-22f, 0x1.44a5a6p-22f,
};

#define ROTATED(table) .dims = 2 * sizeof(table) / sizeof(table[0])
#define YARN(theta_, factor_, original)                                                                               \
    .theta = (theta_), .scaling = DK_ROPE_YARN, .factor = (factor_), .original_context = (original), .beta_fast = 32, \
    .beta_slow = 1

static const struct {
    const char *name;
    const float *frequencies;
    float attention_factor, softmax_factor;
    struct dk_rope_config config;
} cases[] = {
    {"Qwen3", qwen3, 1, 1, {ROTATED(qwen3), .theta = 1e6}},
    {"Qwen3.5: 64 of 256 dimensions", qwen3_5, 1, 1, {ROTATED(qwen3_5), .theta = 1e7}},
    {"linear", linear, 1, 1, {ROTATED(linear), .theta = 1e4, .scaling = DK_ROPE_LINEAR, .factor = 3}},
    {"Llama-3.1-8B",
     llama3_1,
     1,
     1,
     {ROTATED(llama3_1), .theta = 5e5, .scaling = DK_ROPE_LLAMA3, .factor = 8, .original_context = 8192,
      .low_freq_factor = 1, .high_freq_factor = 4}},
    {"DeepSeek-V3",
     deepseek_v3,
     1,
     0x1.dfb4e8p+0f,
     {ROTATED(deepseek_v3), YARN(1e4, 40, 4096), .mscale = 1, .mscale_all_dim = 1, .truncate = true}},
    {"two different mscales",
     deepseek_v3,
     0x1.108108p+0f,
     0x1.6724f2p+0f,
     {ROTATED(deepseek_v3), YARN(1e4, 40, 4096), .mscale = 0.707, .mscale_all_dim = 0.5, .truncate = true}},
    {"Qwen2.5 with YaRN",
     qwen2_5_yarn,
     0x1.237d38p+0f,
     1,
     {ROTATED(qwen2_5_yarn), YARN(1e6, 4, 32768), .truncate = true}},
    {"YaRN with a ramp that ends behind the last pair",
     yarn_wide_ramp,
     0x1.11be9cp+0f,
     1,
     {ROTATED(yarn_wide_ramp), YARN(1e4, 2, 131072), .truncate = true}},
    {"YaRN with a ramp between pairs",
     yarn_untruncated,
     1.25f,
     1,
     {ROTATED(yarn_untruncated), YARN(150000, 32, 4096), .attention_factor = 1.25, .truncate = false}},
};
#define CASES (sizeof(cases) / sizeof(cases[0]))

Test(rope_frequencies, same_bits_as_transformers)
{
    for (size_t i = 0; i < CASES; i++) {
        float got[PAIRS_MAX + 1];
        uint32_t pairs = cases[i].config.dims / 2;

        got[pairs] = -1;
        dk_rope_frequencies(&cases[i].config, got);
        for (uint32_t j = 0; j < pairs; j++)
            cr_expect_eq(got[j], cases[i].frequencies[j], "%s, pair %u: %a, not %a", cases[i].name, j, (double)got[j],
                         (double)cases[i].frequencies[j]);
        cr_expect_eq(got[pairs], -1, "%s writes behind the last pair", cases[i].name);
    }
}

Test(rope_frequencies, factors_of_transformers)
{
    for (size_t i = 0; i < CASES; i++) {
        float got[PAIRS_MAX], factor = dk_rope_frequencies(&cases[i].config, got);
        float softmax = dk_rope_softmax_factor(&cases[i].config);

        cr_expect_eq(factor, cases[i].attention_factor, "%s: attention %a", cases[i].name, (double)factor);
        cr_expect_eq(softmax, cases[i].softmax_factor, "%s: softmax %a", cases[i].name, (double)softmax);
    }
}

/* By hand: 64 positions at training, so Llama's bands end at wavelengths 16 and 64; theta 256 over 16 dimensions gives
 * pair i the frequency 2^-i, so the wavelengths are 6.3, 12.6 | 25.1, 50.3 | 100.5 and longer. */
Test(rope_frequencies, three_bands_of_llama3)
{
    const struct dk_rope_config c = {.dims = 16,
                                     .theta = 256,
                                     .scaling = DK_ROPE_LLAMA3,
                                     .factor = 8,
                                     .original_context = 64,
                                     .low_freq_factor = 1,
                                     .high_freq_factor = 4};
    float f[8];

    dk_rope_frequencies(&c, f);
    for (uint32_t i = 0; i < 8; i++) {
        double plain = ldexp(1, -(int)i), turns = 64 * plain / (2 * M_PI), kept = (turns - 1) / 3;

        kept = kept < 0 ? 0 : kept > 1 ? 1 : kept;
        cr_expect_float_eq(f[i], plain * (kept + (1 - kept) / 8), 1e-7 * plain, "pair %u: %g", i, (double)f[i]);
        if (i < 2 || i > 3)
            cr_expect_eq(f[i], (float)(i < 2 ? plain : plain / 8), "pair %u is in no ramp", i);
        else
            cr_expect(f[i] < plain && f[i] > plain / 8, "pair %u is in the ramp", i);
    }
}

/* Both ends of the ramp are pair 0: 32 and 12 turns in 64 positions are faster than any pair. */
Test(rope_frequencies, yarn_ramp_without_width)
{
    const struct dk_rope_config c = {.dims = 16,
                                     .theta = 256,
                                     .scaling = DK_ROPE_YARN,
                                     .factor = 4,
                                     .original_context = 64,
                                     .beta_fast = 32,
                                     .beta_slow = 12,
                                     .truncate = true};
    float f[8];

    dk_rope_frequencies(&c, f);
    cr_expect_eq(f[0], 1.0f, "the ramp begins at pair 0");
    for (int i = 1; i < 8; i++)
        cr_expect_eq(f[i], (float)ldexp(0.25, -i), "pair %d: %g", i, (double)f[i]);
}

/* A factor of 1 or less stretches nothing, so nothing is multiplied. */
Test(rope_frequencies, yarn_factor_below_one)
{
    struct dk_rope_config c = cases[4].config;
    float f[PAIRS_MAX];

    c.factor = 0.5;
    c.mscale = 0.5;
    cr_expect_eq(dk_rope_frequencies(&c, f), 1.0f);
    cr_expect_eq(dk_rope_softmax_factor(&c), 1.0f);
}
