/* SPDX-License-Identifier: Apache-2.0 */
#include "model/tokenizer/pretokenize.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "model/text_utf8.h"

/* A stretch of the text and the same stretch of its shadow (split_pattern.h); often one and the same. */
struct piece {
    const char *text, *shadow;
    size_t bytes;
};

struct run {
    const struct dk_pretokenizer *p;
    struct dk_pretokenize_scratch *scratch;
    dk_word_fn *word;
    void *ctx;
};

/* Turns the alternating matches and gaps of one piece into pieces for the next stage. */
struct cutter {
    const struct run *run;
    size_t stage;
    struct piece whole;
    size_t held, end; /* [held, end) is not yet handed on */
    bool held_is_match, holding;
};

static int run_stage(const struct run *r, size_t stage, struct piece p);

void dk_pretokenizer_fini(struct dk_pretokenizer *p)
{
    for (size_t i = 0; i < p->count; i++)
        dk_pattern_free(p->stages[i].pattern);
    memset(p, 0, sizeof *p);
}

int dk_byte_level_pattern(struct dk_pattern **out, struct dk_err *err)
{
    /* GPT-2's pattern (github.com/openai/gpt-2, src/encoder.py): a fact of the format. */
    static const char text[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

    return dk_pattern_compile(text, sizeof text - 1, "ByteLevel", out, err);
}

int dk_pretokenize_scratch_init(struct dk_pretokenize_scratch *s, const struct dk_pretokenizer *p)
{
    memset(s, 0, sizeof *s);
    for (size_t i = 0; i < p->count; i++) {
        if (!p->stages[i].pattern)
            continue;
        s->matchers[i] = dk_matcher_new(p->stages[i].pattern);
        if (!s->matchers[i]) {
            dk_pretokenize_scratch_fini(s);
            return -ENOMEM;
        }
    }
    return 0;
}

void dk_pretokenize_scratch_fini(struct dk_pretokenize_scratch *s)
{
    for (size_t i = 0; i < DK_STAGES_MAX; i++)
        dk_matcher_free(s->matchers[i]);
    free(s->prefixed);
    memset(s, 0, sizeof *s);
}

static int cutter_flush(struct cutter *c)
{
    struct piece p = {c->whole.text + c->held, c->whole.shadow + c->held, c->end - c->held};

    if (!c->holding)
        return 0;
    c->holding = false;
    return run_stage(c->run, c->stage + 1, p);
}

/* The next stretch [start, end) of the piece; stretches follow each other without a gap. */
static int cutter_take(struct cutter *c, enum dk_split_behavior behavior, size_t start, size_t end, bool match)
{
    bool join = false;
    int rc;

    if (start == end)
        return 0;
    switch (behavior) {
    case DK_SPLIT_ISOLATED:
        break;
    case DK_SPLIT_REMOVED:
        if (match)
            return cutter_flush(c);
        break;
    case DK_SPLIT_MERGED_WITH_PREVIOUS:
        join = match && !c->held_is_match;
        break;
    case DK_SPLIT_MERGED_WITH_NEXT:
        join = !match && c->held_is_match;
        break;
    case DK_SPLIT_CONTIGUOUS:
        join = match == c->held_is_match;
        break;
    }
    if (!c->holding || !join) {
        rc = cutter_flush(c);
        if (rc < 0)
            return rc;
        c->held = start;
        c->holding = true;
    }
    c->end = end;
    c->held_is_match = match;
    return 0;
}

static int cut_by_pattern(struct cutter *c, enum dk_split_behavior behavior, struct dk_matcher *m)
{
    size_t at = 0, start, end;
    int rc;

    while ((rc = dk_matcher_next(m, c->whole.shadow, c->whole.bytes, at, &start, &end)) == 1) {
        rc = cutter_take(c, behavior, at, start, false);
        if (rc == 0)
            rc = cutter_take(c, behavior, start, end, true);
        if (rc < 0)
            return rc;
        at = end;
    }
    if (rc == 0)
        rc = cutter_take(c, behavior, at, c->whole.bytes, false);
    return rc < 0 ? rc : cutter_flush(c);
}

/* Rust's char::is_numeric, which the reference asks: the categories Nd, Nl and No. */
static bool is_numeric(uint32_t c)
{
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);

    return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_NO;
}

static int cut_by_digits(struct cutter *c, enum dk_split_behavior behavior)
{
    size_t start = 0, i = 0;
    int rc = 0;

    while (i < c->whole.bytes && rc == 0) {
        uint32_t point;
        size_t n = dk_utf8_get(c->whole.text + i, &point);

        if (is_numeric(point)) {
            rc = cutter_take(c, behavior, start, i, false);
            if (rc == 0)
                rc = cutter_take(c, behavior, i, i + n, true);
            start = i + n;
        }
        i += n;
    }
    if (rc == 0)
        rc = cutter_take(c, behavior, start, i, false);
    return rc < 0 ? rc : cutter_flush(c);
}

/* Puts a space before the piece, in memory that the byte-level stage, the last one, has to itself. */
static int add_prefix_space(const struct run *r, struct piece *p)
{
    struct dk_pretokenize_scratch *s = r->scratch;
    size_t need = p->bytes + 1;
    char *shadow;

    if (p->text[0] == ' ')
        return 0;
    if (s->prefixed_max < 2 * need) {
        free(s->prefixed);
        s->prefixed = malloc(2 * need);
        s->prefixed_max = s->prefixed ? 2 * need : 0;
        if (!s->prefixed)
            return -ENOMEM;
    }
    shadow = s->prefixed + need;
    s->prefixed[0] = shadow[0] = ' ';
    memcpy(s->prefixed + 1, p->text, p->bytes);
    memcpy(shadow + 1, p->shadow, p->bytes);
    *p = (struct piece){s->prefixed, shadow, need};
    return 0;
}

static int run_stage(const struct run *r, size_t stage, struct piece p)
{
    const struct dk_stage *s = &r->p->stages[stage];
    struct cutter c = {.run = r, .stage = stage};
    int rc;

    if (stage == r->p->count)
        return r->word(r->ctx, p.text, p.bytes);
    if (s->prefix_space) {
        rc = add_prefix_space(r, &p);
        if (rc < 0)
            return rc;
    }
    c.whole = p;
    switch (s->kind) {
    case DK_STAGE_SPLIT:
        return cut_by_pattern(&c, s->behavior, r->scratch->matchers[stage]);
    case DK_STAGE_DIGITS:
        return cut_by_digits(&c, s->behavior);
    case DK_STAGE_BYTES:
        break;
    }
    if (s->pattern)
        return cut_by_pattern(&c, DK_SPLIT_ISOLATED, r->scratch->matchers[stage]);
    return run_stage(r, stage + 1, p);
}

int dk_pretokenize(const struct dk_pretokenizer *p, struct dk_pretokenize_scratch *s, const char *text, size_t bytes,
                   dk_word_fn *word, void *ctx)
{
    struct run r = {.p = p, .scratch = s, .word = word, .ctx = ctx};
    char *shadow;
    int rc;

    if (bytes == 0)
        return 0;
    rc = dk_shadow_new(text, bytes, &shadow);
    if (rc < 0)
        return rc;
    rc = run_stage(&r, 0, (struct piece){text, shadow ? shadow : text, bytes});
    free(shadow);
    return rc;
}
