/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_MODEL_TOKENIZER_JSON_H
#define DK_MODEL_TOKENIZER_JSON_H

#include <jansson.h>

#include "model/tokenizer/tokenizer_internal.h"

/* The parts of a tokenizer.json. Each fills its fields of *t, which was zeroed and which dk_tokenizer_close() frees
 * however far it came. -EINVAL, -ENOTSUP (by name), -ENOMEM; messages begin with `where`, the file. */

/* "model": vocabulary, merges, options; adds the ids to t->tokens. id_max: the largest id of the added tokens. */
int dk_tokenizer_read_model(struct dk_tokenizer *t, const json_t *root, uint32_t id_max, const char *where,
                            struct dk_err *err);
/* "normalizer", "pre_tokenizer", "decoder". */
int dk_tokenizer_read_pipeline(struct dk_tokenizer *t, const json_t *root, const char *where, struct dk_err *err);
/* Largest id in "added_tokens"; checks their types. 0 if there are none. */
int dk_tokenizer_added_id_max(const json_t *root, const char *where, uint32_t *id_max, struct dk_err *err);
/* "added_tokens", after all of these. */
int dk_tokenizer_read_added(struct dk_tokenizer *t, const json_t *root, const char *where, struct dk_err *err);

/* "post_processor", after that one. */
int dk_tokenizer_read_post(struct dk_tokenizer *t, const json_t *root, const char *where, struct dk_err *err);

/* No vocabulary comes near; it keeps a damaged id from asking for gigabytes. */
#define DK_TOKEN_ID_MAX ((1u << 22) - 1)

#endif
