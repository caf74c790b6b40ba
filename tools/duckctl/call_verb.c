/* SPDX-License-Identifier: Apache-2.0 */
/* duckctl call and describe: every method of proto/ by name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "duckctl/duckctl.h"

struct call_settings {
    struct common_settings common;
    uint32_t timeout_ms;
};

static const struct call_settings defaults = {COMMON_DEFAULTS, .timeout_ms = 10000};

static const struct dk_option call_options[] = {
    {"timeout-ms", DK_OPT_U32, offsetof(struct call_settings, timeout_ms), "MS", "how long to wait for the reply", 1,
     3600000, NULL, NULL},
    COMMON_OPTIONS(struct call_settings),
    {0},
};
static const struct dk_option describe_options[] = {COMMON_OPTIONS(struct call_settings), {0}};

static int run_call(const struct verb *self, int argc, char **argv)
{
    const char *words[2] = {NULL, "{}"};
    const ProtobufCServiceDescriptor *service;
    const ProtobufCMethodDescriptor *method;
    struct call_settings s;
    struct dk_rpc_client *client = NULL;
    ProtobufCMessage *request = NULL, *reply;
    struct dk_err err = {0};
    char *text;
    int count, rc = verb_begin(self, &s, sizeof s, argc, argv, words, 2, &count);

    if (rc >= 0)
        return rc;
    if (!count)
        return verb_usage(self, "a method is needed, as Client/GetStatus");
    method = dk_method_find(words[0], &service);
    if (!method) {
        dk_err_set(&err, USAGE_ERROR, "there is no method '%s'; `duckctl describe` lists them", words[0]);
        return verb_fail(s.common.json, &err);
    }
    rc = dk_json_to_message(method->input, words[1], &request, &err);
    if (rc < 0) {
        dk_err_prefix(&err, "%s", words[0]);
        err.rc = USAGE_ERROR;
        return verb_fail(s.common.json, &err);
    }
    rc = target_open(&s.common, &client, &err);
    if (rc == 0)
        rc = service_call(client, service, method->name, request, s.timeout_ms, &reply, &err);
    protobuf_c_message_free_unpacked(request, NULL);
    dk_rpc_client_close(client);
    if (rc < 0)
        return verb_fail(s.common.json, &err);
    text = dk_json_from_message(reply, s.common.json ? 0 : 2);
    puts(text ? text : "null");
    free(text);
    protobuf_c_message_free_unpacked(reply, NULL);
    return EXIT_DONE;
}

static const char *short_name(const char *name)
{
    const char *dot = strrchr(name, '.');

    return dot ? dot + 1 : name;
}

static const char *type_name(const ProtobufCFieldDescriptor *f)
{
    static const char *const names[] = {
        [PROTOBUF_C_TYPE_INT32] = "int32",       [PROTOBUF_C_TYPE_SINT32] = "sint32",
        [PROTOBUF_C_TYPE_SFIXED32] = "sfixed32", [PROTOBUF_C_TYPE_INT64] = "int64",
        [PROTOBUF_C_TYPE_SINT64] = "sint64",     [PROTOBUF_C_TYPE_SFIXED64] = "sfixed64",
        [PROTOBUF_C_TYPE_UINT32] = "uint32",     [PROTOBUF_C_TYPE_FIXED32] = "fixed32",
        [PROTOBUF_C_TYPE_UINT64] = "uint64",     [PROTOBUF_C_TYPE_FIXED64] = "fixed64",
        [PROTOBUF_C_TYPE_FLOAT] = "float",       [PROTOBUF_C_TYPE_DOUBLE] = "double",
        [PROTOBUF_C_TYPE_BOOL] = "bool",         [PROTOBUF_C_TYPE_STRING] = "string",
        [PROTOBUF_C_TYPE_BYTES] = "bytes",
    };

    if (f->type == PROTOBUF_C_TYPE_MESSAGE)
        return short_name(((const ProtobufCMessageDescriptor *)f->descriptor)->name);
    if (f->type == PROTOBUF_C_TYPE_ENUM)
        return short_name(((const ProtobufCEnumDescriptor *)f->descriptor)->name);
    return names[f->type];
}

static void describe_message(const ProtobufCMessageDescriptor *m, int depth)
{
    static const char *const labels[] = {"required", "optional", "repeated", ""};

    for (unsigned i = 0; i < m->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &m->fields[i];

        printf("%*s%s%s%s %s\n", depth * 2, "", f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF ? "one of" : labels[f->label],
               " ", type_name(f), f->name);
        if (f->type == PROTOBUF_C_TYPE_MESSAGE && depth < 8)
            describe_message(f->descriptor, depth + 1);
        if (f->type == PROTOBUF_C_TYPE_ENUM) {
            const ProtobufCEnumDescriptor *e = f->descriptor;

            printf("%*s", depth * 2 + 2, "");
            for (unsigned v = 0; v < e->n_values; v++)
                printf("%s%s", v ? " | " : "", e->values[v].name);
            putchar('\n');
        }
    }
}

static int run_describe(const struct verb *self, int argc, char **argv)
{
    const char *words[1] = {NULL};
    struct call_settings s;
    struct dk_err err = {0};
    bool found = false;
    int count, rc = verb_begin(self, &s, sizeof s, argc, argv, words, 1, &count);
    json_t *list = json_array();

    if (rc < 0) {
        for (const ProtobufCServiceDescriptor *const *sd = dk_services; *sd; sd++)
            for (unsigned i = 0; i < (*sd)->n_methods; i++) {
                const ProtobufCMethodDescriptor *m = &(*sd)->methods[i];
                char name[160];

                snprintf(name, sizeof name, "%s/%s", short_name((*sd)->name), m->name);
                if (words[0] && strcmp(words[0], name) && strcmp(words[0], short_name((*sd)->name)))
                    continue;
                found = true;
                json_array_append_new(list,
                                      json_pack("{s:s,s:s,s:s}", "method", name, "request", short_name(m->input->name),
                                                "reply", short_name(m->output->name)));
                if (s.common.json)
                    continue;
                printf("%s (%s) returns %s\n", name, short_name(m->input->name), short_name(m->output->name));
                if (words[0]) {
                    printf("%s\n", short_name(m->input->name));
                    describe_message(m->input, 1);
                    printf("%s\n", short_name(m->output->name));
                    describe_message(m->output, 1);
                }
            }
        rc = EXIT_DONE;
        if (!found) {
            dk_err_set(&err, USAGE_ERROR, "there is no service or method '%s'; `duckctl describe` lists them",
                       words[0]);
            rc = verb_fail(s.common.json, &err);
        } else if (s.common.json) {
            print_json(json_pack("{s:O}", "methods", list));
        }
    }
    json_decref(list);
    return rc;
}

const struct verb verb_call = {
    .name = "call",
    .arguments = "Service/Method [JSON] [OPTION ...]",
    .summary = "Call any method of the control plane with a JSON request.",
    .options = call_options,
    .defaults = &defaults,
    .run = run_call,
    .details = "As `duckctl call Client/Tokenize '{\"text\": \"hello\"}'`; without JSON the request is empty.\n"
               "`duckctl describe Client/Tokenize` tells the fields.",
};

const struct verb verb_describe = {
    .name = "describe",
    .arguments = "[Service[/Method]]",
    .summary = "List the services and methods, or the fields of some.",
    .options = describe_options,
    .defaults = &defaults,
    .run = run_describe,
};
