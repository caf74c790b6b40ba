/* SPDX-License-Identifier: Apache-2.0 */
#include "attention-worker/step.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/log.h"

#define HEAD_ROWS 32u /* at a time, when every row's logits are wanted */

static void set_state(struct step *s, enum step_state to)
{
    static const char *const names[STEP_STATES] = {"free", "attend", "meanwhile", "await_ducks",
                                                   "sum",  "head",   "reply"};

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
    s->trace_layers = calloc(c->layers, sizeof *s->trace_layers);
    if (!s->sequences || !s->spans || !s->head_sequences || !s->head_rows || !s->ids || !s->ffn_in || !s->ffn_out ||
        !s->router_logits || !s->expert_ids || !s->expert_weights || !s->row_ok || !s->logits || !s->scratch ||
        !s->trace_layers)
        return dk_err_set(err, -ENOMEM, "no memory for steps of %u rows and %u sequences", rows_max, sequences_max);
    return 0;
}

void step_forget(struct step *s)
{
    for (uint32_t i = 0; s->request && i < s->sequences_max; i++) {
        free(s->sequences[i].logits);
        free(s->sequences[i].scores);
        dk_trace_list_fini(&s->sequences[i].trace);
        s->sequences[i].logits = NULL;
        s->sequences[i].scores = NULL;
    }
    if (s->traced)
        s->model->family->trace(s->model->layers, NULL);
    s->traced = NULL;
    if (s->request)
        protobuf_c_message_free_unpacked(&s->request->base, NULL);
    s->request = NULL;
    set_state(s, STEP_FREE);
}

void step_close(struct step *s)
{
    if (s->model)
        fanout_abort(&s->fanout);
    step_forget(s);
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
    free(s->trace_layers);
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
    if (q->has_next_token && q->next_token >= s->model->config.vocab)
        return dk_err_set(err, -EINVAL, "the next token is %u; the vocabulary has %u", q->next_token,
                          s->model->config.vocab);
    if (q->trace && s->traced)
        return dk_err_set(err, -EAGAIN, "sequence %llu: another one is traced in this step",
                          (unsigned long long)q->sequence_id);
    for (size_t i = 0; i < q->n_trace_layers; i++)
        if (q->trace_layers[i] >= s->model->config.layers)
            return dk_err_set(err, -EINVAL, "trace_layers[%zu]: layer %u; the model has %u", i, q->trace_layers[i],
                              s->model->config.layers);
    return 0;
}

static void begin_trace(struct step *s, struct step_sequence *seq, const struct dk_span *span)
{
    const Dk__StepSequence *q = seq->request;

    memset(s->trace_layers, 0, s->model->config.layers * sizeof *s->trace_layers);
    for (size_t i = 0; i < q->n_trace_layers; i++)
        s->trace_layers[q->trace_layers[i]] = true;
    seq->trace.bytes_max = STEP_TRACE_BYTES_MAX;
    s->traced = seq;
    s->trace = (struct dk_trace){.row = span->row,
                                 .count = span->count,
                                 .state = span->state,
                                 .layers = q->n_trace_layers ? s->trace_layers : NULL,
                                 .put = dk_trace_list_put,
                                 .ctx = &seq->trace};
    s->model->family->trace(s->model->layers, &s->trace);
}

/* Gives a sequence its cache pages and its rows in the batch. */
static void admit(struct step *s, struct step_sequence *seq)
{
    const Dk__StepSequence *q = seq->request;
    struct dk_cache_place place;
    struct dk_span *span = &s->spans[s->span_count];
    int rc;

    seq->span = -1;
    if (sequence_check(s, q, &seq->err) < 0)
        return;
    if (q->position == 0)
        dk_cache_release(s->model->cache, q->sequence_id);
    rc = dk_cache_extend(s->model->cache, q->sequence_id, q->position + (uint32_t)q->n_tokens, &place);
    if (rc < 0) {
        dk_err_set(&seq->err, rc == -E2BIG ? -E2BIG : -ENOSPC,
                   rc == -E2BIG ? "the sequence is longer than the context of %u tokens"
                                : "the cache is full (context %u); fewer sequences at a time, or a larger --cache-mib",
                   s->model->context);
        return;
    }
    seq->span = (int32_t)s->span_count++;
    *span = (struct dk_span){.row = s->rows,
                             .count = (uint32_t)q->n_tokens,
                             .position = q->position,
                             .pages = place.pages,
                             .state = place.state};
    memcpy(s->ids + s->rows, q->tokens, q->n_tokens * sizeof *s->ids);
    s->rows += span->count;
    if (q->trace)
        begin_trace(s, seq, span);
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
    if (step->has_release_all && step->release_all)
        dk_cache_release_all(s->model->cache);
    for (size_t i = 0; i < step->n_released; i++)
        dk_cache_release(s->model->cache, step->released[i]);
    if (step->n_sequences > s->sequences_max) {
        dk_err_set(&s->err, -ESTALE, "step %llu: %zu sequences; this worker takes %u",
                   (unsigned long long)step->step_id, step->n_sequences, s->sequences_max);
        set_state(s, STEP_REPLY);
        return;
    }
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
    const struct dk_router *router = s->model->family->router(s->model->layers, s->layer);
    uint64_t begin_us = s->clock_us(), prepared_us;
    struct dk_err err = {0};
    int rc;

    s->model->family->attend(s->model->layers, s->layer, s->ffn_in, router ? s->router_logits : NULL);
    if (router) {
        dk_route(router, s->router_logits, s->rows, s->expert_ids, s->expert_weights, s->row_ok);
        mark_bad_rows(s);
        if (s->traced)
            dk_trace_experts(&s->trace, s->layer, router->top_k, s->expert_ids, s->expert_weights);
    }
    prepared_us = s->clock_us();
    rc = fanout_begin(&s->fanout, s->layer, s->rows, s->ffn_in, router ? s->expert_ids : NULL,
                      router ? s->expert_weights : NULL, now_us, &err);
    s->timing.prepare_us += prepared_us - begin_us;
    s->fanout.asked_us = s->clock_us();
    s->timing.send_us += s->fanout.asked_us - prepared_us;
    s->timing.operations++;
    s->meanwhile_us = 0;
    if (rc < 0)
        step_fail(s, &err);
    else
        set_state(s, STEP_MEANWHILE);
}

