/* SPDX-License-Identifier: Apache-2.0 */
/* Reads "model" of a tokenizer.json: the vocabulary, the merges, and the options that would change what they mean. */
#include "model/tokenizer/tokenizer_json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "model/json_field.h"
#include "model/text_utf8.h"

/* The bytes a vocabulary key stands for. A key with a character outside the byte alphabet stands for itself, as the
 * reference's byte-level decoder has it; encoding never reaches such a token. */
static size_t key_to_bytes(const char *key, size_t bytes, char *out)
{
    size_t n = 0;

    for (size_t i = 0; i < bytes;) {
        uint32_t c;
        int byte;

        i += dk_utf8_get(key + i, &c);
        byte = dk_char_byte(c);
        if (byte < 0) {
            memcpy(out, key, bytes);
            return bytes;
        }
        out[n++] = (char)byte;
    }
    return n;
}

static int check_ids(const json_t *vocab, uint32_t *id_max, size_t *key_bytes, const char *where, struct dk_err *err)
{
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)vocab, key, v)
    {
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > DK_TOKEN_ID_MAX)
            return dk_err_set(err, -EINVAL, "%s: model.vocab[\"%.40s\"] is not a whole number from 0 to %u", where, key,
                              DK_TOKEN_ID_MAX);
        if (json_integer_value(v) > *id_max)
            *id_max = (uint32_t)json_integer_value(v);
        *key_bytes += strlen(key);
    }
    return 0;
}

static int read_vocab(struct dk_tokenizer *t, const json_t *vocab, uint32_t id_max, const char *where,
                      struct dk_err *err)
{
    size_t key_bytes = 0, used = 0, bytes_at;
    const char *key;
    json_t *v;
    int rc = check_ids(vocab, &id_max, &key_bytes, where, err);

    if (rc < 0)
        return rc;
    t->size = id_max + 1;
    t->tokens = calloc(t->size, sizeof *t->tokens);
    t->pool = malloc(2 * key_bytes + 1);
    if (!t->tokens || !t->pool || dk_text_map_init(&t->vocab, json_object_size(vocab)) < 0)
        return dk_err_set(err, -ENOMEM, "%s: no memory for %zu tokens", where, json_object_size(vocab));
    bytes_at = key_bytes;
    json_object_foreach((json_t *)vocab, key, v)
    {
        uint32_t id = (uint32_t)json_integer_value(v), old;
        struct dk_token *token = &t->tokens[id];
        size_t bytes = strlen(key), count;

        if (token->flags)
            return dk_err_set(err, -EINVAL, "%s: model.vocab[\"%.40s\"]: another token has the id %u too", where, key,
                              id);
        memcpy(t->pool + used, key, bytes);
        if (dk_text_map_put(&t->vocab, t->pool + used, bytes, id, &old) < 0)
            return dk_err_set(err, -EINVAL, "%s: model.vocab[\"%.40s\"] is there twice", where, key);
        count = key_to_bytes(key, bytes, t->pool + bytes_at);
        *token = (struct dk_token){(const uint8_t *)t->pool + bytes_at, (uint32_t)count, DK_TOKEN_PRESENT};
        used += bytes;
        bytes_at += count;
    }
    for (unsigned byte = 0; byte < 256; byte++) {
        char text[4];
        size_t bytes = dk_utf8_put(dk_byte_char((uint8_t)byte), text);

        if (dk_text_map_get(&t->vocab, text, bytes, &t->bpe.byte_id[byte]) < 0)
            t->bpe.byte_id[byte] = DK_NO_TOKEN;
    }
    return 0;
}

/* The two sides of a merge: "a b", as older files have it, or ["a", "b"]. */
static int merge_sides(const json_t *merge, const char **left, size_t *left_bytes, const char **right,
                       size_t *right_bytes)
{
    if (json_is_string(merge)) {
        const char *space = strchr(json_string_value(merge), ' ');

        if (!space || strchr(space + 1, ' '))
            return -EINVAL;
        *left = json_string_value(merge);
        *left_bytes = (size_t)(space - *left);
        *right = space + 1;
        *right_bytes = strlen(space + 1);
        return 0;
    }
    if (!json_is_array(merge) || json_array_size(merge) != 2 || !json_is_string(json_array_get(merge, 0)) ||
        !json_is_string(json_array_get(merge, 1)))
        return -EINVAL;
    *left = json_string_value(json_array_get(merge, 0));
    *left_bytes = json_string_length(json_array_get(merge, 0));
    *right = json_string_value(json_array_get(merge, 1));
    *right_bytes = json_string_length(json_array_get(merge, 1));
    return 0;
}

