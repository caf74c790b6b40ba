/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and encoding. The order of things is the reference's: added tokens that are matched in the text as it is;
 * then each stretch between them is normalized and searched for the added tokens that are matched in normalized
 * text; what is left is cut into words, and the words are merged. */
#include "model/tokenizer/tokenizer_json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "model/file_read.h"
#include "model/json_field.h"
#include "model/text_utf8.h"

#define FILE_BYTES_MAX ((size_t)256 << 20)
#define TEXT_BYTES_MAX ((size_t)64 << 20)

struct encoder {
    const struct dk_tokenizer *t;
    struct dk_id_list ids;
    struct dk_bpe_scratch bpe;
    struct dk_pretokenize_scratch pre;
    char *key; /* a word in the byte alphabet, for ignore_merges */
    size_t key_max;
};

int dk_tokenizer_open(const char *dir, struct dk_tokenizer **out, struct dk_err *err)
{
    char *json = NULL;
    size_t bytes;
    int rc;

    *out = NULL;
    rc = dk_file_read(dir, "tokenizer.json", FILE_BYTES_MAX, &json, &bytes, err);
    if (rc == -ENOENT)
        return dk_err_set(err, rc, "%s: there is no tokenizer.json in the model's folder", dir);
    if (rc < 0)
        return rc;
    rc = dk_tokenizer_from_memory(json, bytes, "tokenizer.json", out, err);
    free(json);
    return rc;
}

int dk_tokenizer_from_memory(const char *json, size_t bytes, const char *where, struct dk_tokenizer **out,
                             struct dk_err *err)
{
    struct dk_tokenizer *t = NULL;
    uint32_t id_max;
    json_t *root;
    int rc;

    *out = NULL;
    rc = dk_json_object_parse(json, bytes, JSON_REJECT_DUPLICATES, where, &root, err);
    if (rc < 0)
        return rc;
    t = calloc(1, sizeof *t);
    if (!t) {
        rc = dk_err_set(err, -ENOMEM, "%s: no memory", where);
        goto fail;
    }
    rc = dk_tokenizer_read_pipeline(t, root, where, err);
    if (rc == 0)
        rc = dk_tokenizer_added_id_max(root, where, &id_max, err);
    if (rc == 0)
        rc = dk_tokenizer_read_model(t, root, id_max, where, err);
    if (rc == 0)
        rc = dk_tokenizer_read_added(t, root, where, err);
    if (rc == 0)
        rc = dk_tokenizer_read_post(t, root, where, err);
    if (rc < 0)
        goto fail;
    for (uint32_t i = 0; i < t->size; i++)
        if (t->tokens[i].count > t->token_bytes_max)
            t->token_bytes_max = t->tokens[i].count;
    json_decref(root);
    *out = t;
    return 0;
fail:
    json_decref(root);
    dk_tokenizer_close(t);
    return rc;
}

void dk_tokenizer_close(struct dk_tokenizer *t)
{
    if (!t)
        return;
    dk_pretokenizer_fini(&t->pre);
    dk_pair_map_fini(&t->bpe.merges);
    dk_pair_map_fini(&t->added_raw.edges);
    dk_pair_map_fini(&t->added_normalized.edges);
    dk_text_map_fini(&t->vocab);
    dk_text_map_fini(&t->added);
    free(t->added_raw.ids);
    free(t->added_normalized.ids);
    free(t->added_pool);
    free(t->pool);
    free(t->tokens);
    free(t);
}

/* A word that is a token by itself, for ignore_merges. -ENOENT. */
static int whole_word(struct encoder *e, const char *word, size_t bytes, uint32_t *id)
{
    size_t used = 0;

    if (e->key_max < 2 * bytes) {
        free(e->key);
        e->key = malloc(2 * bytes);
        e->key_max = e->key ? 2 * bytes : 0;
        if (!e->key)
            return -ENOMEM;
    }
    for (size_t i = 0; i < bytes; i++)
        used += dk_utf8_put(dk_byte_char((uint8_t)word[i]), e->key + used);
    return dk_text_map_get(&e->t->vocab, e->key, used, id);
}

static int encode_word(void *ctx, const char *word, size_t bytes)
{
    struct encoder *e = ctx;
    uint32_t id;
    int rc;

    if (e->t->ignore_merges && bytes <= e->t->token_bytes_max) {
        rc = whole_word(e, word, bytes, &id);
        if (rc == 0)
            return dk_id_list_add(&e->ids, &id, 1);
        if (rc != -ENOENT)
            return rc;
    }
    return dk_bpe_word(&e->t->bpe, &e->bpe, (const uint8_t *)word, bytes, &e->ids);
}

