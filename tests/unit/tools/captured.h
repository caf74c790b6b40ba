/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CAPTURED_H
#define CAPTURED_H

/* Runs fn with stdout and stderr going into texts. Both are malloc'ed and terminated. */
struct captured {
    int rc; /* of fn */
    char *out, *err;
};
struct captured captured_run(int (*fn)(void *ctx), void *ctx);
void captured_free(struct captured *c);

/* How often `part` is in `text`. */
int occurrences(const char *text, const char *part);

/* Runs a verb of duckctl by its words: captured_duckctl("local", "up", "--tp", "0", NULL). */
struct captured captured_duckctl(const char *word, ...) __attribute__((sentinel));

#endif
