/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wire/wire.h"

/* Reads a text that must be good. */
static void *read_good(const ProtobufCMessageDescriptor *type, const char *json)
{
    struct dk_err err = {0};
    ProtobufCMessage *m;

    cr_assert_eq(dk_json_to_message(type, json, &m, &err), 0, "%s: %s", json, err.text);
    cr_assert(protobuf_c_message_check(m));
    return m;
}

static void expect_json(const void *m, const char *expected)
{
    char *json = dk_json_from_message(m, 0);

    cr_assert_not_null(json);
    cr_assert_str_eq(json, expected);
    free(json);
}

static void expect_refused(const ProtobufCMessageDescriptor *type, const char *json, const char *text)
{
    struct dk_err err = {0};
    ProtobufCMessage *m = (ProtobufCMessage *)&err;

    cr_assert_eq(dk_json_to_message(type, json, &m, &err), -EINVAL, "%s", json);
    cr_assert_null(m);
    cr_assert(strstr(err.text, text), "%s: \"%s\" lacks \"%s\"", json, err.text, text);
    cr_assert_eq(dk_json_to_message(type, json, &m, NULL), -EINVAL); /* err is optional */
}

static void free_message(void *m)
{
    protobuf_c_message_free_unpacked(m, NULL);
}

Test(json, submit_request_goes_both_ways)
{
    /* From 2^63 on numbers are written as texts, because jansson cannot read them otherwise. */
    static const char json[] =
        "{\"chat\": {\"messages\": [{\"role\": \"user\", \"content\": \"Gr\\u00fc\\u00dfe \\\"\\\\\\n\\t\\u0001 "
        "\\ud83e\\udd86\"}, {\"role\": \"assistant\"}], \"thinking\": false}, \"max_tokens\": 16, \"temperature\": "
        "0.7, "
        "\"top_p\": 1e-3, \"seed\": \"18446744073709551615\", \"stop\": [\"a\", \"\"]}";
    Dk__SubmitRequest *q;

    q = read_good(&dk__submit_request__descriptor, json);
    cr_assert_eq(q->prompt_case, DK__SUBMIT_REQUEST__PROMPT_CHAT);
    cr_assert_eq(q->chat->n_messages, 2);
    cr_assert_str_eq(q->chat->messages[0]->content, "Gr\xc3\xbc\xc3\x9f"
                                                    "e \"\\\n\t\x01 \xf0\x9f\xa6\x86");
    cr_assert_null(q->chat->messages[1]->content);
    cr_assert(q->chat->has_thinking && !q->chat->thinking);
    cr_assert(q->has_max_tokens && q->max_tokens == 16);
    cr_assert_eq(q->temperature, 0.7f);
    cr_assert_eq(q->top_p, 1e-3f);
    cr_assert_eq(q->seed, UINT64_MAX);
    cr_assert(!q->has_top_k);
    cr_assert_eq(q->n_stop, 2);
    expect_json(q, "{\"chat\": {\"messages\": [{\"role\": \"user\", \"content\": \"Gr\xc3\xbc\xc3\x9f"
                   "e \\\"\\\\\\n\\t\\u0001 \xf0\x9f\xa6\x86\"}, {\"role\": \"assistant\"}], \"thinking\": false}, "
                   "\"max_tokens\": 16, \"temperature\": 0.7, \"top_p\": 0.001, "
                   "\"seed\": \"18446744073709551615\", \"stop\": [\"a\", \"\"]}");
    free_message(q);
}

Test(json, indented_text_has_a_line_for_each_field)
{
    Dk__SubmitRequest *q = read_good(&dk__submit_request__descriptor,
                                     "{\"ids\": {\"ids\": [1, 2, 4294967295]}, \"seed\": 9223372036854775807}");
    char *json = dk_json_from_message(&q->base, 2);

    cr_assert_str_eq(json,
                     "{\n  \"ids\": {\n    \"ids\": [1, 2, 4294967295]\n  },\n  \"seed\": 9223372036854775807\n}");
    free(json);
    free_message(q);
}

Test(json, empty_and_null)
{
    Dk__StatusRequest *q = read_good(&dk__status_request__descriptor, " { \"wait_ms\" : null } ");

    cr_assert(!q->has_wait_ms);
    expect_json(q, "{}");
    free_message(q);
}

