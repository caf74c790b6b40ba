/* SPDX-License-Identifier: Apache-2.0 */
#include "duckctl/prompt_source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "duckctl/id_list.h"
#include "duckctl/text_file.h"

const char *prompt_options_defect(const struct prompt_options *o, const char *text_option)
{
    static char text[120];

    if (!!o->text + !!o->file + !!o->ids + !!o->chat + !!o->messages != 1) {
        snprintf(text, sizeof text, "exactly one of %s, --ids, --chat and --messages is needed", text_option);
        return text;
    }
    if (o->system && !o->chat)
        return "--system goes with --chat";
    if (o->thinking && !o->chat && !o->messages)
        return "--thinking goes with --chat and --messages";
    if (o->tools && !o->chat && !o->messages)
        return "--tools goes with --chat and --messages";
    if (o->tools && o->messages && !strcmp(o->tools, "-") && !strcmp(o->messages, "-"))
        return "--messages and --tools: standard input can be one of them only";
    return NULL;
}

static int messages_from_chat(const struct prompt_options *o, struct prompt *p, struct dk_err *err)
{
    json_t *list = json_array();

    if (o->system)
        json_array_append_new(list, json_pack("{s:s,s:s}", "role", "system", "content", o->system));
    json_array_append_new(list, json_pack("{s:s,s:s}", "role", "user", "content", o->chat));
    if (json_array_size(list) == (o->system ? 2u : 1u))
        p->messages_json = json_dumps(list, JSON_COMPACT);
    json_decref(list);
    return p->messages_json ? 0 : dk_err_set(err, USAGE_ERROR, "--chat, --system: the text is not UTF-8");
}

/* A file with a JSON array of `what`. */
static int array_from_file(const char *option, const char *path, const char *what, char **out, struct dk_err *err)
{
    char *text = NULL;
    json_error_t why;
    json_t *list;
    size_t bytes;
    int rc = text_file_read(option, path, &text, &bytes, err);

    if (rc < 0) {
        free(text);
        return rc;
    }
    list = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
    free(text);
    if (!list)
        return dk_err_set(err, -EINVAL, "%s %s, line %d: %s", option, path, why.line, why.text);
    if (json_is_array(list))
        *out = json_dumps(list, JSON_COMPACT);
    json_decref(list);
    return *out ? 0 : dk_err_set(err, -EINVAL, "%s %s: must be an array of %s", option, path, what);
}

static int text_from_file(const char *path, struct prompt *p, struct dk_err *err)
{
    size_t bytes;
    int rc = text_file_read("--file", path, &p->file_text, &bytes, err);

    if (rc < 0)
        return rc;
    if (strlen(p->file_text) != bytes)
        return dk_err_set(err, -EINVAL, "--file %s: the text contains a zero byte", path);
    if (text_check("--file", p->file_text, NULL) < 0)
        return dk_err_set(err, -EINVAL, "--file %s: the text is not UTF-8", path);
    return 0;
}

static int chat_make(const struct prompt_options *o, struct prompt *p, struct dk_err *err)
{
    Dk__SubmitRequest *q = &p->request;
    int rc = o->chat ? messages_from_chat(o, p, err)
                     : array_from_file("--messages", o->messages, "messages", &p->messages_json, err);

    if (rc == 0 && o->tools)
        rc = array_from_file("--tools", o->tools, "tools", &p->tools_json, err);
    q->prompt_case = DK__SUBMIT_REQUEST__PROMPT_MESSAGES_JSON;
    q->messages_json = p->messages_json;
    q->tools_json = p->tools_json;
    q->has_thinking = o->thinking != NULL;
    q->thinking = o->thinking && !strcmp(o->thinking, "on");
    return rc;
}

static int prompt_make(const struct prompt_options *o, const char *text_option, struct prompt *p, struct dk_err *err)
{
    Dk__SubmitRequest *q = &p->request;
    size_t count = 0;
    int rc;

    if (o->chat || o->messages)
        return chat_make(o, p, err);
    if (o->ids) {
        rc = id_list_parse(o->ids, "--ids", &p->id_list, &count, err);
        dk__token_ids__init(&p->ids);
        p->ids.n_ids = rc == 0 ? count : 0;
        p->ids.ids = p->id_list;
        q->prompt_case = DK__SUBMIT_REQUEST__PROMPT_IDS;
        q->ids = &p->ids;
        return rc;
    }
    rc = o->file ? text_from_file(o->file, p, err) : text_check(text_option, o->text, err);
    q->prompt_case = DK__SUBMIT_REQUEST__PROMPT_TEXT;
    q->text = o->file ? p->file_text : (char *)(uintptr_t)o->text;
    return rc;
}

static void prompt_close(struct prompt *p)
{
    free(p->file_text);
    free(p->messages_json);
    free(p->tools_json);
    free(p->id_list);
}

/* An error that begins with a field of the request is told of the file that the field came from. */
static void name_file(const char *field, const char *option, const char *path, struct dk_err *err)
{
    size_t n = strlen(field);

    if (!path || strncmp(err->text, field, n) != 0)
        return;
    memmove(err->text, err->text + n, strlen(err->text + n) + 1);
    dk_err_prefix(err, "%s %s", option, path);
}

static int prompt_submit(struct dk_rpc_client *c, const struct prompt_options *o, const struct prompt *p,
                         ProtobufCMessage **m, struct dk_err *err)
{
    int rc = client_call(c, "Submit", &p->request.base, 30000, m, err);

    if (rc == 0)
        return 0;
    if (o->tools && !strncmp(err->text, "tools[", 6))
        dk_err_prefix(err, "--tools %s", o->tools);
    else if (o->messages && !strncmp(err->text, "messages[", 9))
        dk_err_prefix(err, "--messages %s", o->messages);
    name_file("tools_json: ", "--tools", o->tools, err);
    name_file("tools: ", "--tools", o->tools, err);
    name_file("messages_json: ", "--messages", o->messages, err);
    return rc;
}

int prompt_run(const struct common_settings *common, const struct prompt_options *o, const char *text_option,
               struct prompt *p, prompt_fn *fn, void *ctx, struct dk_err *err)
{
    struct dk_rpc_client *client = NULL;
    ProtobufCMessage *m = NULL;
    int rc = prompt_make(o, text_option, p, err);

    if (rc == 0)
        rc = target_open(common, &client, err);
    if (rc == 0)
        rc = prompt_submit(client, o, p, &m, err);
    if (rc == 0)
        rc = fn(ctx, client, (const Dk__SubmitReply *)m, err);
    if (m)
        protobuf_c_message_free_unpacked(m, NULL);
    dk_rpc_client_close(client);
    prompt_close(p);
    return rc;
}
