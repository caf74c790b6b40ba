/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/step.h"

#include <stdlib.h>
#include <string.h>

#include "attention-worker/router.h"
#include "base/arena.h"
#include "base/log.h"

static void set_state(struct step *s, enum step_state to)
{
    static const char *const names[STEP_STATES] = {"free", "attend", "await_ducks", "sum", "head", "reply"};

    dk_log(DK_LOG_DEBUG, "step.state", "from=%s to=%s layer=%u", names[s->state], names[to], s->layer);
    s->state = to;
}

int step_open(struct step *s, struct worker_model *m, const struct worker_plan *plan, struct worker_links *links,
              uint32_t rows_max, uint32_t sequences_max, uint64_t (*clock_us)(void), struct dk_err *err)
{
    const struct dk_model_config *c = &m->config;
    uint32_t experts = c->experts ? c->experts : 1, top_k = c->top_k ? c->top_k : 1;

    memset(s, 0, sizeof *s);
    s->model = m;
    s->clock_us = clock_us;
    s->rows_max = rows_max;
    s->sequences_max = sequences_max;
    s->fanout.plan = plan;
    s->fanout.config = c;
    s->fanout.model_id = m->id;
    s->fanout.links = links;
    s->sequences = calloc(sequences_max, sizeof *s->sequences);
    s->spans = calloc(sequences_max, sizeof *s->spans);
    s->head_sequences = calloc(sequences_max, sizeof(struct step_sequence *));
    s->head_rows = calloc(sequences_max, sizeof *s->head_rows);
    s->ids = calloc(rows_max, sizeof *s->ids);
    s->ffn_in = dk_alloc_aligned((size_t)rows_max * c->hidden, sizeof(float));
    s->ffn_out = dk_alloc_aligned((size_t)rows_max * c->hidden, sizeof(float));
    s->router_logits = dk_alloc_aligned((size_t)rows_max * experts, sizeof(float));
    s->expert_ids = dk_alloc_aligned((size_t)rows_max * top_k, sizeof(int32_t));
    s->expert_weights = dk_alloc_aligned((size_t)rows_max * top_k, sizeof(float));
    s->row_ok = calloc(rows_max, sizeof *s->row_ok);
    s->logits = malloc((size_t)sequences_max * c->vocab * sizeof(float));
    s->scratch = malloc((size_t)c->vocab * sizeof *s->scratch);
    if (!s->sequences || !s->spans || !s->head_sequences || !s->head_rows || !s->ids || !s->ffn_in || !s->ffn_out ||
        !s->router_logits || !s->expert_ids || !s->expert_weights || !s->row_ok || !s->logits || !s->scratch)
        return dk_err_set(err, -ENOMEM, "no memory for steps of %u rows and %u sequences", rows_max, sequences_max);
    return 0;
}

static void forget_request(struct step *s)
{
    for (uint32_t i = 0; s->request && i < s->sequences_max; i++) {
        free(s->sequences[i].logits);
        s->sequences[i].logits = NULL;
    }
    if (s->request)
        protobuf_c_message_free_unpacked(&s->request->base, NULL);
    s->request = NULL;
}

void step_close(struct step *s)
{
    if (s->model)
        fanout_abort(&s->fanout);
    forget_request(s);
    free(s->sequences);
    free(s->spans);
    free(s->head_sequences);
    free(s->head_rows);
    free(s->ids);
    free(s->ffn_in);
    free(s->ffn_out);
    free(s->router_logits);
    free(s->expert_ids);
    free(s->expert_weights);
    free(s->row_ok);
    free(s->logits);
    free(s->scratch);
    memset(s, 0, sizeof *s);
}

void step_fail(struct step *s, const struct dk_err *err)
{
    fanout_abort(&s->fanout);
    s->err = *err;
    dk_log(DK_LOG_ERROR, "step.failed", "step=%llu text=\"%s\"",
           s->request ? (unsigned long long)s->request->step->step_id : 0, err->text);
    set_state(s, STEP_REPLY);
}

/* ---- forming the batch */

