/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/coordinator_internal.h"

/* One step is outstanding at a time. It is kept until its result comes, and handed out again as often as the worker
 * asks without bringing that result, so a lost reply costs nothing. Each sequence knows how many of its tokens are in
 * the worker's cache; whatever is missing goes into the next steps. So a worker that lost its caches needs no other
 * care than setting that number to 0, and its continuation is the same, because a token depends on the tokens before
 * it, the seed and the position only. */

static bool runs(const struct dk_sequence *s)
{
    return s->state == DK_SEQUENCE_PREFILL || s->state == DK_SEQUENCE_DECODE;
}

uint64_t dk_cache_need(uint32_t tokens)
{
    return ((uint64_t)tokens + DK_CACHE_PAGE - 1) / DK_CACHE_PAGE * DK_CACHE_PAGE;
}

uint64_t dk_cache_room(struct dk_coordinator *c)
{
    const struct dk_member *worker = dk_member_worker(c);
    const Dk__Holding *h = worker ? worker->beat->holding : NULL;

    if (!h || !h->has_cache_tokens || !c->plan || !h->has_plan_epoch || h->plan_epoch != c->plan->epoch)
        return UINT64_MAX;
    return h->cache_tokens;
}

uint32_t dk_running_max(const struct dk_coordinator *c)
{
    return c->plan->sequences < c->options.running_max ? c->plan->sequences : c->options.running_max;
}

uint32_t dk_step_rows(const struct dk_coordinator *c)
{
    return c->plan->rows < c->options.step_rows ? c->plan->rows : c->options.step_rows;
}

/* They get in again in the same order; all of them, unless the new cache is smaller. */
void dk_schedule_uncache(struct dk_coordinator *c)
{
    for (uint32_t i = 0; i < c->sequence_count; i++)
        if (runs(c->sequences[i])) {
            c->sequences[i]->cached = 0;
            dk_sequence_state_set(c->sequences[i], DK_SEQUENCE_QUEUED);
        }
}

void dk_schedule_new_worker(struct dk_coordinator *c)
{
    dk_schedule_uncache(c);
    for (uint32_t i = 0; i < c->sequence_count; i++)
        c->sequences[i]->known = false;
    c->released_count = 0;
    c->release_all = true;
    dk_message_free(c->step);
    c->step = NULL;
}

/* The step was not done and will not be: the worker does not have it any more, or could not do it. */
static void step_drop(struct dk_coordinator *c)
{
    dk_log(DK_LOG_INFO, "step.drop", "step=%llu epoch=%llu", (unsigned long long)c->step->step_id,
           (unsigned long long)c->step->plan_epoch);
    for (size_t i = 0; i < c->step->n_released && c->released_count < 2 * c->options.running_max; i++)
        c->released[c->released_count++] = c->step->released[i];
    c->release_all |= c->step->has_release_all && c->step->release_all;
    dk_message_free(c->step);
    c->step = NULL;
    dk_schedule_uncache(c);
}

static uint64_t need_of(const struct dk_sequence *s)
{
    return dk_cache_need(s->prompt_len + s->max_tokens);
}

/* It was taken before the size of the cache was known. */
static void end_too_large(struct dk_coordinator *c, struct dk_sequence *s, uint64_t room)
{
    char text[200];

    snprintf(text, sizeof text,
             "the sequence needs room for %llu tokens in the attention-worker's cache, which has %llu; ask for fewer "
             "tokens, or start the worker with a larger --cache-mib",
             (unsigned long long)need_of(s), (unsigned long long)room);
    dk_sequence_end(c, s, DK__FINISH_REASON__ERROR, DK__CODE__RESOURCE_EXHAUSTED, text);
}

/* Values of prompt positions that the client has not got yet are to come. */
static bool lacks_values(const struct dk_sequence *s)
{
    return (s->want_logits || s->score || s->trace) && s->told < s->prompt_len;
}

/* No step may ask for values: too many wait for their readers. */
static bool values_wait(const struct dk_coordinator *c)
{
    return dk_values_unread(c) >= DK_VALUES_ALL_BYTES;
}

/* Queued sequences become running ones, first come, first served, while the worker's cache has room for all that they
 * may become. One that does not fit now holds up those behind it, so that it gets its turn. Those that could not get on
 * for unread values are passed over: they would keep the places of others. */