/* The longest added token that stands at text[0]; 0 bytes if none does. */
static size_t added_at(const struct dk_added_tree *tree, const char *text, size_t bytes, uint32_t *id)
{
    uint32_t node = 0;
    size_t found = 0;

    for (size_t i = 0; i < bytes; i++) {
        const struct dk_pair_slot *s = dk_pair_map_get(&tree->edges, dk_pair_key(node, (uint8_t)text[i]));

        if (!s)
            break;
        node = s->first;
        if (tree->ids[node] != DK_NO_TOKEN) {
            found = i + 1;
            *id = tree->ids[node];
        }
    }
    return found;
}

typedef int stretch_fn(struct encoder *e, const char *text, size_t bytes);

/* Adds the ids of the added tokens in the text and gives what lies between them to fn. */
static int cut_out_added(struct encoder *e, const struct dk_added_tree *tree, const char *text, size_t bytes,
                         stretch_fn *fn)
{
    size_t start = 0, i = 0, n;
    uint32_t id = 0;
    int rc = 0;

    while (i < bytes && rc == 0) {
        if (!tree->starts[(uint8_t)text[i]] || (n = added_at(tree, text + i, bytes - i, &id)) == 0) {
            i++;
            continue;
        }
        if (i > start)
            rc = fn(e, text + start, i - start);
        if (rc == 0)
            rc = dk_id_list_add(&e->ids, &id, 1);
        i += n;
        start = i;
    }
    return rc == 0 && bytes > start ? fn(e, text + start, bytes - start) : rc;
}

static int encode_words(struct encoder *e, const char *text, size_t bytes)
{
    return dk_pretokenize(&e->t->pre, &e->pre, text, bytes, encode_word, e);
}

static int encode_stretch(struct encoder *e, const char *text, size_t bytes)
{
    char *nfc = NULL;
    int rc = e->t->nfc ? dk_nfc(text, bytes, &nfc, &bytes) : 0;

    if (rc < 0)
        return rc;
    rc = cut_out_added(e, &e->t->added_normalized, nfc ? nfc : text, bytes, encode_words);
    free(nfc);
    return rc;
}

int dk_tokenizer_encode(const struct dk_tokenizer *t, const char *text, size_t bytes, uint32_t **ids, size_t *count,
                        struct dk_err *err)
{
    struct encoder e = {.t = t};
    char *replaced = NULL;
    int rc = -ENOMEM;

    *ids = NULL;
    *count = 0;
    if (bytes > TEXT_BYTES_MAX)
        return dk_err_set(err, -E2BIG, "the text has %zu bytes; at most %zu can be made into tokens", bytes,
                          TEXT_BYTES_MAX);
    if (dk_utf8_valid(text, bytes) < bytes) {
        replaced = dk_utf8_replace(text, bytes, &bytes);
        if (!replaced)
            goto fail;
        text = replaced;
    }
    rc = dk_pretokenize_scratch_init(&e.pre, &t->pre);
    if (rc == 0)
        rc = cut_out_added(&e, &t->added_raw, text, bytes, encode_stretch);
fail:
    dk_pretokenize_scratch_fini(&e.pre);
    dk_bpe_scratch_fini(&e.bpe);
    free(e.key);
    free(replaced);
    if (rc < 0) {
        free(e.ids.ids);
        if (rc == -E2BIG)
            return dk_err_set(err, rc, "the text makes the tokenizer's pattern take too many steps");
        return dk_err_set(err, rc, "no memory to make tokens of %zu bytes", bytes);
    }
    *ids = e.ids.ids;
    *count = e.ids.count;
    return 0;
}

int dk_tokenizer_encode_prompt(const struct dk_tokenizer *t, const char *text, size_t bytes, uint32_t **ids,
                               size_t *count, struct dk_err *err)
{
    size_t n = t->prefix_count, prefix_bytes = n * sizeof **ids;
    uint32_t *longer;
    int rc = dk_tokenizer_encode(t, text, bytes, ids, count, err);

    if (rc < 0 || n == 0 || (*count >= n && memcmp(*ids, t->prefix, prefix_bytes) == 0))
        return rc;
    longer = realloc(*ids, (*count + n) * sizeof *longer);
    if (!longer) {
        free(*ids);
        *ids = NULL;
        *count = 0;
        return dk_err_set(err, -ENOMEM, "no memory to make tokens of %zu bytes", bytes);
    }
    memmove(longer + n, longer, *count * sizeof *longer);
    memcpy(longer, t->prefix, prefix_bytes);
    *ids = longer;
    *count += n;
    return 0;
}

uint32_t dk_tokenizer_size(const struct dk_tokenizer *t)
{
    return t->size;
}

const uint8_t *dk_tokenizer_token(const struct dk_tokenizer *t, uint32_t id, size_t *bytes)
{
    *bytes = 0;
    if (id >= t->size || !t->tokens[id].flags)
        return NULL;
    *bytes = t->tokens[id].count;
    return t->tokens[id].bytes;
}

bool dk_tokenizer_is_special(const struct dk_tokenizer *t, uint32_t id)
{
    return id < t->size && (t->tokens[id].flags & DK_TOKEN_SPECIAL) != 0;
}