static int sequence_check(struct step *s, const Dk__StepSequence *q, struct dk_err *err)
{
    uint32_t held = dk_cache_tokens(s->model->cache, q->sequence_id);

    for (const struct step_sequence *other = s->sequences; other->request != q; other++)
        if (other->request->sequence_id == q->sequence_id)
            return dk_err_set(err, -EINVAL, "sequence %llu: twice in one step", (unsigned long long)q->sequence_id);
    if (!q->n_tokens || q->n_tokens > s->rows_max - s->rows)
        return dk_err_set(err, -EINVAL, "sequence %llu: %zu tokens in a step of %u rows",
                          (unsigned long long)q->sequence_id, q->n_tokens, s->rows_max);
    if (q->position && q->position != held)
        return dk_err_set(err, -ESTALE, "sequence %llu: position %u, the cache holds %u tokens",
                          (unsigned long long)q->sequence_id, q->position, held);
    for (size_t i = 0; i < q->n_tokens; i++)
        if (q->tokens[i] >= s->model->config.vocab)
            return dk_err_set(err, -EINVAL, "token %zu is %u; the vocabulary has %u", i, q->tokens[i],
                              s->model->config.vocab);
    return 0;
}

/* Gives a sequence its cache pages and its rows in the batch. */
static void admit(struct step *s, struct step_sequence *seq)
{
    const Dk__StepSequence *q = seq->request;
    const uint32_t *pages;
    struct dk_span *span = &s->spans[s->span_count];
    int rc;

    seq->span = -1;
    if (sequence_check(s, q, &seq->err) < 0)
        return;
    if (q->position == 0)
        dk_cache_release(s->model->cache, q->sequence_id);
    rc = dk_cache_extend(s->model->cache, q->sequence_id, q->position + (uint32_t)q->n_tokens, &pages);
    if (rc < 0) {
        dk_err_set(&seq->err, rc == -E2BIG ? -E2BIG : -ENOSPC,
                   rc == -E2BIG ? "the sequence is longer than the context of %u tokens"
                                : "the cache is full (context %u); fewer sequences at a time, or a larger --cache-mib",
                   s->model->context);
        return;
    }
    seq->span = (int32_t)s->span_count++;
    *span = (struct dk_span){.row = s->rows, .count = (uint32_t)q->n_tokens, .position = q->position, .pages = pages};
    memcpy(s->ids + s->rows, q->tokens, q->n_tokens * sizeof *s->ids);
    s->rows += span->count;
}

void step_begin(struct step *s, Dk__NextStepReply *request)
{
    const Dk__Step *step = request->step;
    struct dk_family_batch batch;

    s->request = request;
    s->rows = s->span_count = s->layer = 0;
    memset(&s->err, 0, sizeof s->err);
    memset(&s->timing, 0, sizeof s->timing);
    memset(s->sequences, 0, s->sequences_max * sizeof *s->sequences);
    s->timing.begin_us = s->clock_us();
    if (step->plan_epoch != s->fanout.plan->epoch || step->n_sequences > s->sequences_max) {
        dk_err_set(&s->err, -ESTALE, "step %llu: plan epoch %llu with %zu sequences; this worker serves %llu with %u",
                   (unsigned long long)step->step_id, (unsigned long long)step->plan_epoch, step->n_sequences,
                   (unsigned long long)s->fanout.plan->epoch, s->sequences_max);
        set_state(s, STEP_REPLY);
        return;
    }
    if (step->has_release_all && step->release_all)
        dk_cache_release_all(s->model->cache);
    for (size_t i = 0; i < step->n_released; i++)
        dk_cache_release(s->model->cache, step->released[i]);
    for (size_t i = 0; i < step->n_sequences; i++) {
        s->sequences[i].request = step->sequences[i];
        admit(s, &s->sequences[i]);
    }
    if (!s->rows) {
        set_state(s, STEP_REPLY);
        return;
    }
    batch = (struct dk_family_batch){.rows = s->rows, .ids = s->ids, .spans = s->spans, .span_count = s->span_count};
    s->model->family->begin(s->model->layers, &batch);
    set_state(s, STEP_ATTEND);
}

/* ---- a layer */

/* Rows whose router gave NaN end their sequence; the rows beside them go on. */
static void mark_bad_rows(struct step *s)
{
    for (uint32_t i = 0; i < s->request->step->n_sequences; i++) {
        struct step_sequence *seq = &s->sequences[i];
        const struct dk_span *span = seq->span < 0 ? NULL : &s->spans[seq->span];

        for (uint32_t r = 0; span && r < span->count && !seq->err.rc; r++)
            if (!s->row_ok[span->row + r])
                dk_err_set(&seq->err, -EBADMSG,
                           "layer %u: a router logit of token %u is not a number: weights in this or an earlier layer "
                           "of %s are damaged; download them again",
                           s->layer, span->position + r, s->model->dir);
    }
}

