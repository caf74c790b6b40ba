/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/coordinator_internal.h"
#include "net/net.h"

/* Text in, tokens made, sequence opened. Every check is made before anything is kept. */

#define LAYERS_MAX      sizeof((struct dk_model_config *)0)->mixer /* one byte each */
#define TRACE_BYTES_MAX (DK_CONTROL_BYTES_MAX / 4)                 /* of the worker's result with a trace */

static int model_missing(const struct dk_coordinator *c, struct dk_outbox *out, void *call)
{
    if (!c->has_model) {
        dk_outbox_fail(out, call, DK__CODE__FAILED_PRECONDITION,
                       "no model is loaded: run 'duckctl load DIR' (Client/Load) first");
        return -ENOENT;
    }
    return 0;
}

typedef int encode_fn(const struct dk_tokenizer *t, const char *text, size_t bytes, uint32_t **ids, size_t *count,
                      struct dk_err *err);

/* Text of a client to ids. fn: with or without the tokens that stand before a prompt. */
static int encode(const struct dk_coordinator *c, encode_fn *fn, const char *text, uint32_t **ids, size_t *count,
                  struct dk_err *err)
{
    size_t bytes = strlen(text);

    if (bytes > DK_TEXT_BYTES_MAX)
        return dk_err_set(err, -EINVAL, "the text has %zu bytes, more than the %u that are taken", bytes,
                          DK_TEXT_BYTES_MAX);
    return fn(c->model.tokenizer, text, bytes, ids, count, err);
}

/* A JSON array of a client. name: of the field. */
static int load_array(const char *name, const char *text, json_t **out, struct dk_err *err)
{
    json_error_t where;

    *out = NULL;
    if (strlen(text) > DK_TEXT_BYTES_MAX)
        return dk_err_set(err, -EINVAL, "%s: larger than %u bytes", name, DK_TEXT_BYTES_MAX);
    *out = json_loads(text, JSON_REJECT_DUPLICATES, &where);
    if (!*out)
        return dk_err_set(err, -EINVAL, "%s: line %d column %d: %s", name, where.line, where.column, where.text);
    if (json_is_array(*out))
        return 0;
    json_decref(*out);
    *out = NULL;
    return dk_err_set(err, -EINVAL, "%s: must be an array of %s", name,
                      strcmp(name, "tools_json") ? "messages" : "tools");
}

static int load_tools(const char *text, json_t **out, struct dk_err *err)
{
    int rc = load_array("tools_json", text, out, err);

    for (size_t i = 0; rc == 0 && i < json_array_size(*out); i++)
        if (!json_is_object(json_array_get(*out, i)))
            rc = dk_err_set(err, -EINVAL, "tools_json: tools[%zu] must be an object", i);
    return rc;
}

/* What the format has no place for: tools would be lost without a word. A switch that it has not only goes to the log,
 * because it tells how an answer should be, not what is asked. */
static int check_format(const struct dk_coordinator *c, const json_t *tools, enum dk_thinking thinking,
                        struct dk_err *err)
{
    const char *name = dk_chat_format_name(c->model.chat);

    if (json_array_size(tools) && !dk_chat_takes_tools(c->model.chat))
        return dk_err_set(err, -EINVAL,
                          "tools_json: the chat format %s has no tools; leave --tools out, or describe them in the "
                          "system message",
                          name);
    if (thinking != DK_THINKING_DEFAULT && !dk_chat_has_switch(c->model.chat))
        dk_log(DK_LOG_WARN, "chat.no_switch", "format=%s text=\"the format cannot switch thinking on or off\"", name);
    return 0;
}

/* tools_json: NULL if there are none. */
static int encode_messages(const struct dk_coordinator *c, const json_t *messages, const char *tools_json,
                           enum dk_thinking thinking, uint32_t **ids, size_t *count, struct dk_err *err)
{
    json_t *tools = NULL;
    char *text = NULL;
    int rc = tools_json ? load_tools(tools_json, &tools, err) : 0;

