/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_JSON_MUTATE_H
#define DK_JSON_MUTATE_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

/* Changes of a JSON document that stay JSON, so that they reach the code behind the parser. Any thread. */

/* xorshift64; *state must not be 0. */
uint64_t json_mutate_random(uint64_t *state);
/* A state made of bytes (FNV-1a), never 0. */
uint64_t json_mutate_seed(const void *bytes, size_t size);

/* A copy of doc with one to three changes: a value becomes an edge number, null, a text, a list or an object; a number
 * moves to a neighbour, its double or its half; a field or an entry is dropped; a list is doubled; a field comes
 * from another object of doc, or from the same path of other. Returns the text, which the caller frees, and its length
 * in *bytes; NULL: no memory. */
char *json_mutate(const json_t *doc, const json_t *other, uint64_t *state, size_t *bytes);

#endif