Test(json, enums_by_name_and_bytes_in_base64)
{
    static const struct {
        const char *base64, *canonical;
        size_t bytes;
    } cases[] = {{"", "", 0},         {"/w==", "/w==", 1}, {"/w", "/w==", 1},          {"AQI=", "AQI=", 2},
                 {"AQID", "AQID", 3}, {"-_-_", "+/+/", 3}, {"AAECAwQF", "AAECAwQF", 6}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char json[200];
        Dk__DataAddress *a;

        snprintf(json, sizeof json,
                 "{\"instance\": 1, \"mac\": \"%s\", \"ipv4\": 167772161, \"udp_port\": 7, \"mtu\": 9000}",
                 cases[i].base64);
        a = read_good(&dk__data_address__descriptor, json);
        cr_assert_eq(a->mac.len, cases[i].bytes);
        snprintf(json, sizeof json,
                 "{\"instance\": 1, \"mac\": \"%s\", \"ipv4\": 167772161, \"udp_port\": 7, \"mtu\": 9000}",
                 cases[i].canonical);
        expect_json(a, json);
        free_message(a);
    }
    {
        Dk__StatusRequest *q = read_good(&dk__status_request__descriptor, "{\"unlike\": \"LOADING\"}");

        cr_assert_eq(q->unlike, DK__CLUSTER_STATE__LOADING);
        expect_json(q, "{\"unlike\": \"LOADING\"}");
        q->unlike = (Dk__ClusterState)77; /* of a newer peer */
        expect_json(q, "{\"unlike\": 77}");
        free_message(q);
        q = read_good(&dk__status_request__descriptor, "{\"unlike\": 3}");
        cr_assert_eq(q->unlike, DK__CLUSTER_STATE__READY);
        free_message(q);
    }
}

Test(json, numbers_keep_their_value)
{
    static const float floats[] = {0, -0.0f, 1, 0.1f, 1.0f / 3, 16777217, 1e-45f, 3.40282347e38f, -2.5e-7f};
    static const double doubles[] = {0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, 123456789.123456789, -1e21};

    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        Dk__TokenLogprob t = DK__TOKEN_LOGPROB__INIT, *back;
        char *json;

        t.id = UINT32_MAX;
        t.logprob = floats[i];
        json = dk_json_from_message(&t.base, 0);
        back = read_good(&dk__token_logprob__descriptor, json);
        cr_assert(!memcmp(&back->logprob, &floats[i], 4), "%s", json);
        cr_assert_eq(back->id, UINT32_MAX);
        free(json);
        free_message(back);
    }
    for (size_t i = 0; i < sizeof doubles / sizeof *doubles; i++) {
        Dk__GenerationStats s = DK__GENERATION_STATS__INIT, *back;
        char *json;

        s.has_time_s = 1;
        s.time_s = doubles[i];
        json = dk_json_from_message(&s.base, 0);
        back = read_good(&dk__generation_stats__descriptor, json);
        cr_assert_eq(back->time_s, doubles[i], "%s", json);
        free(json);
        free_message(back);
    }
}

Test(json, nan_and_infinities_are_texts)
{
    static const char *const names[] = {"NaN", "Infinity", "-Infinity"};

    for (size_t i = 0; i < 3; i++) {
        char json[60];
        Dk__TokenLogprob *t;

        snprintf(json, sizeof json, "{\"id\": 1, \"logprob\": \"%s\"}", names[i]);
        t = read_good(&dk__token_logprob__descriptor, json);
        cr_assert(i ? isinf(t->logprob) : isnan(t->logprob));
        expect_json(t, json);
        free_message(t);
    }
}

Test(json, damaged_text_fields_are_still_json)
{
    Dk__DetokenizeReply r = DK__DETOKENIZE_REPLY__INIT;

    r.text = "a\xff\xc3(\xed\xa0\x80\xf4\x90\x80\x80z";
    expect_json(&r,
                "{\"text\": \"a\xef\xbf\xbd\xef\xbf\xbd(\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
                "\xef\xbf\xbd\xef\xbf\xbdz\"}");
}

Test(json, texts_with_defaults)
{
    Dk__LoadRequest *q = read_good(&dk__load_request__descriptor, "{\"model_dir\": \"/m\"}");

    cr_assert_str_eq(q->backend, "cpu");
    cr_assert_eq(q->multiple_of, 32);
    expect_json(q, "{\"model_dir\": \"/m\"}");
    free_message(q);
    q = read_good(&dk__load_request__descriptor, "{\"model_dir\": \"/m\", \"backend\": \"cuda\", \"multiple_of\": 64}");
    cr_assert_str_eq(q->backend, "cuda");
    expect_json(q, "{\"model_dir\": \"/m\", \"multiple_of\": 64, \"backend\": \"cuda\"}");
    free_message(q);
}

