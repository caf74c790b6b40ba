/* SPDX-License-Identifier: Apache-2.0 */
#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/coordinator_internal.h"

/* Values of prompt positions: logits, scores and traces, from the worker's result into events. Each position's come
 * once: `told` of the sequence says up to where, whatever the steps and losses of caches were. They are large, so those
 * that wait for their readers are bounded: each sequence's by the scheduler, and all together here. */

#define TENSOR_HEAD_BYTES 96u /* name, type and shape, and what frames them */

/* ---- how large a trace is */

struct trace_size {
    uint64_t elements, tensors;
};

static void add_mixer(const struct dk_model_config *m, uint32_t layer, uint64_t tokens, struct trace_size *s)
{
    const struct dk_delta_config *d = &m->delta;
    uint64_t channels = 2ull * d->key_heads * d->key_dim + (uint64_t)d->value_heads * d->value_dim;

    s->tensors += 2;
    switch ((enum dk_mixer)m->mixer[layer]) {
    case DK_MIXER_DELTA: /* states, whatever the tokens */
        s->elements += channels * (d->conv_taps - 1) + (uint64_t)d->value_heads * d->key_dim * d->value_dim;
        break;
    case DK_MIXER_MLA:
        s->elements += tokens * (m->mla.kv_rank + (uint64_t)m->mla.rope_dim);
        s->elements += m->index.heads ? tokens * (m->index.dim + (uint64_t)m->index.top_k) : 0;
        s->tensors += m->index.heads ? 2 : 0;
        break;
    case DK_MIXER_ATTENTION:
        s->elements += tokens * 2 * m->kv_heads * m->head_dim;
        break;
    }
}

static void add_layer(const struct dk_model_config *m, uint32_t layer, uint64_t tokens, struct trace_size *s)
{
    s->elements += 2 * tokens * m->hidden; /* mixer_out, out */
    s->tensors += 2;
    add_mixer(m, layer, tokens, s);
    if (!m->layer_is_moe[layer])
        return;
    s->elements += tokens * (2ull * m->hidden + m->experts + 2ull * m->top_k);
    s->tensors += 5;
}

uint64_t dk_trace_bytes(const struct dk_model_config *m, const uint32_t *layers, uint32_t layer_count, uint32_t tokens)
{
    struct trace_size s = {.elements = 2ull * tokens * m->hidden, .tensors = 2}; /* embed, final_norm */

    for (uint32_t i = 0; i < (layer_count ? layer_count : m->layers); i++)
        add_layer(m, layer_count ? layers[i] : i, tokens, &s);
    return s.elements * 4 + s.tensors * TENSOR_HEAD_BYTES;
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

static bool is_logprob(float x)
{
    return x <= 1e-3f && x >= -FLT_MAX; /* rounding may give a little above 0; not for NaN */
}

const char *dk_top_defect(const struct dk_coordinator *c, Dk__TokenLogprob *const *top, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (top[i]->id >= c->model.config.vocab || !is_logprob(top[i]->logprob))
            return "an alternative of the worker is outside the vocabulary, or its score is not a log-probability";
    return NULL;
}

static const char *scores_defect(const struct dk_coordinator *c, const Dk__StepSequence *given,
                                 const Dk__SequenceResult *r)
{
    const char *defect = NULL;

    if (r->n_scores != given->n_tokens - !given->has_next_token)
        return "the worker scored another number of tokens than it was given";
    for (size_t i = 0; i < r->n_scores && !defect; i++) {
        const Dk__TokenScore *t = r->scores[i];

        if (t->id != (i + 1 < given->n_tokens ? given->tokens[i + 1] : given->next_token))
            return "the worker scored another token than the next one";
        if (!is_logprob(t->logprob) || t->n_top > given->score_top)
            return "the worker's score is not a log-probability, or has more alternatives than were asked for";
        defect = dk_top_defect(c, t->top, t->n_top);
    }
    return defect;
}

const char *dk_values_defect(const struct dk_coordinator *c, const Dk__StepSequence *given, const Dk__SequenceResult *r)
{
    const char *defect;

    if (given->want_logits && (!r->has_logits || !r->has_vocab || r->vocab != c->model.config.vocab ||
                               r->logits.len != given->n_tokens * (size_t)r->vocab * sizeof(float)))
        return "the worker's logits have the wrong size";
    defect = given->score ? scores_defect(c, given, r) : NULL;
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

bool dk_values_take(const struct dk_coordinator *c, struct dk_sequence *s, const Dk__StepSequence *given,
                    const Dk__SequenceResult *r)
{
    size_t next = 0;

    if (!s->values_unread)
        s->unread_us = c->now_us;
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

/* ---- too many */

uint64_t dk_values_unread(const struct dk_coordinator *c)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < c->sequence_count; i++)
        bytes += c->sequences[i]->values_unread;
    return bytes;
}

static void strip(Dk__Event *e)
{
    free(e->logits.data);
    e->logits = (ProtobufCBinaryData){0};
    e->has_logits = e->has_vocab = false;
    for (size_t i = 0; i < e->n_scores; i++)
        dk_message_free(e->scores[i]);
    e->n_scores = 0;
    for (size_t i = 0; i < e->n_trace; i++)
        dk_message_free(e->trace[i]);
    e->n_trace = 0;
}

/* The events stay, so that cursors have no gap; the last one, which the reader has not got yet, tells what happened. */
static void values_drop(struct dk_coordinator *c, struct dk_sequence *s)
{
    static const char text[] = "the values were dropped: nobody read them, and those that wait for their readers take "
                               "all the room that there is; read them while they come, and submit it again";
    Dk__Event *last;

    dk_log(DK_LOG_WARN, "sequence.values_drop", "id=%llu bytes=%llu", (unsigned long long)s->id,
           (unsigned long long)s->values_unread);
    dk_sequence_end(c, s, DK__FINISH_REASON__ERROR, DK__CODE__RESOURCE_EXHAUSTED, text);
    for (uint32_t i = 0; i < s->event_count; i++)
        strip(s->events[i]);
    s->values_unread = 0;
    last = s->event_count ? s->events[s->event_count - 1] : NULL;
    if (!last || !last->has_finish)
        return;
    last->finish = DK__FINISH_REASON__ERROR;
    dk_message_free(last->error);
    last->error = dk_status_new(DK__CODE__RESOURCE_EXHAUSTED, text);
}

void dk_values_tick(struct dk_coordinator *c)
{
    while (dk_values_unread(c) >= DK_VALUES_ALL_BYTES) {
        struct dk_sequence *oldest = NULL;

        for (uint32_t i = 0; i < c->sequence_count; i++) {
            struct dk_sequence *s = c->sequences[i];

            if (s->values_unread && (!oldest || s->unread_us < oldest->unread_us))
                oldest = s;
        }
        if (!oldest || c->now_us - oldest->unread_us <= DK_VALUES_GRACE_US)
            return;
        values_drop(c, oldest);
    }
}
