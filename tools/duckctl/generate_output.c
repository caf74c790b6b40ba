/* SPDX-License-Identifier: Apache-2.0 */
#include "duckctl/generate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "duckctl/duckctl.h"

void generate_output_open(struct generate_output *o, bool json, bool want_logprobs, const Dk__SubmitReply *submitted)
{
    memset(o, 0, sizeof *o);
    o->json = json;
    o->want_logprobs = want_logprobs;
    o->prompt_ids = json_array();
    o->token_ids = json_array();
    o->logprobs = json_array();
    dk__generation_stats__init(&o->stats);
    for (size_t i = 0; i < submitted->n_prompt_ids; i++)
        json_array_append_new(o->prompt_ids, json_integer(submitted->prompt_ids[i]));
}

void generate_output_close(struct generate_output *o)
{
    json_decref(o->prompt_ids);
    json_decref(o->token_ids);
    json_decref(o->logprobs);
    free(o->text);
    memset(o, 0, sizeof *o);
}

static int take_text(struct generate_output *o, const char *text, struct dk_err *err)
{
    size_t n = strlen(text);
    char *longer;

    if (!n)
        return 0;
    if (!o->json) {
        if (fputs(text, stdout) == EOF || fflush(stdout) == EOF) /* whoever reads it went away, or the disk is full */
            return dk_err_set(err, -errno, "standard output: %s", strerror(errno));
        o->any_text = true;
        o->ends_in_newline = text[n - 1] == '\n';
        return 0;
    }
    longer = realloc(o->text, o->text_bytes + n + 1);
    if (!longer)
        return dk_err_set(err, -ENOMEM, "no memory for the answer's text");
    memcpy(longer + o->text_bytes, text, n + 1);
    o->text = longer;
    o->text_bytes += n;
    return 0;
}

static void take_logprob(struct generate_output *o, const Dk__Event *e)
{
    json_t *top = json_array();

    for (size_t i = 0; i < e->n_top; i++)
        json_array_append_new(top, json_pack("[I,f]", (json_int_t)e->top[i]->id, (double)e->top[i]->logprob));
    json_array_append_new(
        o->logprobs, json_pack("{s:I,s:f,s:o}", "id", (json_int_t)e->token, "logprob", (double)e->logprob, "top", top));
    if (!o->json) {
        fprintf(stderr, "\n  %u %.5f", e->token, (double)e->logprob);
        for (size_t i = 0; i < e->n_top; i++)
            fprintf(stderr, "  [%u %.5f]", e->top[i]->id, (double)e->top[i]->logprob);
        fputc('\n', stderr);
    }
}

int generate_output_event(struct generate_output *o, const Dk__Event *e, struct dk_err *err)
{
    int rc = 0;

    if (e->has_token) {
        json_array_append_new(o->token_ids, json_integer(e->token));
        if (o->want_logprobs && e->has_logprob)
            take_logprob(o, e);
    }
    if (e->text)
        rc = take_text(o, e->text, err);
    if (rc == 0 && e->has_logits && o->logits.out.file)
        rc = logits_file_append(&o->logits, e->logits.data, e->logits.len, e->vocab, err);
    for (size_t i = 0; rc == 0 && i < e->n_trace && o->trace.out.file; i++)
        rc = trace_file_add(&o->trace, e->trace[i], err);
    if (rc < 0 || !e->has_finish)
        return rc;
    o->finish = e->finish;
    if (e->stats)
        o->stats = *e->stats;
    return 1;
}

static json_t *stats_json(const Dk__GenerationStats *s)
{
    return json_pack("{s:i,s:i,s:f,s:f,s:f,s:f,s:f}", "input_len", (int)s->input_len, "output_len", (int)s->output_len,
                     "time_s", s->time_s, "ttft_s", s->ttft_s, "tpot_s", s->tpot_s, "prefill_tok_s", s->prefill_tok_s,
                     "decode_tok_s", s->decode_tok_s);
}

void generate_output_end(struct generate_output *o)
{
    static const char *const reasons[] = {"", "stop", "length", "cancel", "error"};
    const Dk__GenerationStats *s = &o->stats;

    if (!o->json) {
        if (o->any_text && !o->ends_in_newline)
            fputc('\n', stdout);
        fflush(stdout);
        fprintf(stderr,
                "Generation stats: time %.3f s, input_len %u, output_len %u, ttft %.1f ms, tpot %.2f ms, "
                "prefill %.1f tok/s, decode %.1f tok/s\n",
                s->time_s, s->input_len, s->output_len, s->ttft_s * 1e3, s->tpot_s * 1e3, s->prefill_tok_s,
                s->decode_tok_s);
        return;
    }
    print_json(json_pack("{s:O,s:O,s:s,s:s,s:O,s:o}", "prompt_ids", o->prompt_ids, "token_ids", o->token_ids, "text",
                         o->text ? o->text : "", "finish_reason", reasons[o->finish <= 4 ? o->finish : 0], "logprobs",
                         o->logprobs, "stats", stats_json(s)));
}
