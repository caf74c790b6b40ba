/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a text for the small Qwen3 tokenizer, and as a list of ids. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/text_utf8.h"
#include "model/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct dk_tokenizer *tokenizer(void)
{
    static struct dk_tokenizer *t;
    struct dk_err err = {0};

    if (!t && dk_tokenizer_open(FIXTURES "/qwen3-tiny", &t, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    return t;
}

static void expect_same(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    if (a_bytes != b_bytes || (a_bytes && memcmp(a, b, a_bytes) != 0))
        abort();
}

/* Decodes one by one and all at once: both must agree, and no step may give half a character. */
static char *decode(const uint32_t *ids, size_t count, size_t *bytes)
{
    const struct dk_tokenizer *t = tokenizer();
    size_t room = dk_detokenizer_room(t), used = 0, raw_bytes = 0, n;
    char *out = malloc((count + 1) * room), *raw = malloc((count + 1) * room), *whole;
    struct dk_detokenizer d = {{0}, 0};

    for (size_t i = 0; i < count; i++) {
        const uint8_t *token = dk_tokenizer_token(t, ids[i], &n);

        if (token)
            memcpy(raw + raw_bytes, token, n);
        raw_bytes += n;
        n = dk_detokenizer_next(t, &d, ids[i], false, out + used, room);
        if (n > room || dk_utf8_valid(out + used, n) != n)
            abort();
        used += n;
    }
    used += dk_detokenizer_finish(&d, out + used, room);
    whole = dk_utf8_replace(raw, raw_bytes, &n);
    expect_same(out, used, whole, n);
    free(whole);
    free(raw);
    *bytes = used;
    return out;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size ? size : 1), *clean, *nfc = NULL, *back;
    size_t count, clean_bytes, nfc_bytes = 0, back_bytes;
    uint32_t *ids;

    if (size)
        memcpy(text, data, size);
    if (dk_tokenizer_encode(tokenizer(), text, size, &ids, &count, NULL) < 0)
        abort();
    back = decode(ids, count, &back_bytes);
    clean = dk_utf8_replace(text, size, &clean_bytes);
    if (dk_nfc(clean, clean_bytes, &nfc, &nfc_bytes) < 0)
        abort();
    /* Added tokens, which all begin with '<', are cut out before the rest is normalized piece by piece. */
    if (!memchr(clean, '<', clean_bytes))
        expect_same(back, back_bytes, nfc ? nfc : clean, nfc ? nfc_bytes : clean_bytes);
    free(nfc);
    free(clean);
    free(back);
    free(ids);

    count = size / 2;
    ids = malloc((count + 1) * sizeof *ids);
    for (size_t i = 0; i < count; i++)
        ids[i] = ((uint8_t)text[2 * i] | (uint32_t)(uint8_t)text[2 * i + 1] << 8) % 1000;
    free(decode(ids, count, &back_bytes));
    free(ids);
    free(text);
    return 0;
}