static void attend(struct step *s, uint64_t now_us)
{
    const struct dk_model_config *c = &s->model->config;
    bool moe = c->layer_is_moe[s->layer];
    uint64_t begin_us = s->clock_us(), prepared_us;
    struct dk_err err = {0};
    int rc;

    s->model->family->attend(s->model->layers, s->layer, s->ffn_in, moe ? s->router_logits : NULL);
    if (moe) {
        dk_router_softmax(s->router_logits, s->rows, c->experts, c->top_k, c->norm_topk, s->expert_ids,
                          s->expert_weights, s->row_ok);
        mark_bad_rows(s);
    }
    prepared_us = s->clock_us();
    rc = fanout_begin(&s->fanout, s->layer, s->rows, s->ffn_in, moe ? s->expert_ids : NULL,
                      moe ? s->expert_weights : NULL, now_us, &err);
    s->timing.prepare_us += prepared_us - begin_us;
    s->fanout.asked_us = s->clock_us();
    s->timing.send_us += s->fanout.asked_us - prepared_us;
    s->timing.operations++;
    if (rc < 0)
        step_fail(s, &err);
    else
        set_state(s, s->fanout.waiting ? STEP_AWAIT_DUCKS : STEP_SUM);
}

static void sum(struct step *s)
{
    uint64_t begin_us = s->clock_us();

    s->timing.wait_us += begin_us - s->fanout.asked_us;
    fanout_sum(&s->fanout, s->ffn_out);
    s->model->family->finish(s->model->layers, s->layer, s->ffn_out);
    s->timing.fetch_us += s->clock_us() - begin_us;
    s->timing.duck_max_us += s->fanout.duck_max_us;
    s->timing.weight_bytes += s->fanout.weight_bytes;
    s->timing.overtaken += s->fanout.overtaken;
    s->layer++;
    set_state(s, s->layer < s->model->config.layers ? STEP_ATTEND : STEP_HEAD);
}

/* ---- head and sampler */

static void sample(struct step *s, struct step_sequence *seq, const float *logits)
{
    const Dk__Sampling *q = seq->request->sampling;
    struct dk_sampling how = {.top_p = 1};
    uint32_t position = seq->request->position + (uint32_t)seq->request->n_tokens;

    if (q) {
        how.temperature = q->temperature;
        how.top_k = q->top_k;
        how.top_p = q->top_p;
        how.seed = q->seed;
        how.logprobs = q->logprobs < DK_LOGPROBS_MAX ? q->logprobs : DK_LOGPROBS_MAX;
    }
    if (dk_sample(logits, s->model->config.vocab, &how, position, s->scratch, &seq->token) < 0)
        dk_err_set(&seq->err, -EBADMSG,
                   "a logit of token %u is not a number: weights in %s are damaged; download them again", position - 1,
                   s->model->dir);
    else
        seq->sampled = true;
}

/* Logits of every row of a sequence that wants them; the last row's serve the sampler too. */
static void all_logits(struct step *s, struct step_sequence *seq)
{
    const struct dk_span *span = &s->spans[seq->span];
    uint32_t vocab = s->model->config.vocab, rows[32];

    seq->logits = malloc((size_t)span->count * vocab * sizeof(float));
    if (!seq->logits) {
        dk_err_set(&seq->err, -ENOMEM, "no memory for %u rows of logits", span->count);
        return;
    }
    for (uint32_t first = 0; first < span->count; first += 32) {
        uint32_t n = span->count - first < 32 ? span->count - first : 32;

        for (uint32_t i = 0; i < n; i++)
            rows[i] = span->row + first + i;
        s->model->family->head(s->model->layers, rows, n, seq->logits + (size_t)first * vocab);
    }
    if (seq->request->sample)
        sample(s, seq, seq->logits + (size_t)(span->count - 1) * vocab);
}

