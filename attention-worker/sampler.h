/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_SAMPLER_H
#define DK_SAMPLER_H

#include <stdint.h>

struct dk_sampling {
    float temperature; /* 0: greedy */
    uint32_t top_k;    /* 0: all */
    float top_p;       /* in (0, 1] */
    uint64_t seed;
    uint32_t logprobs; /* alternatives to report, at most DK_LOGPROBS_MAX */
};

#define DK_LOGPROBS_MAX 20u

struct dk_sampled {
    uint32_t token;
    float logprob; /* natural log, of the model's own distribution (before temperature and cuts) */
    uint32_t top_count;
    uint32_t top_ids[DK_LOGPROBS_MAX];
    float top_logprobs[DK_LOGPROBS_MAX]; /* falling */
};

/* Chooses the next token. Greedy: largest logit, lowest id on ties. Otherwise logits / temperature, then top-k
 * (with all that tie with the k-th), then top-p (the smallest set of the most likely whose share of what top-k left
 * reaches top_p), then one draw that depends only on (seed, position): the same request gives the same tokens whatever
 * else runs. scratch [vocab]. -EDOM: a logit is NaN or +infinity, or none is finite. */
int dk_sample(const float *logits, uint32_t vocab, const struct dk_sampling *s, uint32_t position, uint32_t *scratch,
              struct dk_sampled *out);
/* How likely a given token is: out->token is `token`, with its log-probability and `top` alternatives (at most
 * DK_LOGPROBS_MAX). -EDOM as above. */
int dk_score(const float *logits, uint32_t vocab, uint32_t token, uint32_t top, struct dk_sampled *out);

#endif
