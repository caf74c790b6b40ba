/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_MODEL_SPLIT_PATTERN_H
#define DK_MODEL_SPLIT_PATTERN_H

#include <stddef.h>

#include "base/error.h"

/* A regular expression of a pre-tokenizer. The reference runs it with Oniguruma, this with PCRE2 (UTF and UCP); what
 * the two read differently is refused when compiling. Known difference: PCRE2 10.42 knows Unicode 14, so that the
 * letters and numbers of later versions (the Kaktovik numerals U+1D2C0 to U+1D2D3, for one) are neither to it. */
struct dk_pattern;
/* Working memory for matching one pattern; one thread. */
struct dk_matcher;

/* -EINVAL: does not compile; -ENOTSUP: a construct that is not handled, by name; -ENOMEM. Messages begin with
 * `where`. */
int dk_pattern_compile(const char *text, size_t bytes, const char *where, struct dk_pattern **out, struct dk_err *err);
void dk_pattern_free(struct dk_pattern *p);

struct dk_matcher *dk_matcher_new(const struct dk_pattern *p); /* NULL: no memory */
void dk_matcher_free(struct dk_matcher *m);

/* The next match in subject (valid UTF-8 in which U+180E has been replaced, see dk_shadow_new) at or after `at`: 1 and
 * [*start, *end), never empty; 0 none. -E2BIG: the text makes the pattern take too many steps; -ENOMEM. */
int dk_matcher_next(struct dk_matcher *m, const char *subject, size_t bytes, size_t at, size_t *start, size_t *end);

/* PCRE2 takes U+180E for white space, as Unicode did up to version 6.2; the reference does not. What is matched is
 * therefore a shadow of the text in which U+200B stands for it: the same length in UTF-8, the same general category
 * (Cf), and white space to neither. A pattern that names U+180E itself is refused. *out NULL: the text has no
 * U+180E. -ENOMEM. */
int dk_shadow_new(const char *text, size_t bytes, char **out);

#endif
