/* SPDX-License-Identifier: Apache-2.0 */
#include "coord_fixture.h"

#include <stdio.h>

/* ---- a model made of bytes */

/* The byte-level alphabet of GPT-2: printable bytes stand for themselves, the others follow from 256 on. */
static unsigned letter(unsigned byte)
{
    unsigned n = 256;

    for (unsigned b = 0; b < 256; b++) {
        bool printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;

        if (b == byte)
            return printable ? b : n;
        n += !printable;
    }
    return 0;
}

static struct dk_tokenizer *make_tokenizer(void)
{
    struct dk_tokenizer *t;
    struct dk_err err = {0};
    char *json = NULL;
    size_t bytes;
    FILE *f = open_memstream(&json, &bytes);

    fprintf(f,
            "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[{\"id\":256,\"content\":"
            "\"<|end|>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":"
            "true}],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
            "\"trim_offsets\":false,\"use_regex\":false},\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\","
            "\"add_prefix_space\":false,\"trim_offsets\":false,\"use_regex\":false},\"model\":{\"type\":\"BPE\","
            "\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
            "\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false,\"vocab\":{");
    for (unsigned b = 0; b < 256; b++)
        fprintf(f, "%s\"\\u%04x\":%u", b ? "," : "", letter(b), b);
    fprintf(f, "},\"merges\":[]}}");
    fclose(f);
    cr_assert_eq(dk_tokenizer_from_memory(json, bytes, "bytes", &t, &err), 0, "%s", err.text);
    free(json);
    return t;
}

static int fake_open(void *ctx, const char *dir, struct dk_served_model *out, struct dk_err *err)
{
    struct fx *fx = ctx;

    if (fx->open_code != DK__CODE__OK)
        return dk_err_set(err, dk_errno_from_code(fx->open_code), "%s/config.json: no such file", dir);
    memset(out, 0, sizeof *out);
    out->config = (struct dk_model_config){.family = DK_FAMILY_QWEN3,
                                           .model_type = "qwen3",
                                           .hidden = 128,
                                           .layers = 2,
                                           .heads = 4,
                                           .kv_heads = 2,
                                           .head_dim = 32,
                                           .intermediate = 384,
                                           .experts = fx->experts,
                                           .moe_intermediate = fx->experts ? 192 : 0,
                                           .vocab = FX_VOCAB,
                                           .context_max = FX_CONTEXT};
    if (fx->index_top_k) {
        out->config.family = DK_FAMILY_DEEPSEEK_V32;
        out->config.index = (struct dk_index_config){.heads = 4, .dim = 32, .top_k = fx->index_top_k};
    }
    out->generation = (struct dk_generation_config){
        .temperature = 0.6, .top_p = 0.95, .top_k = 20, .eos = {FX_END}, .eos_count = 1};
    out->chat = DK_CHAT_QWEN3;
    out->tokenizer = make_tokenizer();
    out->model_id = 0x1234;
    return 0;
}

void fx_init(struct fx *fx)
{
    memset(fx, 0, sizeof *fx);
    dk_coordinator_options_init(&fx->options);
    fx->options.version = "1.0";
    fx->options.epoch_base = 1000;
    fx->options.seed = 7;
    fx->options.source = (struct dk_model_source){.open = fake_open, .ctx = fx};
    fx->now = 5 * SECOND;
    fx->w.name = "worker";
    fx->w.instance = 100;
    fx->trace_count = 3;
}

void fx_open(struct fx *fx)
{
    struct dk_err err = {0};

    cr_assert_eq(dk_outbox_init(&fx->out, 1), 0);
    cr_assert_eq(dk_coordinator_open(&fx->options, fx->now, &fx->c, &err), 0, "%s", err.text);
}

static void deliver(struct fx *fx)
{
    for (uint32_t i = 0; i < fx->out.count; i++) {
        struct dk_outbox_entry *e = &fx->out.entries[i];
        struct answer *a = e->call;

        cr_assert_not(a->done, "a call was answered twice");
        a->done = true;
        a->reply = e->reply;
        a->code = e->code;
        strcpy(a->text, e->text);
        e->reply = NULL;
    }
    dk_outbox_clear(&fx->out);
}

void fx_close(struct fx *fx)
{
    dk_coordinator_end(fx->c, &fx->out);
    deliver(fx);
    dk_coordinator_close(fx->c);
    dk_outbox_fini(&fx->out);
    dk_message_free(fx->w.plan);
    dk_message_free(fx->w.result);
    dk_message_free(fx->w.step);
    dk_message_free(fx->w.fail_step);
}

