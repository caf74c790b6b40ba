/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_MODEL_TOKENIZER_H
#define DK_MODEL_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Byte-level BPE from a tokenizer.json, as the Hugging Face tokenizers library runs it: added tokens are found in the
 * text first; then normalizer (NFC or none), pre-tokenizer (Split, Digits, ByteLevel, Sequence of them), merges. */

/* Read-only once it is open: any number of threads may use one at the same time. */
struct dk_tokenizer;

/* dir/tokenizer.json. -ENOENT: says that the folder has no tokenizer; -EINVAL: damaged, names the field; -ENOTSUP: a
 * normalizer, pre-tokenizer, model type or option that is not implemented, by name; a SentencePiece-style tokenizer
 * (Llama 2, Mistral up to v0.3) is called so. */
int dk_tokenizer_open(const char *dir, struct dk_tokenizer **out, struct dk_err *err);
int dk_tokenizer_from_memory(const char *json, size_t bytes, const char *where, struct dk_tokenizer **out,
                             struct dk_err *err);
void dk_tokenizer_close(struct dk_tokenizer *t);

uint32_t dk_tokenizer_size(const struct dk_tokenizer *t); /* largest id + 1 */

/* Ids of the text (any bytes; invalid UTF-8 is replaced by U+FFFD as the reference does), special tokens recognised,
 * none added. *ids is malloc'ed. -ENOMEM, -E2BIG: text over 64 MiB. */
int dk_tokenizer_encode(const struct dk_tokenizer *t, const char *text, size_t bytes, uint32_t **ids, size_t *count,
                        struct dk_err *err);

/* The same for a whole prompt: before the text go the special tokens that the file's post_processor puts there (Llama
 * 3:
 * <|begin_of_text|>), unless the text begins with them. Rendered chats have theirs already. */
int dk_tokenizer_encode_prompt(const struct dk_tokenizer *t, const char *text, size_t bytes, uint32_t **ids,
                               size_t *count, struct dk_err *err);

/* The bytes that one id stands for; *bytes 0 for ids without any. NULL: no such id. Added tokens give their text. */
const uint8_t *dk_tokenizer_token(const struct dk_tokenizer *t, uint32_t id, size_t *bytes);
bool dk_tokenizer_is_special(const struct dk_tokenizer *t, uint32_t id);

/* Incremental decoding: never emits half a UTF-8 character. */
struct dk_detokenizer {
    uint8_t pending[4];
    uint32_t pending_bytes;
};
/* Appends the characters that became certain with this id to out (capacity bytes, at least dk_detokenizer_room(t));
 * bytes that can no longer become a character are U+FFFD, as in Python's errors="replace". Returns the bytes
 * written. */
size_t dk_detokenizer_next(const struct dk_tokenizer *t, struct dk_detokenizer *d, uint32_t id, bool skip_special,
                           char *out, size_t capacity);
/* What is left at the end becomes U+FFFD. */
size_t dk_detokenizer_finish(struct dk_detokenizer *d, char *out, size_t capacity);
size_t dk_detokenizer_room(const struct dk_tokenizer *t);

#endif
