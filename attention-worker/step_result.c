/* SPDX-License-Identifier: Apache-2.0 */
/* A finished step as a message. */
#include <stdlib.h>
#include <string.h>

#include "attention-worker/step.h"

struct top_parts {
    Dk__TokenLogprob top[DK_LOGPROBS_MAX], *list[DK_LOGPROBS_MAX];
};

struct score_parts {
    Dk__TokenScore score;
    struct top_parts top;
};

/* What a sequence's message points to. */
struct sequence_parts {
    Dk__SequenceResult result;
    Dk__Status status;
    struct dk_err err; /* of the sequence, or of packing it */
    struct top_parts top;
    struct score_parts *scores; /* [score_count] */
    Dk__TokenScore **score_list;
    Dk__TraceTensor *trace, **trace_list; /* [trace.count] */
};

static void parts_fini(struct sequence_parts *p)
{
    free(p->scores);
    free(p->score_list);
    free(p->trace);
    free(p->trace_list);
}

static void parts_alloc(struct sequence_parts *p, const struct step_sequence *seq)
{
    p->err = seq->err;
    p->scores = calloc(seq->score_count + 1, sizeof *p->scores);
    p->score_list = calloc(seq->score_count + 1, sizeof(Dk__TokenScore *));
    p->trace = calloc(seq->trace.count + 1, sizeof *p->trace);
    p->trace_list = calloc(seq->trace.count + 1, sizeof(Dk__TraceTensor *));
    if (p->err.rc)
        return;
    if (!p->scores || !p->score_list || !p->trace || !p->trace_list || seq->trace.no_memory)
        dk_err_set(&p->err, -ENOMEM, "no memory for the scores or the trace of %zu tokens", seq->request->n_tokens);
    else if (seq->trace.too_large)
        dk_err_set(&p->err, -E2BIG,
                   "the trace of %zu tokens has %.1f MiB, and at most %.1f are carried: choose fewer layers "
                   "(--trace-layers) or give a shorter prompt",
                   seq->request->n_tokens, (double)seq->trace.bytes / (1 << 20),
                   (double)STEP_TRACE_BYTES_MAX / (1 << 20));
}

static size_t fill_top(const struct dk_sampled *s, struct top_parts *p)
{
    for (uint32_t i = 0; i < s->top_count; i++) {
        dk__token_logprob__init(&p->top[i]);
        p->top[i].id = s->top_ids[i];
        p->top[i].logprob = s->top_logprobs[i];
        p->list[i] = &p->top[i];
    }
    return s->top_count;
}

static Dk__TokenScore *fill_score(const struct dk_sampled *s, struct score_parts *p)
{
    dk__token_score__init(&p->score);
    p->score.id = s->token;
    p->score.logprob = s->logprob;
    p->score.n_top = fill_top(s, &p->top);
    p->score.top = p->top.list;
    return &p->score;
}

static Dk__TraceTensor *fill_trace(struct dk_trace_tensor *t, Dk__TraceTensor *m)
{
    dk__trace_tensor__init(m);
    m->name = t->name;
    m->type = t->type == DK_TRACE_I32 ? DK__TRACE_TYPE__TRACE_I32 : DK__TRACE_TYPE__TRACE_F32;
    m->n_shape = t->rank;
    m->shape = t->shape;
    m->data.data = t->data;
    m->data.len = t->bytes;
    return m;
}

static void fill_sequence(const struct step *s, const struct step_sequence *seq, struct sequence_parts *parts)
{
    Dk__SequenceResult *r = &parts->result;

    dk__sequence_result__init(r);
    r->sequence_id = seq->request->sequence_id;
    if (parts->err.rc) {
        dk__status__init(&parts->status);
        parts->status.code = dk_code_from_errno(parts->err.rc);
        parts->status.text = parts->err.text;
        r->error = &parts->status;
        return;
    }
    if (seq->logits) {
        r->has_logits = r->has_vocab = true;
        r->vocab = s->model->config.vocab;
        r->logits.data = (uint8_t *)seq->logits;
        r->logits.len = seq->request->n_tokens * (size_t)r->vocab * sizeof(float);
    }
    r->n_scores = seq->score_count;
    r->scores = parts->score_list;
    for (uint32_t i = 0; i < seq->score_count; i++)
        parts->score_list[i] = fill_score(&seq->scores[i], &parts->scores[i]);
    r->n_trace = seq->trace.count;
    r->trace = parts->trace_list;
    for (size_t i = 0; i < seq->trace.count; i++)
        parts->trace_list[i] = fill_trace(&seq->trace.tensors[i], &parts->trace[i]);
    if (!seq->sampled)
        return;
    r->has_token = r->has_logprob = true;
    r->token = seq->token.token;
    r->logprob = seq->token.logprob;
    r->n_top = fill_top(&seq->token, &parts->top);
    r->top = parts->top.list;
}

static void fill_timing(const struct step *s, Dk__StepTiming *t)
{
    dk__step_timing__init(t);
#define SET(field, v) (t->has_##field = true, t->field = (v))
    SET(total_us, s->clock_us() - s->timing.begin_us);
    SET(prepare_us, s->timing.prepare_us);
    SET(send_us, s->timing.send_us);
    SET(wait_us, s->timing.wait_us);
    SET(meanwhile_us, s->timing.meanwhile_us);
    SET(fetch_us, s->timing.fetch_us);
    SET(duck_max_us, s->timing.duck_max_us);
    SET(weight_bytes, s->timing.weight_bytes);
    SET(overtaken, s->timing.overtaken);
    SET(rows, s->rows);
    SET(layer_operations, s->timing.operations);
#undef SET
}

uint8_t *step_result(struct step *s, size_t *bytes)
{
    const Dk__Step *step = s->request->step;
    size_t count = s->err.rc ? 0 : step->n_sequences;
    struct sequence_parts *parts = calloc(count + 1, sizeof *parts);
    Dk__SequenceResult **list = calloc(count + 1, sizeof *list);
    Dk__StepResult r = DK__STEP_RESULT__INIT;
    Dk__StepTiming timing;
    Dk__Status status = DK__STATUS__INIT;
    uint8_t *out = NULL;

    r.step_id = step->step_id;
    fill_timing(s, &timing);
    r.timing = &timing;
    if (s->err.rc) {
        status.code = dk_code_from_errno(s->err.rc);
        status.text = s->err.text;
        r.error = &status;
    }
    for (size_t i = 0; parts && list && i < count; i++) {
        parts_alloc(&parts[i], &s->sequences[i]);
        fill_sequence(s, &s->sequences[i], &parts[i]);
        list[i] = &parts[i].result;
    }
    r.n_sequences = count;
    r.sequences = list;
    if (parts && list)
        out = dk_message_pack(&r, bytes);
    for (size_t i = 0; parts && list && i < count; i++)
        parts_fini(&parts[i]);
    free(parts);
    free(list);
    step_forget(s);
    return out;
}