    if (rc == 0)
        rc = dk_chat_render(c->model.chat, messages, tools, thinking, 1, &text, err);
    if (rc == 0)
        rc = check_format(c, tools, thinking, err);
    if (rc == 0)
        rc = encode(c, dk_tokenizer_encode, text, ids, count, err);
    free(text);
    json_decref(tools);
    return rc;
}

static int encode_chat(const struct dk_coordinator *c, const Dk__ChatPrompt *chat, const char *tools_json,
                       enum dk_thinking thinking, uint32_t **ids, size_t *count, struct dk_err *err)
{
    json_t *messages = json_array();
    int rc = messages ? 0 : -ENOMEM;

    for (size_t i = 0; i < chat->n_messages && rc == 0; i++) {
        const Dk__ChatMessage *m = chat->messages[i];
        json_t *o = json_object();

        /* jansson takes only valid UTF-8, as strings in protobuf are meant to be. */
        if (json_object_set_new(o, "role", json_string(m->role)) ||
            (m->content && json_object_set_new(o, "content", json_string(m->content))) ||
            (m->reasoning_content && json_object_set_new(o, "reasoning_content", json_string(m->reasoning_content))) ||
            json_array_append(messages, o))
            rc = dk_err_set(err, -EINVAL, "messages[%zu]: not valid UTF-8", i);
        json_decref(o);
    }
    if (rc == -ENOMEM)
        dk_err_set(err, rc, "out of memory");
    if (rc == 0)
        rc = encode_messages(c, messages, tools_json, thinking, ids, count, err);
    json_decref(messages);
    return rc;
}

static int encode_json(const struct dk_coordinator *c, const char *text, const char *tools_json,
                       enum dk_thinking thinking, uint32_t **ids, size_t *count, struct dk_err *err)
{
    json_t *messages;
    int rc = load_array("messages_json", text, &messages, err);

    if (rc == 0)
        rc = encode_messages(c, messages, tools_json, thinking, ids, count, err);
    json_decref(messages);
    return rc;
}

static int take_ids(const Dk__TokenIds *given, uint32_t **ids, size_t *count, struct dk_err *err)
{
    *ids = malloc(given->n_ids * sizeof **ids + 1);
    if (!*ids)
        return dk_err_set(err, -ENOMEM, "out of memory");
    if (given->n_ids)
        memcpy(*ids, given->ids, given->n_ids * sizeof **ids);
    *count = given->n_ids;
    return 0;
}

static enum dk_thinking thinking_of(protobuf_c_boolean has, protobuf_c_boolean on)
{
    return !has ? DK_THINKING_DEFAULT : on ? DK_THINKING_ON : DK_THINKING_OFF;
}

static int make_prompt(const struct dk_coordinator *c, const Dk__SubmitRequest *q, uint32_t **ids, size_t *count,
                       struct dk_err *err)
{
    switch (q->prompt_case) {
    case DK__SUBMIT_REQUEST__PROMPT_TEXT:
        return encode(c, dk_tokenizer_encode_prompt, q->text, ids, count, err);
    case DK__SUBMIT_REQUEST__PROMPT_IDS:
        return take_ids(q->ids, ids, count, err);
    case DK__SUBMIT_REQUEST__PROMPT_CHAT:
        return encode_chat(c, q->chat, q->tools_json, thinking_of(q->chat->has_thinking, q->chat->thinking), ids, count,
                           err);
    case DK__SUBMIT_REQUEST__PROMPT_MESSAGES_JSON:
        return encode_json(c, q->messages_json, q->tools_json, thinking_of(q->has_thinking, q->thinking), ids, count,
                           err);
    default:
        return dk_err_set(err, -EINVAL, "a prompt is missing: give text, ids, chat or messages_json");
    }
}

/* Nothing is generated for a score, so what shapes an answer would be ignored without a word. */
static int check_score(const Dk__SubmitRequest *q, struct dk_err *err)
{
    const char *name = q->n_stop                            ? "stop"
                       : q->has_max_tokens                  ? "max_tokens"
                       : q->has_ignore_eos && q->ignore_eos ? "ignore_eos"
                       : q->has_temperature                 ? "temperature"
                       : q->has_top_p                       ? "top_p"
                       : q->has_top_k                       ? "top_k"
                       : q->has_seed                        ? "seed"
                                                            : NULL;

    if (!name)
        return 0;
    return dk_err_set(err, -EINVAL, "score: nothing is generated, so it does not go with %s; leave one of the two out",
                      name);
}

