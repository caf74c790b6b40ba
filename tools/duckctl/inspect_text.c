/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "duckctl/inspect_model.h"

/* For people: one line for each thing, names in one column. */

static void head(const char *name)
{
    printf("%-13s", name);
}

/* Sizes in the units that people compare: MB = 1e6 bytes. */
static const char *size_text(uint64_t bytes, char *out, size_t room)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    double n = (double)bytes;
    int unit = 0;

    for (; n >= 1000 && unit < 4; unit++)
        n /= 1000;
    snprintf(out, room, unit ? "%.2f %s" : "%.0f %s", n, units[unit]);
    return out;
}

static const char *count_text(uint64_t count, char *out, size_t room)
{
    double n = (double)count;

    if (n >= 1e9)
        snprintf(out, room, "%.2f billion", n / 1e9);
    else
        snprintf(out, room, "%.2f million", n / 1e6);
    return out;
}

static void print_layers(const struct dk_model_config *c)
{
    static const char *const mixers[] = {
        [DK_MIXER_ATTENTION] = "full attention", [DK_MIXER_DELTA] = "Gated DeltaNet", [DK_MIXER_MLA] = "MLA"};
    bool first = true;

    head("layers");
    printf("%u: ", c->layers);
    for (int moe = 0; moe < 2; moe++)
        for (uint32_t mixer = DK_MIXER_ATTENTION; mixer <= DK_MIXER_MLA; mixer++) {
            uint32_t count = 0;

            for (uint32_t i = 0; i < c->layers; i++)
                count += c->mixer[i] == mixer && c->layer_is_moe[i] == (moe != 0);
            if (!count)
                continue;
            if (!first)
                head("");
            printf("%u %s with %s\n", count, mixers[mixer], moe ? "experts" : "a dense feed-forward");
            first = false;
        }
}

static void print_mixers(const struct dk_model_config *c)
{
    const struct dk_delta_config *d = &c->delta;

    if (memchr(c->mixer, DK_MIXER_ATTENTION, c->layers)) {
        head("attention");
        printf("%u heads, %u for keys and values, of %u%s%s%s\n", c->heads, c->kv_heads, c->head_dim,
               c->qk_norm ? ", normed" : "", c->qkv_bias ? ", biases" : "", c->output_gate ? ", gated" : "");
    }
    if (d->conv_taps) {
        head("DeltaNet");
        printf("%u key heads of %u, %u value heads of %u, convolution over %u\n", d->key_heads, d->key_dim,
               d->value_heads, d->value_dim, d->conv_taps);
    }
    if (c->mla.kv_rank) {
        head("MLA");
        printf("%u heads of %u + %u, values of %u, latents of %u", c->heads, c->mla.nope_dim, c->mla.rope_dim,
               c->mla.value_dim, c->mla.kv_rank);
        putchar('\n');
        if (c->mla.q_rank) {
            head("");
            printf("queries of %u\n", c->mla.q_rank);
        }
    }
    if (c->index.heads) {
        head("indexer");
        printf("%u heads of %u, keeps %u positions\n", c->index.heads, c->index.dim, c->index.top_k);
    }
}

static void print_feed_forward(const struct dk_model_config *c)
{
    if (c->intermediate && memchr(c->layer_is_moe, 0, c->layers)) {
        head("feed-forward");
        printf("%u\n", c->intermediate);
    }
    if (!c->experts)
        return;
    head("experts");
    printf("%u of %u, %u a token", c->experts, c->moe_intermediate, c->top_k);
    if (c->router == DK_ROUTER_GROUPS)
        printf(" from %u of %u groups", c->groups_kept, c->router_groups);
    if (c->shared_intermediate)
        printf(", and a shared one of %u%s", c->shared_intermediate, c->shared_gate ? ", gated" : "");
    putchar('\n');
}

static void print_rope(const struct dk_rope_config *r)
{
    head("rotation");
    printf("%u dimensions, theta %g\n", r->dims, r->theta);
    if (r->scaling == DK_ROPE_PLAIN)
        return;
    head("");
    printf("%s scaling by %g", inspect_rope_name(r->scaling), r->factor);
    if (r->scaling == DK_ROPE_LLAMA3 || r->scaling == DK_ROPE_YARN)
        printf(" from %u positions", r->original_context);
    putchar('\n');
}