static void admit(struct dk_coordinator *c)
{
    uint32_t running = 0, most = dk_running_max(c);
    uint64_t room = dk_cache_room(c), left = room;
    bool wait = values_wait(c);

    for (uint32_t i = 0; i < c->sequence_count; i++)
        if (runs(c->sequences[i])) {
            running++;
            left -= need_of(c->sequences[i]) < left ? need_of(c->sequences[i]) : left;
        }
    for (uint32_t i = 0; i < c->sequence_count && running < most; i++) {
        struct dk_sequence *s = c->sequences[i];

        if (s->state != DK_SEQUENCE_QUEUED || (wait && lacks_values(s)))
            continue;
        if (need_of(s) > room) {
            end_too_large(c, s, room);
            continue;
        }
        if (need_of(s) > left)
            break;
        left -= need_of(s);
        dk_sequence_state_set(s, DK_SEQUENCE_PREFILL);
        if (!s->start_us)
            s->start_us = c->now_us;
        running++;
    }
}

/* The values of the next positions go to the client. After a loss of the worker's cache, those before `told` do not. */
static bool wants_values_next(const struct dk_sequence *s)
{
    return lacks_values(s) && s->cached >= s->told && s->cached < s->prompt_len;
}

/* What the logits and the score of one row take in an event. */
static uint64_t row_value_bytes(const struct dk_coordinator *c, const struct dk_sequence *s)
{
    return (s->want_logits ? (uint64_t)c->model.config.vocab * sizeof(float) : 0) +
           (s->score ? DK_SCORE_BYTES * (1 + (uint64_t)s->logprobs) : 0);
}

/* Bytes of values that the step may still ask for; the first row always goes. */
struct value_budget {
    uint64_t left;
    bool used;
};

static uint64_t budget_rows(const struct value_budget *b, uint64_t row_bytes)
{
    uint64_t rows = b->left / row_bytes;

    return rows || b->used ? rows : 1;
}

static void budget_take(struct value_budget *b, uint64_t bytes)
{
    b->left -= bytes < b->left ? bytes : b->left;
    b->used |= bytes > 0;
}

/* The most tokens of a prompt that may go into one step, those that it has got already included. */
static uint32_t prefill_rows(const struct dk_coordinator *c, const struct dk_sequence *s, const struct value_budget *b)
{
    uint32_t end = dk_sequence_total(s), rows;
    uint64_t row_bytes, room;

    /* One StepSequence wants the values of all its tokens or of none, so it ends where that changes. */
    if (s->cached < s->told)
        end = s->told;
    else if (wants_values_next(s))
        end = s->prompt_len;
    rows = end - s->cached;
    if (s->prefill_chunk && rows > s->prefill_chunk)
        rows = s->prefill_chunk;
    if (!wants_values_next(s))
        return rows;
    row_bytes = row_value_bytes(c, s);
    room = s->values_unread < DK_VALUES_UNREAD_BYTES ? (DK_VALUES_UNREAD_BYTES - s->values_unread) / row_bytes : 0;
    if (!room && !s->values_unread)
        room = 1; /* a row that is larger than the limit goes alone */
    if (rows > room)
        rows = (uint32_t)room;
    room = budget_rows(b, row_bytes) + s->rows_now;
    return rows > room ? (uint32_t)room : rows;
}

static bool awaits_trace(const struct dk_sequence *s)
{
    return s->state == DK_SEQUENCE_PREFILL && s->trace && wants_values_next(s);
}

/* A trace is large, and its whole prompt must fit: a step is for the oldest sequence that waits for one, and the others
 * pause. False: none waits. */
static bool share_to_trace(struct dk_coordinator *c)
{
    bool found = false;

    for (uint32_t i = 0; i < c->sequence_count; i++) {
        struct dk_sequence *s = c->sequences[i];
        bool takes = !found && awaits_trace(s);

        s->rows_now = takes ? s->prompt_len : 0;
        found |= takes;
    }
    return found;
}

/* Sets rows_now of all sequences but those that wait for a trace, and returns how many have any. Decoding ones get
 * their row; the rest of the budget goes to prompts in equal shares, and what a short prompt leaves over to the oldest
 * that can use it. values: those of prompts may be asked for. */
