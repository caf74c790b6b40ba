/* SPDX-License-Identifier: Apache-2.0 */
#include "coordinator/sequence.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "coordinator/outbox.h"

const char *dk_sequence_state_name(enum dk_sequence_state s)
{
    static const char *const names[DK_SEQUENCE_STATES] = {"queued", "prefill", "decode", "done"};

    return names[s];
}

void dk_sequence_state_set(struct dk_sequence *s, enum dk_sequence_state to)
{
    assert(s->state != DK_SEQUENCE_DONE);
    if (s->state == to)
        return;
    dk_log(DK_LOG_DEBUG, "sequence.state", "id=%llu from=%s to=%s cached=%u total=%u", (unsigned long long)s->id,
           dk_sequence_state_name(s->state), dk_sequence_state_name(to), s->cached, dk_sequence_total(s));
    s->state = to;
}

struct dk_sequence *dk_sequence_alloc(uint64_t id, uint32_t *prompt, uint32_t prompt_len, uint32_t max_tokens,
                                      uint64_t now_us)
{
    struct dk_sequence *s = calloc(1, sizeof *s);
    uint32_t *tokens = s ? realloc(prompt, ((size_t)prompt_len + max_tokens) * sizeof *tokens) : NULL;

    if (!tokens) {
        free(s);
        return NULL;
    }
    s->id = id;
    s->tokens = tokens;
    s->prompt_len = prompt_len;
    s->max_tokens = max_tokens;
    s->submit_us = s->contact_us = now_us;
    return s;
}

void dk_sequence_free(struct dk_sequence *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; i < s->event_count; i++)
        dk_message_free(s->events[i]);
    free(s->events);
    free(s->tokens);
    free(s->trace_layers);
    dk_stop_filter_fini(&s->stop);
    free(s);
}

int dk_sequence_text(struct dk_sequence *s, const struct dk_tokenizer *t, uint32_t token, char **text, bool *stopped)
{
    size_t room = dk_detokenizer_room(t), n;
    char *out;
    int rc;

    *text = NULL;
    *stopped = false;
    /* Models pad their vocabulary: ids beyond the tokenizer's are valid tokens without a text. */
    if (token >= dk_tokenizer_size(t))
        return 0;
    out = malloc(room ? room : 1);
    if (!out)
        return -ENOMEM;
    n = dk_detokenizer_next(t, &s->detokenizer, token, true, out, room);
    rc = dk_stop_filter_push(&s->stop, out, n);
    free(out);
    if (rc < 0)
        return rc;
    *stopped = s->stop.hit;
    *text = dk_stop_filter_take(&s->stop);
    return 0;
}

char *dk_sequence_text_rest(struct dk_sequence *s)
{
    char end[32];
    size_t n = dk_detokenizer_finish(&s->detokenizer, end, sizeof end);

    if (dk_stop_filter_push(&s->stop, end, n) < 0)
        return NULL;
    dk_stop_filter_flush(&s->stop);
    return dk_stop_filter_take(&s->stop);
}

Dk__Event *dk_sequence_event(struct dk_sequence *s)
{
    Dk__Event *e;

    if (s->event_count == s->event_capacity) {
        uint32_t capacity = s->event_capacity ? 2 * s->event_capacity : 16;
        Dk__Event **grown = realloc(s->events, capacity * sizeof *grown);

        if (!grown)
            return NULL;
        s->events = grown;
        s->event_capacity = capacity;
    }
    e = dk_message_new(&dk__event__descriptor);
    if (!e)
        return NULL;
    e->cursor = ++s->cursor_last;
    s->events[s->event_count++] = e;
    return e;
}

uint64_t dk_event_value_bytes(const Dk__Event *e)
{
    uint64_t bytes = e->logits.len;

    for (size_t i = 0; i < e->n_scores; i++)
        bytes += DK_SCORE_BYTES * (1 + (uint64_t)e->scores[i]->n_top);
    for (size_t i = 0; i < e->n_trace; i++)
        bytes += e->trace[i]->data.len;
    return bytes;
}

void dk_sequence_acknowledge(struct dk_sequence *s, uint64_t cursor, uint64_t now_us)
{
    uint32_t n = 0;

    while (n < s->event_count && s->events[n]->cursor <= cursor) {
        s->values_unread -= dk_event_value_bytes(s->events[n]);
        dk_message_free(s->events[n++]);
    }
    if (!n)
        return;
    s->unread_us = now_us;
    s->event_count -= n;
    memmove(s->events, s->events + n, s->event_count * sizeof *s->events);
}

uint64_t dk_sequence_cursor_kept(const struct dk_sequence *s)
{
    return s->cursor_last - s->event_count;
}

Dk__GenerationStats *dk_sequence_stats(const struct dk_sequence *s, uint64_t now_us)
{
    Dk__GenerationStats *g = dk_message_new(&dk__generation_stats__descriptor);
    double prefill_s = (double)(s->first_us - s->start_us) / 1e6, decode_s = (double)(s->last_us - s->first_us) / 1e6;

    if (!g)
        return NULL;
    g->has_input_len = g->has_output_len = g->has_time_s = true;
    g->input_len = s->prompt_len;
    g->output_len = s->output_len;
    g->time_s = (double)(now_us - s->submit_us) / 1e6;
    if (!s->first_us)
        return g;
    g->has_prefill_tok_s = prefill_s > 0;
    if (prefill_s > 0)
        g->prefill_tok_s = s->prompt_len / prefill_s;
    if (!s->output_len)
        return g;
    g->has_ttft_s = true;
    g->ttft_s = (double)(s->first_us - s->submit_us) / 1e6;
    if (s->output_len > 1) {
        g->has_tpot_s = true;
        g->tpot_s = decode_s / (s->output_len - 1);
        g->has_decode_tok_s = decode_s > 0;
        if (decode_s > 0)
            g->decode_tok_s = (s->output_len - 1) / decode_s;
    }
    return g;
}
