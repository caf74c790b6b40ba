/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "coordinator/coordinator_internal.h"

/* Results become events, and clients read them by cursor. An event is dropped only when a read with its cursor, or a
 * later one, shows that it has arrived; so a read whose reply was lost is simply repeated. */

struct dk_sequence *dk_sequence_find(struct dk_coordinator *c, uint64_t id)
{
    uint32_t low = 0, high = c->sequence_count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (c->sequences[middle]->id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < c->sequence_count && c->sequences[low]->id == id ? c->sequences[low] : NULL;
}

uint32_t dk_sequences_in(const struct dk_coordinator *c, enum dk_sequence_state state)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < c->sequence_count; i++)
        n += c->sequences[i]->state == state;
    return n;
}

static void forget(struct dk_coordinator *c, uint32_t i)
{
    dk_sequence_free(c->sequences[i]);
    c->sequence_count--;
    memmove(c->sequences + i, c->sequences + i + 1, (c->sequence_count - i) * sizeof *c->sequences);
}

int dk_sequence_add(struct dk_coordinator *c, struct dk_sequence *s)
{
    /* Live sequences fill at most running_max + queue_max places, so a full table has finished ones. */
    for (uint32_t i = 0; i < c->sequence_count && c->sequence_count == c->sequences_max; i++)
        if (c->sequences[i]->state == DK_SEQUENCE_DONE)
            forget(c, i);
    if (c->sequence_count == c->sequences_max)
        return -ENOMEM;
    c->sequences[c->sequence_count++] = s;
    return 0;
}

void dk_sequence_end(struct dk_coordinator *c, struct dk_sequence *s, Dk__FinishReason why, Dk__Code code,
                     const char *text)
{
    Dk__Event *e;

    if (s->state == DK_SEQUENCE_DONE)
        return;
    e = dk_sequence_event(s);
    if (e) {
        e->text = dk_sequence_text_rest(s);
        e->has_finish = true;
        e->finish = why;
        e->stats = dk_sequence_stats(s, c->now_us);
        if (why == DK__FINISH_REASON__ERROR)
            e->error = dk_status_new(code, text);
    }
    if (s->known && c->released_count < 2 * c->options.running_max)
        c->released[c->released_count++] = s->id;
    if (why == DK__FINISH_REASON__ERROR)
        c->sequences_failed++;
    else
        c->sequences_done++;
    s->contact_us = c->now_us;
    dk_sequence_state_set(s, DK_SEQUENCE_DONE);
    free(s->tokens);
    s->tokens = NULL;
    dk_log(why == DK__FINISH_REASON__ERROR ? DK_LOG_WARN : DK_LOG_INFO, "sequence.end",
           "id=%llu finish=%d prompt=%u output=%u text=\"%s\"", (unsigned long long)s->id, (int)why, s->prompt_len,
           s->output_len, text ? text : "");
}

void dk_sequences_fail(struct dk_coordinator *c, Dk__Code code, const char *text)
{
    for (uint32_t i = 0; i < c->sequence_count; i++)
        dk_sequence_end(c, c->sequences[i], DK__FINISH_REASON__ERROR, code, text);
}

void dk_sequences_tick(struct dk_coordinator *c)
{
    dk_values_tick(c);
    for (uint32_t i = 0; i < c->sequence_count;) {
        struct dk_sequence *s = c->sequences[i];
        bool away = !s->readers_parked && c->now_us - s->contact_us > DK_GRACE_US;

        if (away && s->state == DK_SEQUENCE_DONE) {
            forget(c, i);
            continue;
        }
        if (away)
            dk_sequence_end(c, s, DK__FINISH_REASON__CANCEL, DK__CODE__OK, "nobody read it for 60 s");
        i++;
    }
}

static bool is_end_token(const struct dk_coordinator *c, uint32_t token)
{
    for (uint32_t i = 0; i < c->model.generation.eos_count; i++)
        if (c->model.generation.eos[i] == token)
            return true;
    return false;
}

static void copy_logprobs(Dk__Event *e, const struct dk_sequence *s, const Dk__SequenceResult *r)
{
    e->has_logprob = s->want_logprob && r->has_logprob;
    e->logprob = r->logprob;
    e->top = s->logprobs && r->n_top ? calloc(r->n_top, sizeof(Dk__TokenLogprob *)) : NULL;
    for (size_t i = 0; e->top && i < r->n_top && i < s->logprobs; i++) {
        e->top[i] = dk_message_clone(r->top[i]);
        if (!e->top[i])
            break;
        e->n_top++;
    }
}

