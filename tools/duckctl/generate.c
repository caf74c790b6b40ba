/* SPDX-License-Identifier: Apache-2.0 */
/* duckctl generate: one prompt in, its answer out as it is made. */
#include "duckctl/generate.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "duckctl/duckctl.h"
#include "duckctl/id_list.h"
#include "duckctl/notice.h"

#define READ_WAIT_MS    200u
#define READ_TIMEOUT_MS 10000u
#define QUIET_US        2000000u /* without an event; then a person is told what is waited for */
#define ASK_AGAIN_US    500000u

struct generate_settings {
    struct common_settings common;
    const char *prompt, *ids, *chat, *messages, *system, *thinking, *logits_out;
    uint32_t max_tokens, top_k, logprobs, prefill_chunk;
    uint64_t seed;
    double temperature, top_p;
    struct dk_option_list stop;
    bool ignore_eos;
};

static bool max_tokens_given, temperature_given, top_p_given, top_k_given, seed_given, logprobs_given;

static const struct generate_settings defaults = {COMMON_DEFAULTS, .temperature = -1, .top_p = -1};

#define F(f) offsetof(struct generate_settings, f)
static const struct dk_option options[] = {
    {"prompt", DK_OPT_TEXT, F(prompt), "TEXT", "continue this text as it is", 0, 0, NULL, NULL},
    {"ids", DK_OPT_TEXT, F(ids), "1,2,3", "continue these token ids", 0, 0, NULL, NULL},
    {"chat", DK_OPT_TEXT, F(chat), "TEXT", "answer this message of a user", 0, 0, NULL, NULL},
    {"messages", DK_OPT_TEXT, F(messages), "FILE.json", "answer this conversation: [{\"role\":..,\"content\":..}, ..]",
     0, 0, NULL, NULL},
    {"system", DK_OPT_TEXT, F(system), "TEXT", "system message before --chat", 0, 0, NULL, NULL},
    {"thinking", DK_OPT_TEXT, F(thinking), "on|off", "let the model think first; absent: its own default", 0, 0,
     "on|off", NULL},
    {"max-tokens", DK_OPT_U32, F(max_tokens), "N", "most tokens to make; absent: what the context leaves", 1, 1u << 31,
     NULL, &max_tokens_given},
    {"temperature", DK_OPT_DOUBLE, F(temperature), "T", "0 is greedy; absent: the model's generation_config.json", 0,
     100, NULL, &temperature_given},
    {"top-p", DK_OPT_DOUBLE, F(top_p), "P", "sample from the most likely tokens that make up P", 0, 1, NULL,
     &top_p_given},
    {"top-k", DK_OPT_U32, F(top_k), "K", "sample from the K most likely tokens; 0 is all", 0, 1u << 31, NULL,
     &top_k_given},
    {"seed", DK_OPT_U64, F(seed), "N", "the same seed gives the same answer", 0, 9007199254740992.0, NULL, &seed_given},
    {"logprobs", DK_OPT_U32, F(logprobs), "K", "report each token's log-probability and K alternatives", 0, 20, NULL,
     &logprobs_given},
    {"logits-out", DK_OPT_TEXT, F(logits_out), "FILE", "write the logits of all prompt positions, a safetensors file",
     0, 0, NULL, NULL},
    {"stop", DK_OPT_LIST, F(stop), "TEXT", "end before this text; may be given several times", 0, 0, NULL, NULL},
    {"ignore-eos", DK_OPT_FLAG, F(ignore_eos), NULL, "go on after the model's end token", 0, 0, NULL, NULL},
    {"prefill-chunk", DK_OPT_U32, F(prefill_chunk), "N", "most prompt tokens in one step", 1, 1u << 20, NULL, NULL},
    COMMON_OPTIONS(struct generate_settings),
    {0},
};

/* What a SubmitRequest points to. */
struct prompt {
    Dk__SubmitRequest request;
    Dk__TokenIds ids;
    char *messages_json;
    uint32_t *id_list;
};

static int messages_from_chat(const struct generate_settings *s, struct prompt *p, struct dk_err *err)
{
    json_t *list = json_array();

    if (s->system)
        json_array_append_new(list, json_pack("{s:s,s:s}", "role", "system", "content", s->system));
    json_array_append_new(list, json_pack("{s:s,s:s}", "role", "user", "content", s->chat));
    if (json_array_size(list) == (s->system ? 2u : 1u))
        p->messages_json = json_dumps(list, JSON_COMPACT);
    json_decref(list);
    return p->messages_json ? 0 : dk_err_set(err, USAGE_ERROR, "--chat, --system: the text is not UTF-8");
}

