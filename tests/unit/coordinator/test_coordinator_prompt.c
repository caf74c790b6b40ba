/* SPDX-License-Identifier: Apache-2.0 */
/* Prompts of models whose folders are unlike the fixture's: a tokenizer that puts a token before a text, and a chat
 * template that is not known. */
#include "coord_fixture.h"

#define FIRST 3u /* the token <s> */

static struct dk_model_source plain;
static enum dk_chat_format chat;

/* A vocabulary of the bytes a to d, with a first token. */
static struct dk_tokenizer *tokenizer(void)
{
    static const char json[] =
        "{\"added_tokens\":[{\"id\":3,\"content\":\"<s>\",\"special\":true,\"normalized\":false}],"
        "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false},"
        "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},"
        "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<s>\":{\"ids\":[3]}}},\"decoder\":{\"type\":"
        "\"ByteLevel\"},"
        "\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"c\":2},\"merges\":[]}}";
    struct dk_tokenizer *t;
    struct dk_err err = {0};

    cr_assert_eq(dk_tokenizer_from_memory(json, sizeof json - 1, "first", &t, &err), 0, "%s", err.text);
    return t;
}

static int other_open(void *ctx, const char *dir, struct dk_served_model *out, struct dk_err *err)
{
    int rc = plain.open(plain.ctx, dir, out, err);

    if (rc < 0)
        return rc;
    dk_tokenizer_close(out->tokenizer);
    out->tokenizer = tokenizer();
    out->chat = chat;
    return 0;
}

static struct fx fx;

static void start(void)
{
    chat = DK_CHAT_GUESS_QWEN3;
    fx_init(&fx);
    plain = fx.options.source;
    fx.options.source.open = other_open;
    fx_ready(&fx);
}

static void stop(void)
{
    fx_close(&fx);
}

TestSuite(prompt, .init = start, .fini = stop);

static void expect_prompt(const char *text, const uint32_t *ids, size_t count)
{
    Dk__SubmitRequest q = DK__SUBMIT_REQUEST__INIT;
    struct answer a;
    Dk__SubmitReply *r;

    q.prompt_case = DK__SUBMIT_REQUEST__PROMPT_TEXT;
    q.text = (char *)text;
    fx_submit(&fx, &q, &a);
    r = FX_REPLY(&a, Dk__SubmitReply);
    cr_assert_eq(r->n_prompt_ids, count, "\"%s\": %zu ids", text, r->n_prompt_ids);
    cr_assert_arr_eq(r->prompt_ids, ids, count * sizeof *ids, "\"%s\"", text);
    fx_clear(&a);
}

Test(prompt, text_comes_behind_the_first_token)
{
    expect_prompt("ab", (const uint32_t[]){FIRST, 0, 1}, 3);
    expect_prompt("<s>ab", (const uint32_t[]){FIRST, 0, 1}, 3);
    expect_prompt("a<s>", (const uint32_t[]){FIRST, 0, FIRST}, 3);
    expect_prompt("", (const uint32_t[]){FIRST}, 1);
}

Test(prompt, tokenize_and_chats_add_no_first_token)
{
    static const uint32_t want[] = {0, 1};
    Dk__TokenizeRequest t = DK__TOKENIZE_REQUEST__INIT;
    Dk__SubmitRequest q = DK__SUBMIT_REQUEST__INIT;
    struct answer a;
    Dk__TokenizeReply *r;

    t.text = (char *)"ab";
    fx_call(&fx, &t, &a);
    r = FX_REPLY(&a, Dk__TokenizeReply);
    cr_assert_eq(r->n_ids, 2);
    cr_assert_arr_eq(r->ids, want, sizeof want);
    fx_clear(&a);
    q.prompt_case = DK__SUBMIT_REQUEST__PROMPT_MESSAGES_JSON;
    q.messages_json = (char *)"[{\"role\":\"user\",\"content\":\"abc\"}]";
    fx_submit(&fx, &q, &a);
    cr_assert_neq(FX_REPLY(&a, Dk__SubmitReply)->prompt_ids[0], FIRST);
    fx_clear(&a);
}

Test(prompt, tools_need_a_template_that_is_known)
{
    Dk__SubmitRequest q = DK__SUBMIT_REQUEST__INIT;
    struct answer a;

    q.prompt_case = DK__SUBMIT_REQUEST__PROMPT_MESSAGES_JSON;
    q.messages_json = (char *)"[{\"role\":\"user\",\"content\":\"abc\"}]";
    q.tools_json = (char *)"[{\"type\":\"function\",\"function\":{\"name\":\"a\"}}]";
    fx_submit(&fx, &q, &a);
    fx_assert_failed(&a, DK__CODE__UNIMPLEMENTED, "chat template");
    q.tools_json = (char *)"[]";
    fx_submit(&fx, &q, &a);
    cr_assert_geq(FX_REPLY(&a, Dk__SubmitReply)->n_prompt_ids, 1);
    fx_clear(&a);
}