static void head(struct step *s)
{
    uint32_t *rows = s->head_rows, count = 0;

    for (size_t i = 0; i < s->request->step->n_sequences; i++) {
        struct step_sequence *seq = &s->sequences[i];

        if (seq->err.rc)
            continue;
        if (seq->request->want_logits) {
            all_logits(s, seq);
        } else if (seq->request->sample) {
            s->head_sequences[count] = seq;
            rows[count++] = s->spans[seq->span].row + s->spans[seq->span].count - 1;
        }
    }
    if (count)
        s->model->family->head(s->model->layers, rows, count, s->logits);
    for (uint32_t i = 0; i < count; i++)
        sample(s, s->head_sequences[i], s->logits + (size_t)i * s->model->config.vocab);
    set_state(s, STEP_REPLY);
}

bool step_run(struct step *s, uint64_t now_us)
{
    switch (s->state) {
    case STEP_ATTEND:
        attend(s, now_us);
        return true;
    case STEP_SUM:
        sum(s);
        return true;
    case STEP_HEAD:
        head(s);
        return true;
    default:
        return false;
    }
}

bool step_on_event(struct step *s, const struct dk_transport_event *event, struct dk_arena *arena)
{
    struct dk_err err = {0};
    bool taken;
    int rc;

    if (s->state != STEP_AWAIT_DUCKS)
        return false;
    rc = fanout_on_event(&s->fanout, event, arena, &taken, &err);
    if (rc < 0)
        step_fail(s, &err);
    else if (rc == 1)
        set_state(s, STEP_SUM);
    return taken;
}

/* ---- the result */

static void fill_sequence(const struct step *s, const struct step_sequence *seq, Dk__SequenceResult *r,
                          Dk__Status *status, Dk__TokenLogprob *top, Dk__TokenLogprob **top_list)
{
    dk__sequence_result__init(r);
    r->sequence_id = seq->request->sequence_id;
    if (seq->err.rc) {
        dk__status__init(status);
        status->code = dk_code_from_errno(seq->err.rc);
        status->text = (char *)(uintptr_t)seq->err.text;
        r->error = status;
        return;
    }
    if (seq->logits) {
        r->has_logits = r->has_vocab = true;
        r->vocab = s->model->config.vocab;
        r->logits.data = (uint8_t *)seq->logits;
        r->logits.len = seq->request->n_tokens * (size_t)r->vocab * sizeof(float);
    }
    if (!seq->sampled)
        return;
    r->has_token = r->has_logprob = true;
    r->token = seq->token.token;
    r->logprob = seq->token.logprob;
    r->n_top = seq->token.top_count;
    r->top = top_list;
    for (uint32_t i = 0; i < seq->token.top_count; i++) {
        dk__token_logprob__init(&top[i]);
        top[i].id = seq->token.top_ids[i];
        top[i].logprob = seq->token.top_logprobs[i];
        top_list[i] = &top[i];
    }
}

static void fill_timing(const struct step *s, Dk__StepTiming *t)
{
    dk__step_timing__init(t);
#define SET(field, v) (t->has_##field = true, t->field = (v))
    SET(total_us, s->clock_us() - s->timing.begin_us);
    SET(prepare_us, s->timing.prepare_us);
    SET(send_us, s->timing.send_us);
    SET(wait_us, s->timing.wait_us);
    SET(fetch_us, s->timing.fetch_us);
    SET(duck_max_us, s->timing.duck_max_us);
    SET(weight_bytes, s->timing.weight_bytes);
    SET(overtaken, s->timing.overtaken);
    SET(rows, s->rows);
    SET(layer_operations, s->timing.operations);
#undef SET
}

struct result_parts {
    Dk__SequenceResult result;
    Dk__Status status;
    Dk__TokenLogprob top[DK_LOGPROBS_MAX];
    Dk__TokenLogprob *top_list[DK_LOGPROBS_MAX];
};

uint8_t *step_result(struct step *s, size_t *bytes)
{
    const Dk__Step *step = s->request->step;
    size_t count = s->err.rc ? 0 : step->n_sequences;
    struct result_parts *parts = calloc(count + 1, sizeof *parts);
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
        fill_sequence(s, &s->sequences[i], &parts[i].result, &parts[i].status, parts[i].top, parts[i].top_list);
        list[i] = &parts[i].result;
    }
    r.n_sequences = count;
    r.sequences = list;
    if (parts && list)
        out = dk_message_pack(&r, bytes);
    free(parts);
    free(list);
    forget_request(s);
    set_state(s, STEP_FREE);
    return out;
}