static int messages_from_file(const char *path, struct prompt *p, struct dk_err *err)
{
    FILE *f = fopen(path, "rb");
    json_error_t why;
    json_t *list;

    /* Opening a folder for reading succeeds, reading it does not. */
    if (!f || (getc(f) == EOF && ferror(f))) {
        int rc = dk_err_set(err, -errno, "--messages %s: %s", path, strerror(errno));

        if (f)
            fclose(f);
        return rc;
    }
    rewind(f);
    list = json_loadf(f, JSON_REJECT_DUPLICATES, &why);
    fclose(f);
    if (!list)
        return dk_err_set(err, -EINVAL, "--messages %s, line %d: %s", path, why.line, why.text);
    if (json_is_array(list))
        p->messages_json = json_dumps(list, JSON_COMPACT);
    json_decref(list);
    return p->messages_json ? 0 : dk_err_set(err, -EINVAL, "--messages %s: must be an array of messages", path);
}

static int prompt_make(const struct generate_settings *s, struct prompt *p, struct dk_err *err)
{
    Dk__SubmitRequest *q = &p->request;
    size_t count;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < s->stop.count; i++)
        rc = text_check("--stop", s->stop.items[i], err);
    if (rc < 0)
        return rc;
    if (s->prompt) {
        rc = text_check("--prompt", s->prompt, err);
        q->prompt_case = DK__SUBMIT_REQUEST__PROMPT_TEXT;
        q->text = (char *)(uintptr_t)s->prompt;
    } else if (s->ids) {
        rc = id_list_parse(s->ids, "--ids", &p->id_list, &count, err);
        dk__token_ids__init(&p->ids);
        p->ids.n_ids = rc == 0 ? count : 0;
        p->ids.ids = p->id_list;
        q->prompt_case = DK__SUBMIT_REQUEST__PROMPT_IDS;
        q->ids = &p->ids;
    } else {
        rc = s->chat ? messages_from_chat(s, p, err) : messages_from_file(s->messages, p, err);
        q->prompt_case = DK__SUBMIT_REQUEST__PROMPT_MESSAGES_JSON;
        q->messages_json = p->messages_json;
        q->has_thinking = s->thinking != NULL;
        q->thinking = s->thinking && !strcmp(s->thinking, "on");
    }
    return rc;
}

static void sampling_make(const struct generate_settings *s, Dk__SubmitRequest *q)
{
#define SET(given, field, v) (q->has_##field = (given), q->field = (v))
    SET(max_tokens_given, max_tokens, s->max_tokens);
    SET(temperature_given, temperature, (float)s->temperature);
    SET(top_p_given, top_p, (float)s->top_p);
    SET(top_k_given, top_k, s->top_k);
    SET(seed_given, seed, s->seed);
    SET(logprobs_given, logprobs, s->logprobs);
    SET(s->logits_out != NULL, want_logits, true);
    SET(s->ignore_eos, ignore_eos, true);
    SET(s->prefill_chunk != 0, prefill_chunk, s->prefill_chunk);
#undef SET
    q->n_stop = s->stop.count;
    q->stop = (char **)(uintptr_t)s->stop.items;
}

/* A second Ctrl-C ends this too. */
static int cancel(struct dk_rpc_client *c, uint64_t handle)
{
    Dk__CancelRequest q = DK__CANCEL_REQUEST__INIT;
    ProtobufCMessage *m;
    int before = interrupted, rc;

    interrupted = 0;
    q.handle = handle;
    rc = client_call(c, "Cancel", &q.base, 5000, &m, NULL);
    if (rc == 0)
        protobuf_c_message_free_unpacked(m, NULL);
    if (!interrupted)
        interrupted = before;
    return rc;
}

/* Says on stderr why no event comes. */
static void explain_wait(struct dk_rpc_client *c, const struct generate_output *o, struct notice *n)
{
    Dk__StatusRequest q = DK__STATUS_REQUEST__INIT;
    ProtobufCMessage *m;
    char text[sizeof n->said];

    if (client_call(c, "GetStatus", &q.base, READ_TIMEOUT_MS, &m, NULL) < 0)
        return;
    notice_text((Dk__StatusReply *)m, text, sizeof text);
    protobuf_c_message_free_unpacked(m, NULL);
    if (notice_changed(n, text))
        fprintf(stderr, "%swaiting: %s\n", o->any_text && !o->ends_in_newline && isatty(2) ? "\n" : "", text);
}