/* What is wrong with the request whatever the prompt. */
static int check_options(const struct dk_coordinator *c, const Dk__SubmitRequest *q, struct dk_err *err)
{
    if (q->has_max_tokens && !q->max_tokens)
        return dk_err_set(err, -EINVAL, "max_tokens: must be at least 1");
    if (q->has_temperature && !(q->temperature >= 0 && q->temperature <= 100))
        return dk_err_set(err, -EINVAL, "temperature: %g is not from 0 (greedy) to 100", (double)q->temperature);
    if (q->has_top_p && !(q->top_p > 0 && q->top_p <= 1))
        return dk_err_set(err, -EINVAL, "top_p: %g is not above 0 and at most 1", (double)q->top_p);
    if (q->has_top_k && q->top_k > c->model.config.vocab)
        return dk_err_set(err, -EINVAL, "top_k: %u is more than the vocabulary's %u (0: no limit)", q->top_k,
                          c->model.config.vocab);
    if (q->has_logprobs && q->logprobs > 20)
        return dk_err_set(err, -EINVAL, "logprobs: %u alternatives asked for, at most 20 are reported", q->logprobs);
    if (q->has_prefill_chunk && !q->prefill_chunk)
        return dk_err_set(err, -EINVAL, "prefill_chunk: must be at least 1");
    if (q->n_stop > DK_STOP_STRINGS_MAX)
        return dk_err_set(err, -EINVAL, "stop: %zu strings, at most %u are taken", q->n_stop, DK_STOP_STRINGS_MAX);
    for (size_t i = 0; i < q->n_stop; i++)
        if (!q->stop[i][0] || strlen(q->stop[i]) > DK_STOP_BYTES_MAX)
            return dk_err_set(err, -EINVAL, "stop[%zu]: must have 1 to %u bytes, has %zu", i, DK_STOP_BYTES_MAX,
                              strlen(q->stop[i]));
    if (q->tools_json && q->prompt_case != DK__SUBMIT_REQUEST__PROMPT_CHAT &&
        q->prompt_case != DK__SUBMIT_REQUEST__PROMPT_MESSAGES_JSON)
        return dk_err_set(err, -EINVAL, "tools_json: goes with chat or messages_json, which the chat template renders");
    if (q->n_trace_layers && !(q->has_trace && q->trace))
        return dk_err_set(err, -EINVAL, "trace_layers: goes with trace, which is not asked for");
    for (size_t i = 0; i < q->n_trace_layers; i++)
        if (q->trace_layers[i] >= c->model.config.layers)
            return dk_err_set(err, -EINVAL, "trace_layers[%zu]: there is no layer %u: the model has %u, from 0 on", i,
                              q->trace_layers[i], c->model.config.layers);
    return q->has_score && q->score ? check_score(q, err) : 0;
}

/* The layers of a trace, rising and once each; the ids have been checked. Returns how many; 0: all. */
static uint32_t trace_layers(const Dk__SubmitRequest *q, uint32_t out[LAYERS_MAX])
{
    bool wanted[LAYERS_MAX] = {false};
    uint32_t count = 0;

    for (size_t i = 0; i < q->n_trace_layers; i++)
        wanted[q->trace_layers[i]] = true;
    for (uint32_t i = 0; i < LAYERS_MAX; i++)
        if (wanted[i])
            out[count++] = i;
    return count;
}

/* Of the worker's result. */
static uint64_t trace_result_bytes(const struct dk_coordinator *c, const Dk__SubmitRequest *q, const uint32_t *layers,
                                   uint32_t layer_count, uint32_t tokens)
{
    const struct dk_model_config *m = &c->model.config;
    uint64_t logits = q->has_want_logits && q->want_logits ? (uint64_t)tokens * m->vocab * sizeof(float) : 0;

    return dk_trace_bytes(m, layers, layer_count, tokens) + logits;
}

