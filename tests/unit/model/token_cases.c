/* SPDX-License-Identifier: Apache-2.0 */
#include "token_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/text_utf8.h"

static void *need(void *p, const char *what)
{
    if (!p) {
        fprintf(stderr, "%s\n", what);
        exit(2);
    }
    return p;
}

json_t *cases_load(const char *path)
{
    json_error_t bad;
    json_t *v = json_load_file(path, JSON_ALLOW_NUL, &bad);

    if (!v)
        fprintf(stderr, "%s: line %d: %s\n", path, bad.line, bad.text);
    return need(v, "a file of expected values cannot be read");
}

struct dk_tokenizer *cases_tokenizer(const char *path)
{
    FILE *f = need(fopen(path, "rb"), path);
    struct dk_tokenizer *t = NULL;
    struct dk_err err = {0};
    size_t bytes;
    char *data;

    fseek(f, 0, SEEK_END);
    bytes = (size_t)ftell(f);
    rewind(f);
    data = need(malloc(bytes), "no memory");
    if (fread(data, 1, bytes, f) != bytes)
        need(NULL, path);
    fclose(f);
    dk_tokenizer_from_memory(data, bytes, path, &t, &err);
    free(data);
    return need(t, err.text);
}

static void print_ids(const char *name, const uint32_t *ids, size_t count)
{
    fprintf(stderr, "  %s:", name);
    for (size_t i = 0; i < count; i++)
        fprintf(stderr, " %u", ids[i]);
    fprintf(stderr, "\n");
}

static uint32_t *ids_of(const json_t *list, size_t *count)
{
    uint32_t *ids = need(malloc((json_array_size(list) + 1) * sizeof *ids), "no memory");

    *count = json_array_size(list);
    for (size_t i = 0; i < *count; i++)
        ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    return ids;
}

size_t cases_encode(const struct dk_tokenizer *t, const json_t *cases, const char *ids_name, size_t *total)
{
    size_t bad = 0;

    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i), *text = json_object_get(c, "text");
        size_t got_count = 0, want_count;
        uint32_t *want, *got = NULL;
        struct dk_err err = {0};

        if (!json_object_get(c, ids_name))
            continue;
        want = ids_of(json_object_get(c, ids_name), &want_count);
        ++*total;
        if (dk_tokenizer_encode(t, json_string_value(text), json_string_length(text), &got, &got_count, &err) < 0 ||
            got_count != want_count || (got_count && memcmp(got, want, got_count * sizeof *got) != 0)) {
            bad++;
            fprintf(stderr, "case %zu: \"%.200s\" %s\n", i, json_string_value(text), err.text);
            print_ids("expected", want, want_count);
            print_ids("got     ", got, got_count);
        }
        free(got);
        free(want);
    }
    return bad;
}

char *cases_decode_all(const struct dk_tokenizer *t, const uint32_t *ids, size_t count, size_t *bytes)
{
    size_t room = dk_detokenizer_room(t), used = 0, n;
    char *out = need(malloc((count + 1) * room), "no memory");
    struct dk_detokenizer d = {{0}, 0};

    for (size_t i = 0; i <= count; i++) {
        n = i < count ? dk_detokenizer_next(t, &d, ids[i], false, out + used, room)
                      : dk_detokenizer_finish(&d, out + used, room);
        if (n > room || dk_utf8_valid(out + used, n) != n)
            need(NULL, "a step of decoding gave half a character");
        used += n;
    }
    *bytes = used;
    return out;
}

size_t cases_round_trip(const struct dk_tokenizer *t, const json_t *cases, int nfc, size_t *total)
{
    size_t bad = 0;

    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *v = json_object_get(json_array_get(cases, i), "text");
        const char *want = json_string_value(v);
        size_t want_bytes = json_string_length(v), bytes, count;
        char *composed = NULL, *text;
        uint32_t *ids;

        if (nfc && dk_nfc(want, want_bytes, &composed, &want_bytes) < 0)
            need(NULL, "no memory");
        want = composed ? composed : want;
        if (dk_tokenizer_encode(t, json_string_value(v), json_string_length(v), &ids, &count, NULL) < 0)
            need(NULL, "encoding failed");
        text = cases_decode_all(t, ids, count, &bytes);
        ++*total;
        if (bytes != want_bytes || memcmp(text, want, bytes) != 0) {
            bad++;
            fprintf(stderr, "case %zu: \"%.100s\" comes back as \"%.*s\"\n", i, want, (int)bytes, text);
        }
        free(text);
        free(ids);
        free(composed);
    }
    return bad;
}

/* Do the tokens' bytes, one after the other, spell this? */
static int bytes_are(const struct dk_tokenizer *t, const uint32_t *ids, size_t count, const char *hex)
{
    for (size_t i = 0; i < count; i++) {
        size_t n;
        const uint8_t *bytes = dk_tokenizer_token(t, ids[i], &n);

        for (size_t k = 0; k < n; k++, hex += 2) {
            char two[3];

            snprintf(two, sizeof two, "%02x", bytes[k]);
            if (strncmp(two, hex, 2) != 0)
                return 0;
        }
    }
    return *hex == 0;
}

size_t cases_decode(const struct dk_tokenizer *t, const json_t *cases, size_t *total)
{
    size_t bad = 0;

    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i), *want = json_object_get(c, "text_lossy");
        size_t count, bytes;
        uint32_t *ids = ids_of(json_object_get(c, "ids"), &count);
        char *text = cases_decode_all(t, ids, count, &bytes);

        ++*total;
        if (!bytes_are(t, ids, count, json_string_value(json_object_get(c, "bytes_hex"))) ||
            bytes != json_string_length(want) || memcmp(text, json_string_value(want), bytes) != 0) {
            bad++;
            fprintf(stderr, "decode case %zu: expected \"%s\", got \"%.*s\"\n", i, json_string_value(want), (int)bytes,
                    text);
        }
        free(text);
        free(ids);
    }
    return bad;
}