/* Reads events until the last one. -EINTR after Ctrl-C, when the sequence was cancelled. */
static int read_all(struct dk_rpc_client *c, uint64_t handle, struct generate_output *o, struct dk_err *err)
{
    uint64_t cursor = 0, explain_us = dk_now_us() + QUIET_US;
    struct notice notice = {0};
    int rc = 0;

    while (rc == 0) {
        Dk__ReadRequest q = DK__READ_REQUEST__INIT;
        ProtobufCMessage *m;
        Dk__ReadReply *r;

        if (interrupted)
            return dk_err_set(err, -EINTR, "%s",
                              cancel(c, handle) == 0 ? "interrupted: the sequence was cancelled"
                                                     : "interrupted; the coordinator does not answer, it cancels the "
                                                       "sequence when nobody reads its answer for a minute");
        q.handle = handle;
        q.has_cursor = q.has_wait_ms = true;
        q.cursor = cursor;
        q.wait_ms = READ_WAIT_MS;
        rc = client_call(c, "Read", &q.base, READ_TIMEOUT_MS, &m, err);
        if (rc == -EINTR) {
            rc = 0;
            continue;
        }
        if (rc < 0)
            return rc;
        r = (Dk__ReadReply *)m;
        if (r->n_events) {
            explain_us = dk_now_us() + QUIET_US;
        } else if (!o->json && dk_now_us() > explain_us) {
            explain_wait(c, o, &notice);
            explain_us = dk_now_us() + ASK_AGAIN_US;
        }
        for (size_t i = 0; rc == 0 && i < r->n_events; i++) {
            cursor = r->events[i]->cursor;
            rc = generate_output_event(o, r->events[i], err);
        }
        protobuf_c_message_free_unpacked(m, NULL);
        if (rc < 0)
            cancel(c, handle);
    }
    return rc < 0 ? rc : 0;
}

static int generate(const struct generate_settings *s, struct dk_rpc_client *client, const struct prompt *p,
                    struct dk_err *err)
{
    struct logits_file logits = {0};
    struct generate_output o;
    ProtobufCMessage *m;
    Dk__SubmitReply *submitted;
    int rc = client_call(client, "Submit", &p->request.base, 30000, &m, err), finish_rc;

    if (rc < 0)
        return rc;
    submitted = (Dk__SubmitReply *)m;
    generate_output_open(&o, s->common.json, logprobs_given, submitted);
    if (s->logits_out) {
        rc = logits_file_open(&logits, s->logits_out, submitted->n_prompt_ids, err);
        o.logits = &logits;
        if (rc < 0)
            cancel(client, submitted->handle);
    }
    if (rc == 0)
        rc = read_all(client, submitted->handle, &o, err);
    finish_rc = logits_file_finish(&logits, rc == 0 ? err : NULL);
    rc = rc == 0 ? finish_rc : rc;
    if (rc == 0 && o.err.rc) {
        *err = o.err;
        rc = o.err.rc;
    }
    if (rc == 0)
        generate_output_end(&o);
    else if (o.any_text && !s->common.json)
        putchar('\n');
    generate_output_close(&o);
    protobuf_c_message_free_unpacked(m, NULL);
    return rc;
}

static int run(const struct verb *self, int argc, char **argv)
{
    struct generate_settings s;
    struct prompt p = {.request = DK__SUBMIT_REQUEST__INIT};
    struct dk_rpc_client *client = NULL;
    struct dk_err err = {0};
    int rc = verb_begin(self, &s, sizeof s, argc, argv, NULL, 0, NULL);

    if (rc >= 0)
        return rc;
    if (!!s.prompt + !!s.ids + !!s.chat + !!s.messages != 1)
        return verb_usage(self, "exactly one of --prompt, --ids, --chat and --messages is needed");
    if (s.system && !s.chat)
        return verb_usage(self, "--system goes with --chat");
    if (s.thinking && !s.chat && !s.messages)
        return verb_usage(self, "--thinking goes with --chat and --messages");
    sampling_make(&s, &p.request);
    rc = prompt_make(&s, &p, &err);
    if (rc == 0)
        rc = target_open(&s.common, &client, &err);
    if (rc == 0)
        rc = generate(&s, client, &p, &err);
    dk_rpc_client_close(client);
    free(p.messages_json);
    free(p.id_list);
    return rc < 0 ? verb_fail(s.common.json, &err) : EXIT_DONE;
}

const struct verb verb_generate = {
    .name = "generate",
    .arguments = "(--prompt TEXT | --ids 1,2,3 | --chat TEXT | --messages FILE.json) [OPTION ...]",
    .summary = "Make text: streams the answer to stdout and statistics to stderr.",
    .options = options,
    .defaults = &defaults,
    .run = run,
    .details = "With --json one object comes at the end: prompt_ids, token_ids (end token included), text,\n"
               "finish_reason (stop, length, cancel), logprobs (with --logprobs) and stats. Ctrl-C cancels the\n"
               "sequence. Nothing comes for two seconds: stderr tells what is waited for (not with --json).",
};
