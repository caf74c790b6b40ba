/* SPDX-License-Identifier: Apache-2.0 */
/* duckctl inspect: what a model's folder is and needs, without a cluster. */
#include <stdlib.h>

#include "duckctl/duckctl.h"
#include "duckctl/inspect_model.h"
#include "plan/plan.h"

struct inspect_settings {
    struct common_settings common;
    struct inspect_wish wish;
};

static const struct inspect_settings defaults = {COMMON_DEFAULTS, .wish = {.multiple_of = 32}};

#define F(f) offsetof(struct inspect_settings, wish.f)
static const struct dk_option options[] = {
    {"ducks", DK_OPT_U32, F(ducks), "N", "what N ducks would need, beside the usual numbers", 1, DK_PLAN_DUCKS_MAX,
     NULL, NULL},
    {"multiple-of", DK_OPT_U32, F(multiple_of), "M", "unit in which the intermediate dimension is cut", 32, 65536, NULL,
     NULL},
    {"context", DK_OPT_U32, F(context), "N",
     "what the cache of a sequence of N tokens needs; absent: the model's own, at most 4096", 1, 1 << 24, NULL, NULL},
    COMMON_OPTIONS(struct inspect_settings),
    {0},
};

static int run(const struct verb *self, int argc, char **argv)
{
    const char *words[1] = {NULL};
    struct inspect_settings s;
    struct dk_err err = {0};
    struct inspect *m;
    int count, rc = verb_begin(self, &s, sizeof s, argc, argv, words, 1, &count);

    if (rc >= 0)
        return rc;
    if (!count)
        return verb_usage(self, "the model's folder is needed");
    if (s.wish.multiple_of % 32)
        return verb_usage(self, "--multiple-of takes multiples of 32");
    if (text_check("DIR", words[0], &err) < 0)
        return verb_fail(s.common.json, &err);
    m = calloc(1, sizeof *m);
    if (!m) {
        dk_err_set(&err, -ENOMEM, "no memory");
        return verb_fail(s.common.json, &err);
    }
    rc = inspect_open(words[0], &s.wish, m, &err);
    if (rc < 0)
        rc = verb_fail(s.common.json, &err);
    else if (s.common.json)
        print_json(inspect_json(m));
    else
        inspect_print(m);
    if (rc == 0 && m->problem_count)
        rc = EXIT_REFUSED;
    inspect_close(m);
    free(m);
    return rc;
}

const struct verb verb_inspect = {
    .name = "inspect",
    .arguments = "DIR [OPTION ...]",
    .summary = "Tell what a model's folder holds and what it would need; asks no cluster.",
    .options = options,
    .defaults = &defaults,
    .run = run,
    .details =
        "config.json alone is enough: sizes are then computed from it. Of weight files only headers are read. "
        "Missing,\n"
        "misshapen and unknown tensors are problems: exit code 1, and all that is known is printed all the same.\n"
        "With --json one object:\n"
        "  dir, family, model_type, layers, layer_kinds [{mixer attention|delta|mla, ffn dense|moe, count}], hidden,\n"
        "  vocab, context, tied, attention {heads, kv_heads, head_dim, qk_norm, qkv_bias, output_gate},\n"
        "  delta {key_heads, value_heads, key_dim, value_dim, conv_taps} or null,\n"
        "  mla {q_rank, kv_rank, nope_dim, rope_dim, value_dim} or null, indexer {heads, dim, top_k} or null,\n"
        "  intermediate (0: no dense layer), moe {experts, per_token, intermediate, shared_intermediate, shared_gate,\n"
        "  router softmax|groups, groups, groups_kept} or null, rope {dims, theta, scaling none|linear|llama3|yarn,\n"
        "  factor, original_context}, tokenizer {kind, size} or null, chat_format, end_tokens [id],\n"
        "  dtype (of what is not FP8), fp8, weights read|none|damaged (only read: sizes are as stored),\n"
        "  parameters (of the language part, by config.json), active_parameters (without the experts that a token does "
        "not choose),\n"
        "  parts [{part worker|ducks|vision|multi-token prediction|unknown, run, tensors, parameters, bytes,\n"
        "  bytes_by_type}], multiple_of, flocks [{ducks, busy (ducks with a part), largest_bytes (of a duck)}],\n"
        "  worker {weight_bytes, cache_bytes_per_1000_tokens, state_bytes_per_sequence, context, sequence_bytes\n"
        "  (of one as long as context)}, problem_count, problems [text] (the first 20).",
};
