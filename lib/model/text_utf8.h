/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DK_MODEL_TEXT_UTF8_H
#define DK_MODEL_TEXT_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* UTF-8 as bytes.decode("utf-8", errors="replace") reads it: the longest start of a character that breaks off becomes
 * one U+FFFD (Unicode 15, chapter 3.9, "substitution of maximal subparts"). */

struct dk_utf8_state {
    uint8_t pending[4]; /* the start of a character, valid so far */
    uint32_t pending_bytes;
};

/* Takes one byte and writes what is now certain: at most 6 bytes (one U+FFFD and one ASCII character, or less).
 * Returns the bytes written. */
size_t dk_utf8_push(struct dk_utf8_state *s, uint8_t byte, char *out);
/* An unfinished character becomes U+FFFD: at most 3 bytes. */
size_t dk_utf8_finish(struct dk_utf8_state *s, char *out);

/* Bytes at the front that are whole, valid characters. */
size_t dk_utf8_valid(const char *text, size_t bytes);
/* A malloc'ed copy with every broken character replaced; NULL: no memory. At most 3 * bytes + 3 long. */
char *dk_utf8_replace(const char *text, size_t bytes, size_t *out_bytes);

/* Reads one character of valid UTF-8 and returns its bytes. */
size_t dk_utf8_get(const char *text, uint32_t *codepoint);
/* Writes one scalar value; returns the bytes, at most 4. */
size_t dk_utf8_put(uint32_t codepoint, char *out);

/* NFC of valid UTF-8. *out is NULL when the text is NFC already by a quick look; otherwise malloc'ed. -ENOMEM. */
int dk_nfc(const char *text, size_t bytes, char **out, size_t *out_bytes);

#endif