static int read_merge(struct dk_tokenizer *t, const json_t *merge, size_t rank, char **joined, size_t *joined_max,
                      const char *where, struct dk_err *err)
{
    const char *left, *right;
    size_t left_bytes, right_bytes;
    uint32_t left_id, right_id, made;

    if (merge_sides(merge, &left, &left_bytes, &right, &right_bytes) < 0)
        return dk_err_set(err, -EINVAL, "%s: model.merges[%zu] is neither \"a b\" nor [\"a\", \"b\"]", where, rank);
    if (left_bytes + right_bytes > *joined_max) {
        free(*joined);
        *joined_max = 2 * (left_bytes + right_bytes);
        *joined = malloc(*joined_max);
        if (!*joined) {
            *joined_max = 0;
            return dk_err_set(err, -ENOMEM, "%s: model.merges[%zu]: no memory", where, rank);
        }
    }
    if (left_bytes)
        memcpy(*joined, left, left_bytes);
    if (right_bytes)
        memcpy(*joined + left_bytes, right, right_bytes);
    if (left_bytes == 0 || right_bytes == 0 || dk_text_map_get(&t->vocab, left, left_bytes, &left_id) < 0 ||
        dk_text_map_get(&t->vocab, right, right_bytes, &right_id) < 0 ||
        dk_text_map_get(&t->vocab, *joined, left_bytes + right_bytes, &made) < 0)
        return dk_err_set(err, -EINVAL, "%s: model.merges[%zu]: \"%.40s\" + \"%.40s\" is not in model.vocab", where,
                          rank, left, right);
    /* A pair that is listed twice counts where it is listed last, as in the reference. */
    dk_pair_map_put(&t->bpe.merges, dk_pair_key(left_id, right_id), (uint32_t)rank, made);
    return 0;
}

static int read_merges(struct dk_tokenizer *t, const json_t *merges, const char *where, struct dk_err *err)
{
    size_t count = json_array_size(merges), joined_max = 0;
    char *joined = NULL;
    int rc = 0;

    if (dk_pair_map_init(&t->bpe.merges, count) < 0)
        return dk_err_set(err, -ENOMEM, "%s: no memory for %zu merges", where, count);
    for (size_t i = 0; i < count && rc == 0; i++) {
        const json_t *merge = json_array_get(merges, i);

        /* The heading of a merges.txt, which old converters copied into the list. */
        if (i == 0 && json_is_string(merge) && strncmp(json_string_value(merge), "#version", 8) == 0)
            continue;
        rc = read_merge(t, merge, i, &joined, &joined_max, where, err);
    }
    free(joined);
    return rc;
}

static bool lacks_a_byte(const struct dk_bpe *b)
{
    for (unsigned i = 0; i < 256; i++)
        if (b->byte_id[i] == DK_NO_TOKEN)
            return true;
    return false;
}

/* Options that change the ids are refused; those that could only change them for bytes without a token, only when the
 * vocabulary lacks one. */
static int check_options(const struct dk_tokenizer *t, struct dk_json_reader *r)
{
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    bool fallback = false, fuse = false;
    const char *text = NULL;
    double dropout = 0;

    dk_json_double(r, "dropout", 0, 1, &dropout);
    if (dropout > 0)
        dk_json_refuse(r, -ENOTSUP, "dropout", "only null or 0 is implemented");
    for (size_t i = 0; i < sizeof affixes / sizeof *affixes; i++)
        if (dk_json_text(r, affixes[i], &text) && *text)
            dk_json_refuse(r, -ENOTSUP, affixes[i], "only null or \"\" is implemented");
    dk_json_bool(r, "fuse_unk", &fuse);
    if (dk_json_text(r, "unk_token", &text) && lacks_a_byte(&t->bpe))
        dk_json_refuse(r, -ENOTSUP, "unk_token", "with a vocabulary that lacks some bytes, only null is implemented");
    if (dk_json_bool(r, "byte_fallback", &fallback) && fallback && lacks_a_byte(&t->bpe))
        dk_json_refuse(r, -ENOTSUP, "byte_fallback",
                       "with a vocabulary that lacks some bytes, only false is implemented");
    return r->rc;
}

int dk_tokenizer_read_model(struct dk_tokenizer *t, const json_t *root, uint32_t id_max, const char *where,
                            struct dk_err *err)
{
    const json_t *model = json_object_get(root, "model"), *vocab = json_object_get(model, "vocab"),
                 *merges = json_object_get(model, "merges");
    char place[160];
    struct dk_json_reader r = {.object = model, .where = place, .err = err};
    const char *type = "BPE";
    int rc;

    snprintf(place, sizeof place, "%s: model", where);
    if (!json_is_object(model))
        return dk_err_set(err, -EINVAL, "%s is not an object", place);
    if (dk_json_text(&r, "type", &type) && strcmp(type, "BPE") != 0)
        dk_json_refuse(&r, -ENOTSUP, "type", "only \"BPE\" is implemented");
    dk_json_bool(&r, "ignore_merges", &t->ignore_merges);
    if (r.rc < 0)
        return r.rc;
    if (!json_is_object(vocab))
        return dk_err_set(err, -EINVAL, "%s.vocab is not an object", place);
    if (!json_is_array(merges))
        return dk_err_set(err, -EINVAL, "%s.merges is not a list", place);
    rc = read_vocab(t, vocab, id_max, where, err);
    if (rc == 0)
        rc = read_merges(t, merges, where, err);
    if (rc == 0)
        rc = check_options(t, &r);
    return rc;
}