/* What would make a trace of these layers fit. */
static const char *trace_way_out(const struct dk_coordinator *c, const Dk__SubmitRequest *q, const uint32_t *layers,
                                 uint32_t layer_count, uint32_t tokens)
{
    uint32_t chosen = layer_count ? layer_count : c->model.config.layers;
    bool shorter = trace_result_bytes(c, q, layers, layer_count, 1) <= TRACE_BYTES_MAX, fewer = false;

    if (dk_trace_bytes(&c->model.config, layers, layer_count, tokens) <= TRACE_BYTES_MAX)
        return "leave one of the two out";
    for (uint32_t i = 0; i < chosen && chosen > 1 && !fewer; i++)
        fewer = trace_result_bytes(c, q, layer_count ? &layers[i] : &i, 1, tokens) <= TRACE_BYTES_MAX;
    if (fewer && shorter)
        return "choose fewer layers (trace_layers, --trace-layers) or shorten the prompt";
    if (fewer)
        return "choose fewer layers (trace_layers, --trace-layers); a shorter prompt alone does not help";
    if (shorter)
        return "shorten the prompt";
    return "choose fewer layers (trace_layers, --trace-layers) and shorten the prompt";
}

/* A trace comes in one result of the worker: the whole prompt must fit into one step, and the values into a message. */
static int check_trace(const struct dk_coordinator *c, const Dk__SubmitRequest *q, uint32_t count, struct dk_err *err)
{
    uint32_t layers[LAYERS_MAX], layer_count = trace_layers(q, layers);
    uint64_t bytes = trace_result_bytes(c, q, layers, layer_count, count);

    if (count > dk_step_rows(c))
        return dk_err_set(err, -EINVAL,
                          "trace: the prompt has %u tokens, and a step takes %u: a trace needs the whole prompt in one "
                          "step; shorten it, or start the coordinator with a larger --step-rows",
                          count, dk_step_rows(c));
    if (q->has_prefill_chunk && q->prefill_chunk < count)
        return dk_err_set(err, -EINVAL,
                          "trace: the prompt has %u tokens and goes into one step, which prefill_chunk %u forbids",
                          count, q->prefill_chunk);
    if (bytes > TRACE_BYTES_MAX)
        return dk_err_set(
            err, -EINVAL,
            "trace: the values of %u tokens in %u layers of this model%s take %.1f MiB, and at most %.1f MiB "
            "are sent; %s",
            count, layer_count ? layer_count : c->model.config.layers,
            q->has_want_logits && q->want_logits ? " with their logits" : "", (double)bytes / (1 << 20),
            (double)TRACE_BYTES_MAX / (1 << 20), trace_way_out(c, q, layers, layer_count, count));
    return 0;
}

static int set_trace_layers(const Dk__SubmitRequest *q, struct dk_sequence *s)
{
    uint32_t layers[LAYERS_MAX], count = trace_layers(q, layers);

    if (!count)
        return 0;
    s->trace_layers = malloc(count * sizeof *s->trace_layers);
    if (!s->trace_layers)
        return -ENOMEM;
    memcpy(s->trace_layers, layers, count * sizeof *layers);
    s->trace_layer_count = count;
    return 0;
}

static void set_options(struct dk_coordinator *c, const Dk__SubmitRequest *q, struct dk_sequence *s)
{
    const struct dk_generation_config *g = &c->model.generation;

    s->temperature = q->has_temperature ? q->temperature : (float)g->temperature;
    s->top_p = q->has_top_p ? q->top_p : (float)g->top_p;
    s->top_k = q->has_top_k ? q->top_k : g->top_k;
    if (s->top_k > c->model.config.vocab)
        s->top_k = 0;
    s->seed = q->has_seed ? q->seed : dk_rng_next(&c->rng) >> 11; /* 53 bits: exact in every JSON reader */
    s->want_logprob = q->has_logprobs;
    s->logprobs = q->has_logprobs ? q->logprobs : 0;
    s->want_logits = q->has_want_logits && q->want_logits;
    s->ignore_eos = q->has_ignore_eos && q->ignore_eos;
    s->score = q->has_score && q->score;
    s->trace = q->has_trace && q->trace;
    s->prefill_chunk = q->has_prefill_chunk ? q->prefill_chunk : 0;
}

