/* SPDX-License-Identifier: Apache-2.0 */
/* Reads "normalizer", "pre_tokenizer" and "decoder" of a tokenizer.json. "truncation" and "padding" are left alone:
 * they act on the finished list of ids, and this library does not cut it. */
#include "model/tokenizer/tokenizer_json.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "model/json_field.h"

#define SEQUENCE_DEPTH_MAX 8

struct reader {
    struct dk_tokenizer *t;
    struct dk_err *err;
};

/* The "type" of a part, or NULL with an error. */
static const char *part_type(struct dk_json_reader *r)
{
    const char *type = NULL;

    if (!json_is_object(r->object)) {
        r->rc = dk_err_set(r->err, -EINVAL, "%s is not an object", r->where);
        return NULL;
    }
    dk_json_need(r, "type");
    return dk_json_text(r, "type", &type) ? type : NULL;
}

typedef int read_part_fn(const struct reader *rd, const json_t *part, const char *where, unsigned depth);

/* Runs fn over the list `name` of a Sequence. */
static int read_sequence(const struct reader *rd, struct dk_json_reader *r, const char *name, unsigned depth,
                         read_part_fn *fn)
{
    const json_t *list = json_object_get(r->object, name);
    char where[320];
    int rc = 0;

    if (!json_is_array(list))
        return dk_err_set(rd->err, -EINVAL, "%s.%s is not a list", r->where, name);
    if (depth == SEQUENCE_DEPTH_MAX)
        return dk_err_set(rd->err, -EINVAL, "%s: sequences inside each other, more than %d deep", r->where,
                          SEQUENCE_DEPTH_MAX);
    for (size_t i = 0; i < json_array_size(list) && rc == 0; i++) {
        snprintf(where, sizeof where, "%.200s.%s[%zu]", r->where, name, i);
        rc = fn(rd, json_array_get(list, i), where, depth + 1);
    }
    return rc;
}

static int read_normalizer(const struct reader *rd, const json_t *part, const char *where, unsigned depth)
{
    struct dk_json_reader r = {.object = part, .where = where, .err = rd->err};
    const char *type;

    if (depth == 0 && (!part || json_is_null(part)))
        return 0;
    type = part_type(&r);
    if (!type)
        return r.rc;
    if (strcmp(type, "Sequence") == 0)
        return read_sequence(rd, &r, "normalizers", depth, read_normalizer);
    if (strcmp(type, "NFC") != 0) {
        dk_json_refuse(&r, -ENOTSUP, "type", "NFC and Sequence are implemented");
        return r.rc;
    }
    rd->t->nfc = true;
    return 0;
}

static int read_behavior(struct dk_json_reader *r, enum dk_split_behavior *out)
{
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const char *text;

    dk_json_need(r, "behavior");
    if (!dk_json_text(r, "behavior", &text))
        return r->rc;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(text, names[i]) == 0) {
            *out = (enum dk_split_behavior)i; /* the enum has the same order */
            return 0;
        }
    }
    dk_json_refuse(r, -ENOTSUP, "behavior",
                   "Isolated, Removed, MergedWithPrevious, MergedWithNext and Contiguous are implemented");
    return r->rc;
}

static int read_split(struct dk_json_reader *r, struct dk_stage *s)
{
    const json_t *pattern = json_object_get(r->object, "pattern"), *regex = json_object_get(pattern, "Regex");
    bool invert = false;
    char where[360];
    int rc;

    s->kind = DK_STAGE_SPLIT;
    rc = read_behavior(r, &s->behavior);
    if (rc < 0)
        return rc;
    if (dk_json_bool(r, "invert", &invert) && invert)
        dk_json_refuse(r, -ENOTSUP, "invert", "only false is implemented");
    if (r->rc < 0)
        return r->rc;
    if (json_is_object(pattern) && json_object_get(pattern, "String"))
        return dk_err_set(r->err, -ENOTSUP, "%s: pattern is a String; only Regex is implemented", r->where);
    if (!json_is_string(regex))
        return dk_err_set(r->err, -EINVAL, "%s: pattern.Regex is not a text", r->where);
    snprintf(where, sizeof where, "%.300s: pattern.Regex", r->where);
    return dk_pattern_compile(json_string_value(regex), json_string_length(regex), where, &s->pattern, r->err);
}

static int read_digits(struct dk_json_reader *r, struct dk_stage *s)
{
    bool individual = false;

    s->kind = DK_STAGE_DIGITS;
    dk_json_bool(r, "individual_digits", &individual);
    s->behavior = individual ? DK_SPLIT_ISOLATED : DK_SPLIT_CONTIGUOUS;
    return r->rc;
}