void fx_coordinator_restart(struct fx *fx)
{
    dk_coordinator_end(fx->c, &fx->out);
    deliver(fx);
    dk_coordinator_close(fx->c);
    dk_outbox_fini(&fx->out);
    fx->options.epoch_base += 1000;
    fx->options.seed++;
    fx->now += SECOND;
    fx_open(fx);
}

void fx_call(struct fx *fx, const void *request, struct answer *a)
{
    memset(a, 0, sizeof *a);
    dk_coordinator_handle(fx->c, a, request, fx->now, &fx->out);
    deliver(fx);
}

void fx_tick(struct fx *fx, uint64_t later_us)
{
    uint64_t end = fx->now + later_us;

    while (fx->now < end) {
        uint64_t next = dk_coordinator_deadline(fx->c);

        cr_assert_gt(next, fx->now, "a deadline in the past would make the loop spin");
        fx->now = next < end ? next : end;
        dk_coordinator_tick(fx->c, fx->now, &fx->out);
        deliver(fx);
    }
}

void fx_clear(struct answer *a)
{
    dk_message_free(a->reply);
    memset(a, 0, sizeof *a);
}

void *fx_reply(const struct answer *a)
{
    cr_assert(a->done, "not answered yet");
    cr_assert_not_null(a->reply, "it failed: %s", a->text);
    return a->reply;
}

void fx_assert_failed(const struct answer *a, Dk__Code code, const char *part)
{
    cr_assert(a->done && !a->reply, "it did not fail");
    cr_assert_eq(a->code, code, "code %d, not %d: %s", (int)a->code, (int)code, a->text);
    cr_assert(strstr(a->text, part), "'%s' does not say '%s'", a->text, part);
}

/* ---- nodes */

void fx_heartbeat(struct fx *fx, const struct fx_beat *b, struct answer *a)
{
    Dk__HeartbeatRequest q = DK__HEARTBEAT_REQUEST__INIT;
    Dk__NodeInfo n = DK__NODE_INFO__INIT;
    Dk__DataAddress address = DK__DATA_ADDRESS__INIT;
    Dk__DuckLink link[64], *links[64];
    Dk__LoadProgress load = DK__LOAD_PROGRESS__INIT;
    Dk__Holding holding = DK__HOLDING__INIT;
    Dk__TransportCounters transport = DK__TRANSPORT_COUNTERS__INIT;
    uint8_t mac[6] = {2, 0, 0, 0, 0, (uint8_t)b->instance};

    address.instance = b->instance;
    address.mac = (ProtobufCBinaryData){.data = mac, .len = 6};
    address.mtu = 9000;
    address.ipv4 = b->port == DK__PORT_KIND__AF_PACKET ? 0x0a000000 + b->instance : 0;
    address.udp_port = b->port == DK__PORT_KIND__AF_PACKET ? 7717 : 0;
    n.name = (char *)b->name;
    n.kind = b->kind;
    n.port_kind = b->port ? b->port : DK__PORT_KIND__VHOST;
    n.version = (char *)b->version;
    n.address = &address;
    q.node = &n;
    if (b->ready_epoch) {
        load.has_plan_epoch = load.has_ready = true;
        load.plan_epoch = b->ready_epoch;
        load.ready = !b->load_error && !b->feeding;
        load.error = b->load_error;
        q.load = &load;
    }
    if (b->link_instance) {
        dk__duck_link__init(&link[0]);
        links[0] = &link[0];
        link[0].duck_instance = b->link_instance;
        link[0].port_ready = true;
        link[0].socket_path = (char *)"/run/d0.sock";
        q.links = links;
        q.n_links = 1;
    }
    for (uint32_t i = 0; i < b->link_count; i++) {
        dk__duck_link__init(&link[i]);
        links[i] = &link[i];
        link[i].member_index = b->links[i].index;
        link[i].duck_instance = b->links[i].instance;
        link[i].port_ready = !b->links[i].closed;
        link[i].has_alive = true;
        link[i].alive = !b->links[i].silent;
        q.links = links;
        q.n_links = i + 1;
    }
    holding.has_plan_epoch = true;
    holding.plan_epoch = b->held_epoch;
    holding.has_cache_tokens = b->cache_tokens > 0;
    holding.cache_tokens = b->cache_tokens;
    if (b->held_epoch)
        q.holding = &holding;
    q.plan = b->plan;
    transport.has_frames_received = true;
    transport.frames_received = b->frames_received;
    q.transport = &transport;
    fx_call(fx, &q, a);
}

