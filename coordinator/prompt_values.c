/* SPDX-License-Identifier: Apache-2.0 */
#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/coordinator_internal.h"

/* Values of prompt positions: logits, scores and traces, from the worker's result into events. Each position's come
 * once: `told` of the sequence says up to where, whatever the steps and losses of caches were. */

#define TENSOR_HEAD_BYTES 96u /* name, type and shape, and what frames them */

/* ---- how large a trace is */

static uint64_t mixer_floats(const struct dk_model_config *m, uint32_t layer, uint64_t tokens)
{
    const struct dk_delta_config *d = &m->delta;
    uint64_t channels = 2ull * d->key_heads * d->key_dim + (uint64_t)d->value_heads * d->value_dim;

    switch ((enum dk_mixer)m->mixer[layer]) {
    case DK_MIXER_DELTA:
        return channels * (d->conv_taps - 1) + (uint64_t)d->value_heads * d->key_dim * d->value_dim;
    case DK_MIXER_MLA:
        return tokens * (m->mla.kv_rank + (uint64_t)m->mla.rope_dim +
                         (m->index.heads ? m->index.dim + (uint64_t)m->index.top_k : 0));
    default:
        return tokens * 2 * m->kv_heads * m->head_dim;
    }
}

uint64_t dk_trace_bytes(const struct dk_model_config *m, uint32_t tokens)
{
    uint64_t floats = 2ull * tokens * m->hidden, tensors = 2; /* embed, final_norm */

    for (uint32_t i = 0; i < m->layers; i++) {
        floats += 2ull * tokens * m->hidden + mixer_floats(m, i, tokens);
        tensors += 6;
        if (!m->layer_is_moe[i])
            continue;
        floats += tokens * (2ull * m->hidden + m->experts + 2ull * m->top_k);
        tensors += 5;
    }
    return floats * sizeof(float) + tensors * TENSOR_HEAD_BYTES;
}

/* ---- what the worker sent */

static bool tensor_is_whole(const Dk__TraceTensor *t)
{
    uint64_t elements = 1;

    if (!t->name[0] || !t->n_shape || t->n_shape > 4)
        return false;
    for (size_t i = 0; i < t->n_shape; i++) {
        if (t->shape[i] && elements > UINT32_MAX / t->shape[i])
            return false;
        elements *= t->shape[i];
    }
    return t->data.len == elements * 4;
}

static const char *scores_defect(const Dk__StepSequence *given, const Dk__SequenceResult *r)
{
    if (r->n_scores != given->n_tokens - !given->has_next_token)
        return "the worker scored another number of tokens than it was given";
    for (size_t i = 0; i < r->n_scores; i++) {
        const Dk__TokenScore *t = r->scores[i];

        if (t->id != (i + 1 < given->n_tokens ? given->tokens[i + 1] : given->next_token))
            return "the worker scored another token than the next one";
        if (!(t->logprob <= 1e-3f && t->logprob >= -FLT_MAX) || t->n_top > given->score_top)
            return "the worker's score is not a log-probability, or has more alternatives than were asked for";
    }
    return NULL;
}

const char *dk_values_defect(const struct dk_coordinator *c, const Dk__StepSequence *given, const Dk__SequenceResult *r)
{
    const char *defect;

    if (given->want_logits && (!r->has_logits || !r->has_vocab || r->vocab != c->model.config.vocab ||
                               r->logits.len != given->n_tokens * (size_t)r->vocab * sizeof(float)))
        return "the worker's logits have the wrong size";
    defect = given->score ? scores_defect(given, r) : NULL;
    if (defect)
        return defect;
    if (given->trace && !r->n_trace)
        return "the worker sent no trace";
    for (size_t i = 0; given->trace && i < r->n_trace; i++)
        if (!tensor_is_whole(r->trace[i]))
            return "a tensor of the worker's trace has a shape that its data do not fill";
    return NULL;
}

/* ---- events */

static bool take_logits(struct dk_sequence *s, const Dk__SequenceResult *r)
{
    Dk__Event *e = dk_sequence_event(s);

    if (!e)
        return false;
    e->logits.data = malloc(r->logits.len);
    if (!e->logits.data)
        return false;
    memcpy(e->logits.data, r->logits.data, r->logits.len);
    e->logits.len = r->logits.len;
    e->has_logits = e->has_vocab = true;
    e->vocab = r->vocab;
    s->values_unread += dk_event_value_bytes(e);
    return true;
}

static bool take_scores(struct dk_sequence *s, const Dk__SequenceResult *r)
{
    Dk__Event *e;
    bool whole;

    if (!r->n_scores)
        return true;
    e = dk_sequence_event(s);
    if (!e)
        return false;
    e->scores = calloc(r->n_scores, sizeof(Dk__TokenScore *));
    whole = e->scores != NULL;
    for (size_t i = 0; whole && i < r->n_scores; i++) {
        e->scores[i] = dk_message_clone(r->scores[i]);
        whole = e->scores[i] != NULL;
        e->n_scores += whole;
    }
    s->values_unread += dk_event_value_bytes(e);
    return whole;
}

/* As many tensors in an event as a reply takes, from number *next on. */
static bool take_tensors(struct dk_sequence *s, const Dk__SequenceResult *r, size_t *next)
{
    Dk__Event *e = dk_sequence_event(s);
    uint64_t bytes = 0;

    if (!e)
        return false;
    e->trace = calloc(r->n_trace - *next, sizeof(Dk__TraceTensor *));
    if (!e->trace)
        return false;
    while (*next < r->n_trace) {
        bytes += r->trace[*next]->data.len;
        if (bytes > DK_READ_REPLY_BYTES && e->n_trace)
            break;
        e->trace[e->n_trace] = dk_message_clone(r->trace[*next]);
        if (!e->trace[e->n_trace])
            break;
        e->n_trace++;
        (*next)++;
    }
    s->values_unread += dk_event_value_bytes(e);
    return e->n_trace > 0;
}

bool dk_values_take(struct dk_sequence *s, const Dk__StepSequence *given, const Dk__SequenceResult *r)
{
    size_t next = 0;

    if (given->want_logits && !take_logits(s, r))
        return false;
    if (given->score && !take_scores(s, r))
        return false;
    while (given->trace && next < r->n_trace)
        if (!take_tensors(s, r, &next))
            return false;
    if (given->want_logits || given->score || given->trace)
        s->told = given->position + (uint32_t)given->n_tokens;
    return true;
}