Test(json, wrong_texts_are_refused_with_field_and_reason)
{
    const ProtobufCMessageDescriptor *submit = &dk__submit_request__descriptor;
    const ProtobufCMessageDescriptor *heartbeat = &dk__heartbeat_request__descriptor;
    const ProtobufCMessageDescriptor *logprob = &dk__token_logprob__descriptor;
    const ProtobufCMessageDescriptor *load = &dk__load_request__descriptor;

    expect_refused(submit, "", "SubmitRequest: line 1, column 0");
    expect_refused(submit, "{\n\"text\": \"x\",}", "line 2");
    expect_refused(submit, "{} x", "end of file expected");
    expect_refused(submit, "[]", "SubmitRequest takes an object, not an array");
    expect_refused(submit, "{\"text\": \"a\", \"text\": \"b\"}", "duplicate");
    expect_refused(submit, "{\"texte\": \"a\"}", "SubmitRequest has no field \"texte\"; it takes text, ids, chat,");
    expect_refused(submit, "{\"text\": \"a\\u0000b\"}", "u0000");
    expect_refused(submit, "{\"text\": \"\xff\"}", "unable to decode byte 0xff");
    expect_refused(submit, "{\"text\": 5}", "text takes a text, not an integer");
    expect_refused(submit, "{\"text\": \"a\", \"ids\": {}}", "ids cannot be given together with text");
    expect_refused(submit, "{\"ids\": [1]}", "ids takes an object, not an array");
    expect_refused(submit, "{\"ids\": {\"ids\": 1}}", "ids.ids takes an array, not an integer");
    expect_refused(submit, "{\"ids\": {\"ids\": [1, -1]}}", "ids.ids[1] takes an integer from 0 to 4294967295, not -1");
    expect_refused(submit, "{\"ids\": {\"ids\": [4294967296]}}", "not 4294967296");
    expect_refused(submit, "{\"ids\": {\"ids\": [1.5]}}", "ids.ids[0] takes an integer, not a number");
    expect_refused(submit, "{\"seed\": \"18446744073709551616\"}",
                   "seed takes an integer from 0 to 1844674407370955161");
    expect_refused(submit, "{\"seed\": \"12x\"}", "not \"12x\"");
    expect_refused(submit, "{\"seed\": \"\"}", "not \"\"");
    expect_refused(submit, "{\"seed\": \" 1\"}", "not \" 1\"");
    expect_refused(submit, "{\"seed\": -1}", "from 0 to");
    expect_refused(submit, "{\"seed\": 99999999999999999999}", "too big integer");
    expect_refused(submit, "{\"max_tokens\": true}", "max_tokens takes an integer, not true");
    expect_refused(submit, "{\"ignore_eos\": 1}", "ignore_eos takes true or false, not an integer");
    expect_refused(submit, "{\"temperature\": \"hot\"}", "temperature takes a number");
    expect_refused(submit, "{\"temperature\": 1e39}", "32-bit float");
    expect_refused(submit, "{\"chat\": {\"messages\": [{\"content\": \"x\"}]}}",
                   "chat.messages[0]: ChatMessage needs the field role");
    expect_refused(submit, "{\"chat\": {\"messages\": [{\"role\": null}]}}", "needs the field role");
    expect_refused(submit, "{\"chat\": {\"messages\": [{\"role\": \"u\", \"x\": 1}]}}",
                   "chat.messages[0]: ChatMessage has no field \"x\"; it takes role, content, reasoning_content");
    expect_refused(heartbeat, "{}", "HeartbeatRequest needs the field node");
    expect_refused(heartbeat, "{\"node\": {\"name\": \"d\", \"kind\": \"GOOSE\"}}",
                   "node.kind takes one of DUCK, WORKER, not \"GOOSE\"");
    expect_refused(heartbeat, "{\"node\": {\"kind\": 9}}", "node.kind takes one of DUCK, WORKER");
    expect_refused(heartbeat, "{\"node\": {\"address\": {\"mac\": \"AAE*\"}}}", "node.address.mac takes base64");
    expect_refused(heartbeat, "{\"node\": {\"address\": {\"mac\": \"AAAAA\"}}}", "cut off");
    expect_refused(heartbeat, "{\"node\": {\"address\": {\"mac\": \"A===\"}}}", "node.address.mac takes base64");
    expect_refused(heartbeat, "{\"node\": {\"address\": {\"mac\": [0]}}}", "takes a text in base64, not an array");
    expect_refused(logprob, "{\"id\": 1, \"logprob\": NaN}", "line 1");
    expect_refused(logprob, "{\"id\": 1}", "needs the field logprob");
    expect_refused(load, "{\"model_dir\": \"x\", \"backend\": 1}", "backend takes a text");
}

Test(json, deep_nesting_ends)
{
    char *json = malloc(400001);
    struct dk_err err = {0};
    ProtobufCMessage *m;

    memset(json, '[', 400000);
    json[400000] = 0;
    cr_assert_eq(dk_json_to_message(&dk__submit_request__descriptor, json, &m, &err), -EINVAL);
    free(json);
}