/* The next token of a sequence came. */
static void take_token(struct dk_coordinator *c, struct dk_sequence *s, const Dk__SequenceResult *r)
{
    bool end = !s->ignore_eos && is_end_token(c, r->token), stopped = false;
    Dk__Event *e = dk_sequence_event(s);

    if (!e || (!end && dk_sequence_text(s, c->model.tokenizer, r->token, &e->text, &stopped) < 0)) {
        dk_sequence_end(c, s, DK__FINISH_REASON__ERROR, DK__CODE__RESOURCE_EXHAUSTED,
                        "the coordinator is out of memory");
        return;
    }
    e->has_token = true;
    e->token = r->token;
    copy_logprobs(e, s, r);
    s->tokens[dk_sequence_total(s)] = r->token;
    if (!s->output_len++) {
        s->first_us = c->now_us;
        c->prompt_tokens += s->prompt_len;
    }
    s->last_us = c->now_us;
    c->output_tokens++;
    if (end || stopped)
        dk_sequence_end(c, s, DK__FINISH_REASON__STOP, DK__CODE__OK, NULL);
    else if (s->output_len == s->max_tokens)
        dk_sequence_end(c, s, DK__FINISH_REASON__LENGTH, DK__CODE__OK, NULL);
}

/* The last position of a prompt that is only scored. */
static void finish_score(struct dk_coordinator *c, struct dk_sequence *s)
{
    s->first_us = s->last_us = c->now_us;
    c->prompt_tokens += s->prompt_len;
    dk_sequence_end(c, s, DK__FINISH_REASON__STOP, DK__CODE__OK, NULL);
}

/* What is wrong with the worker's answer for a sequence; NULL: nothing. */
static const char *result_defect(const struct dk_coordinator *c, const Dk__StepSequence *given,
                                 const Dk__SequenceResult *r)
{
    const char *defect;

    if (!r)
        return "the worker's result does not mention this sequence";
    if (given->sample && !r->has_token)
        return "the worker sampled no token";
    if (given->sample && r->token >= c->model.config.vocab)
        return "the worker sampled a token outside the vocabulary";
    defect = given->sample ? dk_top_defect(c, r->top, r->n_top) : NULL;
    return defect ? defect : dk_values_defect(c, given, r);
}

static void apply_one(struct dk_coordinator *c, const Dk__StepSequence *given, const Dk__StepResult *result)
{
    struct dk_sequence *s = dk_sequence_find(c, given->sequence_id);
    const Dk__SequenceResult *r = NULL;
    const char *defect;

    if (!s || s->state == DK_SEQUENCE_DONE)
        return; /* cancelled while the step ran */
    if (result->error) {
        dk_sequence_end(c, s, DK__FINISH_REASON__ERROR, result->error->code,
                        result->error->text ? result->error->text : "the step failed");
        return;
    }
    for (size_t i = 0; i < result->n_sequences && !r; i++)
        if (result->sequences[i]->sequence_id == s->id)
            r = result->sequences[i];
    if (r && r->error) {
        dk_sequence_end(c, s, DK__FINISH_REASON__ERROR, r->error->code,
                        r->error->text ? r->error->text : "the worker could not go on with this sequence");
        return;
    }
    defect = result_defect(c, given, r);
    if (defect) {
        dk_sequence_end(c, s, DK__FINISH_REASON__ERROR, DK__CODE__INTERNAL, defect);
        return;
    }
    if (!dk_values_take(c, s, given, r)) {
        dk_sequence_end(c, s, DK__FINISH_REASON__ERROR, DK__CODE__RESOURCE_EXHAUSTED,
                        "the coordinator is out of memory");
        return;
    }
    /* A step of an earlier epoch gave good tokens, but the caches that it filled do not count any more. */
    if (c->step->plan_epoch == c->plan->epoch)
        s->cached = given->position + (uint32_t)given->n_tokens;
    if (s->score && s->told == s->prompt_len)
        finish_score(c, s);
    if (!given->sample)
        return;
    take_token(c, s, r);
    if (s->state == DK_SEQUENCE_PREFILL && s->cached)
        dk_sequence_state_set(s, DK_SEQUENCE_DECODE);
}