static uint32_t share_to_others(struct dk_coordinator *c, bool values)
{
    struct value_budget budget = {.left = values ? DK_VALUES_STEP_BYTES : 0, .used = !values};
    uint32_t left = dk_step_rows(c), waiting = 0, count = 0, share;

    for (uint32_t i = 0; i < c->sequence_count; i++) {
        struct dk_sequence *s = c->sequences[i];

        s->rows_now = s->state == DK_SEQUENCE_DECODE ? 1 : 0;
        left -= s->rows_now;
        count += s->rows_now;
        waiting += s->state == DK_SEQUENCE_PREFILL && !awaits_trace(s);
    }
    share = waiting ? left / waiting : 0;
    if (!share)
        share = 1;
    /* First the shares, then what is left over. */
    for (int round = 0; round < 2; round++)
        for (uint32_t i = 0; i < c->sequence_count && left; i++) {
            struct dk_sequence *s = c->sequences[i];
            uint32_t most, rows = round == 0 ? share : left;

            if (s->state != DK_SEQUENCE_PREFILL || awaits_trace(s))
                continue;
            most = prefill_rows(c, s, &budget) - s->rows_now;
            if (rows > most)
                rows = most;
            if (rows > left)
                rows = left;
            count += rows && !s->rows_now;
            s->rows_now += rows;
            left -= rows;
            if (wants_values_next(s))
                budget_take(&budget, rows * row_value_bytes(c, s));
        }
    return count;
}

/* Sets rows_now of all sequences and returns how many have any. Traces and the others take turns, so that neither waits
 * for more than one step of the other. */
static uint32_t share_rows(struct dk_coordinator *c)
{
    bool values = !values_wait(c), trace = values && !c->step_was_trace && share_to_trace(c);
    uint32_t count = trace ? 1 : share_to_others(c, values);

    if (!count && values) {
        trace = share_to_trace(c);
        count = trace;
    }
    c->step_was_trace = trace;
    return count;
}

static Dk__Sampling *sampling_of(const struct dk_sequence *s)
{
    Dk__Sampling *m = dk_message_new(&dk__sampling__descriptor);

    if (!m)
        return NULL;
    m->has_temperature = m->has_top_k = m->has_top_p = m->has_seed = m->has_logprobs = m->has_want_logprob = true;
    m->temperature = s->temperature;
    m->top_k = s->top_k;
    m->top_p = s->top_p;
    m->seed = s->seed;
    m->logprobs = s->logprobs;
    m->want_logprob = s->want_logprob;
    return m;
}

static bool ask_trace(const struct dk_sequence *s, Dk__StepSequence *m)
{
    m->has_trace = m->trace = s->trace;
    if (!s->trace_layer_count)
        return true;
    m->trace_layers = malloc(s->trace_layer_count * sizeof *m->trace_layers);
    if (!m->trace_layers)
        return false;
    memcpy(m->trace_layers, s->trace_layers, s->trace_layer_count * sizeof *m->trace_layers);
    m->n_trace_layers = s->trace_layer_count;
    return true;
}

/* end: the position behind the tokens of m. False: no memory. */
static bool ask_values(const struct dk_sequence *s, uint32_t end, Dk__StepSequence *m)
{
    m->has_want_logits = m->want_logits = s->want_logits;
    m->has_score = m->score = s->score;
    if (s->score) {
        m->has_score_top = true;
        m->score_top = s->logprobs;
        m->has_next_token = end < s->prompt_len;
        m->next_token = m->has_next_token ? s->tokens[end] : 0;
    }
    return ask_trace(s, m);
}

static Dk__StepSequence *step_sequence(const struct dk_sequence *s)
{
    Dk__StepSequence *m = dk_message_new(&dk__step_sequence__descriptor);
    uint32_t end = s->cached + s->rows_now;
    bool asked;

    if (!m)
        return NULL;
    m->sequence_id = s->id;
    m->position = s->cached;
    m->tokens = malloc(s->rows_now * sizeof *m->tokens);
    m->has_sample = m->sample = !s->score && end == dk_sequence_total(s);
    if (m->sample)
        m->sampling = sampling_of(s);
    asked = !wants_values_next(s) || ask_values(s, end, m);
    if (!asked || !m->tokens || (m->sample && !m->sampling)) {
        dk_message_free(m);
        return NULL;
    }
    memcpy(m->tokens, s->tokens + s->cached, s->rows_now * sizeof *m->tokens);
    m->n_tokens = s->rows_now;
    return m;
}