uint64_t fx_duck(struct fx *fx, const char *name, uint32_t instance)
{
    struct fx_beat b = {.name = name, .kind = DK__NODE_KIND__DUCK, .instance = instance};
    struct answer a;
    Dk__HeartbeatReply *r;
    uint64_t epoch;

    fx_heartbeat(fx, &b, &a);
    r = FX_REPLY(&a, Dk__HeartbeatReply);
    epoch = r->plan ? r->plan->epoch : 0;
    fx_clear(&a);
    return epoch;
}

void fx_worker_beat(struct fx *fx)
{
    /* Twice: the first learns the plan, the second says that it is loaded. */
    for (int i = 0; i < 2; i++) {
        struct fx_beat b = {.name = fx->w.name,
                            .kind = DK__NODE_KIND__WORKER,
                            .instance = fx->w.instance,
                            .ready_epoch = fx->w.epoch,
                            .held_epoch = fx->w.epoch,
                            .cache_tokens = fx->w.cache_tokens,
                            .plan = fx->w.plan};
        struct answer a;
        Dk__HeartbeatReply *r;

        fx_heartbeat(fx, &b, &a);
        r = FX_REPLY(&a, Dk__HeartbeatReply);
        fx->w.epoch = r->plan ? r->plan->epoch : 0;
        dk_message_free(fx->w.plan);
        fx->w.plan = r->plan ? dk_message_clone(r->plan) : NULL;
        fx_clear(&a);
    }
}

void fx_all_beat(struct fx *fx)
{
    fx_duck(fx, "duck-1", 1);
    fx_duck(fx, "duck-2", 2);
    fx_worker_beat(fx);
}

void fx_worker_restart(struct fx *fx, uint32_t instance)
{
    fx->w.instance = instance;
    fx->w.epoch = 0;
    dk_message_free(fx->w.plan);
    fx->w.plan = NULL;
    fx->w.cache_count = 0;
    dk_message_free(fx->w.result);
    fx->w.result = NULL;
}

void fx_load(struct fx *fx, struct answer *a)
{
    Dk__LoadRequest q = DK__LOAD_REQUEST__INIT;

    q.model_dir = (char *)"/models/bytes";
    fx_call(fx, &q, a);
}

Dk__ClusterState fx_state(struct fx *fx, char *text, size_t room)
{
    Dk__StatusRequest q = DK__STATUS_REQUEST__INIT;
    Dk__ClusterState state;
    struct answer a;
    Dk__StatusReply *r;

    fx_call(fx, &q, &a);
    r = FX_REPLY(&a, Dk__StatusReply);
    state = r->state;
    if (text)
        snprintf(text, room, "%s", r->error ? r->error->text : "");
    fx_clear(&a);
    return state;
}

void fx_ready(struct fx *fx)
{
    struct answer a;

    fx_open(fx);
    fx_all_beat(fx);
    fx_load(fx, &a);
    FX_REPLY(&a, Dk__LoadReply);
    fx_clear(&a);
    fx_all_beat(fx);
    cr_assert_eq(fx_state(fx, NULL, 0), DK__CLUSTER_STATE__READY);
}

/* ---- clients */

void fx_submit(struct fx *fx, Dk__SubmitRequest *q, struct answer *a)
{
    fx_call(fx, q, a);
}

uint64_t fx_submit_text(struct fx *fx, const char *text, uint32_t max_tokens)
{
    Dk__SubmitRequest q = DK__SUBMIT_REQUEST__INIT;
    struct answer a;
    uint64_t handle;

    q.prompt_case = DK__SUBMIT_REQUEST__PROMPT_TEXT;
    q.text = (char *)text;
    q.has_max_tokens = true;
    q.max_tokens = max_tokens;
    fx_call(fx, &q, &a);
    handle = FX_REPLY(&a, Dk__SubmitReply)->handle;
    fx_clear(&a);
    return handle;
}

void fx_read(struct fx *fx, uint64_t handle, uint64_t cursor, uint32_t wait_ms, struct answer *a)
{
    Dk__ReadRequest q = DK__READ_REQUEST__INIT;

    q.handle = handle;
    q.has_cursor = true;
    q.cursor = cursor;
    q.has_wait_ms = true;
    q.wait_ms = wait_ms;
    fx_call(fx, &q, a);
}

void fx_cancel(struct fx *fx, uint64_t handle)
{
    Dk__CancelRequest q = DK__CANCEL_REQUEST__INIT;
    struct answer a;

    q.handle = handle;
    fx_call(fx, &q, &a);
    FX_REPLY(&a, Dk__CancelReply);
    fx_clear(&a);
}