static void print_tokens(const struct inspect *m)
{
    head("tokenizer");
    if (m->tokenizer)
        printf("byte-level BPE of %u ids", dk_tokenizer_size(m->tokenizer));
    else
        printf("none");
    printf("; chat format %s\n", dk_chat_format_name(m->chat));
    head("end tokens");
    for (uint32_t i = 0; i < m->generation.eos_count; i++) {
        uint32_t id = m->generation.eos[i];
        const uint8_t *text = NULL;
        size_t bytes = 0;

        if (m->tokenizer && id < dk_tokenizer_size(m->tokenizer))
            text = dk_tokenizer_token(m->tokenizer, id, &bytes);
        if (i)
            head("");
        printf("%u", id);
        if (text)
            printf(" %.*s", (int)bytes, (const char *)text);
        putchar('\n');
    }
    if (!m->generation.eos_count)
        puts("none: an answer ends with the context");
}

static void print_weights(const struct inspect *m)
{
    head("weights");
    if (m->weights == WEIGHTS_READ)
        printf("sizes as the weight files' headers say\n");
    else
        printf("%s\n", m->weights == WEIGHTS_NONE ? "none in this folder" : "not readable");
    if (m->weights == WEIGHTS_READ)
        return;
    head("");
    printf("sizes computed from config.json: %s%s\n", m->config.scale_block ? "FP8 with scales, the rest " : "",
           dk_dtype_name(m->dtype));
}

static void print_part(enum inspect_part_kind kind, const struct inspect_part *p)
{
    char name[48], count[32], size[32], type[32];

    snprintf(name, sizeof name, "%s%s", inspect_part_name(kind),
             kind == PART_VISION || kind == PART_MTP ? " (not run)" : "");
    printf("  %-34s %8llu  %14s  %10s\n", name, (unsigned long long)p->tensors,
           count_text(p->parameters, count, sizeof count), size_text(p->bytes, size, sizeof size));
    for (int t = 0; t <= DK_DTYPE_COUNT; t++)
        if (p->type_bytes[t])
            printf("    %-58s  %10s\n", t < DK_DTYPE_COUNT ? dk_dtype_name((enum dk_dtype)t) : "other types",
                   size_text(p->type_bytes[t], type, sizeof type));
}

static void print_needs(const struct inspect *m)
{
    char one[32];

    puts("\nworker:");
    printf("  %-34s %14s\n", "weights", size_text(m->parts[PART_WORKER].bytes, one, sizeof one));
    printf("  %-34s %14s\n", "cache per 1000 tokens", size_text(1000 * m->token_bytes, one, sizeof one));
    if (m->sequence_bytes)
        printf("  %-34s %14s\n", "states per sequence", size_text(m->sequence_bytes, one, sizeof one));
    printf("  a sequence of %-20u %14s\n\n", m->context,
           size_text(m->token_bytes * m->context + m->sequence_bytes, one, sizeof one));
    printf("  %5s  %14s\n", "ducks", "a duck at most");
    for (uint32_t i = 0; i < m->flock_count; i++) {
        const struct inspect_flock *f = &m->flocks[i];

        printf("  %5u  %14s", f->ducks, size_text(f->largest_bytes, one, sizeof one));
        if (f->busy < f->ducks)
            printf("  only %u %s a part", f->busy, f->busy == 1 ? "has" : "have");
        putchar('\n');
    }
}

void inspect_print(const struct inspect *m)
{
    const struct dk_model_config *c = &m->config;
    char total[32], active[32];

    head("model");
    printf("%s (model_type %s)\n", dk_family_name(c->family), c->model_type);
    head("sizes");
    printf("hidden %u, vocabulary %u%s, context %u\n", c->hidden, c->vocab, c->tied ? " (tied)" : "", c->context_max);
    print_layers(c);
    print_mixers(c);
    print_feed_forward(c);
    print_rope(&c->rope);
    print_tokens(m);
    head("parameters");
    printf("%s", count_text(m->parameters, total, sizeof total));
    if (c->experts)
        printf(", %s active for a token", count_text(m->active, active, sizeof active));
    putchar('\n');
    print_weights(m);
    printf("\n  %-34s %8s  %14s  %10s\n", "part", "tensors", "parameters", "bytes");
    for (int i = 0; i < PART_COUNT; i++)
        if (i <= PART_DUCKS || m->parts[i].tensors)
            print_part((enum inspect_part_kind)i, &m->parts[i]);
    print_needs(m);
    for (uint32_t i = 0; i < m->problem_count && i < INSPECT_PROBLEMS_MAX; i++)
        printf("%sproblem: %s\n", i ? "" : "\n", m->problems[i]);
    if (m->problem_count > INSPECT_PROBLEMS_MAX)
        printf("and %u more\n", m->problem_count - INSPECT_PROBLEMS_MAX);
}