/* NULL: nothing to do, or no memory, which the next call tries again. */
static Dk__Step *step_form(struct dk_coordinator *c)
{
    uint32_t count;
    Dk__Step *step;

    admit(c);
    count = share_rows(c);
    if (!count)
        return NULL;
    step = dk_message_new(&dk__step__descriptor);
    if (!step)
        return NULL;
    step->step_id = c->step_next;
    step->plan_epoch = c->plan->epoch;
    step->sequences = calloc(count, sizeof(Dk__StepSequence *));
    step->released = malloc(2 * (size_t)c->options.running_max * sizeof *step->released);
    if (!step->sequences || !step->released)
        goto fail;
    for (uint32_t i = 0; i < c->sequence_count; i++) {
        if (!c->sequences[i]->rows_now)
            continue;
        step->sequences[step->n_sequences] = step_sequence(c->sequences[i]);
        if (!step->sequences[step->n_sequences])
            goto fail;
        step->n_sequences++;
    }
    for (uint32_t i = 0; i < c->sequence_count; i++)
        c->sequences[i]->known |= c->sequences[i]->rows_now > 0;
    memcpy(step->released, c->released, c->released_count * sizeof *step->released);
    step->n_released = c->released_count;
    c->released_count = 0;
    step->has_release_all = step->release_all = c->release_all;
    c->release_all = false;
    c->step_next++;
    return step;
fail:
    dk_message_free(step);
    return NULL;
}

/* The step failed because a node was lost, and that node is back by now: the new epoch does the same work again, so no
 * sequence has to end. */
static bool overtaken(const struct dk_coordinator *c, const Dk__StepResult *r)
{
    return r->error && r->error->code == DK__CODE__UNAVAILABLE && c->step->plan_epoch != c->plan->epoch;
}

void dk_next_step_handle(struct dk_coordinator *c, void *call, const Dk__NextStepRequest *q, struct dk_outbox *out)
{
    struct dk_member *worker = dk_member_worker(c);
    struct dk_parked p = {.kind = DK_PARKED_NEXT_STEP,
                          .call = call,
                          .instance = q->instance,
                          .plan_epoch = q->has_plan_epoch ? q->plan_epoch : 0};
    bool ours = worker && !strcmp(worker->beat->node->name, q->worker) &&
                worker->beat->node->address->instance == q->instance;

    if (worker && !ours && dk_member_alive(c, worker)) {
        dk_outbox_fail(out, call, DK__CODE__FAILED_PRECONDITION,
                       "the cluster's attention-worker is '%s' of another instance: this one must send heartbeats and "
                       "be accepted first",
                       worker->beat->node->name);
        return;
    }
    /* Only one call of the worker waits: an earlier one was given up. */
    dk_parked_drop_next_step(c, out);
    if (ours && c->step && c->step_instance == q->instance) {
        bool result = q->result && q->result->step_id == c->step->step_id;

        if (result && !overtaken(c, q->result)) {
            dk_step_result_apply(c, q->result);
            dk_message_free(c->step);
            c->step = NULL;
        } else if (result || c->step->plan_epoch != p.plan_epoch) {
            step_drop(c);
        }
    }
    dk_park(c, &p, q->wait_ms);
}

bool dk_next_step_serve(struct dk_coordinator *c, const struct dk_parked *p, bool late, struct dk_outbox *out)
{
    struct dk_member *worker = dk_member_worker(c);
    Dk__NextStepReply *r;

    /* A call from before the plan was ready names an older epoch: the worker asks again with the new one. */
    if (c->state == DK__CLUSTER_STATE__READY && p->plan_epoch != c->plan->epoch && p->since_us < c->ready_us)
        late = true;
    /* A worker that the membership does not know, or whose plan is another one, waits. */
    if (worker && worker->beat->node->address->instance == p->instance && c->plan && c->plan->epoch == p->plan_epoch &&
        !c->step && c->state == DK__CLUSTER_STATE__READY && c->worker_instance == p->instance) {
        c->step = step_form(c);
        c->step_instance = p->instance;
    }
    if (!late && !(c->step && c->step_instance == p->instance && c->step->plan_epoch == p->plan_epoch))
        return false;
    r = dk_message_new(&dk__next_step_reply__descriptor);
    if (r && c->step && c->step_instance == p->instance && c->step->plan_epoch == p->plan_epoch) {
        r->step = dk_message_clone(c->step);
        if (!r->step) {
            dk_message_free(r);
            r = NULL;
        }
    }
    dk_outbox_reply(out, p->call, r);
    return true;
}
