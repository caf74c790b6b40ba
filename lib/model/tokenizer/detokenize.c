/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <string.h>

#include "model/text_utf8.h"
#include "model/tokenizer/tokenizer_internal.h"

size_t dk_detokenizer_room(const struct dk_tokenizer *t)
{
    /* Each byte of the token, and the character begun before it, may become a U+FFFD of three bytes. */
    return 3 * (size_t)t->token_bytes_max + 3;
}

size_t dk_detokenizer_next(const struct dk_tokenizer *t, struct dk_detokenizer *d, uint32_t id, bool skip_special,
                           char *out, size_t capacity)
{
    struct dk_utf8_state s = {.pending_bytes = d->pending_bytes};
    const uint8_t *bytes;
    size_t count, n = 0;

    assert(capacity >= dk_detokenizer_room(t));
    bytes = dk_tokenizer_token(t, id, &count);
    if (!bytes || (skip_special && dk_tokenizer_is_special(t, id)))
        return 0;
    memcpy(s.pending, d->pending, sizeof s.pending);
    for (size_t i = 0; i < count; i++)
        n += dk_utf8_push(&s, bytes[i], out + n);
    memcpy(d->pending, s.pending, sizeof s.pending);
    d->pending_bytes = s.pending_bytes;
    return n;
}

size_t dk_detokenizer_finish(struct dk_detokenizer *d, char *out, size_t capacity)
{
    struct dk_utf8_state s = {.pending_bytes = d->pending_bytes};

    assert(capacity >= 3);
    d->pending_bytes = 0;
    return dk_utf8_finish(&s, out);
}