/* ---- the worker */

void fx_next_step(struct fx *fx, uint32_t wait_ms, struct answer *a)
{
    Dk__NextStepRequest q = DK__NEXT_STEP_REQUEST__INIT;

    q.worker = (char *)fx->w.name;
    q.instance = fx->w.instance;
    q.result = fx->w.result;
    q.has_wait_ms = true;
    q.wait_ms = wait_ms;
    q.has_plan_epoch = true;
    q.plan_epoch = fx->w.epoch;
    fx_call(fx, &q, a);
}

static uint32_t hash_token(const struct fx_cache *s)
{
    uint32_t h = 2166136261u;

    for (uint32_t i = 0; i < s->count; i++)
        h = (h ^ s->tokens[i]) * 16777619u;
    return 'a' + (h >> 8) % 26;
}

float fx_score(const uint32_t *tokens, uint32_t position)
{
    uint32_t h = 2166136261u;

    for (uint32_t i = 0; i <= position; i++)
        h = (h ^ tokens[i]) * 16777619u;
    return -(float)(h >> 12) / 4096;
}

/* The cache holds the tokens of q already. */
static void score_tokens(const struct fx_cache *s, const Dk__StepSequence *q, Dk__SequenceResult *r)
{
    uint32_t tokens[FX_CONTEXT + 1], n = (uint32_t)q->n_tokens - !q->has_next_token;

    cr_assert(q->has_score_top);
    memcpy(tokens, s->tokens, s->count * sizeof *tokens);
    tokens[s->count] = q->next_token;
    r->scores = calloc(n + 1, sizeof(Dk__TokenScore *));
    for (uint32_t i = 0; i < n; i++) {
        uint32_t position = q->position + i + 1;
        Dk__TokenScore *t = dk_message_new(&dk__token_score__descriptor);

        t->id = tokens[position];
        t->logprob = fx_score(tokens, position);
        t->top = calloc(q->score_top + 1, sizeof(Dk__TokenLogprob *));
        for (; t->n_top < q->score_top; t->n_top++)
            t->top[t->n_top] = dk_message_new(&dk__token_logprob__descriptor);
        r->scores[r->n_scores++] = t;
    }
}

static void trace_tokens(const struct fx *fx, const Dk__StepSequence *q, Dk__SequenceResult *r)
{
    r->trace = calloc(fx->trace_count + 1, sizeof(Dk__TraceTensor *));
    for (uint32_t i = 0; i < fx->trace_count; i++) {
        Dk__TraceTensor *t = dk_message_new(&dk__trace_tensor__descriptor);

        cr_assert(asprintf(&t->name, "layer.%u.out", i) > 0);
        t->type = DK__TRACE_TYPE__TRACE_F32;
        t->n_shape = 2;
        t->shape = calloc(2, sizeof *t->shape);
        t->shape[0] = (uint32_t)q->n_tokens;
        t->shape[1] = FX_TRACE_WIDTH;
        t->data.len = q->n_tokens * FX_TRACE_WIDTH * 4;
        t->data.data = calloc(1, t->data.len);
        r->trace[r->n_trace++] = t;
    }
}

static struct fx_cache *cache_find(struct fx_worker *w, uint64_t id)
{
    for (uint32_t i = 0; i < w->cache_count; i++)
        if (w->caches[i].id == id)
            return &w->caches[i];
    return NULL;
}

static void run_sequence(struct fx *fx, const Dk__StepSequence *q, Dk__SequenceResult *r)
{
    struct fx_worker *w = &fx->w;
    struct fx_cache *s = cache_find(w, q->sequence_id);

    if (!s) {
        cr_assert_eq(q->position, 0u, "a sequence must begin at 0");
        s = &w->caches[w->cache_count++];
        s->id = q->sequence_id;
        s->count = 0;
        if (w->cache_count > w->cache_most)
            w->cache_most = w->cache_count;
    }
    if (q->position == 0)
        s->count = 0;
    cr_assert_eq(q->position, s->count, "position %u, but the cache holds %u", q->position, s->count);
    cr_assert_gt(q->n_tokens, 0);
    memcpy(s->tokens + s->count, q->tokens, q->n_tokens * sizeof *q->tokens);
    s->count += (uint32_t)q->n_tokens;
    w->prefill_tokens += q->n_tokens > 1 ? (uint32_t)q->n_tokens : 0;
    r->sequence_id = q->sequence_id;
    if (q->sample) {
        cr_assert_not_null(q->sampling);
        r->has_token = r->has_logprob = true;
        r->token = fx->next_token ? fx->next_token(s) : hash_token(s);
        r->logprob = -1;
    }
    if (q->want_logits) {
        r->has_logits = r->has_vocab = true;
        r->vocab = FX_VOCAB;
        r->logits.len = q->n_tokens * FX_VOCAB * sizeof(float);
        r->logits.data = calloc(1, r->logits.len);
        memcpy(r->logits.data, &q->position, sizeof q->position);
    }
    if (q->score)
        score_tokens(s, q, r);
    if (q->trace)
        trace_tokens(fx, q, r);
    if (fx->spoil)
        fx->spoil(r);
    if (w->fail_sequence == q->sequence_id)
        r->error = dk_status_new(DK__CODE__INTERNAL, "this one failed");
}

