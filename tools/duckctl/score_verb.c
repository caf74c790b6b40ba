/* SPDX-License-Identifier: Apache-2.0 */
/* duckctl score: how likely a model finds each token of a text. */
#include <stdio.h>

#include "duckctl/answer_reader.h"
#include "duckctl/duckctl.h"
#include "duckctl/prompt_source.h"
#include "duckctl/score_table.h"

#define TEXT_OPTION "--text, --file"

struct score_settings {
    struct common_settings common;
    struct prompt_options prompt;
    uint32_t logprobs, prefill_chunk;
};

static bool logprobs_given;

static const struct score_settings defaults = {COMMON_DEFAULTS};

#define F(f) offsetof(struct score_settings, f)
static const struct dk_option options[] = {
    {"text", DK_OPT_TEXT, F(prompt.text), "TEXT",
     "score this text as it is, behind the tokenizer's first token if it has one", 0, 0, NULL, NULL},
    {"file", DK_OPT_TEXT, F(prompt.file), "FILE", "score the text of a file; - is standard input", 0, 0, NULL, NULL},
    PROMPT_OPTIONS(struct score_settings),
    {"logprobs", DK_OPT_U32, F(logprobs), "K", "the K most likely tokens at each position, too", 0, 20, NULL,
     &logprobs_given},
    {"prefill-chunk", DK_OPT_U32, F(prefill_chunk), "N", "most tokens in one step", 1, 1u << 20, NULL, NULL},
    COMMON_OPTIONS(struct score_settings),
    {0},
};

static int on_event(void *ctx, const Dk__Event *e, struct dk_err *err)
{
    return score_table_event(ctx, e, err);
}

static int score(void *ctx, struct dk_rpc_client *client, const Dk__SubmitReply *submitted, struct dk_err *err)
{
    const struct score_settings *s = ctx;
    struct score_table t;
    struct answer_sink sink = {.event = on_event, .ctx = &t, .quiet = s->common.json};
    int rc = score_table_open(&t, submitted, err);

    rc = answer_take(client, submitted->handle, rc, &sink, err);
    if (rc == 0)
        rc = score_table_check(&t, err);
    if (rc == 0 && s->common.json)
        print_json(score_table_json(&t));
    else if (rc == 0)
        rc = score_table_print(&t, client, err);
    score_table_close(&t);
    return rc;
}

static int run(const struct verb *self, int argc, char **argv)
{
    struct score_settings s;
    struct prompt p = {.request = DK__SUBMIT_REQUEST__INIT};
    struct dk_err err = {0};
    const char *defect;
    int rc = verb_begin(self, &s, sizeof s, argc, argv, NULL, 0, NULL);

    if (rc >= 0)
        return rc;
    defect = prompt_options_defect(&s.prompt, TEXT_OPTION);
    if (defect)
        return verb_usage(self, defect);
    p.request.has_score = p.request.score = true;
    p.request.has_logprobs = logprobs_given;
    p.request.logprobs = s.logprobs;
    p.request.has_prefill_chunk = s.prefill_chunk != 0;
    p.request.prefill_chunk = s.prefill_chunk;
    rc = prompt_run(&s.common, &s.prompt, "--text", &p, score, &s, &err);
    return rc < 0 ? verb_fail(s.common.json, &err) : EXIT_DONE;
}

const struct verb verb_score = {
    .name = "score",
    .arguments = "(--text TEXT | --file FILE | --ids 1,2,3 | --chat TEXT | --messages FILE.json) [OPTION ...]",
    .summary = "Tell how likely the model finds each token of a prompt; nothing is generated.",
    .options = options,
    .defaults = &defaults,
    .run = run,
    .details = "A line for each position from 1 on: id, text and log-probability (natural, before any temperature)\n"
               "of the token that stands there, given those before it; the first token has none. The last line has\n"
               "the sum of the negative log-probabilities (NLL), its mean, and the perplexity exp(mean).\n"
               "With --json one object: ids (of the prompt), scores [{position, id, logprob, top [{id, logprob}]}],\n"
               "nll, tokens (how many were scored).",
};
