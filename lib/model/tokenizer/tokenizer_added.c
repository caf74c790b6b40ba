/* SPDX-License-Identifier: Apache-2.0 */
/* Reads "added_tokens" of a tokenizer.json: texts that are tokens wherever they stand. */
#include "model/tokenizer/tokenizer_json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/json_field.h"
#include "model/text_utf8.h"

struct added {
    const char *content;
    size_t bytes;
    uint32_t id;
    bool special, normalized;
};

static int read_one(const json_t *item, size_t index, struct added *a, const char *where, struct dk_err *err)
{
    static const char *const unhandled[] = {"lstrip", "rstrip", "single_word"};
    char place[200];
    struct dk_json_reader r = {.object = item, .where = place, .err = err};
    bool on;

    memset(a, 0, sizeof *a);
    snprintf(place, sizeof place, "%.150s: added_tokens[%zu]", where, index);
    if (!json_is_object(item))
        return dk_err_set(err, -EINVAL, "%s is not an object", place);
    dk_json_need(&r, "id");
    dk_json_u32(&r, "id", 0, DK_TOKEN_ID_MAX, &a->id);
    dk_json_need(&r, "content");
    if (dk_json_text(&r, "content", &a->content)) {
        a->bytes = json_string_length(json_object_get(item, "content"));
        if (a->bytes == 0)
            dk_json_refuse(&r, -EINVAL, "content", "a text that is not empty is needed");
    }
    dk_json_need(&r, "special");
    dk_json_bool(&r, "special", &a->special);
    dk_json_need(&r, "normalized");
    dk_json_bool(&r, "normalized", &a->normalized);
    for (size_t i = 0; i < sizeof unhandled / sizeof *unhandled; i++)
        if (dk_json_bool(&r, unhandled[i], &on) && on)
            dk_json_refuse(&r, -ENOTSUP, unhandled[i], "only false is implemented");
    return r.rc;
}

static int added_list(const json_t *root, const json_t **list, const char *where, struct dk_err *err)
{
    *list = json_object_get(root, "added_tokens");
    if (*list && !json_is_null(*list) && !json_is_array(*list))
        return dk_err_set(err, -EINVAL, "%s: added_tokens is not a list", where);
    return 0;
}

int dk_tokenizer_added_id_max(const json_t *root, const char *where, uint32_t *id_max, struct dk_err *err)
{
    const json_t *list;
    struct added a;
    int rc = added_list(root, &list, where, err);

    *id_max = 0;
    for (size_t i = 0; i < json_array_size(list) && rc == 0; i++) {
        rc = read_one(json_array_get(list, i), i, &a, where, err);
        if (rc == 0 && a.id > *id_max)
            *id_max = a.id;
    }
    return rc;
}

static int tree_init(struct dk_added_tree *tree, size_t bytes)
{
    tree->nodes_max = (uint32_t)bytes + 1;
    tree->ids = malloc(tree->nodes_max * sizeof *tree->ids);
    if (!tree->ids || dk_pair_map_init(&tree->edges, bytes) < 0)
        return -ENOMEM;
    tree->ids[0] = DK_NO_TOKEN;
    tree->nodes = 1;
    return 0;
}

static int tree_add(struct dk_added_tree *tree, const char *text, size_t bytes, uint32_t id)
{
    uint32_t node = 0;

    tree->starts[(uint8_t)text[0]] = true;
    for (size_t i = 0; i < bytes; i++) {
        uint64_t key = dk_pair_key(node, (uint8_t)text[i]);
        const struct dk_pair_slot *s = dk_pair_map_get(&tree->edges, key);

        if (s) {
            node = s->first;
            continue;
        }
        tree->ids[tree->nodes] = DK_NO_TOKEN;
        dk_pair_map_put(&tree->edges, key, tree->nodes, 0);
        node = tree->nodes++;
    }
    if (tree->ids[node] != DK_NO_TOKEN)
        return -EEXIST;
    tree->ids[node] = id;
    return 0;
}

/* Puts one token into the tree that its text is looked for with. */
static int tree_enter(struct dk_tokenizer *t, const struct added *a)
{
    char *nfc = NULL;
    size_t bytes = a->bytes;
    int rc;

    if (!a->normalized)
        return tree_add(&t->added_raw, a->content, a->bytes, a->id);
    if (t->nfc) {
        rc = dk_nfc(a->content, a->bytes, &nfc, &bytes);
        if (rc < 0)
            return rc;
    }
    rc = tree_add(&t->added_normalized, nfc ? nfc : a->content, bytes, a->id);
    free(nfc);
    return rc;
}

static int enter(struct dk_tokenizer *t, const struct added *a, char *copy, size_t index, const char *where,
                 struct dk_err *err)
{
    struct dk_token *token = &t->tokens[a->id];
    uint32_t id;
    int rc;

    memcpy(copy, a->content, a->bytes);
    if ((token->flags & DK_TOKEN_ADDED) || dk_text_map_put(&t->added, copy, a->bytes, a->id, &id) < 0)
        return dk_err_set(err, -EINVAL, "%s: added_tokens[%zu]: id %u or \"%.40s\" is there twice", where, index, a->id,
                          a->content);
    if (dk_text_map_get(&t->vocab, a->content, a->bytes, &id) == 0 ? id != a->id : token->flags != 0)
        return dk_err_set(err, -EINVAL, "%s: added_tokens[%zu]: model.vocab does not agree that id %u is \"%.40s\"",
                          where, index, a->id, a->content);
    *token = (struct dk_token){(const uint8_t *)copy, (uint32_t)a->bytes,
                               DK_TOKEN_PRESENT | DK_TOKEN_ADDED | (a->special ? DK_TOKEN_SPECIAL : 0u)};
    rc = tree_enter(t, a);
    if (rc == -EEXIST)
        return dk_err_set(err, -EINVAL, "%s: added_tokens[%zu]: \"%.40s\" is another one's normal form", where, index,
                          a->content);
    return rc < 0 ? dk_err_set(err, rc, "%s: added_tokens[%zu]: no memory", where, index) : 0;
}

int dk_tokenizer_read_added(struct dk_tokenizer *t, const json_t *root, const char *where, struct dk_err *err)
{
    const json_t *list;
    size_t bytes = 0, used = 0;
    struct added a;
    int rc = added_list(root, &list, where, err);

    if (rc < 0)
        return rc;
    for (size_t i = 0; i < json_array_size(list); i++)
        bytes += json_string_length(json_object_get(json_array_get(list, i), "content"));
    if (bytes > UINT32_MAX / 8)
        return dk_err_set(err, -EINVAL, "%s: added_tokens: %zu bytes of text", where, bytes);
    t->added_pool = malloc(bytes + 1);
    /* NFC makes a text at most three times as long (Unicode Standard Annex 15, "maximum expansion"). */
    if (!t->added_pool || dk_text_map_init(&t->added, json_array_size(list)) < 0 ||
        tree_init(&t->added_raw, bytes) < 0 || tree_init(&t->added_normalized, 3 * bytes) < 0)
        return dk_err_set(err, -ENOMEM, "%s: added_tokens: no memory", where);
    for (size_t i = 0; i < json_array_size(list) && rc == 0; i++) {
        rc = read_one(json_array_get(list, i), i, &a, where, err);
        if (rc == 0)
            rc = enter(t, &a, t->added_pool + used, i, where, err);
        used += a.bytes;
    }
    return rc;
}