static Dk__SubmitReply *submit_reply(const struct dk_sequence *s)
{
    Dk__SubmitReply *r = dk_message_new(&dk__submit_reply__descriptor);

    if (!r)
        return NULL;
    r->handle = s->id;
    r->prompt_ids = malloc(s->prompt_len * sizeof *r->prompt_ids);
    if (!r->prompt_ids) {
        dk_message_free(r);
        return NULL;
    }
    memcpy(r->prompt_ids, s->tokens, s->prompt_len * sizeof *r->prompt_ids);
    r->n_prompt_ids = s->prompt_len;
    return r;
}

/* For a prompt that is too long. */
static const char *context_way_out(const struct dk_coordinator *c)
{
    if (dk_attention_ends(c))
        return "shorten it, or load the model with --attention sparse or --allow-full";
    if (c->plan->context == c->model.config.context_max)
        return "shorten it: the model can do no more";
    return "shorten it or load the model with a larger context";
}

/* How many tokens may be generated. */
static int answer_room(struct dk_coordinator *c, const Dk__SubmitRequest *q, size_t count, uint32_t *max_tokens,
                       struct dk_err *err)
{
    uint32_t context = c->plan->context, least = q->has_score && q->score ? 0 : 1, room;
    uint64_t cache = dk_cache_room(c);
    char why[200] = "";

    if (dk_attention_ends(c))
        snprintf(why, sizeof why,
                 " (attention mode 'full' ends at index_topk = %u positions, because beyond them the model was trained "
                 "with the indexer's selection)",
                 context);
    if (count + least > context)
        return dk_err_set(err, -EINVAL, "the prompt has %zu tokens, and the context of %u must hold it%s%s; %s", count,
                          context, least ? " and at least one token of the answer" : "", why, context_way_out(c));
    room = context - (uint32_t)count;
    *max_tokens = !least ? 0 : q->has_max_tokens && q->max_tokens < room ? q->max_tokens : room;
    if (least && !q->has_max_tokens && cache > count && cache < context)
        *max_tokens = (uint32_t)(cache / DK_CACHE_PAGE * DK_CACHE_PAGE - count);
    if (dk_cache_need((uint32_t)count + *max_tokens) > cache)
        return dk_err_set(err, dk_errno_from_code(DK__CODE__RESOURCE_EXHAUSTED),
                          "%zu tokens of the prompt and %u of the answer need room for %llu tokens in the "
                          "attention-worker's cache, which has %llu; ask for fewer, or start the worker with a larger "
                          "--cache-mib",
                          count, *max_tokens, (unsigned long long)dk_cache_need((uint32_t)count + *max_tokens),
                          (unsigned long long)cache);
    return 0;
}

/* Checks the prompt against model and context, and opens the sequence. Takes ids over when it returns 0. */
static int open_sequence(struct dk_coordinator *c, const Dk__SubmitRequest *q, uint32_t *ids, size_t count,
                         struct dk_sequence **out, struct dk_err *err)
{
    uint32_t max_tokens = 0;
    struct dk_sequence *s;

    if (!count)
        return dk_err_set(err, -EINVAL, "the prompt is empty: at least one token is needed");
    for (size_t i = 0; i < count; i++)
        if (ids[i] >= c->model.config.vocab)
            return dk_err_set(err, -EINVAL,
                              "token %zu of the prompt: id %u is out of range, the model's vocabulary has %u", i,
                              ids[i], c->model.config.vocab);
    if (answer_room(c, q, count, &max_tokens, err) < 0)
        return err->rc;
    if (q->has_trace && q->trace && check_trace(c, q, (uint32_t)count, err) < 0)
        return err->rc;
    s = dk_sequence_alloc(c->sequence_next, ids, (uint32_t)count, max_tokens, c->now_us);
    if (!s)
        return dk_err_set(err, -ENOMEM, "out of memory");
    set_options(c, q, s);
    *out = s;
    return 0;
}

