/* SPDX-License-Identifier: Apache-2.0 */
/* duckctl tokenize and detokenize: through a cluster, or with --model from a folder alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "duckctl/duckctl.h"
#include "duckctl/id_list.h"
#include "duckctl/text_file.h"
#include "model/tokenizer.h"

struct tokenize_settings {
    struct common_settings common;
    const char *text, *file, *model, *ids;
};

static const struct tokenize_settings defaults = {COMMON_DEFAULTS};

#define F(f) offsetof(struct tokenize_settings, f)
static const struct dk_option tokenize_options[] = {
    {"text", DK_OPT_TEXT, F(text), "TEXT", "the text; no first token is put before it", 0, 0, NULL, NULL},
    {"file", DK_OPT_TEXT, F(file), "FILE", "read the text from a file; - is standard input", 0, 0, NULL, NULL},
    {"model", DK_OPT_TEXT, F(model), "DIR", "use this folder's tokenizer instead of a cluster's", 0, 0, NULL, NULL},
    COMMON_OPTIONS(struct tokenize_settings),
    {0},
};
static const struct dk_option detokenize_options[] = {
    {"ids", DK_OPT_TEXT, F(ids), "1,2,3", "token ids", 0, 0, NULL, NULL},
    {"model", DK_OPT_TEXT, F(model), "DIR", "use this folder's tokenizer instead of a cluster's", 0, 0, NULL, NULL},
    COMMON_OPTIONS(struct tokenize_settings),
    {0},
};

int id_list_parse(const char *text, const char *what, uint32_t **ids, size_t *count, struct dk_err *err)
{
    size_t most = strlen(text) / 2 + 1;

    *count = 0;
    *ids = malloc(most * sizeof **ids);
    if (!*ids)
        return dk_err_set(err, -ENOMEM, "no memory for %zu ids", most);
    for (const char *p = text;; p++) {
        unsigned long long v = 0;
        const char *start = p;

        while (*p >= '0' && *p <= '9' && v <= UINT32_MAX)
            v = v * 10 + (unsigned)(*p++ - '0');
        if (p == start || v > UINT32_MAX || (*p && *p != ',')) {
            free(*ids);
            *ids = NULL;
            return dk_err_set(err, USAGE_ERROR, "%s: no token id at '%.40s'; write whole numbers as 1,2,3", what,
                              start);
        }
        (*ids)[(*count)++] = (uint32_t)v;
        if (!*p)
            return 0;
    }
}

static void print_ids(bool json, const uint32_t *ids, size_t count)
{
    json_t *list = json_array();

    for (size_t i = 0; i < count; i++)
        if (json)
            json_array_append_new(list, json_integer(ids[i]));
        else
            printf("%s%u", i ? "," : "", ids[i]);
    if (json)
        print_json(json_pack("{s:O}", "ids", list));
    else
        putchar('\n');
    json_decref(list);
}

static int tokenize_local(const struct tokenize_settings *s, const char *text, size_t bytes, struct dk_err *err)
{
    struct dk_tokenizer *t;
    uint32_t *ids;
    size_t count;
    int rc = dk_tokenizer_open(s->model, &t, err);

    if (rc < 0)
        return rc;
    rc = dk_tokenizer_encode(t, text, bytes, &ids, &count, err);
    if (rc == 0) {
        print_ids(s->common.json, ids, count);
        free(ids);
    }
    dk_tokenizer_close(t);
    return rc;
}

static int tokenize_remote(const struct tokenize_settings *s, const char *text, size_t bytes, struct dk_err *err)
{
    Dk__TokenizeRequest q = DK__TOKENIZE_REQUEST__INIT;
    struct dk_rpc_client *client;
    ProtobufCMessage *m;
    int rc;

    if (strlen(text) != bytes)
        return dk_err_set(err, -EINVAL, "the text contains a zero byte; use --model DIR for such text");
    rc = target_open(&s->common, &client, err);
    if (rc < 0)
        return rc;
    q.text = (char *)(uintptr_t)text;
    rc = client_call(client, "Tokenize", &q.base, 30000, &m, err);
    if (rc == 0) {
        print_ids(s->common.json, ((Dk__TokenizeReply *)m)->ids, ((Dk__TokenizeReply *)m)->n_ids);
        protobuf_c_message_free_unpacked(m, NULL);
    }
    dk_rpc_client_close(client);
    return rc;
}

static int run_tokenize(const struct verb *self, int argc, char **argv)
{
    struct tokenize_settings s;
    struct dk_err err = {0};
    char *text = NULL;
    size_t bytes;
    int rc = verb_begin(self, &s, sizeof s, argc, argv, NULL, 0, NULL);

    if (rc >= 0)
        return rc;
    if (!s.text == !s.file)
        return verb_usage(self, "exactly one of --text and --file is needed");
    rc = 0;
    if (s.file) {
        rc = text_file_read("--file", s.file, &text, &bytes, &err);
    } else {
        text = strdup(s.text);
        bytes = strlen(s.text);
        rc = text ? text_check("--text", text, &err) : dk_err_set(&err, -ENOMEM, "no memory");
    }
    if (rc == 0)
        rc = s.model ? tokenize_local(&s, text, bytes, &err) : tokenize_remote(&s, text, bytes, &err);
    free(text);
    return rc < 0 ? verb_fail(s.common.json, &err) : EXIT_DONE;
}

static void print_text(bool json, const char *text)
{
    if (json)
        print_json(json_pack("{s:s}", "text", text));
    else
        puts(text);
}

static int detokenize_local(const struct tokenize_settings *s, const uint32_t *ids, size_t count, struct dk_err *err)
{
    struct dk_detokenizer d = {0};
    struct dk_tokenizer *t;
    size_t used = 0, room;
    char *text;
    int rc = dk_tokenizer_open(s->model, &t, err);

    if (rc < 0)
        return rc;
    room = dk_detokenizer_room(t);
    text = malloc((count + 2) * room + 1);
    if (!text)
        rc = dk_err_set(err, -ENOMEM, "no memory for the text");
    for (size_t i = 0; rc == 0 && i < count; i++) {
        size_t bytes;

        if (!dk_tokenizer_token(t, ids[i], &bytes))
            rc = dk_err_set(err, -EINVAL, "--ids: id %u at place %zu is not in the vocabulary (%u ids)", ids[i], i,
                            dk_tokenizer_size(t));
        else
            used += dk_detokenizer_next(t, &d, ids[i], false, text + used, room);
    }
    if (rc == 0) {
        used += dk_detokenizer_finish(&d, text + used, room);
        text[used] = 0;
        print_text(s->common.json, text);
    }
    free(text);
    dk_tokenizer_close(t);
    return rc;
}

static int detokenize_remote(const struct tokenize_settings *s, uint32_t *ids, size_t count, struct dk_err *err)
{
    Dk__DetokenizeRequest q = DK__DETOKENIZE_REQUEST__INIT;
    struct dk_rpc_client *client;
    ProtobufCMessage *m;
    int rc = target_open(&s->common, &client, err);

    if (rc < 0)
        return rc;
    q.n_ids = count;
    q.ids = ids;
    rc = client_call(client, "Detokenize", &q.base, 30000, &m, err);
    if (rc == 0) {
        print_text(s->common.json, ((Dk__DetokenizeReply *)m)->text);
        protobuf_c_message_free_unpacked(m, NULL);
    }
    dk_rpc_client_close(client);
    return rc;
}

static int run_detokenize(const struct verb *self, int argc, char **argv)
{
    struct tokenize_settings s;
    struct dk_err err = {0};
    uint32_t *ids = NULL;
    size_t count = 0;
    int rc = verb_begin(self, &s, sizeof s, argc, argv, NULL, 0, NULL);

    if (rc >= 0)
        return rc;
    if (!s.ids)
        return verb_usage(self, "--ids 1,2,3 is needed");
    rc = id_list_parse(s.ids, "--ids", &ids, &count, &err);
    if (rc == 0)
        rc = s.model ? detokenize_local(&s, ids, count, &err) : detokenize_remote(&s, ids, count, &err);
    free(ids);
    return rc < 0 ? verb_fail(s.common.json, &err) : EXIT_DONE;
}

const struct verb verb_tokenize = {
    .name = "tokenize",
    .arguments = "(--text TEXT | --file FILE) [OPTION ...]",
    .summary = "Turn text into token ids.",
    .options = tokenize_options,
    .defaults = &defaults,
    .run = run_tokenize,
};

const struct verb verb_detokenize = {
    .name = "detokenize",
    .arguments = "--ids 1,2,3 [OPTION ...]",
    .summary = "Turn token ids into text.",
    .options = detokenize_options,
    .defaults = &defaults,
    .run = run_detokenize,
};
