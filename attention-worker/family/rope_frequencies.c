/* SPDX-License-Identifier: Apache-2.0 */
/* The released models were trained and are run with frequencies that were computed in f32, each operation rounded, and
 * at position 10000 one unit in the last place of a fast pair's frequency is an angle of 1e-3. So this code rounds
 * where the reference implementation (transformers, modeling_rope_utils.py) does: vectors are f32, scalars are double
 * until they meet a vector. */
#include "attention-worker/family/rope_frequencies.h"

#include <math.h>

#define PI 3.14159265358979323846

/* theta^(2i / dims). The power is computed in double and rounded once, because powf() differs between C libraries. */
static float period(const struct dk_rope_config *c, uint32_t i)
{
    float exponent = (float)(2 * i) / (float)c->dims;

    return (float)pow(c->theta, (double)exponent);
}

/* Wavelengths above original_context / low_freq_factor are stretched by factor, those below original_context /
 * high_freq_factor stay, and between them the share of the stretched frequency goes from 1 to 0. */
static float llama3(const struct dk_rope_config *c, float plain)
{
    float wavelength = (float)(2 * PI) / plain;
    float longest = (float)(c->original_context / c->low_freq_factor);
    float shortest = (float)(c->original_context / c->high_freq_factor);
    float smooth;

    if (wavelength > longest)
        return plain / (float)c->factor;
    if (wavelength < shortest)
        return plain;
    smooth = ((float)c->original_context / wavelength - (float)c->low_freq_factor) /
             (float)(c->high_freq_factor - c->low_freq_factor);
    return (1.0f - smooth) * plain / (float)c->factor + smooth * plain;
}

/* The (fractional) pair that turns `rotations` times within the original context. */
static double yarn_pair(const struct dk_rope_config *c, double rotations)
{
    return c->dims * log(c->original_context / (rotations * 2 * PI)) / (2 * log(c->theta));
}

struct yarn_ramp {
    double begin, end; /* pairs: before begin frequencies stay, from end on they are divided by factor */
};

static struct yarn_ramp yarn_ramp_of(const struct dk_rope_config *c)
{
    struct yarn_ramp r = {yarn_pair(c, c->beta_fast), yarn_pair(c, c->beta_slow)};

    if (c->truncate) {
        r.begin = floor(r.begin);
        r.end = ceil(r.end);
    }
    r.begin = fmax(r.begin, 0);
    r.end = fmin(r.end, c->dims - 1); /* dims, not dims / 2: as released */
    if (r.begin == r.end)
        r.end += 0.001; /* a step instead of a division by zero */
    return r;
}

static float yarn(const struct dk_rope_config *c, const struct yarn_ramp *r, uint32_t i)
{
    float whole = period(c, i);
    float ramp = ((float)i - (float)r->begin) / (float)(r->end - r->begin);
    float kept = 1.0f - fminf(fmaxf(ramp, 0.0f), 1.0f);

    return 1.0f / ((float)c->factor * whole) * (1.0f - kept) + 1.0f / whole * kept;
}

/* m(s) of the YaRN paper's section 3.4, with DeepSeek's multiplier s. */
static double yarn_mscale(const struct dk_rope_config *c, double s)
{
    return c->factor <= 1 ? 1.0 : 0.1 * s * log(c->factor) + 1.0;
}

static float yarn_attention_factor(const struct dk_rope_config *c)
{
    if (c->attention_factor != 0)
        return (float)c->attention_factor;
    if (c->mscale != 0 && c->mscale_all_dim != 0)
        return (float)(yarn_mscale(c, c->mscale) / yarn_mscale(c, c->mscale_all_dim));
    return (float)yarn_mscale(c, 1);
}

float dk_rope_frequencies(const struct dk_rope_config *c, float *inverse_frequency)
{
    struct yarn_ramp ramp = {0, 0};

    if (c->scaling == DK_ROPE_YARN)
        ramp = yarn_ramp_of(c);
    for (uint32_t i = 0; i < c->dims / 2; i++) {
        float plain = 1.0f / period(c, i);

        switch (c->scaling) {
        case DK_ROPE_PLAIN:
            inverse_frequency[i] = plain;
            break;
        case DK_ROPE_LINEAR:
            inverse_frequency[i] = plain / (float)c->factor;
            break;
        case DK_ROPE_LLAMA3:
            inverse_frequency[i] = llama3(c, plain);
            break;
        case DK_ROPE_YARN:
            inverse_frequency[i] = yarn(c, &ramp, i);
            break;
        }
    }
    return c->scaling == DK_ROPE_YARN ? yarn_attention_factor(c) : 1.0f;
}

float dk_rope_softmax_factor(const struct dk_rope_config *c)
{
    double m = c->scaling == DK_ROPE_YARN && c->mscale_all_dim != 0 ? yarn_mscale(c, c->mscale_all_dim) : 1.0;

    return (float)(m * m);
}