void dk_submit_handle(struct dk_coordinator *c, void *call, const Dk__SubmitRequest *q, struct dk_outbox *out)
{
    struct dk_sequence *s = NULL;
    struct dk_err err = {0};
    uint32_t *ids = NULL;
    size_t count = 0;

    if (model_missing(c, out, call))
        return;
    if (c->state == DK__CLUSTER_STATE__FAILED) {
        dk_outbox_fail(out, call, DK__CODE__FAILED_PRECONDITION, "the model did not load: %s", c->error_text);
        return;
    }
    if (dk_sequences_in(c, DK_SEQUENCE_QUEUED) >= c->options.queue_max) {
        dk_outbox_fail(out, call, DK__CODE__RESOURCE_EXHAUSTED,
                       "the queue is full: %u sequences wait already; try again later", c->options.queue_max);
        return;
    }
    if (check_options(c, q, &err) < 0 || make_prompt(c, q, &ids, &count, &err) < 0 ||
        open_sequence(c, q, ids, count, &s, &err) < 0)
        goto fail;
    ids = NULL;
    if (dk_stop_filter_init(&s->stop, q->stop, (uint32_t)q->n_stop) < 0 || set_trace_layers(q, s) < 0 ||
        dk_sequence_add(c, s) < 0) {
        dk_err_set(&err, -ENOMEM, "out of memory");
        goto fail;
    }
    c->sequence_next++;
    dk_log(DK_LOG_INFO, "sequence.open", "id=%llu prompt=%u max_tokens=%u temperature=%g", (unsigned long long)s->id,
           s->prompt_len, s->max_tokens, (double)s->temperature);
    dk_outbox_reply(out, call, submit_reply(s));
    return;
fail:
    free(ids);
    dk_sequence_free(s);
    dk_outbox_fail_err(out, call, &err);
}

void dk_tokenize_handle(struct dk_coordinator *c, void *call, const Dk__TokenizeRequest *q, struct dk_outbox *out)
{
    Dk__TokenizeReply *r;
    struct dk_err err = {0};
    uint32_t *ids = NULL;
    size_t count = 0;

    if (model_missing(c, out, call))
        return;
    if (encode(c, dk_tokenizer_encode, q->text, &ids, &count, &err) < 0) {
        dk_outbox_fail_err(out, call, &err);
        return;
    }
    r = dk_message_new(&dk__tokenize_reply__descriptor);
    if (r) {
        r->ids = ids;
        r->n_ids = count;
    } else {
        free(ids);
    }
    dk_outbox_reply(out, call, r);
}

void dk_detokenize_handle(struct dk_coordinator *c, void *call, const Dk__DetokenizeRequest *q, struct dk_outbox *out)
{
    const struct dk_tokenizer *t = c->model.tokenizer;
    struct dk_detokenizer d = {0};
    struct dk_stop_filter text = {0};
    Dk__DetokenizeReply *r;
    size_t room;
    char *piece;
    int rc = 0;

    if (model_missing(c, out, call))
        return;
    for (size_t i = 0; i < q->n_ids; i++)
        if (q->ids[i] >= c->model.config.vocab) {
            dk_outbox_fail(out, call, DK__CODE__INVALID_ARGUMENT,
                           "ids[%zu]: %u is out of range, the model's vocabulary has %u", i, q->ids[i],
                           c->model.config.vocab);
            return;
        }
    room = dk_detokenizer_room(t) + 64;
    piece = malloc(room);
    r = dk_message_new(&dk__detokenize_reply__descriptor);
    if (!piece || !r)
        rc = -ENOMEM;
    for (size_t i = 0; i < q->n_ids && rc == 0; i++)
        if (q->ids[i] < dk_tokenizer_size(t))
            rc = dk_stop_filter_push(&text, piece, dk_detokenizer_next(t, &d, q->ids[i], false, piece, room));
    if (rc == 0)
        rc = dk_stop_filter_push(&text, piece, dk_detokenizer_finish(&d, piece, room));
    if (rc == 0) {
        r->text = dk_stop_filter_take(&text);
        if (!r->text)
            r->text = strdup("");
    }
    if (rc < 0 || !r->text) {
        dk_message_free(r);
        r = NULL;
    }
    free(piece);
    dk_stop_filter_fini(&text);
    dk_outbox_reply(out, call, r);
}
