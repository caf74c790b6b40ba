/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a text for the small tokenizer of each kind, and as a list of ids. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/text_utf8.h"
#include "model/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct kind {
    const char *folder;
    bool nfc; /* otherwise the text comes back as it was */
    struct dk_tokenizer *t;
};

static struct kind kinds[] = {
    {FIXTURES "/qwen3-tiny", true, NULL},
    {FIXTURES "/qwen3_5-fp8-tiny", true, NULL},
    {FIXTURES "/deepseek_v3-fp8-tiny", false, NULL},
};

static const struct dk_tokenizer *tokenizer(struct kind *k)
{
    struct dk_err err = {0};

    if (!k->t && dk_tokenizer_open(k->folder, &k->t, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    return k->t;
}

static void expect_same(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    if (a_bytes != b_bytes || (a_bytes && memcmp(a, b, a_bytes) != 0))
        abort();
}

/* Decodes one by one and all at once: both must agree, and no step may give half a character. */
static char *decode(const struct dk_tokenizer *t, const uint32_t *ids, size_t count, size_t *bytes)
{
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

static void check_text(struct kind *k, const char *text, size_t size)
{
    const struct dk_tokenizer *t = tokenizer(k);
    size_t count, clean_bytes, nfc_bytes = 0, back_bytes;
    char *clean, *nfc = NULL, *back;
    uint32_t *ids;

    if (dk_tokenizer_encode(t, text, size, &ids, &count, NULL) < 0)
        abort();
    back = decode(t, ids, count, &back_bytes);
    clean = dk_utf8_replace(text, size, &clean_bytes);
    if (k->nfc && dk_nfc(clean, clean_bytes, &nfc, &nfc_bytes) < 0)
        abort();
    /* Added tokens, which all begin with '<', are cut out before the rest is normalized piece by piece. */
    if (!k->nfc || !memchr(clean, '<', clean_bytes))
        expect_same(back, back_bytes, nfc ? nfc : clean, nfc ? nfc_bytes : clean_bytes);
    free(nfc);
    free(clean);
    free(back);
    free(ids);
}

static void check_ids(struct kind *k, const char *text, size_t size)
{
    size_t count = size / 2, bytes;
    uint32_t *ids = malloc((count + 1) * sizeof *ids);

    for (size_t i = 0; i < count; i++)
        ids[i] = ((uint8_t)text[2 * i] | (uint32_t)(uint8_t)text[2 * i + 1] << 8) % 1000;
    free(decode(tokenizer(k), ids, count, &bytes));
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size ? size : 1);

    if (size)
        memcpy(text, data, size);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        check_text(&kinds[i], text, size);
        check_ids(&kinds[i], text, size);
    }
    free(text);
    return 0;
}
