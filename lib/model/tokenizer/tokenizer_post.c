/* SPDX-License-Identifier: Apache-2.0 */
/* Reads "post_processor" of a tokenizer.json: which special tokens stand before a text (Llama 3 and Mistral have their
 * first token there). What a template puts behind a text or between two is not for a prompt. */
#include "model/tokenizer/tokenizer_json.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "model/json_field.h"

#define SEQUENCE_DEPTH_MAX 8

/* The ids of one special token go behind the `count` that are there. */
static int add_token(struct dk_tokenizer *t, struct dk_json_reader *tokens, const char *name, uint32_t *count)
{
    uint32_t more = 0;
    struct dk_json_reader r;
    char where[400];

    dk_json_need(tokens, name);
    if (!dk_json_enter(tokens, name, &r, where, sizeof where))
        return tokens->rc;
    dk_json_need(&r, "ids");
    dk_json_u32_list(&r, "ids", t->size - 1, t->prefix + *count, DK_PREFIX_MAX - *count, &more);
    for (uint32_t i = 0; i < more && r.rc == 0; i++)
        if (!t->tokens[t->prefix[*count + i]].flags)
            dk_json_refuse(&r, -EINVAL, "ids", "one of these ids is no token");
    *count += more;
    dk_json_leave(tokens, &r);
    return tokens->rc;
}

/* A template is a list of {"SpecialToken": {"id"}} and {"Sequence": {..}}, the text itself. */
static int read_template(struct dk_tokenizer *t, struct dk_json_reader *r)
{
    const json_t *single = dk_json_field(r, "single"), *item;
    struct dk_json_reader tokens;
    uint32_t count = 0;
    char where[320];
    size_t i;
    int rc = 0;

    if (!json_is_array(single))
        return dk_err_set(r->err, -EINVAL, "%s.single is not a list", r->where);
    dk_json_need(r, "special_tokens");
    if (!dk_json_enter(r, "special_tokens", &tokens, where, sizeof where))
        return r->rc;
    json_array_foreach(single, i, item)
    {
        const json_t *special = json_object_get(item, "SpecialToken"), *id = json_object_get(special, "id");

        if (!special && json_object_get(item, "Sequence"))
            break;
        if (!json_is_string(id))
            return dk_err_set(r->err, -EINVAL, "%s.single[%zu] is neither a Sequence nor a SpecialToken with an id",
                              r->where, i);
        rc = add_token(t, &tokens, json_string_value(id), &count);
        if (rc < 0)
            return rc;
    }
    if (count && t->prefix_count)
        return dk_err_set(r->err, -ENOTSUP, "%s: a second TemplateProcessing that adds tokens is not implemented",
                          r->where);
    t->prefix_count += count;
    return 0;
}

static int read_post(struct dk_tokenizer *t, const json_t *part, const char *where, unsigned depth, struct dk_err *err)
{
    struct dk_json_reader r = {.object = part, .where = where, .err = err};
    const json_t *list = json_object_get(part, "processors");
    const char *type = NULL;
    char place[260];
    int rc = 0;

    if (!json_is_object(part))
        return dk_err_set(err, -EINVAL, "%s is not an object", where);
    dk_json_need(&r, "type");
    if (!dk_json_text(&r, "type", &type))
        return r.rc;
    if (strcmp(type, "TemplateProcessing") == 0)
        return read_template(t, &r);
    if (strcmp(type, "Sequence") != 0) {
        if (strcmp(type, "ByteLevel") != 0) /* which changes offsets only */
            dk_log(DK_LOG_WARN, "model.tokenizer", "post_processor=\"%.60s\" ignored=1 in=\"%s\"", type, where);
        return 0;
    }
    if (!json_is_array(list) || depth == SEQUENCE_DEPTH_MAX)
        return dk_err_set(err, -EINVAL, "%s.processors is not a list, or is more than %d deep", where,
                          SEQUENCE_DEPTH_MAX);
    for (size_t i = 0; i < json_array_size(list) && rc == 0; i++) {
        snprintf(place, sizeof place, "%.200s.processors[%zu]", where, i);
        rc = read_post(t, json_array_get(list, i), place, depth + 1, err);
    }
    return rc;
}

int dk_tokenizer_read_post(struct dk_tokenizer *t, const json_t *root, const char *where, struct dk_err *err)
{
    const json_t *post = json_object_get(root, "post_processor");
    char place[200];

    if (!post || json_is_null(post))
        return 0;
    snprintf(place, sizeof place, "%.160s: post_processor", where);
    return read_post(t, post, place, 0, err);
}
