/* SPDX-License-Identifier: Apache-2.0 */
/* duckctl generate: one prompt in, its answer out as it is made. */
#include "duckctl/generate.h"

#include <stdlib.h>
#include <string.h>

#include "duckctl/answer_reader.h"
#include "duckctl/duckctl.h"
#include "duckctl/prompt_source.h"

struct generate_settings {
    struct common_settings common;
    struct prompt_options prompt;
    const char *logits_out, *trace_out, *trace_layers;
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
    {"prompt", DK_OPT_TEXT, F(prompt.text), "TEXT",
     "continue this text as it is, behind the tokenizer's first token if it has one", 0, 0, NULL, NULL},
    PROMPT_OPTIONS(struct generate_settings),
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
    {"trace-out", DK_OPT_TEXT, F(trace_out), "FILE",
     "write the values inside the layers for the whole prompt, a safetensors file", 0, 0, NULL, NULL},
    {"trace-layers", DK_OPT_TEXT, F(trace_layers), "0,3-5", "only of these layers, with --trace-out; absent: of all", 0,
     0, NULL, NULL},
    {"stop", DK_OPT_LIST, F(stop), "TEXT", "end before this text; may be given several times", 0, 0, NULL, NULL},
    {"ignore-eos", DK_OPT_FLAG, F(ignore_eos), NULL, "go on after the model's end token", 0, 0, NULL, NULL},
    {"prefill-chunk", DK_OPT_U32, F(prefill_chunk), "N", "most prompt tokens in one step", 1, 1u << 20, NULL, NULL},
    COMMON_OPTIONS(struct generate_settings),
    {0},
};

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
    SET(s->trace_out != NULL, trace, true);
    SET(s->ignore_eos, ignore_eos, true);
    SET(s->prefill_chunk != 0, prefill_chunk, s->prefill_chunk);
#undef SET
    q->n_stop = s->stop.count;
    q->stop = (char **)(uintptr_t)s->stop.items;
}

static int on_event(void *ctx, const Dk__Event *e, struct dk_err *err)
{
    return generate_output_event(ctx, e, err);
}

static bool in_line(void *ctx)
{
    const struct generate_output *o = ctx;

    return o->any_text && !o->ends_in_newline;
}

/* Files for what else the answer brings. They get into their place when all of it has come. */
static int files_open(const struct generate_settings *s, struct generate_output *o, const Dk__SubmitReply *submitted,
                      struct dk_err *err)
{
    int rc = 0;

    if (s->logits_out)
        rc = logits_file_open(&o->logits, s->logits_out, submitted->n_prompt_ids, err);
    if (rc == 0 && s->trace_out)
        rc = trace_file_open(&o->trace, s->trace_out, submitted->prompt_ids, submitted->n_prompt_ids, err);
    if (rc == 0 && output_file_same(&o->logits.out, &o->trace.out))
        rc = dk_err_set(err, USAGE_ERROR, "--logits-out and --trace-out: both are the file %s; give them two",
                        s->trace_out);
    return rc;
}

/* Everything that is likely to fail comes before the first file gets into its place: then neither does. Should putting
 * the logits' file into its place fail after that, the trace's is there, whole, and err names the logits'. */
static int files_finish(struct generate_output *o, int rc, struct dk_err *err)
{
    int part_rc;

    if (rc == 0)
        rc = logits_file_flush(&o->logits, err);
    part_rc = trace_file_finish(&o->trace, rc == 0, rc == 0 ? err : NULL);
    rc = rc ? rc : part_rc;
    part_rc = logits_file_finish(&o->logits, rc == 0, rc == 0 ? err : NULL);
    return rc ? rc : part_rc;
}

static int generate(void *ctx, struct dk_rpc_client *client, const Dk__SubmitReply *submitted, struct dk_err *err)
{
    const struct generate_settings *s = ctx;
    struct generate_output o;
    struct answer_sink sink = {.event = on_event, .in_line = in_line, .ctx = &o, .quiet = s->common.json};
    int rc;

    generate_output_open(&o, s->common.json, logprobs_given, submitted);
    rc = files_open(s, &o, submitted, err);
    rc = answer_take(client, submitted->handle, rc, &sink, err);
    rc = files_finish(&o, rc, err);
    if (rc == 0)
        generate_output_end(&o);
    else if (o.any_text && !s->common.json)
        putchar('\n');
    generate_output_close(&o);
    return rc;
}

static int run(const struct verb *self, int argc, char **argv)
{
    struct generate_settings s;
    struct prompt p = {.request = DK__SUBMIT_REQUEST__INIT};
    struct dk_err err = {0};
    const char *defect;
    int rc = verb_begin(self, &s, sizeof s, argc, argv, NULL, 0, NULL);

    if (rc >= 0)
        return rc;
    defect = prompt_options_defect(&s.prompt, "--prompt");
    if (!defect && s.trace_layers && !s.trace_out)
        defect = "--trace-layers goes with --trace-out FILE";
    if (defect)
        return verb_usage(self, defect);
    rc = 0;
    for (uint32_t i = 0; rc == 0 && i < s.stop.count; i++)
        rc = text_check("--stop", s.stop.items[i], &err);
    sampling_make(&s, &p.request);
    if (rc == 0 && s.trace_layers)
        rc = trace_layers_parse(s.trace_layers, &p.request.trace_layers, &p.request.n_trace_layers, &err);
    if (rc == 0)
        rc = prompt_run(&s.common, &s.prompt, "--prompt", &p, generate, &s, &err);
    free(p.request.trace_layers);
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
               "sequence. Nothing comes for two seconds: stderr tells what is waited for (not with --json).\n"
               "--trace-out takes the whole prompt in one step and writes F32 and I32 tensors: ids [T], embed,\n"
               "final_norm and layer.N.out, .mixer_out [T][hidden]; what a layer keeps for later tokens (.k, .v;\n"
               ".kv_latent, .k_pe, .index_k; .conv_state, .recurrent_state); .selected [T][index_topk];\n"
               ".moe.in, .moe.out, .moe.router_logits, .moe.expert_ids, .moe.expert_weights. At most 64 MiB are sent:\n"
               "with a large model --trace-layers 0,3-5 chooses layers; ids, embed and final_norm always come.\n"
               "Until a file is complete it is FILE.XXXXXX, six random characters; an older FILE stays if that fails.",
};