static void add_timing(Dk__StepTiming *sum, const Dk__StepTiming *t)
{
#define ADD(field)               \
    do {                         \
        sum->has_##field = true; \
        sum->field += t->field;  \
    } while (0)
    ADD(total_us);
    ADD(prepare_us);
    ADD(send_us);
    ADD(wait_us);
    ADD(meanwhile_us);
    ADD(fetch_us);
    ADD(duck_max_us);
    ADD(weight_bytes);
    ADD(rows);
    ADD(layer_operations);
    ADD(overtaken);
#undef ADD
}

void dk_step_result_apply(struct dk_coordinator *c, const Dk__StepResult *r)
{
    if (r->error)
        dk_log(DK_LOG_WARN, "step.error", "step=%llu code=%d text=\"%s\"", (unsigned long long)r->step_id,
               (int)r->error->code, r->error->text ? r->error->text : "");
    for (size_t i = 0; i < c->step->n_sequences; i++)
        apply_one(c, c->step->sequences[i], r);
    c->steps++;
    if (!r->timing)
        return;
    add_timing(&c->timing_total, r->timing);
    dk__step_timing__init(&c->timing_last);
    add_timing(&c->timing_last, r->timing);
}

/* ---- clients */

static struct dk_sequence *find_or_fail(struct dk_coordinator *c, void *call, uint64_t handle, struct dk_outbox *out)
{
    struct dk_sequence *s = dk_sequence_find(c, handle);

    if (!s)
        dk_outbox_fail(
            out, call, DK__CODE__NOT_FOUND,
            handle >= c->sequence_first && handle < c->sequence_next
                ? "handle %llu: the sequence ended long ago and is forgotten"
                : "handle %llu is not of this coordinator: it was restarted since, and the sequence is lost; "
                  "submit it again",
            (unsigned long long)handle);
    return s;
}

void dk_read_handle(struct dk_coordinator *c, void *call, const Dk__ReadRequest *q, struct dk_outbox *out)
{
    struct dk_sequence *s = find_or_fail(c, call, q->handle, out);
    struct dk_parked p = {.kind = DK_PARKED_READ, .call = call, .sequence_id = q->handle, .cursor = q->cursor};

    if (!s)
        return;
    s->contact_us = c->now_us;
    if (q->cursor > s->cursor_last) {
        dk_outbox_fail(out, call, DK__CODE__INVALID_ARGUMENT, "cursor %llu: the newest event of this sequence is %llu",
                       (unsigned long long)q->cursor, (unsigned long long)s->cursor_last);
        return;
    }
    dk_sequence_acknowledge(s, q->cursor, c->now_us);
    dk_park(c, &p, q->wait_ms);
}

bool dk_read_serve(struct dk_coordinator *c, const struct dk_parked *p, bool late, struct dk_outbox *out)
{
    struct dk_sequence *s = find_or_fail(c, p->call, p->sequence_id, out);
    uint64_t kept, from;
    Dk__ReadReply *r;
    uint64_t bytes = 0;

    if (!s)
        return true;
    kept = dk_sequence_cursor_kept(s);
    if (p->cursor < kept) {
        dk_outbox_fail(out, p->call, DK__CODE__INVALID_ARGUMENT,
                       "cursor %llu: the events up to %llu are gone, because a later read acknowledged them",
                       (unsigned long long)p->cursor, (unsigned long long)kept);
        return true;
    }
    from = p->cursor - kept;
    if (from >= s->event_count && !late && s->state != DK_SEQUENCE_DONE)
        return false;
    r = dk_message_new(&dk__read_reply__descriptor);
    if (r && from < s->event_count) {
        r->events = calloc(s->event_count - from, sizeof(Dk__Event *));
        for (uint64_t i = from; r->events && i < s->event_count && r->n_events < DK_READ_EVENTS_MAX; i++) {
            Dk__Event *e;

            bytes += dk_event_value_bytes(s->events[i]);
            if (bytes > DK_READ_REPLY_BYTES && r->n_events)
                break;
            e = dk_message_clone(s->events[i]);
            if (!e)
                break;
            r->events[r->n_events++] = e;
        }
    }
    dk_outbox_reply(out, p->call, r);
    return true;
}

void dk_cancel_handle(struct dk_coordinator *c, void *call, const Dk__CancelRequest *q, struct dk_outbox *out)
{
    struct dk_sequence *s = find_or_fail(c, call, q->handle, out);

    if (!s)
        return;
    dk_sequence_end(c, s, DK__FINISH_REASON__CANCEL, DK__CODE__OK, NULL);
    dk_outbox_reply(out, call, dk_message_new(&dk__cancel_reply__descriptor));
}
