/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_TESTS_TOKEN_CASES_H
#define DK_TESTS_TOKEN_CASES_H

#include <jansson.h>
#include <stddef.h>

#include "model/tokenizer.h"

/* Running the tokenizer over files of expected values; without a test framework, so that every program can use it. */

/* Ends the program with a message when the file is missing or damaged. */
json_t *cases_load(const char *path);
struct dk_tokenizer *cases_tokenizer(const char *path);

/* Number of items whose result differs; each is printed. `total` counts up. */

/* {"text", "ids"}: encoding. */
size_t cases_encode(const struct dk_tokenizer *t, const json_t *cases, const char *ids_name, size_t *total);
/* The same texts encoded and decoded again give their NFC (nfc) or themselves. */
size_t cases_round_trip(const struct dk_tokenizer *t, const json_t *cases, int nfc, size_t *total);
/* {"ids", "bytes_hex", "text_lossy"}: decoding token by token. */
size_t cases_decode(const struct dk_tokenizer *t, const json_t *cases, size_t *total);

/* The text of ids, decoded one by one; malloc'ed. Ends the program if a step gives half a character. */
char *cases_decode_all(const struct dk_tokenizer *t, const uint32_t *ids, size_t count, size_t *bytes);

#endif