static int read_byte_level(struct dk_json_reader *r, struct dk_stage *s)
{
    bool use_regex = true; /* files from before the option have it on */

    s->kind = DK_STAGE_BYTES;
    dk_json_need(r, "add_prefix_space");
    dk_json_bool(r, "add_prefix_space", &s->prefix_space);
    dk_json_bool(r, "use_regex", &use_regex);
    if (r->rc < 0)
        return r->rc;
    return use_regex ? dk_byte_level_pattern(&s->pattern, r->err) : 0;
}

static int read_pre_tokenizer(const struct reader *rd, const json_t *part, const char *where, unsigned depth)
{
    struct dk_json_reader r = {.object = part, .where = where, .err = rd->err};
    struct dk_pretokenizer *pre = &rd->t->pre;
    const char *type = part_type(&r);
    struct dk_stage *s;

    if (!type)
        return r.rc;
    if (strcmp(type, "Sequence") == 0)
        return read_sequence(rd, &r, "pretokenizers", depth, read_pre_tokenizer);
    if (pre->count == DK_STAGES_MAX)
        return dk_err_set(rd->err, -ENOTSUP, "%s: more than %d stages", where, DK_STAGES_MAX);
    if (pre->count > 0 && pre->stages[pre->count - 1].kind == DK_STAGE_BYTES)
        return dk_err_set(rd->err, -ENOTSUP, "%s: %s behind ByteLevel is not implemented", where, type);
    s = &pre->stages[pre->count++];
    if (strcmp(type, "Split") == 0)
        return read_split(&r, s);
    if (strcmp(type, "Digits") == 0)
        return read_digits(&r, s);
    if (strcmp(type, "ByteLevel") == 0)
        return read_byte_level(&r, s);
    dk_json_refuse(&r, -ENOTSUP, "type", "Split, Digits, ByteLevel and Sequence are implemented");
    return r.rc;
}

static int read_decoder(const json_t *part, const char *where, struct dk_err *err)
{
    struct dk_json_reader r = {.object = part, .where = where, .err = err};
    const char *type = part_type(&r);

    if (type && strcmp(type, "ByteLevel") != 0)
        dk_json_refuse(&r, -ENOTSUP, "type", "only ByteLevel is implemented");
    return r.rc;
}

static bool has_type(const json_t *part, const char *type)
{
    const char *name = json_string_value(json_object_get(part, "type"));

    return name && strcmp(name, type) == 0;
}

/* Normalizers that write U+2581 for blanks. */
static bool writes_bars(const json_t *normalizer, unsigned depth)
{
    const json_t *list = json_object_get(normalizer, "normalizers");
    const char *content = json_string_value(json_object_get(normalizer, "content"));

    for (size_t i = 0; depth < SEQUENCE_DEPTH_MAX && i < json_array_size(list); i++)
        if (writes_bars(json_array_get(list, i), depth + 1))
            return true;
    return has_type(normalizer, "Prepend") ||
           (has_type(normalizer, "Replace") && content && strcmp(content, "\xE2\x96\x81") == 0);
}

/* What makes a file one of those that are converted from SentencePiece; NULL: nothing. Without this, the error would
 * be about the first part that looks odd. */
static const char *sentencepiece_mark(const json_t *root)
{
    const json_t *pre = json_object_get(root, "pre_tokenizer"), *model = json_object_get(root, "model");

    if (has_type(pre, "Metaspace"))
        return "pre_tokenizer Metaspace";
    if (has_type(model, "Unigram"))
        return "model Unigram";
    if (writes_bars(json_object_get(root, "normalizer"), 0))
        return "a normalizer that writes U+2581 for blanks";
    if ((!pre || json_is_null(pre)) && json_is_true(json_object_get(model, "byte_fallback")))
        return "byte_fallback without a pre_tokenizer";
    return NULL;
}

int dk_tokenizer_read_pipeline(struct dk_tokenizer *t, const json_t *root, const char *where, struct dk_err *err)
{
    struct reader rd = {t, err};
    const char *mark = sentencepiece_mark(root);
    char place[200];
    int rc;

    if (mark)
        return dk_err_set(err, -ENOTSUP, "%s: a SentencePiece-style tokenizer (%s); only byte-level BPE is read", where,
                          mark);
    snprintf(place, sizeof place, "%.160s: normalizer", where);
    rc = read_normalizer(&rd, json_object_get(root, "normalizer"), place, 0);
    if (rc < 0)
        return rc;
    snprintf(place, sizeof place, "%.160s: pre_tokenizer", where);
    rc = read_pre_tokenizer(&rd, json_object_get(root, "pre_tokenizer"), place, 0);
    if (rc < 0)
        return rc;
    if (t->pre.count == 0 || t->pre.stages[t->pre.count - 1].kind != DK_STAGE_BYTES)
        return dk_err_set(err, -ENOTSUP, "%s does not end in ByteLevel; only byte-level tokenizers are implemented",
                          place);
    snprintf(place, sizeof place, "%.160s: decoder", where);
    return read_decoder(json_object_get(root, "decoder"), place, err);
}