static void meanwhile(struct step *s)
{
    uint64_t begin_us = s->clock_us();
    bool more = s->model->family->meanwhile(s->model->layers, s->layer);

    s->meanwhile_us += s->clock_us() - begin_us;
    if (!more)
        set_state(s, s->fanout.waiting ? STEP_AWAIT_DUCKS : STEP_SUM);
}

static void sum(struct step *s)
{
    uint64_t begin_us = s->clock_us();

    s->timing.wait_us += begin_us - s->fanout.asked_us - s->meanwhile_us;
    s->timing.meanwhile_us += s->meanwhile_us;
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

static void damaged(struct step *s, struct step_sequence *seq, uint32_t position)
{
    dk_err_set(&seq->err, -EBADMSG,
               "a logit of token %u is not a number: weights in %s are damaged; download them again", position,
               s->model->dir);
}

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
        damaged(s, seq, position - 1);
    else
        seq->sampled = true;
}

/* How likely the token behind row i of the sequence was. */
static void score(struct step *s, struct step_sequence *seq, uint32_t i, const float *logits)
{
    const Dk__StepSequence *q = seq->request;
    uint32_t top = q->score_top < DK_LOGPROBS_MAX ? q->score_top : DK_LOGPROBS_MAX;
    uint32_t token;

    if (i + 1 < q->n_tokens)
        token = q->tokens[i + 1];
    else if (q->has_next_token)
        token = q->next_token;
    else
        return;
    if (dk_score(logits, s->model->config.vocab, token, top, &seq->scores[seq->score_count]) < 0)
        damaged(s, seq, q->position + i);
    else
        seq->score_count++;
}

/* A sequence that wants logits or scores of its rows: they are made some rows at a time; the last row's serve the
 * sampler too. */
static void every_row(struct step *s, struct step_sequence *seq)
{
    const struct dk_span *span = &s->spans[seq->span];
    uint32_t vocab = s->model->config.vocab, rows[HEAD_ROWS];
    bool keep = seq->request->want_logits;
    float *logits = malloc((size_t)(keep || span->count < HEAD_ROWS ? span->count : HEAD_ROWS) * vocab * sizeof(float));

    if (keep)
        seq->logits = logits;
    if (seq->request->score)
        seq->scores = calloc(span->count, sizeof *seq->scores);
    if (!logits || (seq->request->score && !seq->scores))
        dk_err_set(&seq->err, -ENOMEM, "no memory for logits or scores of %u rows", span->count);
    for (uint32_t first = 0; first < span->count && !seq->err.rc; first += HEAD_ROWS) {
        uint32_t n = span->count - first < HEAD_ROWS ? span->count - first : HEAD_ROWS;
        float *part = keep ? logits + (size_t)first * vocab : logits;

        for (uint32_t i = 0; i < n; i++)
            rows[i] = span->row + first + i;
        s->model->family->head(s->model->layers, rows, n, part);
        for (uint32_t i = 0; i < n && seq->scores && !seq->err.rc; i++)
            score(s, seq, first + i, part + (size_t)i * vocab);
        if (first + n == span->count && seq->request->sample && !seq->err.rc)
            sample(s, seq, part + (size_t)(n - 1) * vocab);
    }
    if (!keep)
        free(logits);
}

static void head(struct step *s)
{
    uint32_t *rows = s->head_rows, count = 0;

    for (size_t i = 0; i < s->request->step->n_sequences; i++) {
        struct step_sequence *seq = &s->sequences[i];

        if (seq->err.rc)
            continue;
        if (seq->request->want_logits || seq->request->score) {
            every_row(s, seq);
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

bool step_run(struct step *s, uint64_t now_us, bool net_idle)
{
    switch (s->state) {
    case STEP_ATTEND:
        attend(s, now_us);
        return true;
    case STEP_MEANWHILE:
        if (!net_idle && s->fanout.waiting)
            return false;
        meanwhile(s);
        if (s->state == STEP_SUM) /* the answers were faster */
            sum(s);
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

bool step_is_out(const struct step *s)
{
    return s->state == STEP_MEANWHILE || s->state == STEP_AWAIT_DUCKS;
}

bool step_on_event(struct step *s, const struct dk_transport_event *event, struct dk_arena *arena)
{
    struct dk_err err = {0};
    bool taken;
    int rc;

    if (!step_is_out(s))
        return false;
    rc = fanout_on_event(&s->fanout, event, arena, &taken, &err);
    if (rc < 0)
        step_fail(s, &err);
    else if (rc == 1 && s->state == STEP_AWAIT_DUCKS)
        set_state(s, STEP_SUM);
    return taken;
}
