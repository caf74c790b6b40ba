/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_MODEL_PRETOKENIZE_H
#define DK_MODEL_PRETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>

#include "model/tokenizer/split_pattern.h"

/* Cuts text into the words inside which tokens merge: stages one after the other, each cutting the pieces of the one
 * before it. The last stage is always the byte-level one. */

enum dk_split_behavior {
    DK_SPLIT_ISOLATED,             /* a match is a piece, and so is what lies between two */
    DK_SPLIT_REMOVED,              /* matches are dropped */
    DK_SPLIT_MERGED_WITH_PREVIOUS, /* a match belongs to the piece before it, unless that was a match */
    DK_SPLIT_MERGED_WITH_NEXT,     /* a match belongs to the piece behind it, unless that is a match */
    DK_SPLIT_CONTIGUOUS,           /* matches side by side are one piece */
};

enum dk_stage_kind { DK_STAGE_SPLIT, DK_STAGE_DIGITS, DK_STAGE_BYTES };

struct dk_stage {
    enum dk_stage_kind kind;
    enum dk_split_behavior behavior; /* split, digits */
    struct dk_pattern *pattern;      /* split; bytes with use_regex; else NULL */
    bool prefix_space;               /* bytes: a piece that does not begin with a space gets one */
};

#define DK_STAGES_MAX 16
struct dk_pretokenizer {
    struct dk_stage stages[DK_STAGES_MAX];
    size_t count;
};
void dk_pretokenizer_fini(struct dk_pretokenizer *p);

/* The pattern of a byte-level stage with use_regex. -ENOMEM. */
int dk_byte_level_pattern(struct dk_pattern **out, struct dk_err *err);

/* Working memory of one caller. */
struct dk_pretokenize_scratch {
    struct dk_matcher *matchers[DK_STAGES_MAX];
    char *prefixed;
    size_t prefixed_max;
};
int dk_pretokenize_scratch_init(struct dk_pretokenize_scratch *s, const struct dk_pretokenizer *p); /* -ENOMEM */
void dk_pretokenize_scratch_fini(struct dk_pretokenize_scratch *s);

/* Takes one word, in text order; a negative return ends the run and is handed on. */
typedef int dk_word_fn(void *ctx, const char *word, size_t bytes);

/* text: valid UTF-8. -ENOMEM, -E2BIG (dk_matcher_next). */
int dk_pretokenize(const struct dk_pretokenizer *p, struct dk_pretokenize_scratch *s, const char *text, size_t bytes,
                   dk_word_fn *word, void *ctx);

#endif