void fx_run_step(struct fx *fx, const Dk__Step *step)
{
    struct fx_worker *w = &fx->w;
    uint32_t rows = 0;

    dk_message_free(w->result);
    w->result = dk_message_new(&dk__step_result__descriptor);
    w->result->step_id = step->step_id;
    w->result->timing = dk_message_new(&dk__step_timing__descriptor);
    w->result->timing->has_total_us = true;
    w->result->timing->total_us = 10;
    w->result->timing->has_meanwhile_us = true;
    w->result->timing->meanwhile_us = 3;
    w->steps++;
    if (step->release_all)
        w->cache_count = 0;
    for (size_t i = 0; i < step->n_released; i++) {
        struct fx_cache *s = cache_find(w, step->released[i]);

        if (s)
            *s = w->caches[--w->cache_count];
    }
    if (w->fail_step) {
        w->result->error = w->fail_step;
        w->fail_step = NULL;
        return;
    }
    w->result->sequences = calloc(step->n_sequences, sizeof(Dk__SequenceResult *));
    for (size_t i = 0; i < step->n_sequences; i++) {
        Dk__SequenceResult *r = dk_message_new(&dk__sequence_result__descriptor);

        run_sequence(fx, step->sequences[i], r);
        rows += (uint32_t)step->sequences[i]->n_tokens;
        w->result->sequences[w->result->n_sequences++] = r;
    }
    if (rows > w->rows_most)
        w->rows_most = rows;
}

bool fx_step(struct fx *fx)
{
    struct answer a;
    Dk__NextStepReply *r;
    bool got;

    fx_next_step(fx, 0, &a);
    r = FX_REPLY(&a, Dk__NextStepReply);
    got = r->step != NULL;
    if (got) {
        dk_message_free(fx->w.step);
        fx->w.step = r->step;
        r->step = NULL;
        fx_run_step(fx, fx->w.step);
    }
    fx_clear(&a);
    return got;
}

void fx_take(struct fx_told *t, const Dk__ReadReply *r)
{
    for (size_t i = 0; i < r->n_events; i++) {
        const Dk__Event *e = r->events[i];

        cr_assert_eq(e->cursor, t->cursor + 1, "cursor %llu after %llu", (unsigned long long)e->cursor,
                     (unsigned long long)t->cursor);
        t->cursor = e->cursor;
        cr_assert_not(t->finished, "an event after the finish");
        if (e->has_token)
            t->tokens[t->token_count++] = e->token;
        if (e->text)
            strcat(t->text, e->text);
        t->logits_bytes += e->logits.len;
        for (size_t k = 0; k < e->n_scores; k++) {
            t->scores[t->score_count].id = e->scores[k]->id;
            t->scores[t->score_count].top_count = (uint32_t)e->scores[k]->n_top;
            t->scores[t->score_count++].logprob = e->scores[k]->logprob;
        }
        for (size_t k = 0; k < e->n_trace; k++) {
            char name[32];

            snprintf(name, sizeof name, "layer.%u.out", t->trace_count++);
            cr_assert_str_eq(e->trace[k]->name, name, "tensors come in order, once");
        }
        t->trace_events += e->n_trace > 0;
        t->finished = e->has_finish;
        t->finish = e->finish;
        if (e->error) {
            t->error = e->error->code;
            strcpy(t->error_text, e->error->text);
        }
        if (e->stats)
            t->stats = *e->stats;
    }
}

void fx_finish(struct fx *fx, uint64_t handle, struct fx_told *t)
{
    for (int i = 0; i < 2000 && !t->finished; i++) {
        struct answer a;

        fx_step(fx);
        fx_read(fx, handle, t->cursor, 0, &a);
        fx_take(t, FX_REPLY(&a, Dk__ReadReply));
        fx_clear(&a);
    }
    cr_assert(t->finished, "it never ended");
}
